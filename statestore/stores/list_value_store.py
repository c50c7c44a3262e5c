"""A list of values per key: the records of an outer stream-stream join without a match so far (KAFKA-10847).

Value bytes are those of Kafka's ListSerializer for byte arrays: 1 for "entries of varying size", 4-byte number of
entries, and for each entry a 4-byte length and its bytes. Kafka Streams: ListValueStore.
"""

from __future__ import annotations

import struct
from typing import Any

from typing_extensions import override

from penstock.kernel.rows import StoreIterator
from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.context.task_context import TaskContext

from ..rows.bytes_store import BytesStore
from .removals import Removals
from .state_store import StateStore

_header = struct.Struct(">bi")
_length = struct.Struct(">i")
VARIABLE_SIZE = 1


class ListValueStore(StateStore):
    """A store whose ``put`` adds to the list of a key."""

    def __init__(self, builder: StoreBuilder, task: TaskContext, rows: BytesStore) -> None:
        super().__init__(builder, task, rows)
        self._removals = Removals(self)

    def put(self, key: object, value: object) -> None:
        """Add a value to the list of a key; None deletes the list."""
        self.put_row(self.serdes.encode_key(key), None if value is None else self.serdes.encode_value(value))

    def put_row(self, row_key: bytes, data: bytes | None) -> None:
        """Add a serialized value to the list of a serialized key; None deletes the list."""
        data = None if data is None else append(self.rows.get(row_key), data)
        self.rows.put(row_key, data)
        if not self.builder.logging:
            return
        if data is None:
            self._removals.add(row_key, self.task.timestamp)
        else:
            self._removals.cancel(row_key)
            self.task.output.log_change(self.name, row_key, data, self.task.timestamp)

    def put_if_absent(self, key: object, value: object) -> None:
        """Put, but only if the key IS present: Kafka Streams' ListValueStore does this for its caller."""
        encode = self.serdes.encode_value
        self.put_row_if_absent(self.serdes.encode_key(key), None if value is None else encode(value))

    def put_row_if_absent(self, row_key: bytes, data: bytes | None) -> None:
        """As put_if_absent, for a serialized key and value."""
        if self.rows.get(row_key) is not None:
            self.put_row(row_key, data)

    @override
    def log_removals(self) -> bool:
        return self._removals.write()

    @override
    def rollback(self) -> None:
        super().rollback()
        self._removals.clear()

    def get(self, key: object) -> list[Any]:
        """Return the list of a key, empty if there is none."""
        data = self.rows.get(self.serdes.encode_key(key))
        return [] if data is None else [self.serdes.decode_value(entry) for entry in entries(data)]

    def all(self) -> StoreIterator[tuple[Any, Any]]:
        """Iterate over (key, value) in the order of the keys' bytes, one pair for each value of a list."""
        decode_key, decode_value = self.serdes.decode_key, self.serdes.decode_value
        rows = self.rows.scan(None, None)
        pairs = ((decode_key(row_key), decode_value(entry)) for row_key, data in rows for entry in entries(data))
        return StoreIterator(pairs)

    def approximate_num_entries(self) -> int:
        """Return the approximate number of keys."""
        return self.rows.approximate_num_entries()


def append(data: bytes | None, entry: bytes) -> bytes:
    """Return the bytes of a list, None for an empty one, with one more entry."""
    added = _length.pack(len(entry)) + entry
    if data is None:
        return _header.pack(VARIABLE_SIZE, 1) + added
    _, size = _header.unpack_from(data)
    return _header.pack(VARIABLE_SIZE, size + 1) + data[_header.size :] + added


def entries(data: bytes) -> list[bytes]:
    """Return the entries of a list's bytes."""
    _, size = _header.unpack_from(data)
    found = []
    at = _header.size
    for _ in range(size):
        end = at + 4 + int(_length.unpack_from(data, at)[0])
        found.append(data[at + 4 : end])
        at = end
    return found
