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

    store: the store's name; names: the record's variables; sends_old: whether the old value is forwarded, too.
    """

    def __init__(
        self, code: LoopCode, rows: TimestampedRows, store: str, names: Names, sends_old: bool = False
    ) -> None:
        super().__init__(code)
        self._rows = rows
        self._store = store
        self._names, self._row_key = names, ""
        self._sends_old = sends_old
        self._is_read, self._data = False, code.fresh("data")

    @override
    def replace(self, names: Names) -> None:
        code = self._code
        if self._sends_old:
            self._find()
            code.emit(f"{self._old} = None if {self._row} is None else {self._decoded()}")
        else:
            self._write_row_key()
        code.emit(f"{self._new} = {names.value}")
        code.emit(f"{self._newest} = timestamp")
        # What its own serde has just read would be read back as it is.
        self._is_read = names.value_serde is self._rows.value_serde and self._rows.value_serde.serializer is not None
        self._put(is_count=False)

    def _write_row_key(self) -> None:
        self._row_key = self._code.key_bytes(self._names, self._rows.key_serde, self._rows.encode_key)

    def _find(self) -> None:
        code, rows = self._code, self._rows
        self._write_row_key()
        find = code.bind(rows.get, "get_row") if rows.table is None else code.bind(rows.table.find, "find")
        code.emit(f"{self._row} = {find}({self._row_key})")

    def _unpack(self) -> None:
        code, rows = self._code, self._rows
        code.emit(f"{self._old} = {self._decoded()}")
        if rows.table is None:
            code.emit(f"{self._newest} = {code.bind(_LONG.unpack_from, 'unpack_time')}({self._row})[0]")
            self._keep_newest()
        else:
            code.emit(f"{self._newest} = {code.bind(rows.table.newest, 'newest')}(timestamp)")

    def _decoded(self) -> str:
        """Return an expression for the value of the row that was found."""
        decode = self._rows.decode_value
        return self._code.use(decode.of(f"{{}}[{_LONG.size}:]") if self._rows.table is None else decode, self._row)

    def put(self, value: str) -> None:
        """Write how a value becomes the row's, None deletes it; nothing continues downstream."""
        self._write_row_key()
        self._code.emit(f"{self._new} = {value}")
        self._is_read = True
        self._newest = "timestamp"
        self._write_put(is_count=False)

    def _put(self, is_count: bool) -> None:
        code = self._code
        self._write_put(is_count)
        names = self._names._replace(value=self._new, value_serde=None)
        if self._is_read:
            names = names._replace(value_serde=self._rows.value_serde, data=self._data)
        with code.at(self._newest):
            code.forward_change(names, self._old if self._sends_old else "None")

    def _write_put(self, is_count: bool) -> None:
        code, new = self._code, self._new
        if is_count:
            self._put_value(as_it_is=self._rows.exact_value_type is int)
        else:
            with code.block(f"if {new} is None:"):
                self._log("None", "timestamp")
                self._put_row("None")
                if self._is_read:
                    code.emit(f"{self._data} = None")
            with code.block("else:"):
                self._put_value(as_it_is=False)

    def _put_value(self, as_it_is: bool) -> None:
        """Generate the put of a value, and assign what the store reads back to its variable.

        as_it_is: the value has the exact type already and needs no conversion.
        """
        code, rows, new, data = self._code, self._rows, self._new, self._data
        if rows.exact_value is not None and not as_it_is and not self._is_read:
            kind = code.bind(rows.exact_value_type, "value_type")
            with code.block(f"if type({new}) is not {kind}:"):
                code.emit(f"{new} = {code.bind(rows.exact_value, 'exact_value')}({new})")
        code.emit(f"{data} = {code.use(rows.encode_value, new)}")
        self._log(data, self._newest)
        if rows.table is None:
            self._put_row(f"{code.bind(_LONG.pack, 'pack_time')}({self._newest}) + {data}")
        else:
            code.emit(f"{code.bind(rows.table.put_timed, 'put_timed')}({self._row_key}, {self._newest}, {data})")
        if rows.exact_value is None and not self._is_read and code.has_children:
            code.emit(f"{new} = {code.use(rows.decode_value, data)}")

    def _put_row(self, row: str) -> None:
        self._code.emit(f"{self._code.bind(self._rows.put, 'put_row')}({self._row_key}, {row})")

    def _log(self, data: str, timestamp: str) -> None:
        log_change = self._code.bind(self._code.context.task.log_change, "log_change")
        headers = ", headers" if self._rows.log_headers[data == "None"] else ""
        self._code.emit(f"{log_change}({self._store!r}, {self._row_key}, {data}, {timestamp}{headers})")
