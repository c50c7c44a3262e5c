"""How one operator reads the rows of another table: KTableValueGetterSupplier.

A supplier is declared with the topology; ``compile`` makes the getter of one task. A row is a ValueAndTimestamp or
None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..context.store_interfaces import Cells
from ..records import ValueAndTimestamp
from .operator import NodeContext

#: (key) -> row.
Getter = Callable[[Any], ValueAndTimestamp | None]
#: (key, timestamp in ms) -> row as of that time.
GetterAsOf = Callable[[Any, int], ValueAndTimestamp | None]


class KTableValueGetter:
    """The getter of one task (Kafka Streams: KTableValueGetter).

    get(key) is the current row; get_as_of(key, timestamp) the row as of a time, None unless the table is versioned.
    get_forwarded(key): the row that the table has forwarded, without what waits in its cache. A join of tables reads
    this one: a key that comes and goes between two flushes is not forwarded, so what was joined with it would stay.
    cells: the cache of the store whose rows get returns as they are, None if there is none.
    """

    __slots__ = ("cells", "get", "get_as_of", "get_forwarded")

    def __init__(
        self,
        get: Getter,
        get_as_of: GetterAsOf | None = None,
        cells: Cells | None = None,
        get_forwarded: Getter | None = None,
    ) -> None:
        self.get = get
        self.get_forwarded = get_forwarded or get
        self.get_as_of = get_as_of
        self.cells = cells

    def map(self, row: Callable[[Any, ValueAndTimestamp | None], ValueAndTimestamp | None]) -> KTableValueGetter:
        """Return a getter whose rows are row(key, row of this getter or None)."""
        get, as_of, forwarded = self.get, self.get_as_of, self.get_forwarded
        if as_of is None:
            return KTableValueGetter(lambda key: row(key, get(key)), get_forwarded=lambda key: row(key, forwarded(key)))
        return KTableValueGetter(lambda key: row(key, get(key)), lambda key, timestamp: row(key, as_of(key, timestamp)))


class KTableValueGetterSupplier(NamedTuple):
    """Declares how a table is read (Kafka Streams: KTableValueGetterSupplier).

    store_names: the stores that the reading node must be connected to. compile(node): the getter for one task.
    """

    store_names: tuple[str, ...]
    compile: Callable[[NodeContext], KTableValueGetter]


class Table(Protocol):
    """What operators need of the KTable that they stand behind."""

    def value_getter_supplier(self) -> KTableValueGetterSupplier:
        """Return how the table is read."""

    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        """Ask the table to send old values; returns whether it will."""
