"""Generates code that updates an uncached row in a fused loop: see fusion.py, store_interfaces.TimestampedRows."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from typing_extensions import override

from ..context.store_interfaces import TimestampedRows
from .fused_update import FusedUpdate

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names

_LONG = struct.Struct(">q")


class FusedRow(FusedUpdate):
    """Generates the update of the row of one key in the store, and forwards the change.

    store: the store's name; names: the record's variables.
    """

    def __init__(self, code: LoopCode, rows: TimestampedRows, store: str, names: Names) -> None:
        super().__init__(code)
        self._rows = rows
        self._store = store
        self._names, self._row_key = names, ""

    @override
    def replace(self, names: Names) -> None:
        self._write_row_key()
        self._code.emit(f"{self._new} = {names.value}")
        self._code.emit(f"{self._newest} = timestamp")
        self._put(is_count=False)

    def _write_row_key(self) -> None:
        self._row_key = self._code.key_bytes(self._names, self._rows.key_serde, self._rows.encode_key)

    def _find(self) -> None:
        code, rows = self._code, self._rows
        self._write_row_key()
        find = code.bind(rows.get, "get_row") if rows.table is None else code.bind(rows.table.find, "find")
        code.emit(f"{self._row} = {find}({self._row_key})")

    def _unpack(self) -> None:
        code, rows, row = self._code, self._rows, self._row
        if rows.table is None:
            code.emit(f"{self._old} = {code.use(rows.decode_value.of(f'{{}}[{_LONG.size}:]'), row)}")
            code.emit(f"{self._newest} = {code.bind(_LONG.unpack_from, 'unpack_time')}({row})[0]")
            self._keep_newest()
        else:
            code.emit(f"{self._old} = {code.use(rows.decode_value, row)}")
            code.emit(f"{self._newest} = {code.bind(rows.table.newest, 'newest')}(timestamp)")

    def _put(self, is_count: bool) -> None:
        code, new, rows = self._code, self._new, self._rows
        if is_count:
            self._put_value(as_it_is=rows.exact_value_type is int)
        else:
            with code.block(f"if {new} is None:"):
                self._log("None", "timestamp")
                self._put_row("None")
            with code.block("else:"):
                self._put_value(as_it_is=False)
        with code.at(self._newest):
            code.forward_change(self._names._replace(value=new), "None")

    def _put_value(self, as_it_is: bool) -> None:
        """Generate the put of a value, and assign what the store reads back to its variable.

        as_it_is: the value has the exact type already and needs no conversion.
        """
        code, rows, new, data = self._code, self._rows, self._new, self._code.fresh("data")
        if rows.exact_value is not None and not as_it_is:
            kind = code.bind(rows.exact_value_type, "value_type")
            with code.block(f"if type({new}) is not {kind}:"):
                code.emit(f"{new} = {code.bind(rows.exact_value, 'exact_value')}({new})")
        code.emit(f"{data} = {code.use(rows.encode_value, new)}")
        self._log(data, self._newest)
        if rows.table is None:
            self._put_row(f"{code.bind(_LONG.pack, 'pack_time')}({self._newest}) + {data}")
        else:
            code.emit(f"{code.bind(rows.table.put_timed, 'put_timed')}({self._row_key}, {self._newest}, {data})")
        if rows.exact_value is None and code.has_children:
            code.emit(f"{new} = {code.use(rows.decode_value, data)}")

    def _put_row(self, row: str) -> None:
        self._code.emit(f"{self._code.bind(self._rows.put, 'put_row')}({self._row_key}, {row})")

    def _log(self, data: str, timestamp: str) -> None:
        log_change = self._code.bind(self._code.context.task.log_change, "log_change")
        self._code.emit(f"{log_change}({self._store!r}, {self._row_key}, {data}, {timestamp})")
