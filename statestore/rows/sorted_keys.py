"""A sorted set of byte strings that stays cheap while it grows between scans."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

#: Keys per chunk after a split: small enough that an insertion moves a few KB, large enough that chunks are few.
CHUNK = 512


class SortedKeys:
    """Byte strings in order, in chunks of at most 2 * CHUNK, so that adding one does not re-sort all.

    An ordered index of a dict: the dict knows whether a key exists, so neither add nor remove checks.
    """

    __slots__ = ("_chunks", "_maxes")

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        ordered = sorted(keys)
        self._chunks = [ordered[i : i + CHUNK] for i in range(0, len(ordered), CHUNK)]
        self._maxes = [chunk[-1] for chunk in self._chunks]

    def add(self, key: bytes) -> None:
        """Add a key, which must not be in the set."""
        maxes = self._maxes
        if not maxes:
            self._chunks.append([key])
            maxes.append(key)
            return
        at = bisect_left(maxes, key)
        if at == len(maxes):
            at -= 1
            maxes[at] = key
        chunk = self._chunks[at]
        insort(chunk, key)
        if len(chunk) > 2 * CHUNK:
            self._split(at)

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        self._chunks[at : at + 1] = [chunk[:CHUNK], chunk[CHUNK:]]
        self._maxes[at : at + 1] = [chunk[CHUNK - 1], chunk[-1]]

    def remove(self, key: bytes) -> None:
        """Remove a key, which must be in the set."""
        at = bisect_left(self._maxes, key)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, key)]
        if chunk:
            self._maxes[at] = chunk[-1]
        else:
            del self._chunks[at], self._maxes[at]

    def between(self, start: bytes | None, end: bytes | None) -> list[bytes]:
        """Return the keys with start <= key < end in order; None leaves a side open."""
        chunks, maxes = self._chunks, self._maxes
        first = 0 if start is None else bisect_left(maxes, start)
        last = len(chunks) if end is None else bisect_left(maxes, end)
        if first == len(chunks):
            return []
        low = 0 if start is None else bisect_left(chunks[first], start)
        if first == last:
            return chunks[first][low : bisect_left(chunks[first], end)]  # type: ignore[type-var]  # end is not None
        found = chunks[first][low:]
        for chunk in chunks[first + 1 : last]:
            found += chunk
        if last < len(chunks):
            found += chunks[last][: bisect_left(chunks[last], end)]  # type: ignore[type-var]  # end is not None
        return found
