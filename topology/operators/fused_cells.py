"""Generates code that updates a cached row in place in a fused loop: see fusion.py, store_interfaces.Cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..context.store_interfaces import HEADERS, MESSAGE, STAMP, TIMESTAMP, USED, VALUE, Cells, StoreKind
from ..serdes.serdes import ITSELF, inline
from .fused_update import FusedUpdate, counts
from .operator import NodeContext
from .table_store import KTableValueGetter

if TYPE_CHECKING:
    from ..run.fusion import LoopCode, Names


def cached_store(node: NodeContext, name: str, kind: StoreKind) -> Any:
    """Return the store if it is of this kind and has cells; None if it does not cache and forwards each update."""
    store = node.store(name)
    return store if store.builder.kind is kind and store.cells() is not None else None


def write_lookup(code: LoopCode, getter: KTableValueGetter, names: Names, row: str, value: str) -> None:
    """Generate the lookup of a table's row. It assigns the row and a copy of its value, or None, to variables."""
    get = code.bind(getter.get, "get")
    if getter.cells is None:
        code.say_record()
        code.emit(f"{row} = {get}({names.key})")
        code.emit(f"{value} = None if {row} is None else {row}[0]")
        return
    cells, table = getter.cells, getter.cells.table
    key = code.key_bytes(names, cells.key_serde, cells.encode_key, table)
    if table is None:
        cell = code.fresh("cell")
        code.emit(f"{cell} = {code.bind(cells.get, 'get_cell')}({key})")
        not_cached = f"{cell} is None"
    else:
        code.emit(f"{row} = {code.bind(table.read, 'read_cell')}({key})")
        not_cached = f"{row} is {code.bind(table.NOT_CACHED, 'not_cached')}"
    with code.block(f"if {not_cached}:"):
        code.say_record()
        code.emit(f"{row} = {get}({names.shown})")
        code.emit(f"{value} = None if {row} is None else {row}[0]")
    with code.block("else:"):
        if table is None:
            code.emit(f"{cell}[{USED}] = True")
            code.emit(f"{row} = {cell}[{VALUE}]")
        code.emit(f"{value} = None if {row} is None else {code.use(inline(cells.read).of('{}[0]'), row)}")


class FusedCell(FusedUpdate):
    """Generates the update of the row of one cache key in its cell.

    names: the record's variables; window: the variable that holds the cache key of a window.
    """

    def __init__(self, code: LoopCode, cells: Cells, names: Names, window: str = "") -> None:
        super().__init__(code)
        self._cells = cells
        self._names, self._window, self._cell = names, window, code.fresh("cell")
        if cells.table is None:
            self._updates = None
            self._grew = code.flag("grew")
        else:
            read = None if inline(cells.read) == ITSELF else inline(cells.read).compiled or cells.read
            self._updates = cells.table.updates(cells.load, cells.hold, read, cells.native)

    @override
    def aggregate(self, initializer: Callable[[], Any], aggregator: Callable[..., Any], names: Names) -> None:
        if self._updates is None:
            super().aggregate(initializer, aggregator, names)
        elif counts(initializer, aggregator) and self._cells.native is int:
            self._call(self._updates.count)
        else:
            bound = self._code.bind(initializer, "initializer"), self._code.bind(aggregator, "aggregator")
            self._call(self._updates.aggregate, *bound, after_key=(names.key, names.value))

    @override
    def reduce(self, reducer: Callable[[Any, Any], Any], names: Names) -> None:
        if self._updates is None:
            super().reduce(reducer, names)
        else:
            self._call(self._updates.reduce, self._code.bind(reducer, "reducer"), after_key=(names.value,))

    @property
    @override
    def replaces(self) -> bool:
        return self._updates is not None

    @override
    def replace(self, names: Names) -> None:
        assert self._updates is not None
        self._call(self._updates.replace, after_key=(names.value,))

    def _call(self, update: Callable[..., bool], *before_key: str, after_key: tuple[str, ...] = ()) -> None:
        """Generate the call of a compiled update, which does the work of all lines of FusedUpdate."""
        code = self._code
        message = "message" if code.keeps_messages else "None"
        arguments = ", ".join([*before_key, self._write_cache_key(), *after_key, "timestamp", "headers", message])
        with code.block(f"if {code.bind(update, 'update')}({arguments}):"):
            code.say_record()
            code.emit(f"{code.bind(self._cells.grown, 'grown')}()")

    def _write_cache_key(self) -> str:
        """Generate the computation of the cache key, and return its variable."""
        cells = self._cells
        return self._window or self._code.key_bytes(self._names, cells.key_serde, cells.encode_key, cells.table)

    def _find(self) -> None:
        code, cell, key = self._code, self._cell, self._write_cache_key()
        code.emit(f"{cell} = {code.bind(self._cells.get, 'get_cell')}({key})")
        with code.block(f"if {cell} is None:"):
            code.emit(f"{cell} = {code.bind(self._cells.load, 'load')}({key})")
            code.emit(f"{self._grew} = True")
        code.emit(f"{self._row} = {cell}[{VALUE}]")

    def _unpack(self) -> None:
        self._code.emit(f"{self._old}, {self._newest} = {self._row}")
        self._code.assign(self._old, inline(self._cells.read))
        self._keep_newest()

    def _put(self, is_count: bool) -> None:
        code, cell, held = self._code, self._cell, self._new
        row = f"({held}, {self._newest})"
        if not (is_count and self._cells.native is int):
            held = code.fresh("held")
            code.emit(f"{held} = {code.bind(self._cells.hold, 'hold')}({self._new})")
            row = f"None if {held} is None else ({held}, {self._newest})"
        with code.block(f"if not {cell}[{STAMP}]:"):
            code.emit(f"{code.bind(self._cells.make_dirty, 'make_dirty')}({cell})")
        code.emit(f"{cell}[{VALUE}] = {row}")
        code.emit(f"{cell}[{STAMP}] = {code.bind(self._cells.next_stamp, 'next_stamp')}()")
        code.emit(f"{cell}[{TIMESTAMP}] = timestamp")
        code.emit(f"{cell}[{HEADERS}] = headers")
        code.emit(f"{cell}[{USED}] = True")
        if code.keeps_messages:
            code.emit(f"{cell}[{MESSAGE}] = message")
        with code.block(f"if {self._grew}:"):
            code.emit(f"{self._grew} = False")
            code.say_record()
            code.emit(f"{code.bind(self._cells.grown, 'grown')}()")
