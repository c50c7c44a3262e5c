"""What the reads of a store return: rows that can be closed, and a store that is closed itself.

``with store.all() as rows:`` closes an iterator (Kafka Streams: KeyValueIterator in a try-with-resources). Short reads,
of one key, have their rows in memory: a list, that has the same two methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn, Self, TypeVar

from penstock.topology.errors import InvalidStateStoreError

T = TypeVar("T")


class _Closeable:
    __slots__ = ()

    def close(self) -> None:
        """Release what is held; closing twice does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Rows(list[T], _Closeable):
    """The rows of a short read. They stay after close(), which has nothing to release."""

    __slots__ = ()


class StoreIterator(_Closeable, Iterator[T]):
    """The rows of a scan at the moment it was made, read one by one. Exhaust or close it: RocksDB's iterator is open.

    rows: a generator, or any iterator that holds nothing. After close() there are no more rows.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: Iterator[T]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[T]:
        return self._rows  # a loop over it makes no extra call for each row

    def __next__(self) -> T:
        return next(self._rows)

    def close(self) -> None:
        """Release the iterator below."""
        close = getattr(self._rows, "close", None)
        self._rows = iter(())
        if close is not None:
            close()


class ClosedStore:
    """Replaces a closed store's rows: all reads and writes raise InvalidStateStoreError."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def close(self) -> None:
        """Do nothing: closing twice is no error."""

    def __getattr__(self, method: str) -> NoReturn:
        raise InvalidStateStoreError(
            f"The store {self._name} is closed. Read it while its task runs, or before its TopologyTestDriver is closed"
        )


def has_rows(found: Any) -> bool:
    """Return whether a method's result is rows (Rows or a StoreIterator), and not a single value."""
    return isinstance(found, Rows | StoreIterator)
