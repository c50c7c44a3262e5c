"""What a producer's settings mean for a sender, and whether it knows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.kernel.compression import CODECS

from ..connection.security import is_security_key
from ..network_settings import NETWORK_FIELDS, NetworkSettings, limit_ms, network_fields

COMPRESSION_TYPES = tuple(CODECS)
_KIB = 1024

#: Fields of ProduceSettings by librdkafka's names (of aliases, the last one that is given wins, as there).
_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    **NETWORK_FIELDS,
    "linger.ms": ("linger_ms", float),
    "queue.buffering.max.ms": ("linger_ms", float),
    "batch.size": ("batch_bytes", int),
    "message.max.bytes": ("max_request_bytes", int),
    "compression.type": ("compression_type", str),
    "compression.codec": ("compression_type", str),
    "delivery.timeout.ms": ("delivery_timeout_ms", limit_ms),
    "message.timeout.ms": ("delivery_timeout_ms", limit_ms),
    "transactional.id": ("transactional_id", str),
    "transaction.timeout.ms": ("transaction_timeout_ms", int),
    "queue.buffering.max.kbytes": ("buffer_bytes", lambda kilobytes: int(kilobytes) * _KIB),
}

#: What the sender does as it is set, or not at all: all others are librdkafka's. It writes only once (KIP-98), waits
#: for all replicas, and chooses partitions as Java's producer does.
_AS_IT_IS: Mapping[str, Callable[[Any], bool]] = {
    "acks": lambda value: str(value) in ("all", "-1"),
    "request.required.acks": lambda value: str(value) in ("all", "-1"),
    "enable.idempotence": lambda value: str(value).lower() == "true",
    "partitioner": lambda value: value == "murmur2_random",
    "compression.type": lambda value: value in COMPRESSION_TYPES,
    "compression.codec": lambda value: value in COMPRESSION_TYPES,
    # Idempotence allows no others, and one request of a partition is in flight here.
    "max.in.flight": lambda value: int(value) >= 1,
    "max.in.flight.requests.per.connection": lambda value: int(value) >= 1,
    # Batches are bounded by their bytes, and what waits for the brokers by buffer_bytes.
    "queue.buffering.max.messages": lambda value: int(value) >= 0,
}


@dataclass(frozen=True, slots=True)
class ProduceSettings(NetworkSettings):
    """How to write; defaults are librdkafka's, but for the buffer, which is Java's (buffer.memory).

    linger_ms: how long records wait for others. max_request_bytes: the most a record, or a request, may have.
    buffer_bytes: of closed batches that are not acknowledged, before compression. transactional_id: None without
    transactions; with them no record is waited for beyond transaction_timeout_ms, when the broker ends its transaction.
    """

    linger_ms: float = 5
    batch_bytes: int = 1_000_000
    max_request_bytes: int = 1_000_000
    compression_type: str = "none"
    delivery_timeout_ms: int = 300_000
    buffer_bytes: int = 32 * 1024 * 1024
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000


def unknown_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return those of a producer's settings that a sender would not follow: with them, librdkafka writes."""
    known = _FIELDS.keys() | _AS_IT_IS.keys()
    unknown = {name for name in settings if name not in known and not is_security_key(name)}
    return sorted(
        unknown | {name for name, holds in _AS_IT_IS.items() if name in settings and not holds(settings[name])}
    )


def produce_settings(settings: Mapping[str, Any]) -> ProduceSettings:
    """Return what a producer's settings, all of them known, mean; raises ConfigError for TLS and SASL ones."""
    found = ProduceSettings(**network_fields(settings, _FIELDS))
    if found.transactional_id is None:
        return found
    return replace(found, delivery_timeout_ms=min(found.delivery_timeout_ms, found.transaction_timeout_ms))
