"""Stream threads against a real broker: counts, commits, restarts and restores, with both group protocols."""

from __future__ import annotations

import logging
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.control.messages import Command, Failed, Report, Shutdown, StateChanged, Status, ThreadSpec
from penstock.workers.thread.stream_thread import StreamThread
from tests.clients.group_settings import configure_streams_group
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS
from tests.workers.counting import counting_topics

pytestmark = pytest.mark.broker

MakeTopic = Callable[..., str]
PARTITIONS = 3
KEYS = 10


class Runner:
    """A stream thread that runs in the background of the test."""

    def __init__(self, topology: Any, spec: ThreadSpec) -> None:
        self.reports: SimpleQueue[Report] = SimpleQueue()
        self.commands: list[Command] = []
        self.processed = 0
        self.restored = 0
        self.state = "CREATED"
        self.running_tasks: set[str] = set()
        self.active_tasks: set[str] = set()
        self.thread = StreamThread.create(topology, spec, self)
        self._runs = threading.Thread(target=self._run, name=self.thread.name)
        self._runs.start()

    def _run(self) -> None:
        try:
            self.thread.run()
        except Exception:  # noqa: BLE001  reported as Failed, which until() raises
            return

    def poll_commands(self) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def watched_by(self, watch: Callable[[int], None]) -> None:
        pass

    def report(self, report: Report) -> None:
        self.reports.put(report)

    def until(self, condition: Callable[[], bool]) -> Runner:
        """Handle reports until the condition holds."""
        while not condition():
            try:
                report = self.reports.get(timeout=PATIENCE_SECONDS)
            except Empty:
                raise AssertionError(f"not reached in {PATIENCE_SECONDS} s: {self.state}, {self.processed}") from None
            match report:
                case StateChanged():
                    self.state = report.new
                case Status():
                    self.processed = report.records_processed
                    running = [task for task in report.tasks if task.state == "RUNNING"]
                    self.running_tasks = {task.task_id for task in running}
                    self.active_tasks = {task.task_id for task in running if task.kind == "active"}
                case Failed():
                    raise AssertionError(report.traceback)
        return self

    def stop(self) -> Runner:
        """Shut down and wait for the thread to end."""
        self.commands.append(Shutdown(leave_group=True))
        self._runs.join(PATIENCE_SECONDS)
        assert not self._runs.is_alive()
        return self

    @property
    def total_restored(self) -> int:
        return self.thread.changelog_reader.total_restored


class Case:
    """The topics of one application, the written records and the expected counts."""

    def __init__(
        self, bootstrap: str, application_id: str, make_topic: MakeTopic, state_dir: Path, protocol: str
    ) -> None:
        self.bootstrap = bootstrap
        self.protocol = protocol
        self.application_id = application_id
        self.state_dir = state_dir
        self.input = make_topic("in", partitions=PARTITIONS)
        self.output = make_topic("out")
        self.runners: list[Runner] = []
        self.expected: dict[str, int] = {}
        # Idempotent: the broker may restart, which must not give it a record twice.
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})

    def feed(self, records: int) -> None:
        """Write records with KEYS different keys, and wait until the broker has them."""
        for number in range(records):
            key = f"k{number % KEYS}"
            self._producer.produce(self.input, b"v", key.encode(), number % PARTITIONS, timestamp=1000 + number)
            name = f"{key}-{number % PARTITIONS}"
            self.expected[name] = self.expected.get(name, 0) + 1
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def start(self, slot: int = 1, **config: Any) -> Runner:
        settings = {
            "application.id": self.application_id,
            "bootstrap.servers": self.bootstrap,
            "state.dir": str(self.state_dir),
            "commit.interval.ms": 200,
            "penstock.worker.beat.interval.ms": 50,
            "group.protocol": self.protocol,
            "heartbeat.interval.ms": 200,
            "consumer.fetch.wait.max.ms": 50,
            **{name.replace("_", "."): value for name, value in config.items()},
        }
        topology = counting_topics(self.input, self.output)
        self.runners.append(Runner(topology, ThreadSpec(slot, "test", str(uuid4()), 2, StreamsConfig(settings))))
        return self.runners[-1]

    def changelog(self) -> dict[str, int]:
        """Return the newest count of each key and partition in the changelog."""
        topic = f"{self.application_id}-counts-changelog"
        return {
            f"{(message.key() or b'').decode()}-{message.partition()}": struct.unpack(">q", message.value() or b"")[0]
            for message in read_to_end(self.bootstrap, topic)
        }


