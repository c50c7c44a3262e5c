"""Executes the supervisor's commands in a stream thread, and answers queries of its stores."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from penstock.statestore.directory.checkpoint import CHECKPOINT_FILE_NAME, OffsetCheckpoint
from penstock.statestore.directory.snapshot import checkpoint_stores
from penstock.statestore.stores.state_store import StateStore
from penstock.statestore.stores.store_iterator import has_rows
from penstock.statestore.view.store_view import summary
from penstock.topology.context.store_facades import for_readers
from penstock.topology.errors import InvalidStateStoreError, StateStoreTypeError, StreamsError
from penstock.topology.graph.topology import Topology
from penstock.topology.records import TaskId

from ..control.messages import (
    LIST_LAGS,
    LIST_STORES,
    READS,
    AnswerRequest,
    AskClientInstanceIds,
    Command,
    CommandResult,
    DescribeChangelog,
    DescribeColumns,
    DescribeTopology,
    EndHold,
    EndScan,
    HoldAtCommit,
    LimitInput,
    Measure,
    Pause,
    Query,
    ReadScan,
    ReadStore,
    ReleaseHost,
    Resume,
    ShowChanges,
    Shutdown,
    ShutDownApplication,
    TakeSnapshot,
    TaskResults,
    ThreadControl,
)
from ..control.stream_thread_state import StreamThreadState
from ..group.source_topics import BuiltTopologies
from ..group.topic_names import TopicNames
from ..queries.changelog_rows import changelog_view, rows_of_changes
from ..queries.state_query_answers import answer_request
from ..queries.store_reads import GLOBAL, StoreReader
from ..queries.topology_json import topology_json
from ..tasks.task import Task
from ..tasks.task_manager import TaskManager
from .thread_status import Measurement
from .thread_telemetry import ThreadTelemetry

if TYPE_CHECKING:
    from .stream_thread import StreamThread


T = TypeVar("T", bound=Task)

#: Reading methods; docs/state-stores.md describes them.
READ_METHODS = frozenset(
    (
        *("get", "range", "reverse_range", "all", "reverse_all", "prefix_scan", "approximate_num_entries"),
        *("fetch", "fetch_range", "fetch_keys", "fetch_all", "find_sessions", "fetch_session"),
        *("backward_fetch", "backward_fetch_range", "backward_fetch_keys", "backward_fetch_all", "backward_all"),
        *("backward_find_sessions", "get_versions"),
    )
)


@dataclass(frozen=True, slots=True)
class Answers:
    """Answers queries. reader: for queries with keys as text, e.g. over HTTP."""

    reader: StoreReader
    measurement: Measurement
    topology: Topology
    topologies: BuiltTopologies
    topics: TopicNames

    def describe_topology(self) -> bytes:
        """Return sub-topologies, nodes and stores as JSON."""
        return topology_json(self.topology, self.topologies, self.topics)


class ThreadCommands:
    """Polled once in each iteration, so that a command takes effect between two batches, never within one.

    Reads need no iteration: they are answered also while the thread waits for records.
    """

    def __init__(
        self, control: ThreadControl, thread: StreamThread, answers: Answers, telemetry: ThreadTelemetry
    ) -> None:
        self._telemetry = telemetry
        self._control = control
        self._thread = thread
        self._answers = answers
        self._waiting: deque[Command] = deque()

    def poll(self) -> None:
        """Execute the commands that have arrived."""
        self._waiting += self._control.poll_commands()
        while self._waiting:
            self._carry_out(self._waiting.popleft())
        self._answers.reader.scans.end_unread()

    def answer_reads(self) -> bool:
        """Answer the reads that have arrived. Returns False if another command waits for poll(), and all after it."""
        self._waiting += self._control.poll_commands()
        while self._waiting and isinstance(self._waiting[0], READS):
            self._carry_out(self._waiting.popleft())
        return not self._waiting

    def _carry_out(self, command: Command) -> None:
        match command:
            case Shutdown():
                self._thread.shutdown(command.leave_group)
            case Pause():
                self._thread.paused = True
            case Resume():
                self._thread.paused = False
            case ShutDownApplication():
                self._thread.group.request_application_shutdown()
            case ReleaseHost():
                self._thread.group.release_host(command.endpoint)
            case Query():
                self._control.report(answer(command, self._answers.reader, self._is_settled()))
            case Measure():
                self._control.report(CommandResult(command.id, self._answers.measurement.groups()))
            case ReadStore():
                self._control.report(CommandResult(command.id, self._answers.reader.read(command)))
            case DescribeColumns() | ReadScan():
                self._control.report(answer_scan(command, self._answers.reader))
            case EndScan():
                self._answers.reader.scans.end(command.scan)
                self._control.report(CommandResult(command.id))
            case DescribeChangelog():
                found = answered(command.id, lambda: changelog_view(command, self._answers.reader))
                self._control.report(found)
            case ShowChanges():
                found = answered(command.id, lambda: rows_of_changes(command, self._answers.reader))
                self._control.report(found)
            case AnswerRequest():
                self._control.report(answer_query(command, self._answers.reader))
            case TakeSnapshot():
                self._control.report(take(command, self._thread.task_manager))
            case AskClientInstanceIds():
                self._telemetry.ask(command)
            case DescribeTopology():
                self._control.report(CommandResult(command.id, self._answers.describe_topology()))
            case HoldAtCommit():
                self._hold(command)
            case EndHold():
                self._control.report(self._thread.hold.end(command))
            case LimitInput():
                self._control.report(self._thread.input_limit.begin(command))

    def _hold(self, command: HoldAtCommit) -> None:
        """Begin a hold. An error of the commit is the answer, and the thread's own error."""
        try:
            self._control.report(self._thread.hold.begin(command, self._is_settled()))
        except StreamsError as error:
            self._control.report(CommandResult(command.id, error=str(error)))
            raise

    def _is_settled(self) -> bool:
        """Return True if this thread has all of its tasks, and no further one is about to be assigned."""
        return self._thread.state is StreamThreadState.RUNNING and not self._thread.group.rebalance_in_progress


