"""AssignedTasks and AssignedStreamsTasks with real tasks: the state of each task after each call, and the log lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.clients.log_context import TRACE, PrefixedLogger
from penstock.statestore.rows.rocksdb_store import RocksDBStore
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import TaskMigratedError
from penstock.topology.processor_api import Punctuation
from penstock.topology.records import TaskId, TopicPartition
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.tasks.assigned_streams_tasks import AssignedStreamsTasks
from penstock.workers.tasks.stream_task import StreamTask
from penstock.workers.tasks.task_state import TaskState
from penstock.workers.tasks.task_timeouts import TaskTimeouts
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import CHANGELOG, IN, OUT, counting
from tests.workers.thread_stage import Stage

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
IDS = [TaskId(0, 0), TaskId(0, 1)]
INPUT = {task_id: {TopicPartition(IN, task_id.partition)} for task_id in IDS}
LOGS = {task_id: TopicPartition(CHANGELOG, task_id.partition) for task_id in IDS}


class Bench:
    """A registry, with the creator of a thread."""

    def __init__(self, stage: Stage, topology: Any) -> None:
        self.thread = stage.thread(topology, {})
        log = PrefixedLogger("penstock.test", "")
        creator = self.thread.task_manager.active.creator
        self.registry = AssignedStreamsTasks(creator, TaskTimeouts(0, ManualClock(), log), log)

    def add(self, *task_ids: TaskId) -> list[StreamTask]:
        return self.registry.create_tasks({i: INPUT[i] for i in task_ids})

    def run(self) -> list[StreamTask]:
        """Bring two tasks to RUNNING."""
        tasks = self.add(*IDS)
        self.registry.initialize_new_tasks()
        self.registry.update_restored(set(LOGS.values()))
        return tasks


def stateless(function: Callable[[str, str], Any] = lambda key, value: None) -> Any:
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).foreach(function)
    return builder.build()


@pytest.fixture(autouse=True)
def topics(cluster: DirectKafka) -> None:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    cluster.create_topic(CHANGELOG, 2)


@pytest.fixture(autouse=True)
def all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(TRACE)


@pytest.fixture
def bench(stage: Stage) -> Bench:
    return Bench(stage, counting())


def states(*tasks: StreamTask) -> list[TaskState]:
    return [task.state for task in tasks]


def test_a_task_without_stores_runs_at_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(stage, stateless())
    (task,) = bench.add(IDS[0])
    assert bench.registry.uninitialized_partitions() == set()
    bench.registry.initialize_new_tasks()
    assert bench.registry.running == {IDS[0]: task}
    assert task.state is TaskState.RUNNING
    assert "Initializing stream tasks [0_0]" in caplog.messages
    assert "Transitioning stream task 0_0 to running" in caplog.messages


def test_a_task_with_stores_restores_first(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    first, second = bench.add(*IDS)
    registry = bench.registry
    assert registry.uninitialized_partitions() == INPUT[IDS[0]] | INPUT[IDS[1]]
    registry.initialize_new_tasks()
    assert registry.restoring == {IDS[0]: first, IDS[1]: second}
    assert not registry.all_tasks_running()
    assert "Transitioning stream task 0_1 to restoring" in caplog.messages
    registry.update_restored({LOGS[IDS[0]]})
    assert registry.running == {IDS[0]: first}
    assert registry.running_task_for(TopicPartition(IN, 0)) is registry.running_task_for(LOGS[IDS[0]]) is first
    assert (
        "Stream task 0_0 completed restoration as all its changelog partitions [app-counts-changelog-0] "
        "have been applied to restore state" in caplog.messages
    )
    assert (
        "Stream task 0_1 cannot resume processing yet since some of its changelog partitions have not completed "
        "restoring: [app-counts-changelog-1]" in caplog.messages
    )
    registry.update_restored({LOGS[IDS[1]]})
    assert registry.all_tasks_running()


def test_a_reopened_task_restores_again_while_others_still_restore(bench: Bench) -> None:
    bench.add(*IDS)
    registry = bench.registry
    registry.initialize_new_tasks()
    for _ in range(2):  # the reader names it while it is registered there
        registry.update_restored({LOGS[IDS[0]]})
    registry.close_dirty([IDS[0]])
    (again,) = bench.add(IDS[0])
    registry.initialize_new_tasks()
    registry.update_restored(())
    assert registry.restoring[IDS[0]] is again, "it would count on its cache, which the end of the restore drops"
    registry.update_restored({LOGS[IDS[0]]})
    assert registry.running == {IDS[0]: again}


def test_suspending_closes_tasks_that_do_not_run_yet(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    (running,) = bench.add(IDS[0])
    bench.registry.initialize_new_tasks()
    bench.registry.update_restored({LOGS[IDS[0]]})
    (restoring,) = bench.add(IDS[1])
    bench.registry.initialize_new_tasks()
    bench.registry.suspend()
    assert states(running, restoring) == [TaskState.SUSPENDED, TaskState.CLOSED]
    assert bench.registry.suspended == {IDS[0]: running}
    assert bench.registry.running_task_for(LOGS[IDS[0]]) is None
    for line in (
        "Suspending running stream task [0_0]",
        "Close restoring stream task [0_1]",
        "Close created stream task []",
    ):
        assert line in caplog.messages


def test_only_revoked_tasks_are_suspended(bench: Bench) -> None:
    stays, moves = bench.run()
    bench.registry.suspend({IDS[1]})
    assert states(stays, moves) == [TaskState.RUNNING, TaskState.SUSPENDED]
    assert bench.registry.running_task_for(LOGS[IDS[0]]) is stays
    assert bench.registry.running_task_for(LOGS[IDS[1]]) is None


def test_what_an_assignment_does_to_a_task_depends_on_its_state(bench: Bench) -> None:
    task, _ = bench.add(*IDS)
    registry, mine = bench.registry, {IDS[0]: INPUT[IDS[0]]}
    other = {IDS[0]: {TopicPartition(IN, 1)}}

    def steps() -> list[str]:
        """Return the step for the task if it stays, gets other partitions, becomes a standby task, or leaves."""
        found = (registry.next_steps(mine), registry.next_steps(other), registry.next_steps({}, mine))
        assert registry.leaving(mine) == {IDS[1]}
        return [each[IDS[0]].value for each in (*found, registry.next_steps({}))]

    assert states(task) == [TaskState.CREATED]
    assert steps() == ["keep", "close", "close", "close"]
    registry.initialize_new_tasks()
    assert states(task) == [TaskState.RESTORING]
    assert steps() == ["keep", "close", "close", "close"]
    registry.update_restored(set(LOGS.values()))
    assert states(task) == [TaskState.RUNNING]
    assert steps() == ["keep", "suspend", "suspend", "suspend"]
    registry.suspend()
    assert states(task) == [TaskState.SUSPENDED]
    assert steps() == ["resume", "close", "recycle", "close"]


def test_a_task_without_state_is_not_recycled(stage: Stage) -> None:
    bench = Bench(stage, stateless())
    (task,) = bench.add(IDS[0])
    bench.registry.initialize_new_tasks()
    bench.registry.suspend()
    bench.registry.close_non_assigned_suspended_tasks({}, {IDS[0]: INPUT[IDS[0]]})
    assert task.state is TaskState.CLOSED


def test_a_suspended_task_is_resumed_with_the_same_partitions(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    task, _ = bench.run()
    bench.registry.suspend()
    assert not bench.registry.maybe_resume_suspended_task(TaskId(0, 7), set())
    assert not bench.registry.maybe_resume_suspended_task(IDS[0], {TopicPartition("other", 0)})
    assert "couldn't resume task 0_0 assigned partitions [other-0], task partitions [in-0]" in caplog.messages
    assert bench.registry.maybe_resume_suspended_task(IDS[0], INPUT[IDS[0]])
    assert task.state is TaskState.RUNNING
    assert bench.registry.running == {IDS[0]: task}
    assert bench.registry.running_task_for(TopicPartition(IN, 0)) is task
    lines = [line for line in caplog.messages if "suspended stream task 0_0" in line]
    assert lines == ["found suspended stream task 0_0"] * 2 + ["resuming suspended stream task 0_0"]


def test_suspended_tasks_that_are_not_assigned_are_closed(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    stays, moves = bench.run()
    bench.registry.suspend()
    bench.registry.close_non_assigned_suspended_tasks({IDS[0]: INPUT[IDS[0]]})
    assert states(stays, moves) == [TaskState.SUSPENDED, TaskState.CLOSED]
    assert bench.registry.suspended == {IDS[0]: stays}
    assert "Closing suspended and not re-assigned stream task 0_1" in caplog.messages


def test_a_suspended_task_with_other_partitions_is_closed(bench: Bench) -> None:
    task, _ = bench.run()
    bench.registry.suspend()
    bench.registry.close_non_assigned_suspended_tasks({IDS[0]: INPUT[IDS[0]] | {TopicPartition("more", 0)}})
    assert task.state is TaskState.CLOSED


def boom(key: str, value: str) -> None:
    raise {"migrated": TaskMigratedError("fenced"), "broken": ValueError("broken")}[key]


def test_a_migrated_task_is_closed_as_a_zombie(
    stage: Stage, cluster: DirectKafka, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(stage, stateless(boom))
    zombie, other = bench.run()
    cluster.append(IN, 0, b"migrated", b"")
    zombie.add_records(TopicPartition(IN, 0), cluster.records(IN))
    with pytest.raises(TaskMigratedError) as raised:
        bench.registry.process(10)
    assert raised.value.task is zombie
    assert states(zombie, other) == [TaskState.CLOSED, TaskState.RUNNING]
    assert bench.registry.running == {IDS[1]: other}
    assert (
        "Failed to process stream task 0_0 since it got migrated to another thread already. "
        "Closing it as zombie before triggering a new rebalance." in caplog.messages
    )


def test_any_other_error_is_logged_and_raised(
    stage: Stage, cluster: DirectKafka, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(stage, stateless(boom))
    task, _ = bench.run()
    cluster.append(IN, 0, b"broken", b"")
    task.add_records(TopicPartition(IN, 0), cluster.records(IN))
    with pytest.raises(Exception, match="ValueError: broken"):
        bench.registry.process(10)
    assert "Failed to process stream task 0_0 due to the following error:" in caplog.messages
    assert task.state is TaskState.RUNNING


def test_tasks_with_nothing_to_do_are_left_alone(
    stage: Stage, cluster: DirectKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a few of a thousand tasks have records at a time. Polling each of them would take most of the time."""
    bench = Bench(stage, stateless())
    task, other = bench.run()
    asked: list[StreamTask] = []

    def noting(before: Callable[..., int]) -> Callable[..., int]:
        def note(task: StreamTask, *arguments: int) -> int:
            asked.append(task)
            return before(task, *arguments)

        return note

    for name in ("process", "maybe_punctuate_stream_time", "maybe_punctuate_system_time"):
        monkeypatch.setattr(StreamTask, name, noting(getattr(StreamTask, name)))
    cluster.append(IN, 0, b"k", b"v")
    task.add_records(TopicPartition(IN, 0), cluster.records(IN))
    assert bench.registry.process(10) == 1
    assert bench.registry.process(10) == bench.registry.punctuate() == 0
    assert asked == [task]
    other.schedule(1, Punctuation.WALL_CLOCK_TIME, lambda now: None)
    bench.registry.punctuate()
    assert asked == [task, other, other]