@pytest.fixture(params=["classic", "streams"])
def case(
    request: pytest.FixtureRequest, bootstrap_servers: str, application_id: str, make_topic: MakeTopic, tmp_path: Path
) -> Iterator[Case]:
    if request.param == "streams":
        configure_streams_group(bootstrap_servers, application_id)
    made = Case(bootstrap_servers, application_id, make_topic, tmp_path, request.param)
    yield made
    for runner in made.runners:
        runner.stop()


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_counts_survive_a_restart_and_the_loss_of_the_disk(case: Case, guarantee: str) -> None:
    case.feed(300)
    first = case.start(processing_guarantee=guarantee)
    first.until(lambda: first.processed == 300).stop()
    assert case.changelog() == case.expected

    case.feed(30)
    second = case.start(processing_guarantee=guarantee)
    second.until(lambda: second.processed == 30).stop()
    # Its RocksDB has all of the changelog. The end of a transaction is visible a little after its commit; with
    # exactly-once the last one may therefore be read again.
    assert second.total_restored <= (0 if guarantee == "at_least_once" else KEYS * PARTITIONS)
    assert case.changelog() == case.expected

    shutil.rmtree(case.state_dir / case.application_id)
    case.feed(30)
    third = case.start(processing_guarantee=guarantee)
    third.until(lambda: third.processed == 30).stop()
    assert third.total_restored >= KEYS
    assert case.changelog() == case.expected


def test_two_threads_share_the_tasks_and_lose_nothing(case: Case) -> None:
    case.feed(300)
    first = case.start()
    first.until(lambda: first.processed == 300)
    second = case.start(slot=2)
    second.until(lambda: second.state == "RUNNING" and bool(second.running_tasks))
    first.until(lambda: first.state == "RUNNING" and len(first.running_tasks) < PARTITIONS)
    case.feed(300)
    taken_over = second.running_tasks
    assert 0 < len(taken_over) < PARTITIONS
    second.until(lambda: second.processed >= 100)
    second.stop()
    first.until(lambda: len(first.running_tasks) == PARTITIONS)
    case.feed(60)
    # The last report does not include what second processed afterwards; the changelog does.
    first.until(lambda: case.changelog() == case.expected).stop()


def shares_all_tasks(runner: Runner) -> bool:
    """Check that each task runs in this thread, some as active and some as standby tasks."""
    return len(runner.running_tasks) == PARTITIONS and 0 < len(runner.active_tasks) < PARTITIONS


def test_standby_tasks_follow_on_another_disk_and_take_over(
    case: Case, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "penstock.workers")
    if case.protocol == "streams":
        configure_streams_group(case.bootstrap, case.application_id, num_standby_replicas=1)
    case.feed(300)
    first = case.start(state_dir=str(tmp_path / "a"), num_standby_replicas=1)
    first.until(lambda: first.processed == 300)
    second = case.start(slot=2, state_dir=str(tmp_path / "b"), num_standby_replicas=1)
    second.until(lambda: shares_all_tasks(second))
    first.until(lambda: shares_all_tasks(first))
    case.feed(30)
    first.until(lambda: first.processed + second.processed >= 330 - 10 * len(second.active_tasks))
    caplog.clear()
    promoted = set(first.active_tasks)
    first.stop()
    second.until(lambda: len(second.active_tasks) == PARTITIONS)
    opened = {task for task in promoted if f"Recycling suspended standby task {task}" in caplog.text}
    assert opened == promoted, "a standby's stores go to the active task open"
    case.feed(30)
    second.until(lambda: first.processed + second.processed >= 360).stop()
    assert case.changelog() == case.expected


def test_the_error_names_a_missing_input_topic(case: Case) -> None:
    case.input = "no-such-topic"
    runner = case.start()
    with pytest.raises(AssertionError, match=r"MissingSourceTopicError: .*no-such-topic"):
        runner.until(lambda: runner.state == "DEAD")
