"""What a consumer's settings mean for a fetcher, and whether it knows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..kafka_connections import CONNECTION_SETTINGS, RECEIVE_MAX_BYTES, connection_settings
from ..security_config import is_security_key

#: Fields of FetchSettings by librdkafka's names (of aliases, the last one that is given wins, as there).
_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "client.id": ("client_id", str),
    "client.rack": ("rack", str),
    "isolation.level": ("read_committed", lambda value: value == "read_committed"),
    "check.crcs": ("check_crcs", lambda value: str(value).lower() == "true"),
    "fetch.wait.max.ms": ("max_wait_ms", int),
    "fetch.min.bytes": ("min_bytes", int),
    "fetch.max.bytes": ("max_bytes", int),
    "fetch.message.max.bytes": ("max_partition_bytes", int),
    "max.partition.fetch.bytes": ("max_partition_bytes", int),
    "fetch.queue.backoff.ms": ("queue_backoff_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "receive.message.max.bytes": ("max_answer_bytes", int),
    "socket.timeout.ms": ("request_timeout_ms", int),
    "metadata.max.age.ms": ("metadata_max_age_ms", int),
    "topic.metadata.propagation.max.ms": ("unknown_topic_ms", int),
}

#: What the runtime gives to each consumer, and nothing else has to do with how records are read.
_WITHOUT_EFFECT = frozenset(
    (
        "allow.auto.create.topics",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "group.id",
        "max.poll.interval.ms",
    )
)


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How to fetch; defaults are librdkafka's. connection: keyword arguments of kafka-python's client."""

    client_id: str = "penstock"
    rack: str = ""
    read_committed: bool = True
    check_crcs: bool = False
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 52_428_800
    max_partition_bytes: int = 1_048_576
    max_answer_bytes: int = RECEIVE_MAX_BYTES
    queue_backoff_ms: int = 1_000
    retry_backoff_ms: int = 100
    request_timeout_ms: int = 60_000
    metadata_max_age_ms: int = 900_000
    unknown_topic_ms: int = 30_000
    connection: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


def unknown_settings(settings: Mapping[str, Any]) -> list[str]:
    """Return those of a consumer's settings that a fetcher would not follow: with them, librdkafka reads."""
    known = _FIELDS.keys() | CONNECTION_SETTINGS.keys() | _WITHOUT_EFFECT
    return sorted(name for name in settings if name not in known and not is_security_key(name))


def fetch_settings(settings: Mapping[str, Any]) -> FetchSettings:
    """Return what a consumer's settings, all of them known, mean; raises ConfigError for TLS and SASL ones."""
    fields = {field: read(settings[name]) for name, (field, read) in _FIELDS.items() if name in settings}
    return FetchSettings(**fields, connection=connection_settings(settings))
