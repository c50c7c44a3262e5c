"""Messages between a stream thread and its supervisor, as plain values: they are pickled and sent through a pipe.

The stream thread sees only ThreadControl. supervisor/processes/worker_process.py implements it over a duplex pipe,
tests in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, TypeVar

from typing_extensions import override

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import EventLoopError, StreamsError
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position, merged
from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.records import RawRecord, TopicPartition


@dataclass(frozen=True, slots=True)
class Shutdown:
    """Command: change to PENDING_SHUTDOWN. leave_group: leave the group (scale-down) or keep the static membership."""

    leave_group: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Command: stop processing, stay in the group (KIP-834)."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Command: resume processing."""


@dataclass(frozen=True, slots=True)
class ShutDownApplication:
    """Command: request all members of the group, on all hosts, to shut down (KIP-671), including this thread."""


@dataclass(frozen=True, slots=True)
class ReleaseHost:
    """Command: release the tasks of a lost host. endpoint: its application.server, as host:port."""

    endpoint: str


@dataclass(frozen=True, slots=True)
class Query:
    """Command: read a state store; the answer is a CommandResult with the same id.

    partition: of this task only. stale: also of standby tasks, and of active ones that are restored. isolation: None
    for the default of the configuration.
    """

    id: int
    store: str
    method: str
    arguments: tuple[object, ...] = ()
    partition: int | None = None
    stale: bool = False
    isolation: IsolationLevel | None = None


class TaskResults(dict[str, Any]):
    """The results of a read by task id; that of a global store is of a task "global".

    positions: by task id, of the rows in the task's input (KIP-796); None for a task that does not know: a
    standby task, and one that is being restored.
    """

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[str, Position | None] = {}

    def add(self, task: str, result: object, position: Position | None) -> None:
        """Add the result of a task."""
        self[task] = result
        self.positions[task] = position

    def include(self, others: TaskResults) -> None:
        """Add the results of another process."""
        self.update(others)
        self.positions.update(others.positions)

    @property
    def position(self) -> Position | None:
        """The positions of all tasks as one; None if one of them is not known."""
        return merged(self.positions.values())


class LagInfo(NamedTuple):
    """The position of a task's store in its changelog (Kafka Streams: LagInfo).

    current_offset: the next to read. end_offset: of the changelog, as of its last fetch. Of a task that processes
    records, both are the offset of its last commit or restore.
    """

    current_offset: int
    end_offset: int

    @property
    def offset_lag(self) -> int:
        """The number of offsets left to read."""
        return max(self.end_offset - self.current_offset, 0)


@dataclass(frozen=True, slots=True)
class Measure:
    """Command: read all metrics; the answer is a CommandResult with the same id, its value a tuple of MetricGroups."""

    id: int


@dataclass(frozen=True, slots=True)
class DescribeTopology:
    """Command: describe the running topology. The answer is a CommandResult with JSON: see topology_json.py."""

    id: int


