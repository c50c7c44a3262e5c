"""The common part of all state stores: their life cycle on top of a BytesStore, and their serdes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

from penstock.kernel.codecs import required
from penstock.kernel.nodes import Node
from penstock.kernel.rows import after
from penstock.topology.context.store_interfaces import Cells, NodeRows, StoreBackend, StoreBuilder, WindowRows
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import StateStoreTypeError, StreamsError
from penstock.topology.query.isolation_level import DEFAULT_ISOLATION, IsolationLevel
from penstock.topology.query.state_queries import Query
from penstock.topology.query.state_query_result import QueryResult
from penstock.topology.records import Message
from penstock.topology.serdes.serdes import as_serde, deserializer_for, direct, same, serializer_for, takes_none

from ..rows.bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row
from ..rows.committed_rows import CommittedRows
from .store_iterator import ClosedStore
from .store_query import query_store

R = TypeVar("R")

#: 8 bytes, big-endian, signed: timestamps and window starts, as Java's ByteBuffer writes a long.
LONG = struct.Struct(">q")
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1
#: The mark of a store that was committed, and not just restored: its group has offsets of the input, too.
COMMITTED = "committed"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The rows to read: keys as bytes, first <= key <= last, None for an open side, and that begin with a prefix.

    time_from, time_to: in ms, of window starts; of sessions the earliest end and the latest start.
    """

    first: bytes | None = None
    last: bytes | None = None
    prefix: bytes = b""
    time_from: int = 0
    time_to: int = LONG_MAX

    def has(self, key: bytes) -> bool:
        """Return whether a key is within the bounds."""
        first, last = self.first, self.last
        return (first is None or first <= key) and (last is None or key <= last) and key.startswith(self.prefix)

    @property
    def start(self) -> bytes | None:
        """The first key; None for an open side."""
        return max(self.prefix, self.first or b"") or None

    @property
    def end(self) -> bytes | None:
        """The first key after the last one; None for an open side."""
        ends = [
            end for end in (after(self.prefix), None if self.last is None else self.last + b"\0") if end is not None
        ]
        return min(ends, default=None)

    @property
    def common_prefix(self) -> bytes:
        """What all keys begin with."""
        first, last = self.first or b"", self.last or b""
        size = next(
            (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other),
            min(len(first), len(last)),
        )
        return max(first[:size], self.prefix, key=len)


