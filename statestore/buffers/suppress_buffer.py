"""The buffer of suppress (KIP-328; Kafka Streams: InMemoryTimeOrderedKeyValueChangeBuffer).

It is in memory, and restored from the beginning of its changelog. A flush writes the changelog: for each key that
changed since the last one, its buffered value, or a tombstone if it was evicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from typing_extensions import override

from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import ProcessorStateError
from penstock.topology.records import Change, Message, ProcessorRecordContext

from ..memory_store import InMemoryStore
from ..stores.state_store import LONG, StateStore
from .buffer_value import BufferValue, context_size, serialize_value

#: Header with the version of the changelog's format.
VERSION_HEADER = "v"
VERSION = b"\3"
HEADERS = ((VERSION_HEADER, VERSION),)
LONG_MAX = 2**63 - 1
_new = tuple.__new__
#: Takes key, change and context of what leaves the buffer.
Emit = Callable[[Any, Change, ProcessorRecordContext], None]


class Buffered(NamedTuple):
    """A buffered key: its position in time order (ms), the parts of its BufferValue, and its counted size in bytes."""

    time: int
    prior: bytes | None
    old: bytes | None
    new: bytes | None
    context: ProcessorRecordContext
    size: int


class InMemoryTimeOrderedKeyValueChangeBuffer(StateStore):
    """Holds the newest Change of each key, in the order in which the keys were first buffered."""

    def __init__(self, builder: StoreBuilder, task: TaskContext) -> None:
        super().__init__(builder, task, InMemoryStore())
        self._encode_value = self.serdes.encode_value
        self._buffered: dict[bytes, Buffered] = {}
        self._queue: list[tuple[int, bytes]] = []  # a heap; entries whose key is no longer buffered are skipped
        self._dirty: dict[bytes, Buffered | None] = {}  # changes that the next flush logs
        self._undo: dict[bytes, Buffered | None] = {}
        self._size = 0

    def put(self, buffer_time: int, key: Any, change: Change, context: ProcessorRecordContext) -> bool:
        """Buffer a change; a key that is already buffered keeps its time and prior value. Returns True."""
        self.put_row(buffer_time, self.serdes.encode_key(key), change.new, change.old, context)
        return True

    def put_row(self, buffer_time: int, row_key: bytes, new: Any, old: Any, context: ProcessorRecordContext) -> None:
        """Buffer a change under a serialized key."""
        encode = self._encode_value
        old_data = None if old is None else encode(old)
        new_data = None if new is None else encode(new)
        before = self._buffered.get(row_key)
        if before is None:
            buffered = self._set(row_key, None, buffer_time, old_data, old_data, new_data, context)
        else:
            buffered = self._set(row_key, before, before[0], before[1], old_data, new_data, context)
        self._dirty[row_key] = buffered

    def _set(
        self,
        key: bytes,
        before: Buffered | None,
        time: int,
        prior: bytes | None,
        old: bytes | None,
        new: bytes | None,
        context: ProcessorRecordContext,
    ) -> Buffered:
        """Replace the buffered value of a serialized key, and return the new one."""
        size = 8 + len(key) + context_size(context)
        if prior is not None:
            size += len(prior)
        if old is not None and old != prior:
            size += len(old)
        if new is not None:
            size += len(new)
        buffered: Buffered = _new(Buffered, (time, prior, old, new, context, size))
        self._replace(key, before, buffered)
        return buffered

    def _replace(self, key: bytes, before: Buffered | None, buffered: Buffered | None) -> None:
        self._undo.setdefault(key, before)
        if before is not None:
            self._size -= before[5]
        if buffered is None:
            self._buffered.pop(key, None)
            return
        self._buffered[key] = buffered
        self._size += buffered[5]
        if before is None or before[0] != buffered[0]:
            heappush(self._queue, (buffered[0], key))

    def _first(self) -> tuple[bytes, Buffered] | None:
        """Return the entry that was buffered first."""
        queue = self._queue
        while queue:
            time, key = queue[0]
            buffered = self._buffered.get(key)
            if buffered is not None and buffered.time == time:
                return key, buffered
            heappop(queue)
        return None

    def evict_until(self, time: int, callback: Emit) -> None:
        """Evict the entries that were buffered at this time (ms) or before; see evict_while."""
        queue = self._queue
        while queue and queue[0][0] <= time and (first := self._first()) is not None and first[1].time <= time:
            self._evict(*first, callback)

    def evict_while(self, predicate: Callable[[], bool], callback: Emit) -> None:
        """Evict the first entry while predicate() holds: call callback(key, change, context), then remove it."""
        while predicate() and (first := self._first()) is not None:
            self._evict(*first, callback)

    def _evict(self, key: bytes, buffered: Buffered, callback: Emit) -> None:
        decode = self.serdes.decode_value
        new = None if buffered.new is None else decode(buffered.new)
        old = None if buffered.old is None else decode(buffered.old)
        callback(self.serdes.decode_key(key), Change(new, old), buffered.context)
        self._replace(key, self._buffered.get(key), None)
        self._dirty[key] = None

    def prior_value_for_buffered(self, key: Any) -> tuple[Any] | None:
        """Return a 1-tuple with the value before the buffered updates; None if the key is not buffered."""
        buffered = self._buffered.get(self.serdes.encode_key(key))
        if buffered is None:
            return None
        prior = buffered.prior
        return (None if prior is None else self.serdes.decode_value(prior),)

    def num_records(self) -> int:
        """Return the number of buffered keys."""
        return len(self._buffered)

    def buffer_size(self) -> int:
        """Return the size of the buffered values in bytes, as Kafka Streams counts it."""
        return self._size

    def min_timestamp(self) -> int:
        """Return the lowest buffer time in ms, Java's highest long if nothing is buffered."""
        first = self._first()
        return LONG_MAX if first is None else first[1].time

    def flush(self) -> None:
        """Write the changelog; timestamps are left to the producer, as in Kafka Streams."""
        if self.builder.logging:
            log_change, name, pack = self.task.log_change, self.name, LONG.pack
            for key, buffered in self._dirty.items():
                if buffered is None:
                    log_change(name, key, None, None)
                else:
                    time, prior, old, new, context, _ = buffered
                    data = serialize_value(prior, old, new, context) + pack(time)
                    log_change(name, key, data, None, HEADERS)
        self._dirty.clear()

    @override
    def commit(self, changelog_offset: int | None) -> None:
        """Do nothing: the buffer is not on disk."""
        self._undo.clear()

    @override
    def rollback(self) -> None:
        changed = list(self._undo.items())
        for key, buffered in changed:
            self._replace(key, self._buffered.get(key), buffered)
        self._undo.clear()
        self._dirty.clear()

    @override
    def restore(self, messages: Sequence[Message], next_offset: int | None) -> None:
        for message in messages:
            key, data = message.key(), message.value()
            if key is None:
                continue
            before = self._buffered.get(key)
            if data is None:
                self._replace(key, before, None)
            else:
                value, time = self._restored(message, data)
                self._set(key, before, time, *value)
        self._undo.clear()

    def _restored(self, message: Message, data: bytes) -> tuple[BufferValue, int]:
        if dict(message.headers() or ()).get(VERSION_HEADER) != VERSION:
            raise ProcessorStateError(
                f"The changelog {self.changelog_topic} has a record at offset {message.offset()} in a format older "
                "than "
                f"Kafka Streams 2.6. Run the application with a newer Kafka Streams until it has emitted what it holds"
            )
        value, end = BufferValue.deserialize(data)
        return value, int(LONG.unpack_from(data, end)[0])

    def passed_to(self, task: TaskContext) -> InMemoryTimeOrderedKeyValueChangeBuffer:
        """Drop uncommitted changes, and move the buffer to another task."""
        self.rollback()
        self.task = task
        return self

    @override
    def close(self) -> None:
        super().close()
        self._buffered.clear()
        self._queue.clear()
        self._dirty.clear()
        self._undo.clear()
        self._size = 0
