"""How a fused loop updates a row of a store without a record cache: see fusion.py, store_interfaces.TimestampedRows."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ..store_interfaces import TimestampedRows
from .fused_update import FusedUpdate

if TYPE_CHECKING:
    from ..fusion import LoopCode

_LONG = struct.Struct(">q")


class FusedRow(FusedUpdate):
    """Writes how a record updates the row of one key in the store, and how the change goes on downstream.

    rows: the store's; store: its name; key: the variable with the key.
    """

    def __init__(self, code: LoopCode, rows: TimestampedRows, store: str, key: str) -> None:
        super().__init__(code)
        self._rows = rows
        self._store = store
        self._key, self._row_key = key, code.fresh("row_key")

    def _find(self) -> None:
        code = self._code
        code.emit(f"{self._row_key} = {code.use(self._rows.encode_key, self._key)}")
        code.emit(f"{self._row} = {code.bind(self._rows.get, 'get_row')}({self._row_key})")

    def _unpack(self) -> None:
        code, row = self._code, self._row
        code.emit(f"{self._old} = {code.use(self._rows.decode_value.of(f'{{}}[{_LONG.size}:]'), row)}")
        code.emit(f"{self._newest} = {code.bind(_LONG.unpack_from, 'unpack_time')}({row})[0]")

    def _put(self, may_delete: bool) -> None:
        code = self._code
        if may_delete:
            with code.block(f"if {self._new} is None:"):
                self._write("None", "timestamp", "None")
            with code.block("else:"):
                self._write_new()
        else:
            self._write_new()
        with code.at(self._newest):
            code.forward_change(self._key, self._new, "None")

    def _write_new(self) -> None:
        code, data = self._code, self._code.fresh("data")
        code.emit(f"{data} = {code.use(self._rows.encode_value, self._new)}")
        self._write(data, self._newest, f"{code.bind(_LONG.pack, 'pack_time')}({self._newest}) + {data}")

    def _write(self, data: str, timestamp: str, row: str) -> None:
        code = self._code
        log_change = code.bind(code.context.task.log_change, "log_change")
        code.emit(f"{log_change}({self._store!r}, {self._row_key}, {data}, {timestamp})")
        code.emit(f"{code.bind(self._rows.put, 'put_row')}({self._row_key}, {row})")