def test_every_running_task_is_processed_before_an_error_is_raised(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.run()
    seen = []

    def action(task: StreamTask) -> None:
        seen.append(task.task_id)
        raise ValueError(f"{task.task_id} is broken")

    with pytest.raises(ValueError, match="0_0 is broken"):
        bench.registry.apply_to_running_tasks(action)
    assert seen == IDS
    assert "Failed to commit stream task 0_1 due to the following error:" in caplog.messages


def test_a_task_is_closed_even_if_its_code_fails_to_close(stage: Stage) -> None:
    class Stubborn:
        def init(self, context: Any) -> None:
            pass

        def process(self, record: Any) -> None:
            pass

        def close(self) -> None:
            raise OSError("stubborn")

    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).process(Stubborn)  # type: ignore[arg-type]  # as duck types go
    bench = Bench(stage, builder.build())
    tasks = bench.run()
    with pytest.raises(Exception, match="stubborn"):
        bench.registry.suspend()
    assert states(*tasks) == [TaskState.CLOSED, TaskState.CLOSED]
    assert not bench.registry.all_tasks()


def test_tasks_are_committed_when_their_code_requests_it(
    stage: Stage, cluster: DirectKafka, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(stage, stateless())
    task, _ = bench.run()
    committed: list[StreamTask] = []
    commit = lambda tasks: committed.extend(tasks) or len(tasks)  # type: ignore[func-returns-value]  # noqa: E731
    task.request_commit()
    assert bench.registry.maybe_commit_per_user_requested(commit) == 0  # no offsets to commit
    cluster.append(IN, 0, b"k", b"v")
    task.add_records(TopicPartition(IN, 0), cluster.records(IN))
    bench.registry.process(10)
    assert bench.registry.maybe_commit_per_user_requested(commit) == 1
    assert committed == [task]
    assert "Committed active task 0_0 per user request in" in caplog.messages


def test_closing_empties_all_registries(bench: Bench) -> None:
    tasks = bench.run()
    bench.registry.close(clean=True)
    assert states(*tasks) == [TaskState.CLOSED, TaskState.CLOSED]
    assert not bench.registry.all_tasks()
    assert bench.registry.running_task_for(LOGS[IDS[0]]) is None


def test_the_description_lists_tasks_by_state(bench: Bench) -> None:
    bench.run()
    bench.registry.suspend({IDS[1]})
    text = bench.registry.describe()
    running, suspended = text.index("Running:"), text.index("Suspended:")
    assert running < text.index("TaskId: 0_0") < suspended < text.index("TaskId: 0_1") < text.index("New:")
    assert text.rstrip().endswith("Restoring:")


def test_a_store_that_another_thread_has_open_is_tried_again(
    bench: Bench, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    directory = stage.state_dir / "app" / "0_0" / "stores" / "counts"
    other = RocksDBStore(directory)
    (task,) = bench.add(IDS[0])
    bench.registry.initialize_new_tasks()
    assert bench.registry.created == {IDS[0]: task}
    assert "Could not create stream task 0_0 due to" in caplog.text
    other.close()
    bench.registry.initialize_new_tasks()
    assert bench.registry.restoring == {IDS[0]: task}
