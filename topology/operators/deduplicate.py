"""Deduplication of a stream (KIP-655, as proposed for Kafka Streams: KStreamDeduplicateProcessor)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from typing_extensions import override

from ..common.user_functions import KeyValueMapper
from ..context.task_context import Process
from ..records import Headers, ProcessorRecordContext
from ..serdes.codecs import refusing
from ..serdes.serdes import Serde, resolve_serde, serializer_for
from .operator import NodeContext, Operator
from .record_context import record_context

_FIELDS = struct.Struct(">q?q")
_SIZE = struct.Struct(">i")
#: What follows the name of the store in that of its time index.
TIME_INDEX_SUFFIX = "-time-index"


class TimestampAndOffset(NamedTuple):
    """What is kept of a record: its timestamp in ms, and the offset of its input record; None in a punctuation."""

    timestamp: int
    offset: int | None


class TimestampAndOffsetSerde(Serde[TimestampAndOffset]):
    """8-byte timestamp, 1 with an offset or 0 without, 8-byte offset or 0 (Kafka Streams: class of this name).

    keys, ids: the serdes of the row's key, which is in bytes: plan compares them.
    """

    def __init__(self, keys: Serde | None = None, ids: Serde | None = None) -> None:
        self.keys = keys
        self.ids = ids

    @override
    @refusing("write")
    def serialize(self, topic: str, value: TimestampAndOffset | None) -> bytes | None:
        return None if value is None else _FIELDS.pack(value[0], value[1] is not None, value[1] or 0)

    @override
    @refusing("read")
    def deserialize(self, topic: str, data: bytes | None) -> TimestampAndOffset | None:
        if data is None:
            return None
        timestamp, has_offset, offset = _FIELDS.unpack(data)
        return TimestampAndOffset(timestamp, offset if has_offset else None)

    def __repr__(self) -> str:
        return f"TimestampAndOffsetSerde(keys={self.keys!r}, ids={self.ids!r})"


@dataclass(eq=False)
class KStreamDeduplicate(Operator):
    """Forwards a record unless one with its identity was forwarded at most interval_ms before it.

    The identity is the key, or with id_selector key and id_selector(key, value). Records without one are forwarded.
    store_name: the store of forwarded identities; its time index is a buffer of the forwarded records, by their
    timestamps, which says which rows have expired.
    """

    store_name: str
    interval_ms: int
    key_serde: Serde | None
    id_selector: KeyValueMapper[object] | None = None
    id_serde: Serde | None = None

    reads_record_metadata = True

    @override
    def compile(self, node: NodeContext) -> Process:
        task, forward, dropped, interval_ms = node.task, node.forward, node.dropped, self.interval_ms
        rows, index = node.store(self.store_name), node.store(self.store_name + TIME_INDEX_SUFFIX)
        identity_of = self._identity(node, rows.changelog_topic)
        times = task.processor_metadata  # committed, and not lost with the stores, which have no records without a key
        index.observe(times.get(self.store_name, -1))
        expire_at_ms, expire_every_ms = -1, max(interval_ms // 10, 1)  # as proposed
        origin: tuple[str | None, int, int | None] | None = None  # of the input record that was stored last
        stored_of_origin: set[bytes] = set()

        def deduplicate(key: object, value: object, timestamp: int, headers: Headers) -> None:
            advance(timestamp)
            identity = identity_of(key, value)
            if identity is None:
                forward(key, value, timestamp, headers)
                return
            before = rows.get(identity)
            if (
                before is None
                or index.observed_ms - before.timestamp > interval_ms
                or before.timestamp - timestamp > interval_ms  # an older record is not a duplicate of a newer one
            ):
                forward(key, value, timestamp, headers)
                task.timestamp, task.headers = timestamp, headers
                if index.observed_ms - timestamp <= interval_ms:  # otherwise it is too late to have duplicates
                    store(identity, value, record_context(task, timestamp, headers))
            elif is_processed_again(identity, before):
                forward(key, value, timestamp, headers)
            else:
                dropped("duplicate")

        def store(identity: bytes, value: object, context: ProcessorRecordContext) -> None:
            nonlocal origin
            index.put(index.observed_ms, identity, value, context)
            offset = None if context.topic is None else context.offset
            rows.put(identity, TimestampAndOffset(context.timestamp, offset))
            if origin != (context.topic, context.partition, offset):
                origin = context.topic, context.partition, offset
                stored_of_origin.clear()
            stored_of_origin.add(identity)

        def is_processed_again(identity: bytes, before: TimestampAndOffset) -> bool:
            """Return whether an earlier run has written the row for this record without committing it.

            The changelog may have that row while the output lacks the record, so the record must be forwarded again.
            An equal offset proves nothing alone: several records made from one input record have the same, and
            records of two topics may. The index has their topics.
            """
            message = task.message
            if message is None or before.offset != message.offset():
                return False
            topic = message.topic()
            if origin == (topic, message.partition(), before.offset) and identity in stored_of_origin:
                return False
            return all(context.topic == topic for context in index.contexts(before.timestamp, identity))

        def advance(time_ms: int) -> None:
            nonlocal expire_at_ms
            if time_ms > index.observed_ms:
                index.observe(time_ms)
                times[self.store_name] = time_ms
            if index.observed_ms >= expire_at_ms:
                expire_at_ms = index.observed_ms + expire_every_ms
                index.evict_while(lambda: True, expire)

        def expire(identity: bytes, value: object, context: ProcessorRecordContext) -> None:
            before = rows.get(identity)
            if before is not None and index.observed_ms - before.timestamp > interval_ms:
                rows.put(identity, None)

        node.on_time(advance)
        return deduplicate

    def _identity(self, node: NodeContext, topic: str) -> KeyValueMapper[bytes | None]:
        """Return a function from key and value to the key of their row: key, or size of the key, key and id."""
        key_serde = resolve_serde(self.key_serde, node.task.config, True, f"the keys of {node.name}")
        key_bytes, selector = serializer_for(key_serde, topic), self.id_selector
        if selector is None:
            return lambda key, value: None if key is None else key_bytes(key)
        id_serde = resolve_serde(self.id_serde, node.task.config, True, f"the ids of {node.name}")
        id_bytes = serializer_for(id_serde, topic)

        def identity(key: object, value: object) -> bytes | None:
            chosen = selector(key, value)
            if key is None or chosen is None:
                return None
            written = key_bytes(key) or b""
            return _SIZE.pack(len(written)) + written + (id_bytes(chosen) or b"")

        return identity
