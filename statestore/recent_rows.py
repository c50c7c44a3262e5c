"""Rows that a store has committed last, kept for reading."""

from __future__ import annotations

from itertools import islice

#: What a row costs in memory beside its bytes: two bytes objects and a slot of a dict.
BUFFERED_ROW_OVERHEAD_BYTES = 180
#: The value of a row that is not in memory.
MISSING: bytes = b"missing from memory"
#: Rows are kept on if reads have found one in USEFUL until the next commit; else none are for some commits.
USEFUL, COMMITS_WITHOUT = 8, 16


class RecentRows:
    """The last committed rows as Python has them: to find one here costs a tenth of a get of RocksDB's.

    They are kept as long as reads find them. What reads do not find (each update has a new key, or a record cache has
    the rows already) is not worth its memory; after some commits it is tried again.
    """

    __slots__ = ("_found", "_rows", "_without")

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes | None] = {}
        self._found = 0  # how often, since the last commit
        self._without = 0  # for how many commits to do without

    def get(self, key: bytes) -> bytes | None:
        """Return a row, None if it was deleted, MISSING if it is not here."""
        value = self._rows.get(key, MISSING)
        if value is not MISSING:
            self._found += 1
        return value

    def take(self, rows: dict[bytes, bytes | None], max_bytes: int) -> None:
        """Keep committed rows, and the earlier ones if there is room for both."""
        if self._found * USEFUL < len(self._rows):
            self._without = COMMITS_WITHOUT
        self._found = 0
        if self._without:
            self._without -= 1
            self._rows = {}
        elif rows:
            room = int(max_bytes / bytes_of_a_row(rows))
            self._rows.update(rows)
            if len(self._rows) > room:
                self._rows = dict(rows) if len(rows) <= room else {}

    def clear(self) -> None:
        """Forget all rows: what is on disk has changed otherwise."""
        self._rows = {}


def bytes_of_a_row(rows: dict[bytes, bytes | None]) -> float:
    """Return about how much memory a row takes, judged by the newest ones; there must be some."""
    sample = [len(key) + len(value or b"") for key, value in islice(reversed(rows.items()), 100)]
    return sum(sample) / len(sample) + BUFFERED_ROW_OVERHEAD_BYTES
