"""Results of reading a state store, as plain values, which the supervisor, too, can import without opening stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

from typing_extensions import override

from penstock.topology.query.position import Position
from penstock.topology.query.state_query_result import FailureReason, QueryResult

#: The answers to a request of interactive queries v2 by partition; that of a global store has no partition.
PartitionResults = Mapping[int | None, QueryResult]


class Row(NamedTuple):
    """One row: its position in key order (bytes), its JSON object, and its task."""

    order: bytes
    json: bytes
    task: str = ""


class Reply(Enum):
    """The outcome of a read in one process."""

    OK = "ok"
    #: The topology has no such store.
    UNKNOWN_STORE = "unknown store"
    #: The key or the request does not fit the store.
    BAD_REQUEST = "bad request"
    #: This process has no task that could answer.
    ELSEWHERE = "elsewhere"
    #: A task is here, but it is being restored, or it is a standby task with too much lag.
    NOT_YET = "not yet"
    #: The rows of a running task have not reached the requested position.
    BEHIND = "behind"
    #: As many scans as are allowed are open.
    FULL = "full"


@dataclass(frozen=True, slots=True)
class StoreRead:
    """The answer. rows: at most limit + 1 of each task. partition, topics: the location of the key. key_serde: the name
    of the built-in serde that has serialized it; "" for another one. lag: of a standby task. after: the start of the
    next page, None after the last one.

    partitions: how many tasks have a part of the store, on all hosts; 0 if unknown. restore_remaining: in
    records. eta_seconds: None if unknown. position: of the rows in the input; None if a task does not know. reader: the
    process that has opened the scan of a request for columns. changelog: by partition, the offset in the changelog that
    the rows are as of, the next to read; if requested.
    """

    reply: Reply
    detail: str = ""
    rows: tuple[Row, ...] = ()
    tasks: tuple[str, ...] = ()
    partition: int | None = None
    topics: tuple[str, ...] = ()
    key_serde: str = ""
    lag: int | None = None
    partitions: int = 0
    restore_remaining: int = 0
    eta_seconds: float | None = None
    after: str | None = None
    position: Position | None = None
    reader: int = 0
    changelog: Mapping[int, int] = field(default_factory=dict)

    @override
    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments, in half the time of a dataclass, because reads are many."""
        return type(self), _values(self)


_values: Callable[[StoreRead], tuple[Any, ...]] = attrgetter(*[each.name for each in fields(StoreRead)])


@dataclass(frozen=True, slots=True)
class ColumnsRead:
    """The columns of a store: a schema of Arrow, as bytes, in which null stands for types that no row has shown yet.

    key_order: how the keys are ordered, "string" or "integer" as SQL orders them, "" if differently. sessions: whether
    it is a session store.
    """

    schema: bytes
    key_order: str
    sessions: bool


@dataclass(frozen=True, slots=True)
class ScanRead:
    """The next rows of a scan: batches of Arrow, as bytes. has_more: if not, the scan is closed."""

    batches: tuple[bytes, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class ChangelogView:
    """A store's changelog, for those who read its changes.

    topic: its full name. partitions: their number. suffix: the number of bytes after the serialized key in the keys of
    its records. key, prefix: the requested key, and the beginning of the requested keys, serialized; None for all.
    has_pages: whether the requested rows of a partition can be read page by page.
    """

    topic: str
    partitions: int
    suffix: int
    key: bytes | None
    prefix: bytes | None
    has_pages: bool


@dataclass(frozen=True, slots=True)
class ShownResult:
    """The result of a query as JSON. truncated: whether there are more rows than were requested."""

    json: bytes
    truncated: bool = False


def absent(store: str) -> QueryResult:
    """Return the failure of a partition without a task here."""
    message = f"The partition of {store} is not on this host now"
    return QueryResult.for_failure(FailureReason.NOT_PRESENT, message)
