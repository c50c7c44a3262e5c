"""What settings mean for connections of our own, to read or to write through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .kafka_connections import RECEIVE_MAX_BYTES

#: Longer than anything runs.
_FOREVER_MS = 1 << 62


def limit_ms(value: Any) -> int:
    """Return a setting that limits a time, in ms; 0 is no limit, as librdkafka has it."""
    return int(value) if int(value) > 0 else _FOREVER_MS


#: Fields of NetworkSettings by librdkafka's names.
NETWORK_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "client.id": ("client_id", str),
    "receive.message.max.bytes": ("max_answer_bytes", int),
    "socket.timeout.ms": ("request_timeout_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "connections.max.idle.ms": ("max_idle_ms", limit_ms),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "topic.metadata.propagation.max.ms": ("unknown_topic_ms", int),
}


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """How to ask brokers; defaults are librdkafka's, but for metadata_max_age_ms and max_idle_ms (Java's).

    connection: keyword arguments of kafka-python's client.
    """

    client_id: str = "penstock"
    max_answer_bytes: int = RECEIVE_MAX_BYTES
    request_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    max_idle_ms: int = 540_000
    metadata_max_age_ms: int = 300_000
    unknown_topic_ms: int = 30_000
    connection: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