def answer(query: Query, reader: StoreReader, is_settled: bool = True) -> CommandResult:
    """Return the result of every task here that has the store and may answer: a dict by task id, iterators as lists.

    A global store is that of a task "global". Failures become the result's error: a task that is still restoring, an
    unknown method or store. is_settled: False during a rebalance: this thread may be about to get tasks that no
    thread has at the moment, so an answer could lack their rows.
    """
    try:
        return CommandResult(query.id, _results(query, reader, is_settled))
    except StreamsError as error:
        return CommandResult(query.id, error=str(error), kind=type(error))
    except Exception as error:  # noqa: BLE001  whatever it is, it is the asker's, not this thread's
        return CommandResult(query.id, error=f"{type(error).__name__}: {error}")


def answer_query(command: AnswerRequest, reader: StoreReader) -> CommandResult:
    """Return the answers of the tasks here; see state_query_answers.py."""
    return answered(command.id, lambda: answer_request(command.request, reader, command.rows_max))


def answered(command_id: int, answer: Callable[[], object]) -> CommandResult:
    """Return the result of a function, or its StreamsError, which is that of the request itself."""
    try:
        return CommandResult(command_id, answer())
    except StreamsError as error:
        return CommandResult(command_id, error=str(error), kind=type(error))


def answer_scan(command: DescribeColumns | ReadScan, reader: StoreReader) -> CommandResult:
    """Return the columns of a store, or the next rows of a scan; see store_scans.py. Failures end the scan."""
    try:
        if isinstance(command, DescribeColumns):
            return CommandResult(command.id, reader.columns(command.store))
        return CommandResult(command.id, reader.scans.read(command))
    except StreamsError as error:
        return CommandResult(command.id, error=str(error), kind=type(error))
    except Exception as error:  # noqa: BLE001  a user's serde may raise anything
        return CommandResult(command.id, error=f"{type(error).__name__}: {error}")


def _results(query: Query, reader: StoreReader, is_settled: bool) -> dict[str, object]:
    task_manager = reader.task_manager
    if query.method == LIST_STORES:
        return _all_stores(task_manager)
    if query.method == LIST_LAGS:
        return {
            str(task.task_id): reader.changelog_reader.positions(task) for task in task_manager.all_tasks().values()
        }
    found = TaskResults()
    if reader.is_global(query.store):
        position = reader.global_state.position(query.store)
        found.add(GLOBAL, _read(query, reader.global_state.task.stores[query.store]), position)
        return found
    reader.check_partition(query.store, query.partition)
    tasks = _stale_tasks(query, task_manager) if query.stale else _current_tasks(query, task_manager, is_settled)
    for task_id, task in tasks.items():
        store = reader.isolated(task.state_manager.stores[query.store], query.isolation)
        found.add(str(task_id), _read(query, store), reader.position(task, query.store, query.isolation))
    return found


