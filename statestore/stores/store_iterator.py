"""Results of reading a store: closable rows; and the replacement for a closed store.

``with store.all() as rows:`` closes an iterator (Kafka Streams: KeyValueIterator in a try-with-resources). Short reads,
of one key, return a list in memory that has the same two methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, NoReturn, TypeVar

from penstock.kernel.rows import Scan
from penstock.topology.context.store_types import Closeable, Rows
from penstock.topology.errors import InvalidStateStoreError

T = TypeVar("T")
U = TypeVar("U")


class StoreIterator(Scan[T], Closeable):
    """The rows of a scan, as of its creation, read one by one. Exhaust or close it, because it holds a RocksDB
    iterator.

    After close() there are no more rows.
    """

    __slots__ = ()

    def mapped(self, function: Callable[[T], U]) -> StoreIterator[U]:
        """Return the results of a function for the rows; closing it closes these."""
        return StoreIterator(_Mapped(function, self))


class _Mapped(Iterator[U], Generic[T, U]):
    """The results of a function for rows."""

    __slots__ = ("_function", "_rows")

    def __init__(self, function: Callable[[T], U], rows: StoreIterator[T]) -> None:
        self._function = function
        self._rows = rows

    def __next__(self) -> U:
        return self._function(next(self._rows))

    def close(self) -> None:
        """Close the rows."""
        self._rows.close()


class ClosedStore:
    """Replaces a closed store's rows: all reads and writes raise InvalidStateStoreError."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def close(self) -> None:
        """Do nothing: closing twice is not an error."""

    def __getattr__(self, method: str) -> NoReturn:
        raise InvalidStateStoreError(
            f"The store {self._name} is closed. Read it while its task runs, or before its TopologyTestDriver is closed"
        )


def has_rows(found: object) -> bool:
    """Return whether a method's result is rows (Rows or a StoreIterator), and not a single value."""
    return isinstance(found, Rows | StoreIterator)
