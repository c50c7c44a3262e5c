"""The producer settings that a KafkaProducer supports, and their meaning."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.clients.writing.produce_settings import produce_settings, unknown_settings

BASE = {"acks": "all", "enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 5}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("acks", 1),
        ("acks", "0"),
        ("enable.idempotence", False),
        ("compression.type", "brotli"),
        ("compression.codec", "inherit"),
        ("compression.level", 3),
        ("sticky.partitioning.linger.ms", 0),
        ("plugin.library.paths", "users"),
    ],
)
def test_with_unknown_settings_librdkafka_writes(setting: str, value: Any) -> None:
    assert unknown_settings({**BASE, setting: value}) == [setting]


def test_settings_have_the_meaning_of_librdkafkas() -> None:
    given = {
        **BASE,
        "acks": -1,
        "bootstrap.servers": "b:1",
        "client.id": "c",
        "compression.codec": "lz4",
        "batch.size": "300",
        "message.max.bytes": 400,
        "queue.buffering.max.kbytes": 2,
        "queue.buffering.max.messages": 10,
        "message.timeout.ms": 1_000,
        "socket.timeout.ms": 2_000,
        "connections.max.idle.ms": 3_000,
        "security.protocol": "plaintext",
    }
    assert unknown_settings(given) == []
    found = produce_settings(given)
    assert (found.client_id, found.linger_ms, found.compression_type) == ("c", 5.0, "lz4")
    assert (found.batch_bytes, found.max_request_bytes, found.buffer_bytes) == (300, 400, 2_048)
    assert (found.delivery_timeout_ms, found.request_timeout_ms) == (1_000, 2_000)
    assert (found.max_idle_ms, found.bootstrap_servers) == (3_000, (("b", 1),))


def test_the_transaction_timeout_limits_the_delivery_timeout() -> None:
    given = {**BASE, "transactional.id": "t", "transaction.timeout.ms": 10_000, "delivery.timeout.ms": 60_000}
    assert unknown_settings(given) == []
    found = produce_settings(given)
    assert (found.transactional_id, found.transaction_timeout_ms, found.delivery_timeout_ms) == ("t", 10_000, 10_000)
