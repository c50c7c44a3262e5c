"""Which rows to read together with one that is needed: those of the records that follow in the micro-batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: How many records ahead to read at first, and at most.
FIRST_WIDTH, WIDTH_MAX = 16, 4096


class ReadAhead:
    """Knows which keys will probably be read after a key.

    Most operators look up the key of the record that they process. Where many records do not reach the store, because
    they are filtered, reading ahead is a waste, so its width follows how much of it was needed.

    keys: of the records of a micro-batch, in the order in which they will be processed.
    """

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        self._keys = keys
        self._places: dict[bytes, int] | None = None
        self._width = FIRST_WIDTH
        self._expected = 0

    def with_followers(self, key: bytes, accesses: int) -> Iterable[bytes]:
        """Return a key that must be read now, and those to read with it.

        accesses: how many keys were accessed since the last call.
        """
        if self._places is None:
            self._places = {}
            for place, each in enumerate(self._keys):
                self._places.setdefault(each, place)
        at = self._places.get(key)
        if at is None:
            return (key,)
        if self._expected:
            self._width = min(2 * self._width, WIDTH_MAX) if 2 * accesses > self._expected else max(self._width // 4, 1)
        following = self._keys[at : at + self._width]
        self._expected = len(following)
        return dict.fromkeys(following)
