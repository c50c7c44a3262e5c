"""Results of reading a store: the kernel's StoreIterator and Rows; and the replacement for a closed store.

``with store.all() as rows:`` closes an iterator (Kafka Streams: KeyValueIterator in a try-with-resources). Short reads,
of one key, return a list in memory that has the same two methods.
"""

from __future__ import annotations

from typing import NoReturn

from penstock.kernel.rows import StoreIterator
from penstock.topology.context.store_types import Rows
from penstock.topology.errors import InvalidStateStoreError


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
