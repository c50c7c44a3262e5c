"""Network settings of all clients: one table, by librdkafka's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.topology.errors import ConfigError

from .connection.security import PLAINTEXT, Security, security

#: No limit.
FOREVER_MS = 1 << 62


def limit_ms(value: Any) -> int:
    """Return a time limit in ms; 0 and negative values mean no limit, as in librdkafka and Java."""
    return int(value) if int(value) > 0 else FOREVER_MS


def servers(value: str) -> tuple[tuple[str, int], ...]:
    """Return the hosts and ports of ``bootstrap.servers``; the default port is 9092."""
    found = []
    for entry in filter(None, (each.strip() for each in value.split(","))):
        address = entry.rpartition("://")[2]
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal() or (":" in host and not host.startswith("[")):
            host, port = address, "9092"
        found.append((host.strip("[]"), int(port)))
    return tuple(found)


#: Fields of NetworkSettings by librdkafka's names, each with the parser of its value.
NETWORK_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "bootstrap.servers": ("bootstrap_servers", servers),
    "metadata.broker.list": ("bootstrap_servers", servers),
    "client.id": ("client_id", str),
    "client.dns.lookup": ("canonical_names", lambda value: value == "resolve_canonical_bootstrap_servers_only"),
    "receive.message.max.bytes": ("max_response_bytes", int),
    "socket.timeout.ms": ("request_timeout_ms", int),
    "socket.connection.setup.timeout.ms": ("setup_timeout_ms", int),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", int),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", int),
    "retry.backoff.ms": ("retry_backoff_ms", int),
    "connections.max.idle.ms": ("max_idle_ms", limit_ms),
    "metadata.max.age.ms": ("metadata_max_age_ms", limit_ms),
    "metadata.cluster.check.enable": ("checks_cluster", lambda value: str(value).lower() == "true"),
    "topic.metadata.propagation.max.ms": ("unknown_topic_ms", int),
}


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """How to connect and send requests to brokers; durations in ms.

    Defaults are Kafka Streams' (topology/config/config_keys.py), or librdkafka's for keys that Kafka Streams lacks.
    canonical_names: connect to the bootstrap servers by the canonical names of their addresses. reconnect_backoff_ms:
    0 for none. checks_cluster: whether brokers check that a connection is meant for them (KIP-1242).
    """

    bootstrap_servers: tuple[tuple[str, int], ...] = ()
    client_id: str = "penstock"
    canonical_names: bool = False
    max_response_bytes: int = 100_000_000
    request_timeout_ms: int = 40_000
    setup_timeout_ms: int = 30_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    retry_backoff_ms: int = 100
    max_idle_ms: int = 540_000
    metadata_max_age_ms: int = 300_000
    unknown_topic_ms: int = 30_000
    checks_cluster: bool = True
    security: Security = field(default=PLAINTEXT, compare=False, repr=False)


def network_fields(
    settings: Mapping[str, object], fields: Mapping[str, tuple[str, Callable[[Any], object]]]
) -> dict[str, Any]:
    """Return the fields that the settings define, by the table ``fields``, plus ``security``; raises ConfigError.

    If a field has two names, the later one in the table wins, as in librdkafka.
    """
    found = {
        name: _read(key, settings[key], read) for key, (name, read) in fields.items() if settings.get(key) is not None
    }
    return {**found, "security": security(settings)}


def _read(key: str, value: object, read: Callable[[Any], object]) -> object:
    try:
        found = read(value)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{key}={value} is not valid: {error}.") from error
    if isinstance(found, int | float) and found < 0:
        raise ConfigError(f"{key}={value} is not valid: it must not be negative.")
    return found


def network_settings(settings: Mapping[str, object]) -> NetworkSettings:
    """Return the connection settings of a client; raises ConfigError for invalid values."""
    return NetworkSettings(**network_fields(settings, NETWORK_FIELDS))
