"""Incremental fetch sessions: each request contains only partitions that changed since the one before (KIP-227).

Kafka: FetchSessionHandler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from ..protocol.fetch_request import Part, PartitionRequest, SessionPart
from .partition_fetch import PartitionFetch

#: The epoch of a full request: it contains all partitions, and asks the broker to create a session.
_FULL = 0
_NO_SESSION = 0
_LAST_EPOCH = (1 << 31) - 1


class PartitionAsked(NamedTuple):
    """A requested partition. at_replica: the broker is a follower (KIP-392)."""

    fetch: PartitionFetch
    request: PartitionRequest
    at_replica: bool

    @property
    def is_stale(self) -> bool:
        """True if a newer leader has already answered for this offset."""
        return self.fetch.has_failed or not self.fetch.is_assigned or self.request.offset != self.fetch.next_offset


#: All partitions of a session: those in the request, and those the broker remembers from earlier requests.
Asked: TypeAlias = Mapping[Part, PartitionAsked]


class FetchSession:
    """The session with one broker. Call took() or lost() after each request, whatever its outcome."""

    def __init__(self) -> None:
        self._id = _NO_SESSION
        self._epoch = _FULL
        self._remembered: Asked = {}
        self._by_id = False

    def next(self, asked: Asked, by_id: bool) -> SessionPart:
        """Return the session part of a request for these partitions. by_id: whether topics are requested by id."""
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
        """Return True if a partition was reassigned; a broker does not resend an unchanged end."""
        before = self._remembered.get(part)
        return before is not None and before.fetch is not asked.fetch

    def took(self, session_id: int) -> None:
        """Record a response without an error, and its session id; 0: the broker keeps no session."""
        self._id = session_id
        if session_id == _NO_SESSION:
            self._epoch = _FULL
        else:
            self._epoch = self._epoch + 1 if self._epoch < _LAST_EPOCH else 1

    def lost(self) -> bool:
        """Record that the broker may have lost the session. Returns whether the request relied on it.

        The next request closes the session, if it still exists, and creates another.
        """
        relied = self._epoch != _FULL
        self._epoch = _FULL
        return relied
