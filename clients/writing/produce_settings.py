"""A sender's settings from a producer's, and the detection of unsupported ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.kernel.compression import CODECS

from ..connection.security import is_security_key
from ..network_settings import NETWORK_FIELDS, NetworkSettings, limit_ms, network_fields

COMPRESSION_TYPES = tuple(CODECS)
_KIB = 1024

#: Fields of ProduceSettings by librdkafka's names (of several aliases in the settings, the last one wins, as there).
_FIELDS: Mapping[str, tuple[str, Callable[[Any], object]]] = {
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

#: Settings with fixed values: with any other value, librdkafka is used. The sender is idempotent (KIP-98), waits for
#: all replicas, and partitions as Java's producer does.
_AS_IT_IS: Mapping[str, Callable[[Any], bool]] = {
    "acks": lambda value: str(value) in ("all", "-1"),
    "request.required.acks": lambda value: str(value) in ("all", "-1"),
    "enable.idempotence": lambda value: str(value).lower() == "true",
    "partitioner": lambda value: value == "murmur2_random",
    "compression.type": lambda value: value in COMPRESSION_TYPES,
    "compression.codec": lambda value: value in COMPRESSION_TYPES,
    # Any value is valid, since the sender has one request per partition in flight.
    "max.in.flight": lambda value: int(value) >= 1,
    "max.in.flight.requests.per.connection": lambda value: int(value) >= 1,
    "enable.metrics.push": lambda value: True,  # of the client around the sender
    # Has no effect: batches are bounded by their bytes, and unacknowledged ones by buffer_bytes.
    "queue.buffering.max.messages": lambda value: int(value) >= 0,
}


@dataclass(frozen=True, slots=True)
class ProduceSettings(NetworkSettings):
    """How to write; defaults are librdkafka's, except buffer_bytes, which is Java's (buffer.memory).

    linger_ms: how long a batch waits for more records. max_request_bytes: the maximum size of a record or a request.
    buffer_bytes: limit of closed, unacknowledged batches, before compression. transactional_id: None without
    transactions. With them, the delivery timeout is at most transaction_timeout_ms, after which the broker aborts the
    transaction.
    """

    linger_ms: float = 5
    batch_bytes: int = 1_000_000
    max_request_bytes: int = 1_000_000
    compression_type: str = "none"
    delivery_timeout_ms: int = 300_000
    buffer_bytes: int = 32 * 1024 * 1024
    transactional_id: str | None = None
    transaction_timeout_ms: int = 60_000


def unknown_settings(settings: Mapping[str, object]) -> list[str]:
    """Return the settings of a producer that a sender does not support; librdkafka is used with them."""
    known = _FIELDS.keys() | _AS_IT_IS.keys()
    unknown = {name for name in settings if name not in known and not is_security_key(name)}
    return sorted(
        unknown | {name for name, holds in _AS_IT_IS.items() if name in settings and not holds(settings[name])}
    )


def produce_settings(settings: Mapping[str, object]) -> ProduceSettings:
    """Return the ProduceSettings of supported settings of a producer; raises ConfigError for invalid ones."""
    found = ProduceSettings(**network_fields(settings, _FIELDS))
    if found.transactional_id is None:
        return found
    return replace(found, delivery_timeout_ms=min(found.delivery_timeout_ms, found.transaction_timeout_ms))