def _current_tasks(query: Query, task_manager: TaskManager, is_settled: bool) -> Mapping[TaskId, Task]:
    """Return the active tasks with the store; raises InvalidStateStoreError unless all tasks run and no further one is
    pending.
    """
    active = task_manager.active
    asked = _asked(query, active.all_tasks())
    waiting = [task_id for task_id in asked if task_id not in active.running]
    if waiting:
        raise InvalidStateStoreError(
            f"The state store {query.store} is not readable yet: task {waiting[0]} is still restoring; try again"
        )
    if not is_settled and not (asked and query.partition is not None):
        raise InvalidStateStoreError(
            f"The tasks of the store {query.store} may be moving: the group rebalances; try again"
        )
    return asked


def _stale_tasks(query: Query, task_manager: TaskManager) -> dict[TaskId, Task]:
    """Return the active and standby tasks that have opened the store (Kafka: StreamThread.readyOnlyAllTasks)."""
    asked = _asked(query, task_manager.all_tasks())
    return {task_id: task for task_id, task in asked.items() if query.store in task.state_manager.stores}


def _asked(query: Query, tasks: Mapping[TaskId, T]) -> dict[TaskId, T]:
    return {
        task_id: task
        for task_id, task in tasks.items()
        if query.store in task.topology.stores and query.partition in (None, task_id.partition)
    }


def _read(query: Query, store: StateStore) -> object:
    reads = store.own_reads or READ_METHODS
    if query.method not in READ_METHODS and not store.own_reads:
        raise StateStoreTypeError(f"{query.method} does not read a store; use one of {', '.join(sorted(READ_METHODS))}")
    exposed = for_readers(store.exposed)
    read = getattr(exposed, query.method, None) if query.method in reads else None
    if read is None:
        has = ", ".join(sorted(method for method in reads if hasattr(exposed, method)))
        raise StateStoreTypeError(
            f"{query.store} is a {store.builder.kind.value} store, which has no method {query.method}; it has {has}"
        )
    try:
        inspect.signature(read).bind(*query.arguments)
    except TypeError as error:
        raise StateStoreTypeError(f"{query.method} of {query.store}: {error}") from error
    found = read(*query.arguments)
    return list(found) if has_rows(found) else found


def _all_stores(task_manager: TaskManager) -> dict[str, object]:
    """Return summaries of the stores of each task here; only the name for a store that is not open yet."""
    return {
        f"{kind}:{task_id}": [
            {
                **(summary(opened[name]) if (opened := task.state_manager.stores).get(name) else {"store": name}),
                "task_id": str(task_id),
                "task_state": task.state.name,
                "task_kind": kind,
            }
            for name in sorted(task.topology.stores)
        ]
        for kind, tasks in (("active", task_manager.active), ("standby", task_manager.standby))
        for task_id, task in tasks.all_tasks().items()
    }


def take(command: TakeSnapshot, task_manager: TaskManager) -> CommandResult:
    """Return the changelog offsets, by store by task, of all tasks here with open stores, or the error.

    Errors are returned, not raised, because the stores are only read.
    """
    try:
        return CommandResult(command.id, _offsets(Path(command.directory), task_manager))
    except Exception as error:  # noqa: BLE001  reported; processing continues
        return CommandResult(command.id, error=f"{type(error).__name__}: {error}")


def _offsets(directory: Path, task_manager: TaskManager) -> dict[str, dict[str, int | None]]:
    taken = {}
    for task_id, task in task_manager.all_tasks().items():
        manager, target = task.state_manager, directory / str(task_id)
        offsets = checkpoint_stores(manager.stores, target)
        if offsets:
            known = {p: at for p, name in manager.changelogs.items() if (at := offsets.get(name)) is not None}
            OffsetCheckpoint(target / CHECKPOINT_FILE_NAME).write(known)
            taken[str(task_id)] = offsets
    return taken