class StateStore:
    """The interface for a task's state manager.

    builder: the declaration of the store; task: its task; rows: its bytes.
    """

    #: When the iterators that are open now were opened, by a number, in ms; None if that is not measured.
    open_iterators: dict[int, int] | None = None

    #: Whether puts wait in the record cache, so that a flush sends the changes downstream.
    caching: ClassVar[bool] = False

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        self.builder = builder
        self.task = task
        self.name = builder.name
        self.rows = rows
        self._persistent = rows.persistent  # also read from a closed store, which has no rows
        self._as_committed: StateStore | None = None
        self._reads_committed = task.config.get(DEFAULT_ISOLATION) == IsolationLevel.READ_COMMITTED.value
        #: The topic passed to serdes, and the destination of changes.
        self.changelog_topic = task.internal_topic(f"{builder.name}-changelog")
        self.serdes = StoreSerdes(builder, self.changelog_topic)

    @property
    def persistent(self) -> bool:
        """Whether the store is on disk."""
        return self._persistent

    @property
    def exposed(self) -> Any:
        """What processors and tests get: this object, or the user's own store that it runs."""
        return self

    @property
    def own_reads(self) -> tuple[str, ...]:
        """The methods of the user's own store that queries may call."""
        return ()

    def send_changes(self, name: str, child: Node, send_old_values: bool) -> bool:
        """Pass the cache's changes from the node of this name to a child when it is flushed.

        The old value of a change is None unless send_old_values. Returns whether there is a cache; if not, the caller
        passes each change on itself (Kafka Streams: CachedStateStore.setFlushListener).
        """
        return False

    def cells(self) -> Cells | None:
        """Return the cells of the store's cache for the kernel's nodes; None if not supported."""
        return None

    def timestamped_rows(self) -> NodeRows | None:
        """Return the store's rows for the kernel's nodes; None if an update needs more than a log and a put."""
        return None

    def session_rows(self) -> NodeRows | None:
        """Return the rows of a session store for the kernel's nodes; None if an update needs more."""
        return None

    def window_rows(self) -> WindowRows | None:
        """Return the rows of a window store with duplicates for the kernel's nodes; None if a put needs more."""
        return None

    def flush(self) -> None:
        """Send the cache's changes downstream, to the changelog and into the write buffer."""

    def log_removals(self) -> bool:
        """Write the tombstones that are held until other records are acknowledged; see Removals. False: none are."""
        return False

    def commit(self, changelog_offset: int | None) -> None:
        """Write the buffered updates and this offset (the next to read) atomically; see BytesStore."""
        self.rows.commit(changelog_offset, {**self.marks(), COMMITTED: 1})

    def can_wait(self) -> bool:
        """Return whether buffered updates may stay in memory beyond a commit without an offset; see BytesStore.

        Not if reads want the rows of the last commit: updates in memory may be of this commit or later ones.
        """
        return not self._reads_committed and self.rows.can_wait()

    def query(self, query: Query[R], rows_max: int | None = None) -> QueryResult[R]:
        """Return the answer to a query of interactive queries v2, without a position (KIP-796).

        rows_max: the number of rows after which a list ends; None for all.
        """
        return query_store(self, query, rows_max)

    def read_only(self, isolation: IsolationLevel) -> Any:
        """Return this store for reads of an isolation level (KIP-892; Java: ReadOnlyKeyValueStore.readOnly).

        The rows of the last commit do not include what was put since, in any cache either. Raises StateStoreTypeError
        for a store whose kind cannot be read so.
        """
        return self if isolation is IsolationLevel.READ_UNCOMMITTED else self.as_committed()

    def as_committed(self) -> StateStore:
        """Return this store as of its last commit, for reads only. Keep it no longer than the next commit.

        It also shows the times of the last commit, such as the stream time by which rows expire. Raises
        StateStoreTypeError for a store without such rows.
        """
        if self.builder.backend is StoreBackend.CUSTOM:
            raise StateStoreTypeError(f"{self.name} is kept in your own store, which cannot be read as committed")
        self._reads_committed = True
        if self._as_committed is None:
            self._as_committed = self._over(CommittedRows(self))
        self._as_committed.rollback()  # reads the times again, which a commit since may have changed
        return self._as_committed

    def _over(self, rows: BytesStore) -> StateStore:
        """Return an uncached store of the same kind over other rows."""
        raise StateStoreTypeError(
            f"{self.name} is a {self.builder.kind.value} store, which cannot be read as committed"
        )

    def rollback(self) -> None:
        """Drop all updates since the last commit, including cached ones: a transaction was aborted."""
        self.rows.rollback()

    def has_rows(self) -> bool:
        """Return whether the store has any row, expired ones included."""
        return next(self.rows.scan(None, None), None) is not None

    def was_committed(self) -> bool:
        """Return True if this store, in its state on disk, was ever committed by a running task, and not just
        restored.
        """
        return self.rows.committed_mark(COMMITTED) is not None

    def committed_offset(self) -> int | None:
        """Return the changelog offset of the last commit, None if never committed or not on disk."""
        return self.rows.committed_offset()

    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        """Apply changelog records, atomically with the offset after them."""
        rows = self.restored_rows(messages)
        self.rows.restore(rows, next_offset, self.marks())

    def alive_from(self, messages: Sequence[Message]) -> int:
        """Return the time (ms) from which a restore needs the changelog, 0 for all of it.

        messages: some of the changelog's newest records. Rows of older records have expired by then.
        """
        return 0

    def marks(self) -> Marks:
        """Return the numbers to commit with the rows."""
        return NO_MARKS

    def restored_rows(self, messages: Sequence[Message]) -> Iterable[RawRow]:
        """Return the rows of changelog records."""
        return plain_rows(messages)

    def stored_rows(self, bounds: Bounds) -> Iterator[Row]:
        """Iterate over the bytes of the rows within bounds, as of now, in any order; see ROW_LAYOUTS of view/columns.

        Close the iterator or exhaust it. Raises StateStoreTypeError for a store of another kind.
        """
        raise StateStoreTypeError(f"{self.name} is a {self.builder.kind.value} store, which cannot be read as rows")

    def read_row(self, key: bytes, row: bytes) -> tuple[object, object]:
        """Return key and value of the bytes of one of ``rows``, as reads return them.

        Raises StateStoreTypeError for a store of another kind, and what the serdes raise.
        """
        raise StateStoreTypeError(f"{self.name} is a {self.builder.kind.value} store, whose rows are internal")

    def persist(self, beside_writes: bool = False) -> None:
        """Make committed updates survive a SIGKILL; see BytesStore.persist."""
        self.rows.persist(beside_writes)

    def detach(self) -> BytesStore:
        """Drop uncommitted updates and release the rows, which stay open for another store."""
        self.rollback()
        return self.rows

    def close(self) -> None:
        """Release all handles, without a flush. Later reads and writes raise InvalidStateStoreError."""
        self._as_committed = None
        self.rows.close()
        self.rows = cast("BytesStore", ClosedStore(self.name))


