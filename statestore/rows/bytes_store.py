"""What lies under every state store: an ordered map from bytes to bytes with a commit.

Updates since the last commit are *uncommitted*: reads see them, ``rollback`` drops them, and a crash loses them.
``commit`` makes them and the changelog offset that they lead to, where it is known, one step (KIP-892, KIP-1035). So
the offset in a store is never ahead of its data, and the data never ahead of the changelog. The price is memory between
two commits, which is why a store that holds many uncommitted bytes asks its task to commit early (KIP-892's
``statestore.uncommitted.max.bytes``) instead of writing early: what is on disk is always the state of a commit, and
neither guarantee needs a separate rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

#: Rows as they come out of a store; and as they go in, where None deletes.
Row = tuple[bytes, bytes]
RawRow = tuple[bytes, bytes | None]
#: Numbers that a store keeps beside its rows and commits with them, such as its stream time.
Marks = Mapping[str, int]
NO_MARKS: Marks = MappingProxyType({})


class BytesStore(ABC):
    """An ordered map from bytes to bytes; None as a value deletes. Bounds are start <= key < end, None for open."""

    #: Whether there is a disk behind it.
    persistent: ClassVar[bool] = False
    #: penstock.kernel's RowBuffer, through which all reads and updates go; None if there is none.
    compiled_rows: Any = None

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, uncommitted updates included."""

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Set or delete a key until the next commit or rollback."""

    @abstractmethod
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        """Return the rows of a short range: what fetches of one key use."""

    def scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        """Iterate over a range as it is now: later updates are not seen. Close it or exhaust it."""
        return iter(self.rows(start, end, reverse))

    def keep_context(self, key: bytes, context: bytes | None) -> None:  # noqa: B027 - most need not
        """Keep something beside a row from the next commit on, None for nothing; see row_contexts.py."""

    def context(self, key: bytes) -> bytes | None:
        """Return what is kept beside a row, uncommitted updates included; None where nothing can be."""
        return None

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete a range of keys that are no longer read; may happen with the next commit."""
        for key, _ in self.rows(start, end):
            self.put(key, None)

    def latest_rows(self, second_size: int, interval_ms: int) -> Any:
        """Return an empty penstock.kernel LatestRows for the rows of window or session keys; None if it has none.

        second_size: of the second number behind the record key, in bytes; interval_ms: of a segment. All puts go
        through it, and reads ask it first.
        """
        return None

    @abstractmethod
    def approximate_num_entries(self) -> int:
        """Return about how many rows there are."""

    @abstractmethod
    def has_uncommitted(self) -> bool:
        """Return whether there are updates since the last commit."""

    @abstractmethod
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Write the uncommitted updates, this offset and these marks in one step; None keeps the offset it has."""

    @abstractmethod
    def rollback(self) -> None:
        """Drop the uncommitted updates."""

    def committed_offset(self) -> int | None:
        """Return the offset of the last commit, None if there is none on disk."""
        return None

    @abstractmethod
    def committed_mark(self, name: str) -> int | None:
        """Return a mark of the last commit, None if it was never set."""

    @abstractmethod
    def restore(self, rows: Iterable[RawRow], next_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Write rows, the offset behind them and marks in one step; there are no uncommitted updates meanwhile."""

    def persist(self, beside_writes: bool = False) -> None:  # noqa: B027  there is nothing to do without a disk
        """Make what was committed survive a SIGKILL; beside_writes: on another thread than the store's own.

        What is committed meanwhile may survive or not.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back all handles and end open scans; uncommitted updates are lost. Closing twice does nothing."""


def after(prefix: bytes) -> bytes | None:
    """Return the first key behind all keys with this prefix; None if there is none (Kafka: BytesUtils.increment)."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes((stripped[-1] + 1,)) if stripped else None


def merge(stored: Iterator[Row], changed: Sequence[RawRow], reverse: bool = False) -> Generator[Row, None, None]:
    """Yield stored rows with the changed ones laid over them, None for deleted; both come in the same order."""
    row = next(stored, None)
    for key, value in changed:
        while row is not None and (row[0] > key if reverse else row[0] < key):
            yield row
            row = next(stored, None)
        if row is not None and row[0] == key:
            row = next(stored, None)
        if value is not None:
            yield key, value
    while row is not None:
        yield row
        row = next(stored, None)
