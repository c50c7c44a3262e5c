"""``upgrade.from``: some members still run an older Kafka Streams, which must be able to decode our messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def has_members_before(config: Mapping[str, Any], version: tuple[int, int]) -> bool:
    """Return whether ``upgrade.from`` names a version before this one."""
    oldest: str | None = config.get("upgrade.from")
    return oldest is not None and tuple(map(int, oldest.split("."))) < version
