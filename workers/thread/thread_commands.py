"""Executes the supervisor's commands in a stream thread, and answers queries of its stores."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.statestore.directory.checkpoint import CHECKPOINT_FILE_NAME, OffsetCheckpoint
from penstock.statestore.directory.snapshot import checkpoint_stores
from penstock.statestore.stores.store_iterator import has_rows
from penstock.statestore.view.store_view import summary
from penstock.topology.errors import InvalidStateStoreError, StreamsError
from penstock.topology.graph.topology import Topology

from ..control.messages import (
    LIST_STORES,
    Command,
    DescribeTopology,
    Measure,
    Pause,
    Query,
    QueryResult,
    ReadStore,
    ReleaseHost,
    Resume,
    Shutdown,
    ShutDownApplication,
    TakeSnapshot,
    ThreadControl,
)
from ..group.source_topics import BuiltTopologies
from ..group.topic_names import TopicNames
from ..queries.store_reads import StoreReader
from ..queries.topology_json import topology_json
from ..tasks.task_manager import TaskManager
from .thread_status import Measurement

if TYPE_CHECKING:
    from .stream_thread import StreamThread


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
    """Polled once in each iteration, so that a command takes effect between two batches, never within one."""

    def __init__(self, control: ThreadControl, thread: StreamThread, answers: Answers) -> None:
        self._control = control
        self._thread = thread
        self._answers = answers

    def poll(self) -> None:
        """Execute the commands that have arrived."""
        for command in self._control.poll_commands():
            self._carry_out(command)

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
                self._control.report(answer(command, self._thread.task_manager))
            case Measure():
                self._control.report(QueryResult(command.id, self._answers.measurement.groups()))
            case ReadStore():
                self._control.report(QueryResult(command.id, self._answers.reader.read(command)))
            case TakeSnapshot():
                self._control.report(take(command, self._thread.task_manager))
            case DescribeTopology():
                self._control.report(QueryResult(command.id, self._answers.describe_topology()))


def answer(query: Query, task_manager: TaskManager) -> QueryResult:
    """Return the result of every active task here that has the store: a dict by task id, rows of iterators as lists.

    Failures become the result's error: a task that is still restoring, an unknown method or store.
    """
    try:
        return QueryResult(query.id, _results(query, task_manager))
    except StreamsError as error:
        return QueryResult(query.id, error=str(error))
    except Exception as error:  # noqa: BLE001  whatever it is, it is the asker's, not this thread's
        return QueryResult(query.id, error=f"{type(error).__name__}: {error}")


def _results(query: Query, task_manager: TaskManager) -> dict[str, Any]:
    if query.method == LIST_STORES:
        return _all_stores(task_manager)
    if query.method not in READ_METHODS:
        raise InvalidStateStoreError(
            f"{query.method} does not read a store; use one of {', '.join(sorted(READ_METHODS))}"
        )
    active = task_manager.active
    waiting = [
        i for i, task in active.all_tasks().items() if i not in active.running and query.store in task.topology.stores
    ]
    if waiting:
        raise InvalidStateStoreError(
            f"The state store {query.store} is not readable yet: task {waiting[0]} is still restoring; try again"
        )
    stores = {
        i: t.state_manager.stores[query.store]
        for i, t in active.running.items()
        if query.store in t.state_manager.stores
    }
    return {str(task_id): _plain(getattr(store, query.method)(*query.arguments)) for task_id, store in stores.items()}


def _all_stores(task_manager: TaskManager) -> dict[str, Any]:
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


def _plain(value: Any) -> Any:
    return list(value) if has_rows(value) else value


def take(command: TakeSnapshot, task_manager: TaskManager) -> QueryResult:
    """Return the changelog offsets, by store by task, of all tasks here with open stores, or the error.

    Errors are returned, not raised, because the stores are only read.
    """
    try:
        return QueryResult(command.id, _offsets(Path(command.directory), task_manager))
    except Exception as error:  # noqa: BLE001  reported; processing continues
        return QueryResult(command.id, error=f"{type(error).__name__}: {error}")


def _offsets(directory: Path, task_manager: TaskManager) -> dict[str, dict[str, int | None]]:
    taken = {}
    for task_id, task in (task_manager.active.all_tasks() | task_manager.standby.all_tasks()).items():
        manager, target = task.state_manager, directory / str(task_id)
        offsets = checkpoint_stores(manager.stores, target)
        if offsets:
            known = {p: at for p, name in manager.changelogs.items() if (at := offsets.get(name)) is not None}
            OffsetCheckpoint(target / CHECKPOINT_FILE_NAME).write(known)
            taken[str(task_id)] = offsets
    return taken
