"""Generates code that updates an uncached row in a fused loop: see fusion.py, store_interfaces.TimestampedRows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from penstock.kernel import sinks as kernel_sinks

from ..context.store_interfaces import TimestampedRows
from .fused_update import FusedUpdate, counts

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names


class FusedRow(FusedUpdate):
    """Generates the update of the row of one key in the store, and forwards the change.

    store: the store's name; names: the record's variables; sends_old: whether the old value is forwarded, too.
    """

    def __init__(
        self, code: LoopCode, rows: TimestampedRows, store: str, names: Names, sends_old: bool = False
    ) -> None:
        self._code, self._rows = code, rows
        self._row, self._old = code.fresh("row"), code.fresh("old")
        self._new, self._newest = code.fresh("new"), code.fresh("newest")
        self._store = store
        self._names, self._row_key = names, ""
        self._sends_old = sends_old
        self._is_read, self._data = False, code.fresh("data")

    @override
    def aggregate(self, initializer: Callable[[], Any], aggregator: Callable[..., Any], names: Names) -> None:
        code, old, new = self._code, self._old, self._new
        is_count = counts(initializer, aggregator)
        self._look_up(f"{old} = {'0' if is_count else code.bind(initializer, 'initializer') + '()'}")
        if is_count:
            code.emit(f"{new} = {old} + 1")
        else:
            code.emit(f"{new} = {code.bind(aggregator, 'aggregator')}({names.key}, {names.value}, {old})")
        self._put(is_count)

    @override
    def reduce(self, reducer: Callable[[Any, Any], Any], names: Names) -> None:
        new, value = self._new, names.value
        self._look_up(f"{new} = {value}", f"{new} = {self._code.bind(reducer, 'reducer')}({self._old}, {value})")
        self._put(is_count=False)

    @override
    def replace(self, names: Names) -> None:
        code = self._code
        if self._sends_old:
            self._find()
            code.emit(f"{self._old} = None if {self._row} is None else {self._decoded()}")
        else:
            self._write_row_key()
        code.emit(f"{self._new} = {names.value}")
        self._newest = "timestamp"
        # What its own serde has just read would be read back as it is.
        self._is_read = names.value_serde is self._rows.value_serde and self._rows.value_serde.serializer is not None
        self._put(is_count=False)

    def put(self, value: str) -> None:
        """Write how a value becomes the row's, None deletes it; nothing continues downstream."""
        self._write_row_key()
        self._code.emit(f"{self._new} = {value}")
        self._is_read = True
        self._newest = "timestamp"
        self._write_put(is_count=False)

    def _look_up(self, for_a_new_key: str, for_a_known_key: str | None = None) -> None:
        code = self._code
        self._find()
        with code.block(f"if {self._row} is None:"):
            code.emit(for_a_new_key)
            code.emit(f"{self._newest} = timestamp")
        with code.block("else:"):
            code.emit(f"{self._old} = {self._decoded()}")
            code.emit(f"{self._newest} = {code.bind(self._rows.buffer.newest, 'newest')}(timestamp)")
            if for_a_known_key is not None:
                code.emit(for_a_known_key)

    def _write_row_key(self) -> None:
        self._row_key = self._code.key_bytes(self._names, self._rows.key_serde, self._rows.encode_key)

    def _find(self) -> None:
        """Generate the look-up of the row's value as bytes, None if there is none."""
        self._write_row_key()
        self._code.emit(f"{self._row} = {self._code.bind(self._rows.buffer.find, 'find')}({self._row_key})")

    def _decoded(self) -> str:
        """Return an expression for the value of the row that was found."""
        return self._code.use(self._rows.decode_value, self._row)

    def _put(self, is_count: bool) -> None:
        """Generate the put of the new value and the newest timestamp. is_count: the value is a count, never None."""
        code = self._code
        self._write_put(is_count)
        names = self._names._replace(value=self._new).seen()
        if self._rows.value_serde.serializer is not None:  # the bytes of no other topic
            names = names._replace(value_serde=self._rows.value_serde, data=self._data)
        with code.at(self._newest):
            code.forward_change(names, self._old if self._sends_old else "None")

    def _write_put(self, is_count: bool) -> None:
        code, new, data, newest = self._code, self._new, self._data, self._newest
        if is_count:
            self._encode(as_it_is=self._rows.exact_value_type is int)
        elif self._is_read:
            code.emit(f"{data} = None if {new} is None else {code.use(self._rows.encode_value, new)}")
        else:
            code.emit(f"{data} = None")
            with code.block(f"if {new} is not None:"):
                self._encode(as_it_is=False)
        time = newest if is_count or newest == "timestamp" else f"timestamp if {data} is None else {newest}"
        with_value, with_tombstone = self._rows.log_headers
        headers = ", headers" if with_value else ""
        if with_tombstone and not with_value and not is_count:
            headers = f", headers if {data} is None else None"
        write = kernel_sinks.row_writer(self._rows.buffer, code.context.task.log_change, self._store)
        code.emit(f"{code.bind(write, 'put_row')}({self._row_key}, {data}, {time}{headers})")

    def _encode(self, as_it_is: bool) -> None:
        """Generate the bytes of a value that is not None, and assign what the store reads back to its variable.

        as_it_is: the value has the exact type already and needs no conversion.
        """
        code, rows, new, data = self._code, self._rows, self._new, self._data
        if rows.exact_value is not None and not as_it_is and not self._is_read:
            kind = code.bind(rows.exact_value_type, "value_type")
            with code.block(f"if type({new}) is not {kind}:"):
                code.emit(f"{new} = {code.bind(rows.exact_value, 'exact_value')}({new})")
        code.emit(f"{data} = {code.use(rows.encode_value, new)}")
        if rows.exact_value is None and not self._is_read and code.has_children:
            code.emit(f"{new} = {code.use(rows.decode_value, data)}")
