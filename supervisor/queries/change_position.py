"""The position of a subscriber in a store's changelog, as the ids of its events spell it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from .store_routing import QueryError

_OFFSET_MAX = (1 << 63) - 1
#: The changelog's id, and for each partition its number and the next offset.
_ID = re.compile(r"([0-9a-f]{32})((?:\.\d{1,10}-\d{1,19})+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChangePosition:
    """topic_id: of the changelog, which is another one after it was recreated. offsets: by partition, the next."""

    topic_id: UUID
    offsets: Mapping[int, int]

    def __str__(self) -> str:
        return self.topic_id.hex + "".join(f".{partition}-{at}" for partition, at in sorted(self.offsets.items()))

    @classmethod
    def parse(cls, text: str) -> ChangePosition:
        """Return the position of an event's id. Raises QueryError."""
        found = _ID.fullmatch(text)
        pairs = [part.split("-") for part in found[2].split(".")[1:]] if found else []
        offsets = {int(partition): int(at) for partition, at in pairs}
        if found is None or len(offsets) < len(pairs) or max(offsets.values()) > _OFFSET_MAX:
            shown = text if len(text) <= 100 else f"{text[:100]}…"
            raise QueryError(
                400, "BAD_REQUEST", f"{shown!r} is no id of an event: send one as it was received, or leave out from=."
            )
        return cls(UUID(hex=found[1]), offsets)
