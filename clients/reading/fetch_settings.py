"""A fetcher's settings from a consumer's, and the detection of unsupported ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..connection.security import is_security_key
from ..network_settings import NETWORK_FIELDS, NetworkSettings, network_fields

#: Allowance for a response's bytes other than records, as in librdkafka.
FRAMING_BYTES = 512
#: Fields of FetchSettings by librdkafka's names (of several aliases in the settings, the last one wins, as there).
_FIELDS: Mapping[str, tuple[str, Callable[[Any], object]]] = {
    **NETWORK_FIELDS,
    "client.rack": ("rack", str),
    "isolation.level": ("read_committed", lambda value: value == "read_committed"),
    "check.crcs": ("check_crcs", lambda value: str(value).lower() in ("true", "t", "1")),
    "fetch.wait.max.ms": ("max_wait_ms", int),
    "fetch.min.bytes": ("min_bytes", int),
    "fetch.max.bytes": ("max_bytes", int),
    "fetch.message.max.bytes": ("max_partition_bytes", int),
    "max.partition.fetch.bytes": ("max_partition_bytes", int),
    "fetch.queue.backoff.ms": ("queue_backoff_ms", int),
}

#: Settings that the runtime gives each consumer, and that do not affect how records are read.
_WITHOUT_EFFECT = frozenset(
    (
        "allow.auto.create.topics",
        "auto.offset.reset",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.metrics.push",
        "enable.partition.eof",
        "group.id",
        "max.poll.interval.ms",
    )
)


@dataclass(frozen=True, slots=True)
class FetchSettings(NetworkSettings):
    """How to fetch; defaults are librdkafka's. max_record_bytes: the largest record that is decompressed."""

    rack: str = ""
    read_committed: bool = True
    check_crcs: bool = False
    max_wait_ms: int = 500
    min_bytes: int = 1
    max_bytes: int = 52_428_800
    max_partition_bytes: int = 1_048_576
    queue_backoff_ms: int = 1_000
    max_record_bytes: int = 100_000_000


def unknown_settings(settings: Mapping[str, object]) -> list[str]:
    """Return the settings of a consumer that a fetcher does not support; librdkafka is used with them."""
    known = _FIELDS.keys() | _WITHOUT_EFFECT
    return sorted(name for name in settings if name not in known and not is_security_key(name))


def fetch_settings(settings: Mapping[str, object], **more: Any) -> FetchSettings:
    """Return the FetchSettings of a consumer's settings, all of them supported; raises ConfigError for invalid ones.

    more: fields that are no settings of a consumer.
    """
    made = FetchSettings(**network_fields(settings, _FIELDS), **more)
    if "receive.message.max.bytes" in settings:
        return made
    # A response may be as large as fetch.max.bytes; librdkafka raises an unset limit likewise.
    return replace(made, max_response_bytes=max(made.max_response_bytes, made.max_bytes + FRAMING_BYTES))