class StoreSerdes:
    """The functions of a store that convert between objects and bytes, and properties of its serdes.

    encode_key raises for None, which key_to_bytes returns unchanged. exact_value and its type, private_value:
    Serde.exact and Serde.private of the value serde.
    """

    __slots__ = (
        "decode_key",
        "decode_value",
        "encode_key",
        "encode_value",
        "exact_value",
        "exact_value_type",
        "key_serde",
        "key_to_bytes",
        "private_value",
        "value_serde",
    )

    def __init__(self, builder: StoreBuilder, topic: str) -> None:
        key_serde, value_serde = as_serde(builder.key_serde), as_serde(builder.value_serde)
        if key_serde is None or value_serde is None:
            raise StreamsError(f"The store {builder.name} was declared without a key or value serde; set both")
        self.key_serde = key_serde
        self.value_serde = value_serde
        self.key_to_bytes = serializer_for(key_serde, topic)
        self.encode_key: Callable[[Any], bytes] = required(
            direct(self.key_to_bytes) or same, takes_none(self.key_to_bytes), partial(null_key, builder.name)
        )
        self.decode_key = deserializer_for(key_serde, topic)
        self.encode_value = serializer_for(value_serde, topic)
        self.decode_value = deserializer_for(value_serde, topic)
        self.exact_value = value_serde.exact
        self.exact_value_type = value_serde.exact_type
        self.private_value = value_serde.private

    @property
    def direct_key(self) -> Callable[[Any], Any] | None:
        """encode_key for keys that are not None; None if they are their bytes."""
        return self.encode_key if takes_none(self.key_to_bytes) else direct(self.key_to_bytes)

    @property
    def writes_texts(self) -> bool:
        """Whether encode_key writes a text as UTF-8."""
        return getattr(self.direct_key, "__wrapped__", None) is str.encode


def null_key(name: str) -> StreamsError:
    """Return the error for a key that is None."""
    return StreamsError(f"The store {name} got None as a key; drop such records before they reach a store")


def newest_by_key(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the last record of each key. Calling the unbound method is fast (in C); all records have one class."""
    return list(dict(zip(map(type(messages[0]).key, messages), messages, strict=True)).values()) if messages else ()


def plain_rows(messages: Iterable[Message]) -> Iterator[RawRow]:
    """Yield rows with the bytes of the changelog."""
    for message in messages:
        key = message.key()
        if key is not None:
            yield key, message.value()


def timestamped_rows(messages: Iterable[Message]) -> Iterator[RawRow]:
    """Yield rows whose values begin with the record's timestamp (Kafka Streams: RecordConverters)."""
    pack = LONG.pack
    for message in messages:
        key = message.key()
        if key is not None:
            value = message.value()
            yield key, None if value is None else pack(message.timestamp()[1]) + value


def plain_value(message: Message) -> bytes | None:
    """Return the row bytes of a changelog record of plain values."""
    return message.value()


def timestamped_value(message: Message) -> bytes | None:
    """Return the row bytes of a changelog record of timestamped values."""
    value = message.value()
    return None if value is None else LONG.pack(message.timestamp()[1]) + value
