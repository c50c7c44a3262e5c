"""Rows that a store has committed last, kept for reading."""

from __future__ import annotations

from itertools import islice

from .row_buffer import RowBuffer

#: What a row costs in memory beside its bytes: two bytes objects and a slot of a dict.
BUFFERED_ROW_OVERHEAD_BYTES = 180
#: Rows are kept on if reads have found one in USEFUL until the next commit; else none are for some commits.
USEFUL, COMMITS_WITHOUT = 8, 16


class RecentRows:
    """Fills a RowBuffer's recent: the last committed rows as Python has them; RocksDB's get takes ten times as long.

    They are kept as long as reads find them. What reads do not find (each update has a new key, or a record cache has
    the rows already) is not worth its memory; after some commits it is tried again.
    """

    __slots__ = ("_buffer", "_without")

    def __init__(self, buffer: RowBuffer) -> None:
        self._buffer = buffer
        self._without = 0  # for how many commits to do without

    def take(self, max_bytes: int) -> None:
        """Keep the buffer's rows, which were committed, and the earlier ones if there is room for both."""
        buffer = self._buffer
        rows, recent = buffer.rows, buffer.recent
        if buffer.found * USEFUL < len(recent):
            self._without = COMMITS_WITHOUT
        buffer.found = 0
        if self._without:
            self._without -= 1
            buffer.recent = {}
        elif rows:
            room = int(max_bytes / bytes_of_a_row(rows))
            recent.update(rows)
            if len(recent) > room:
                buffer.recent = dict(rows) if len(rows) <= room else {}

    def clear(self) -> None:
        """Forget all rows: what is on disk has changed otherwise."""
        self._buffer.recent = {}


def bytes_of_a_row(rows: dict[bytes, bytes | None]) -> float:
    """Return about how much memory a row takes, judged by the newest ones; there must be some."""
    sample = [len(key) + len(value or b"") for key, value in islice(reversed(rows.items()), 100)]
    return sum(sample) / len(sample) + BUFFERED_ROW_OVERHEAD_BYTES
