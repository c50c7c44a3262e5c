"""The rows of a store as of its last commit (KIP-892)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NoReturn, Protocol

from typing_extensions import override

from penstock.topology.errors import StreamsError

from .bytes_store import NO_MARKS, BytesStore, Marks, RawRow, Row


class HasRows(Protocol):
    """A store. rows: its current rows; a closed store has others, which raise."""

    rows: BytesStore


class CommittedRows(BytesStore):
    """A view of a store's rows as of its last commit, for reads only: nothing is copied.

    It follows the commits of the store, so a reader that needs the rows of one moment must not wait for another commit.
    A scan keeps the rows as they were. Reads raise InvalidStateStoreError once the store is closed.
    """

    def __init__(self, store: HasRows) -> None:
        self._store = store

    @override
    def get(self, key: bytes) -> bytes | None:
        return self._store.rows.committed_row(key)

    @override
    def rows(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> list[Row]:
        return list(self.scan(start, end, reverse))

    @override
    def scan(self, start: bytes | None, end: bytes | None, reverse: bool = False) -> Iterator[Row]:
        return self._store.rows.committed_scan(start, end, reverse)

    @override
    def approximate_num_entries(self) -> int:
        return self._store.rows.approximate_num_committed()

    @override
    def has_uncommitted(self) -> bool:
        return False

    @override
    def committed_offset(self) -> int | None:
        return self._store.rows.committed_offset()

    @override
    def committed_mark(self, name: str) -> int | None:
        return self._store.rows.committed_mark(name)

    @override
    def rollback(self) -> None:
        """Do nothing: there is nothing uncommitted."""

    @override
    def close(self) -> None:
        """Do nothing: the rows are the store's."""

    @override
    def put(self, key: bytes, value: bytes | None) -> NoReturn:
        raise _read_only()

    @override
    def commit(self, changelog_offset: int | None, marks: Marks = NO_MARKS) -> NoReturn:
        raise _read_only()

    @override
    def restore(self, rows: Iterable[RawRow], next_offset: int | None, marks: Marks = NO_MARKS) -> NoReturn:
        raise _read_only()


def _read_only() -> StreamsError:
    return StreamsError("The rows of a store's last commit can only be read; write to the store itself")
