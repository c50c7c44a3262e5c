"""Limits on the bytes that clients write and read per second, and the throttle times of clients that exceed them.

Kafka: ClientQuotaManager, Rate, ClientQuotaControlManager.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

#: Kinds of clients, with a name, or None for the default of the kind.
Entity: TypeAlias = tuple[tuple[str, str | None], ...]

USER, CLIENT_ID = "user", "client-id"
PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
#: The limits that have an effect here.
KEYS = (PRODUCER, CONSUMER)
#: quota.window.size.seconds, and quota.window.num without the current window.
_WINDOW_MS, _WINDOWS = 1_000, 10
_KEPT_MS = (_WINDOWS + 1) * _WINDOW_MS


@dataclass(eq=False)
class _Rate:
    """windows: bytes by the start time of a window."""

    windows: dict[int, float] = field(default_factory=dict)

    def record(self, size: float, now_ms: int) -> None:
        """Count bytes."""
        self.windows = {begin: sum_ for begin, sum_ in self.windows.items() if begin > now_ms - _KEPT_MS}
        latest = max(self.windows, default=None)
        begin = now_ms if latest is None or now_ms - latest >= _WINDOW_MS else latest
        self.windows[begin] = self.windows.get(begin, 0.0) + size

    def wait_ms(self, limit: float, now_ms: int) -> int:
        """Return how long to wait until the rate is the limit."""
        span_ms = self._elapsed(now_ms)
        rate = sum(self.windows.values()) / span_ms * 1000
        return round((rate - limit) / limit * span_ms) if rate > limit else 0

    def _elapsed(self, now_ms: int) -> int:
        """Return the time that the windows cover, at least ten of them."""
        elapsed = now_ms - min(self.windows)
        return elapsed + max(_WINDOWS - elapsed // _WINDOW_MS, 0) * _WINDOW_MS


class Quotas:
    """The limits of a cluster, and the usage of its clients."""

    def __init__(self) -> None:
        self.limits: dict[Entity, dict[str, float]] = {}
        self._rates: dict[tuple[str, Entity, str, str], _Rate] = {}

    def wait_ms(self, key: str, user: str, client_id: str, size: int, now_ms: int) -> int:
        """Count bytes of a client, and return its throttle time in ms."""
        found = self._limit(key, user, client_id)
        if found is None:
            return 0
        entity, limit = found
        kinds = dict(entity)
        # Clients with a common limit for a user share their usage.
        shared = key, entity, user if USER in kinds else "", client_id if CLIENT_ID in kinds else ""
        rate = self._rates.setdefault(shared, _Rate())
        rate.record(size, now_ms)
        return rate.wait_ms(limit, now_ms)

    def give_back(self, key: str, user: str, client_id: str, size: int, now_ms: int) -> None:
        """Subtract bytes that were counted but not sent."""
        self.wait_ms(key, user, client_id, -size, now_ms)

    def _limit(self, key: str, user: str, client_id: str) -> tuple[Entity, float] | None:
        """Return the most specific limit of a client, with its entity."""
        users: tuple[Entity, ...] = (((USER, user),), ((USER, None),))
        clients: tuple[Entity, ...] = (((CLIENT_ID, client_id),), ((CLIENT_ID, None),))
        for entity in (
            *(tuple(sorted((*its_user, *client))) for its_user in users[:1] for client in clients),
            users[0],
            *(tuple(sorted((*its_user, *client))) for its_user in users[1:] for client in clients),
            users[1],
            *clients,
        ):
            limit = self.limits.get(entity, {}).get(key)
            if limit is not None:
                return entity, limit
        return None

    def change(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set limits, or remove them with None."""
        limits = {**self.limits.get(entity, {}), **changes}
        self.limits[entity] = {key: limit for key, limit in limits.items() if limit is not None}
        if not self.limits[entity]:
            del self.limits[entity]
