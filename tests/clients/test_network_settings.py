"""Settings at their special values: 0, -1, and not set. One table for all clients."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.clients.network_settings import FOREVER_MS, NETWORK_FIELDS, NetworkSettings, network_settings, servers
from penstock.clients.reading.fetch_settings import FRAMING_BYTES, fetch_settings

#: By name: the value and its effect. Not set: the default of Kafka Streams, or of librdkafka.
MEANINGS: dict[str, list[tuple[Any, Any]]] = {
    "bootstrap.servers": [(None, ()), ("a:1", (("a", 1),))],
    "metadata.broker.list": [(None, ()), ("a:1", (("a", 1),))],
    "client.id": [(None, "penstock"), ("", ""), ("x", "x")],
    "client.dns.lookup": [
        (None, False),
        ("use_all_dns_ips", False),
        ("resolve_canonical_bootstrap_servers_only", True),
    ],
    "receive.message.max.bytes": [(None, 100_000_000), (1_000, 1_000)],
    "socket.timeout.ms": [(None, 40_000), (10, 10)],
    "socket.connection.setup.timeout.ms": [(None, 30_000), (1_000, 1_000)],
    "reconnect.backoff.ms": [(None, 50), (0, 0), ("7", 7)],
    "reconnect.backoff.max.ms": [(None, 1_000), (0, 0)],
    "retry.backoff.ms": [(None, 100), (1, 1)],
    "connections.max.idle.ms": [(None, 540_000), (0, FOREVER_MS), (-1, FOREVER_MS), ("5000", 5_000)],
    "metadata.max.age.ms": [(None, 300_000), (0, FOREVER_MS), (-1, FOREVER_MS), (1, 1)],
    "topic.metadata.propagation.max.ms": [(None, 30_000), (0, 0)],
    "metadata.cluster.check.enable": [(None, True), (True, True), (False, False), ("false", False), ("true", True)],
}


def test_the_table_has_each_setting() -> None:
    assert MEANINGS.keys() == NETWORK_FIELDS.keys()


@pytest.mark.parametrize(
    ("name", "value", "meaning"),
    [(name, value, meaning) for name, pairs in MEANINGS.items() for value, meaning in pairs],
)
def test_a_setting_has_the_same_meaning_as_in_librdkafka(name: str, value: Any, meaning: Any) -> None:
    found = network_settings({} if value is None else {name: value})
    assert getattr(found, NETWORK_FIELDS[name][0]) == meaning
    assert network_settings({name: None}) == NetworkSettings()


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        ("a:1, b:2,,", [("a", 1), ("b", 2)]),
        ("a", [("a", 9092)]),
        ("SASL_SSL://a:1", [("a", 1)]),
        ("[::1]:5", [("::1", 5)]),
        ("[::1]", [("::1", 9092)]),
        ("::1", [("::1", 9092)]),
    ],
)
def test_bootstrap_servers_are_parsed_as_by_librdkafka(value: str, addresses: list[tuple[str, int]]) -> None:
    assert servers(value) == tuple(addresses)


def test_a_response_of_the_requested_size_is_accepted() -> None:
    """Otherwise it would be refused and requested again, forever."""
    assert fetch_settings({"fetch.max.bytes": 150_000_000}).max_response_bytes == 150_000_000 + FRAMING_BYTES
    assert fetch_settings({"fetch.max.bytes": 1_000}).max_response_bytes == 100_000_000
    assert fetch_settings({}).max_response_bytes == 100_000_000
    both = {"fetch.max.bytes": 2_000, "receive.message.max.bytes": 3_000}
    assert fetch_settings(both).max_response_bytes == 3_000
