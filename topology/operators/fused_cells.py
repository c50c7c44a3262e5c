"""What aggregations write into a fused loop to update a cached row in place: see fusion.py, store_interfaces.Cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..store_interfaces import HEADERS, MESSAGE, STAMP, TIMESTAMP, USED, VALUE, Cells, StoreKind
from .counting import count_aggregator, count_initializer
from .operator import NodeContext
from .table_store import private_copy
from .value_getters import KTableValueGetter

if TYPE_CHECKING:
    from ..fusion import LoopCode, Names


def cached_store(node: NodeContext, name: str, kind: StoreKind) -> Any:
    """Return a store of this kind that has cells; None if it does not cache: each update is forwarded then."""
    store = node.store(name)
    return store if store.builder.kind is kind and store.cells() is not None else None


def write_lookup(code: LoopCode, getter: KTableValueGetter, key: str, row: str, value: str) -> None:
    """Write how a table's row for a key, and a value of the reader's own, get into variables; None without a row."""
    get = code.bind(getter.get, "get")
    if getter.cells is None:
        code.say_record()
        code.emit(f"{row} = {get}({key})")
        code.emit(f"{value} = None if {row} is None else {row}[0]")
        return
    table = getter.cells.table
    if table is None:
        cell = code.fresh("cell")
        code.emit(f"{cell} = {code.bind(getter.cells.get, 'get_cell')}({key})")
        not_cached = f"{cell} is None"
    else:
        code.emit(f"{row} = {code.bind(table.read, 'read_cell')}({key})")
        not_cached = f"{row} is {code.bind(table.NOT_CACHED, 'not_cached')}"
    with code.block(f"if {not_cached}:"):
        code.say_record()
        code.emit(f"{row} = {get}({key})")
        code.emit(f"{value} = None if {row} is None else {row}[0]")
    with code.block("else:"):
        if table is None:
            code.emit(f"{cell}[{USED}] = True")
            code.emit(f"{row} = {cell}[{VALUE}]")
        code.emit(f"{value} = None if {row} is None else {code.use(getter.cells.own_value, row)}")


class FusedCell:
    """Writes how a record updates the row (value, timestamp) of one cache key.

    cells: the store's; key: the variable with the cache key.
    """

    def __init__(self, code: LoopCode, cells: Cells, key: str) -> None:
        self._code = code
        self._cells = cells
        self._key = key
        self._cell, self._row, self._old = code.fresh("cell"), code.fresh("row"), code.fresh("old")
        self._new, self._newest = code.fresh("new"), code.fresh("newest")
        if cells.table is None:
            self._updates = None
            self._grew = code.flag("grew")
        else:
            self._updates = cells.table.updates(cells.load, private_copy)

    def aggregate(self, initializer: Callable[[], Any], aggregator: Callable[..., Any], names: Names) -> None:
        """Write new = aggregator(key, value, old), where old is initializer() for a new key."""
        code = self._code
        counts = aggregator is count_aggregator and initializer is count_initializer
        if self._updates is not None:
            if counts:
                self._call(self._updates.count)
            else:
                bound = code.bind(initializer, "initializer"), code.bind(aggregator, "aggregator")
                self._call(self._updates.aggregate, *bound, after_key=(names.key, names.value))
            return
        self._find()
        with code.block(f"if {self._row} is None:"):
            code.emit(f"{self._old} = {'0' if counts else code.bind(initializer, 'initializer') + '()'}")
            code.emit(f"{self._newest} = timestamp")
        with code.block("else:"):
            self._unpack()
        if counts:
            code.emit(f"{self._new} = {self._old} + 1")
            self._put(f"({self._new}, {self._newest})")
            return
        code.emit(f"{self._new} = {code.bind(aggregator, 'aggregator')}({names.key}, {names.value}, {self._old})")
        self._put_private(names.value)

    def reduce(self, reducer: Callable[[Any, Any], Any], names: Names) -> None:
        """Write new = reducer(old, value), or the value itself for a new key."""
        code, value = self._code, names.value
        if self._updates is not None:
            self._call(self._updates.reduce, code.bind(reducer, "reducer"), after_key=(value,))
            return
        self._find()
        with code.block(f"if {self._row} is None:"):
            code.emit(f"{self._new} = {value}")
            code.emit(f"{self._newest} = timestamp")
        with code.block("else:"):
            self._unpack()
            code.emit(f"{self._new} = {code.bind(reducer, 'reducer')}({self._old}, {value})")
        self._put_private(value)

    def _call(self, update: Callable[..., bool], *before_key: str, after_key: tuple[str, ...] = ()) -> None:
        """Write the call of a compiled update, which does all that the lines below do."""
        code = self._code
        message = "message" if code.keeps_messages else "None"
        arguments = ", ".join([*before_key, self._key, *after_key, "timestamp", "headers", message])
        with code.block(f"if {code.bind(update, 'update')}({arguments}):"):
            code.say_record()
            code.emit(f"{code.bind(self._cells.grown, 'grown')}()")

    def _find(self) -> None:
        code, cell = self._code, self._cell
        code.emit(f"{cell} = {code.bind(self._cells.get, 'get_cell')}({self._key})")
        with code.block(f"if {cell} is None:"):
            code.emit(f"{cell} = {code.bind(self._cells.load, 'load')}({self._key})")
            code.emit(f"{self._grew} = True")
        code.emit(f"{self._row} = {cell}[{VALUE}]")

    def _unpack(self) -> None:
        self._code.emit(f"{self._old}, {self._newest} = {self._row}")
        with self._code.block(f"if timestamp > {self._newest}:"):
            self._code.emit(f"{self._newest} = timestamp")

    def _put_private(self, value: str) -> None:
        """Put the new value, or a copy if it is the record's own, which others have too."""
        code, new = self._code, self._new
        with code.block(f"if {new} is {value}:"):
            code.emit(f"{new} = {code.bind(private_copy, 'private_copy')}({value})")
        self._put(f"None if {new} is None else ({new}, {self._newest})")

    def _put(self, row: str) -> None:
        code, cell = self._code, self._cell
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