@dataclass(frozen=True, slots=True)
class ReadStore:
    """Command: read a state store by keys in text form; the answer is a CommandResult: see store_reads.py.

    key: one key; without it the keys from key_from to key_to, or those that begin with prefix. time_from, time_to: in
    ms, for window starts or sessions; time_to is also the time as of which a versioned store is read. partition: the
    key's partition, if Kafka's partitioner did not choose it. max_lag: a standby task may answer if it is at most this
    many records behind. everywhere: search the key in all tasks, because its writer may not have used Kafka's
    partitioner. after: the page of a partition's range: "" for the first page, otherwise the end of the previous one.
    isolation: None for the default of the configuration. at_least: the position that the rows must have reached.

    columns: a schema of Arrow, as bytes. With it no rows are returned: a scan is opened, which ReadScan reads; scan is
    its number. It reads a range of all tasks, without limit, reverse, max_lag, everywhere and after.

    changelog: the answer needs the offset in the changelog that the rows are as of; only with READ_COMMITTED.
    """

    id: int
    store: str
    key: str | None = None
    key_from: str | None = None
    key_to: str | None = None
    prefix: str | None = None
    time_from: int | None = None
    time_to: int | None = None
    limit: int = 100
    reverse: bool = False
    partition: int | None = None
    max_lag: int | None = None
    everywhere: bool = False
    after: str | None = None
    isolation: IsolationLevel | None = None
    at_least: Position = field(default_factory=Position)
    columns: bytes | None = None
    scan: int = 0
    changelog: bool = False

    @override
    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments, in half the time of a dataclass, because reads are many."""
        return type(self), (self.id, *_FIELDS_BUT_ID[ReadStore](self))


@dataclass(frozen=True, slots=True)
class DescribeColumns:
    """Command: describe the columns of a state store; the answer is a CommandResult with a ColumnsRead, None without a
    running task of the store.
    """

    id: int
    store: str


@dataclass(frozen=True, slots=True)
class ReadScan:
    """Command: read the next rows of an open scan; the answer is a CommandResult with a ScanRead.

    reader: the process to answer, of a global store, which all have; None: all that have rows. The value is None in
    another process.
    """

    id: int
    scan: int
    reader: int | None = None


@dataclass(frozen=True, slots=True)
class EndScan:
    """Command: close a scan, if it is open; the answer is a CommandResult."""

    id: int
    scan: int


@dataclass(frozen=True, slots=True)
class DescribeChangelog:
    """Command: describe the changelog of a store, and what a subscriber of its changes requests.

    key, prefix, partition: as in ReadStore. rows: whether the store's rows will be read first. The answer is a
    CommandResult with a ChangelogView, or an error: see changelog_rows.py.
    """

    id: int
    store: str
    key: str | None = None
    prefix: str | None = None
    partition: int | None = None
    rows: bool = True


@dataclass(frozen=True, slots=True)
class ShowChanges:
    """Command: return records of a store's changelog as rows of JSON, in a CommandResult: see changelog_rows.py."""

    id: int
    store: str
    records: tuple[RawRecord, ...]


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """Command: answer a request of interactive queries v2; the answer is a CommandResult with QueryResults by
    partition.

    rows_max: of a request in text form, whose keys are text, and whose results are JSON with at most so many rows; see
    state_query_text.py.
    """

    id: int
    request: StateQueryRequest
    rows_max: int | None = None


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Command: copy all stores on disk into a directory; the answer is a CommandResult: see thread_commands.py."""

    id: int
    directory: str


@dataclass(frozen=True, slots=True)
class AskClientInstanceIds:
    """Command: ask for the ids that brokers have given to the thread's clients (KIP-714).

    timeout_ms: how long the thread may wait for brokers. The answer is a CommandResult: a UUID by client id, without
    clients that push no metrics, or an error.
    """

    id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class HoldAtCommit:
    """Command: commit all tasks, then process and commit nothing until EndHold; see commit_hold.py.

    hold: a number that EndHold repeats. limit_ms: the thread continues by itself after this time. The answer is a
    CommandResult with a HeldTasks, or an error: then the thread does not hold.
    """

    id: int
    hold: int
    limit_ms: int


@dataclass(frozen=True, slots=True)
class EndHold:
    """Command: end a hold. The answer is a CommandResult: None, or why the tasks may have changed during the hold."""

    id: int
    hold: int


@dataclass(frozen=True, slots=True)
class LimitInput:
    """Command: read no further than these offsets; see input_limit.py. It replaces an earlier one.

    limit_ms: the thread continues by itself after this time. The answer is a CommandResult.
    """

    id: int
    offsets: Mapping[TopicPartition, int]
    limit_ms: int


#: The method of a Query for summaries of all stores, whatever its store.
LIST_STORES = "view_stores"
#: The method of a Query for the positions in the changelogs of all stores, by task; see StoreChangelogReader.positions.
LIST_LAGS = "changelog_lags"

Command = (
    Shutdown
    | Pause
    | Resume
    | ShutDownApplication
    | ReleaseHost
    | Query
    | Measure
    | DescribeTopology
    | ReadStore
    | DescribeColumns
    | ReadScan
    | EndScan
    | DescribeChangelog
    | ShowChanges
    | AnswerRequest
    | TakeSnapshot
    | AskClientInstanceIds
    | HoldAtCommit
    | EndHold
    | LimitInput
)

T = TypeVar("T", Query, ReadStore)
_FIELDS_BUT_ID: Mapping[type, Callable[[Any], tuple[Any, ...]]] = {
    kind: attrgetter(*[each.name for each in fields(kind)][1:]) for kind in (Query, ReadStore)
}


def numbered(command: T, number: int) -> T:
    """Return a copy of a command with this id: dataclasses.replace, at a fifth of its cost, because reads are many."""
    return type(command)(number, *_FIELDS_BUT_ID[type(command)](command))


#: Commands that change nothing.
READS = (Query, ReadStore, DescribeColumns, ReadScan, DescribeChangelog, ShowChanges, AnswerRequest)


@dataclass(frozen=True, slots=True)
class TopologyTopics:
    """The topics of one sub-topology, by their full names. repartition: the internal ones of sources.

    changelogs: without source topics that serve as such. sinks: the user topics with fixed names. outside: the names of
    sinks outside of Kafka.
    """

    sources: tuple[str, ...]
    repartition: tuple[str, ...]
    changelogs: tuple[str, ...]
    sinks: tuple[str, ...]
    outside: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """The active tasks of a thread that holds, and the topics of all sub-topologies by number."""

    tasks: tuple[str, ...]
    topics: Mapping[int, TopologyTopics]


@dataclass(frozen=True, slots=True)
class StateChanged:
    """Report: the stream thread's state changed (names of StreamThreadState)."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """A sink outside of Kafka of one task.

    name: of its node. waiting: records that are not written yet, of those that the task has processed. batch_ms: the
    mean duration of its latest transactions. retries: attempts that repeat a failed one, since the task runs here.
    """

    name: str
    waiting: int
    rows_per_second: float
    batch_ms: float
    retries: int


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """The checkpoints of one task in object storage.

    age_seconds: since the last upload, or since the task runs here; None for a task that does not process. uploads,
    failures: how many here. bytes, upload_seconds: of the last one. loading_bytes: how much has arrived of the
    checkpoint that is being loaded, None if none is; loading_total_bytes: of it, 0 while it is looked for.
    """

    age_seconds: float | None = None
    uploads: int = 0
    bytes: int = 0
    upload_seconds: float = 0.0
    failures: int = 0
    loading_bytes: int | None = None
    loading_total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """The status of one task.

    lags: unprocessed records of each input partition, on the broker and in the task; None while unknown. buffered: how
    many of them are buffered in the task. waiting: records that wait for async functions, batches and sinks.
    end_offsets: of each input partition, as of its last fetch; None before the first. checkpoint: None if
    none is taken or loaded here.
    """

    task_id: str
    kind: str  # "active" or "standby"
    state: str
    restore_remaining: int = 0
    restore_total: int = 0
    restore_rate: float = 0.0  # records per second, of the last seconds; a standby task's updates
    lags: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    buffered: int = 0
    waiting: int = 0
    end_offsets: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    sinks: tuple[SinkStatus, ...] = ()
    checkpoint: CheckpointStatus | None = None

    @property
    def restore_eta_seconds(self) -> float | None:
        """How long the restore will take at this rate; None if nothing remains, or at rate 0."""
        return self.restore_remaining / self.restore_rate if self.restore_remaining and self.restore_rate else None


@dataclass(frozen=True, slots=True)
class Status:
    """Report: the liveness beat, sent by the loop itself. Totals count from the start of the process.

    lag: unprocessed records, on the broker and in the tasks' buffers. waits: what the thread and its Kafka
    clients wait for, as texts.
    """

    state: str
    tasks: tuple[TaskStatus, ...] = ()
    records_processed: int = 0
    lag: int = 0
    restore_rate: float = 0.0  # records per second
    metrics: dict[str, float] = field(default_factory=dict)
    waits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Report: the answer to a command that has an id.

    error: None, or what went wrong; kind: the exception to raise for it.
    """

    id: int
    value: Any = None
    error: str | None = None
    kind: type[StreamsError] = StreamsError

    @override
    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments; see ReadStore. To find a class takes as long as a row."""
        return type(self), (self.id, self.value) if self.error is None else (self.id, self.value, self.error, self.kind)


@dataclass(frozen=True, slots=True)
class Failed:
    """Report: the stream thread dies of this exception. traceback is text; kind is the exception's class name.

    logged: the stream thread has written the traceback to the log already. replaces_process: no record is at fault, so
    the process is replaced without a question to the uncaught exception handler.
    """

    kind: str
    message: str
    traceback: str
    logged: bool = False
    replaces_process: bool = False

    @classmethod
    def of(cls, error: BaseException, traceback: str, *, logged: bool = False) -> Failed:
        """Return the report of an exception; its notes about the place are part of the message."""
        texts = [str(error), *getattr(error, "__notes__", ())]
        message = ": ".join(filter(None, texts))
        return cls(type(error).__name__, message, traceback, logged, isinstance(error, EventLoopError))


@dataclass(frozen=True, slots=True)
class ListenerCall:
    """Report: call a method of the user's "restore" or "standby" listener with these arguments."""

    listener: str
    method: str
    arguments: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class HostsChanged:
    """Report: the location of the application's tasks, by the members' application.server (streams_metadata.py).

    active, standby: input partitions by host:port. store_topics: by store, the topics that reach it, with their
    partition counts.
    """

    active: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    standby: Mapping[str, frozenset[TopicPartition]] = field(default_factory=dict)
    store_topics: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    global_stores: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ApplicationShutdownRequested:
    """Report: a member of the group asked the whole application to shut down; this thread is doing so."""


