"""What a broker remembers of Fetch requests, so that each names only what has changed (KIP-227).

Kafka: FetchSessionHandler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from ..protocol.fetch_request import Part, PartitionRequest, SessionPart
from .partition_fetch import PartitionFetch

#: The epoch of a request that names all partitions, and asks the broker to remember them.
_FULL = 0
_NO_SESSION = 0
_LAST_EPOCH = (1 << 31) - 1


class PartitionAsked(NamedTuple):
    """What a broker is asked of a partition. at_replica: it does not lead it (KIP-392)."""

    fetch: PartitionFetch
    request: PartitionRequest
    at_replica: bool

    @property
    def is_stale(self) -> bool:
        """True if a newer leader has already answered for this offset."""
        return self.fetch.has_failed or not self.fetch.is_assigned or self.request.offset != self.fetch.next_offset


#: All that a broker may answer to, be it in the request, or remembered from those before.
Asked: TypeAlias = Mapping[Part, PartitionAsked]


class FetchSession:
    """The session with one broker. Each request has to be followed by took() or lost(), whatever becomes of it."""

    def __init__(self) -> None:
        self._id = _NO_SESSION
        self._epoch = _FULL
        self._remembered: Asked = {}
        self._by_id = False

    def next(self, asked: Asked, by_id: bool) -> SessionPart:
        """Return what a request for these partitions has to name. by_id: their topics are, not by name."""
        if by_id != self._by_id or any(self._was_anothers(part, each) for part, each in asked.items()):
            self._epoch, self._by_id = _FULL, by_id
        before = self._remembered if self._epoch != _FULL else {}
        changed = {
            part: each.request
            for part, each in asked.items()
            if part not in before or before[part].request != each.request
        }
        forgotten = [part for part in before if part not in asked]
        self._remembered = asked
        return SessionPart(self._id, self._epoch, by_id, changed, forgotten)

    def _was_anothers(self, part: Part, asked: PartitionAsked) -> bool:
        """Return whether a partition was reassigned: its end was reported before, and is not reported again."""
        before = self._remembered.get(part)
        return before is not None and before.fetch is not asked.fetch

    def took(self, session_id: int) -> None:
        """Note that the broker has answered without an error, by this session; 0: it remembers nothing."""
        self._id = session_id
        if session_id == _NO_SESSION:
            self._epoch = _FULL
        else:
            self._epoch = self._epoch + 1 if self._epoch < _LAST_EPOCH else 1

    def lost(self) -> bool:
        """Note that the broker may not remember what it was asked. Returns whether the request has relied on that.

        The next request ends the session, if there still is one, and begins another.
        """
        relied = self._epoch != _FULL
        self._epoch = _FULL
        return relied
