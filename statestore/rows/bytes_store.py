"""The interface under every state store: an ordered map from bytes to bytes with a commit.

Updates since the last commit are *uncommitted*: reads see them, ``rollback`` drops them, and a crash loses them.
``commit`` writes them atomically with their changelog offset, if it is known (KIP-892, KIP-1035). So the offset in a
store is never ahead of its data, and the data never ahead of the changelog. The price is memory between two commits. A
store with many uncommitted bytes therefore requests an early commit from its task (KIP-892's
``statestore.uncommitted.max.bytes``) instead of writing early: the disk always has the state of a commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from penstock.kernel.rows import LatestRows, MergedRows, RowBuffer

#: Rows read from a store; and rows written to it, where None deletes.
Row = tuple[bytes, bytes]
RawRow = tuple[bytes, bytes | None]
#: Numbers that a store commits together with its rows, such as its stream time.
Marks = Mapping[str, int]
NO_MARKS: Marks = MappingProxyType({})


class BytesStore(ABC):
    """An ordered map from bytes to bytes; None as a value deletes. Bounds are start <= key < end, None for open."""

    #: Whether the rows are on disk.
    persistent: bool = False
    #: Whether checkpoint() can copy rows on disk.
    in_snapshots: ClassVar[bool] = True
    #: What all reads and updates go through; None for rows in memory.
    buffer: RowBuffer | None = None

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key, uncommitted updates included."""

    @abstractmethod
    def put(self, key: bytes, value: bytes | None) -> None:
        """Set or delete a key until the next commit or rollback."""

    @abstractmethod
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        """Return the rows of a short range, for fetches of one key."""

    def scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        """Iterate over a range as of now, without later updates. Close the iterator or exhaust it."""
        return iter(self.rows(start, end, reverse))

    def keep_context(self, key: bytes, context: bytes | None) -> None:  # noqa: B027 - most need not
        """Store a context for a row, with the next commit; None removes it. See RowContexts."""

    def context(self, key: bytes) -> bytes | None:
        """Return the context of a row, uncommitted updates included; None if the store keeps none."""
        return None

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete a range of keys that are no longer read, at the latest with the next commit."""
        for key, _ in self.rows(start, end):
            self.put(key, None)

    def latest_rows(self, second_size: int, interval_ms: int) -> LatestRows | None:
        """Return an empty LatestRows of kernel/rows.pyx for rows of window or session keys; None if not supported.

        second_size: size of the second number after the record key, in bytes; interval_ms: of a segment. All puts go
        through it, and reads try it first.
        """
        return None

    @abstractmethod
    def approximate_num_entries(self) -> int:
        """Return the approximate number of rows."""

    @abstractmethod
    def has_uncommitted(self) -> bool:
        """Return whether there are updates since the last commit."""

    @abstractmethod
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Write the uncommitted updates, this offset and these marks atomically; None keeps the current offset."""

    def can_wait(self) -> bool:
        """Return whether the uncommitted updates may wait for a later commit, which writes each key once: they are few,
        and would not survive a SIGKILL on the disk either.
        """
        return False

    @abstractmethod
    def rollback(self) -> None:
        """Drop the uncommitted updates."""

    def committed_row(self, key: bytes) -> bytes | None:
        """Return the value of a key as of the last commit; see CommittedRows."""
        raise NotImplementedError

    def committed_scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        """Iterate over a range as of the last commit, without later ones. Close the iterator or exhaust it."""
        raise NotImplementedError

    def approximate_num_committed(self) -> int:
        """Return the approximate number of rows as of the last commit."""
        raise NotImplementedError

    def committed_offset(self) -> int | None:
        """Return the offset of the last commit, None if there is none on disk."""
        return None

    @abstractmethod
    def committed_mark(self, name: str) -> int | None:
        """Return a mark of the last commit, None if it was never set."""

    @abstractmethod
    def restore(self, rows: Iterable[RawRow], next_offset: int | None, marks: Marks = NO_MARKS) -> None:
        """Write rows, the offset after them, and marks atomically; there must be no uncommitted updates."""

    def persist(self, beside_writes: bool = False) -> None:  # noqa: B027  there is nothing to do without a disk
        """Make committed updates survive a SIGKILL; beside_writes: called from another thread than the store's.

        Updates committed during the call may survive or not.
        """

    def checkpoint(self, path: Path) -> None:
        """Copy the committed state of rows on disk to a database at path."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None:
        """Release all handles, and end open scans after the rows that they have read ahead; uncommitted updates are
        lost.

        Closing twice does nothing.
        """


#: Merges changed rows (None: deleted) into stored rows, both in the same order: (stored, changed, reverse=False).
merge = MergedRows