@dataclass(frozen=True, slots=True)
class PartitionStalled:
    """Report: a partition is stalled although the broker has records for it (stall_watchdog.py).

    position: the next offset to read; end: of the partition; for_ms: the duration so far. action: REOPEN_TASK or
    REPLACE_PROCESS; with the latter this stream thread closes, and its process must be replaced.
    """

    task_id: str
    partition: str
    position: int
    end: int
    for_ms: int
    action: str

    @property
    def replaces_process(self) -> bool:
        """True if the process closes itself, to be replaced."""
        return self.action == "REPLACE_PROCESS"

    def __str__(self) -> str:
        done = "the process is replaced" if self.replaces_process else "its task is reopened"
        return (
            f"partition {self.partition} of task {self.task_id} is stalled: its position has been at offset "
            f"{self.position} for {self.for_ms} ms, while the broker has {self.end - self.position} records behind it; "
            f"{done}"
        )


Report = (
    StateChanged
    | Status
    | CommandResult
    | ListenerCall
    | PartitionStalled
    | HostsChanged
    | Failed
    | ApplicationShutdownRequested
)


@dataclass(frozen=True, slots=True)
class ThreadSpec:
    """Identifies a stream thread and its application; the supervisor's WorkerSpec is one.

    slot: N in StreamThread-N; a replacement keeps it. client_id: prefix of the thread's and its clients' names.
    process_id: the application's on this host (a UUID that the state directory keeps). num_threads: the number of
    threads, which share the record cache.
    """

    slot: int
    client_id: str
    process_id: str
    num_threads: int
    config: StreamsConfig


class ThreadControl(Protocol):
    """The stream thread's end of the connection. No call blocks."""

    def poll_commands(self) -> list[Command]:
        """Return the commands that have arrived since the last call."""

    def watched_by(self, watch: Callable[[int], None]) -> None:
        """Call watch with a descriptor that is readable while a command waits; not at all if there is none."""

    def report(self, report: Report) -> None:
        """Send a report."""
