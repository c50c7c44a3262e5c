"""What aggregations write into a fused loop to update a row of a store without a record cache: see fusion.py."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..serdes import Inline
from ..store_interfaces import StoreKind, TimestampedRows
from .counting import count_aggregator, count_initializer
from .operator import NodeContext
from .table_store import private_copy

if TYPE_CHECKING:
    from ..fusion import LoopCode, Names

_LONG = struct.Struct(">q")


def written_rows(node: NodeContext, name: str) -> TimestampedRows | None:
    """Return the rows of a timestamped key-value store whose updates go to its rows at once; None for any other."""
    store = node.store(name)
    rows: TimestampedRows | None = (
        store.timestamped_rows() if store.builder.kind is StoreKind.TIMESTAMPED_KEY_VALUE else None
    )
    return rows


class FusedRow:
    """Writes how a record updates the row of one key, and how the change goes on downstream.

    rows: the store's; store: its name; key: the variable with the key.
    """

    def __init__(self, code: LoopCode, rows: TimestampedRows, store: str, key: str) -> None:
        self._code = code
        self._rows = rows
        self._store = store
        self._key = key
        self._row_key, self._row, self._old = code.fresh("row_key"), code.fresh("row"), code.fresh("old")
        self._new, self._newest = code.fresh("new"), code.fresh("newest")

    def aggregate(self, initializer: Callable[[], Any], aggregator: Callable[..., Any], names: Names) -> None:
        """Write new = aggregator(key, value, old), where old is initializer() for a new key."""
        code, old, new = self._code, self._old, self._new
        counts = aggregator is count_aggregator and initializer is count_initializer
        self._find()
        with code.block(f"if {self._row} is None:"):
            code.emit(f"{old} = {'0' if counts else code.bind(initializer, 'initializer') + '()'}")
            code.emit(f"{self._newest} = timestamp")
        with code.block("else:"):
            self._unpack()
        if counts:
            code.emit(f"{new} = {old} + 1")
            self._put()
        else:
            code.emit(f"{new} = {code.bind(aggregator, 'aggregator')}({names.key}, {names.value}, {old})")
            self._put_private(names.value)
        self._forward()

    def reduce(self, reducer: Callable[[Any, Any], Any], names: Names) -> None:
        """Write new = reducer(old, value), or the value itself for a new key."""
        code, value = self._code, names.value
        self._find()
        with code.block(f"if {self._row} is None:"):
            code.emit(f"{self._new} = {value}")
            code.emit(f"{self._newest} = timestamp")
        with code.block("else:"):
            self._unpack()
            code.emit(f"{self._new} = {code.bind(reducer, 'reducer')}({self._old}, {value})")
        self._put_private(value)
        self._forward()

    def _find(self) -> None:
        self._code.emit(f"{self._row_key} = {self._code.use(self._rows.encode_key, self._key)}")
        self._code.emit(f"{self._row} = {self._code.bind(self._rows.get, 'get_row')}({self._row_key})")

    def _unpack(self) -> None:
        code, decode = self._code, self._rows.decode_value
        own_value = Inline(decode.template.replace("{}", f"{{}}[{_LONG.size}:]"), decode.names)
        code.emit(f"{self._old} = {code.use(own_value, self._row)}")
        code.emit(f"{self._newest} = {code.bind(_LONG.unpack_from, 'unpack_time')}({self._row})[0]")
        with code.block(f"if timestamp > {self._newest}:"):
            code.emit(f"{self._newest} = timestamp")

    def _put_private(self, value: str) -> None:
        """Put the new value, None to delete the row; send on a copy of what is the record's own: others have it too."""
        code, new = self._code, self._new
        with code.block(f"if {new} is {value}:"):
            code.emit(f"{new} = {code.bind(private_copy, 'private_copy')}({value})")
        with code.block(f"if {new} is None:"):
            self._write("None", "timestamp", "None")
        with code.block("else:"):
            self._put()

    def _put(self) -> None:
        data = self._code.fresh("data")
        self._code.emit(f"{data} = {self._code.use(self._rows.encode_value, self._new)}")
        self._write(data, self._newest, f"{self._code.bind(_LONG.pack, 'pack_time')}({self._newest}) + {data}")

    def _write(self, data: str, timestamp: str, row: str) -> None:
        code = self._code
        log_change = code.bind(code.context.task.log_change, "log_change")
        code.emit(f"{log_change}({self._store!r}, {self._row_key}, {data}, {timestamp})")
        code.emit(f"{code.bind(self._rows.put, 'put_row')}({self._row_key}, {row})")

    def _forward(self) -> None:
        with self._code.at(self._newest):
            self._code.forward_change(self._key, self._new, "None")
