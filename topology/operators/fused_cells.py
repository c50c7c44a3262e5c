"""Generates code that reads and updates a cached row in a fused loop: see fusion.py, store_interfaces.Cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from ..context.store_interfaces import Cells, StoreKind
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
    """Generate the lookup of a table's row, as of the record's timestamp if the table is versioned.

    It assigns the row and a copy of its value, or None, to variables.
    """
    get = code.bind(getter.get_as_of or getter.get, "get")
    if getter.cells is None:
        code.say_record()
        code.emit(f"{row} = {get}({names.key}{', timestamp' if getter.get_as_of else ''})")
        code.emit(f"{value} = None if {row} is None else {row}[0]")
        return
    cells = getter.cells
    key = code.key_bytes(names, cells.key_serde, cells.encode_key, cells.table)
    code.emit(f"{row} = {code.bind(cells.table.read, 'read_cell')}({key})")
    with code.block(f"if {row} is {code.bind(cells.table.NOT_CACHED, 'not_cached')}:"):
        code.say_record()
        code.emit(f"{row} = {get}({names.shown})")
        code.emit(f"{value} = None if {row} is None else {row}[0]")
    with code.block("else:"):
        code.emit(f"{value} = None if {row} is None else {code.use(inline(cells.read).of('{}[0]'), row)}")


class FusedCell(FusedUpdate):
    """Generates calls of the kernel's CellUpdates for the row of one cache key.

    names: the record's variables; window: the variable that holds the cache key of a window.
    """

    def __init__(self, code: LoopCode, cells: Cells, names: Names, window: str = "") -> None:
        self._code, self._cells = code, cells
        self._names, self._window = names, window
        read = None if inline(cells.read) == ITSELF else inline(cells.read).compiled or cells.read
        self._updates = cells.table.updates(cells.load, cells.hold, read, cells.native)

    @override
    def aggregate(self, initializer: Callable[[], Any], aggregator: Callable[..., Any], names: Names) -> None:
        if counts(initializer, aggregator) and self._cells.native is int:
            self._call(self._updates.count)
        else:
            bound = self._code.bind(initializer, "initializer"), self._code.bind(aggregator, "aggregator")
            self._call(self._updates.aggregate, *bound, after_key=(names.key, names.value))

    @override
    def reduce(self, reducer: Callable[[Any, Any], Any], names: Names) -> None:
        self._call(self._updates.reduce, self._code.bind(reducer, "reducer"), after_key=(names.value,))

    @override
    def replace(self, names: Names) -> None:
        self._call(self._updates.replace, after_key=(names.value,))

    def _call(self, update: Callable[..., bool], *before_key: str, after_key: tuple[str, ...] = ()) -> None:
        code, cells = self._code, self._cells
        key = self._window or code.key_bytes(self._names, cells.key_serde, cells.encode_key, cells.table)
        message = "message" if code.keeps_messages else "None"
        arguments = ", ".join([*before_key, key, *after_key, "timestamp", "headers", message])
        with code.block(f"if {code.bind(update, 'update')}({arguments}):"):
            code.say_record()
            code.emit(f"{code.bind(cells.grown, 'grown')}()")
