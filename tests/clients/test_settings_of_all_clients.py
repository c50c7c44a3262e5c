"""The meaning of a setting for each client of a stream thread, at its special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.clients.network_settings import FOREVER_MS, NETWORK_FIELDS, NetworkSettings
from penstock.clients.reading import fetch_settings as fetching
from penstock.clients.reading.fetch_settings import FetchSettings, fetch_settings
from penstock.clients.writing import produce_settings as producing
from penstock.clients.writing.produce_settings import ProduceSettings, produce_settings
from penstock.topology.config.client_keys import renamed
from penstock.topology.config.config_keys import KEYS
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError
from penstock.workers.thread import client_supplier
from penstock.workers.thread.client_supplier import KafkaClientSupplier

Layers = Callable[..., dict[str, NetworkSettings]]
REFUSED = ConfigError
#: Equal for all clients, by Penstock's names: field, and the results for None (not set), 0 and -1.
SHARED: dict[str, tuple[str, Any, Any, Any]] = {
    "request.timeout.ms": ("request_timeout_ms", 40_000, 0, REFUSED),
    "retry.backoff.ms": ("retry_backoff_ms", 100, 0, REFUSED),
    "reconnect.backoff.ms": ("reconnect_backoff_ms", 50, 0, REFUSED),
    "reconnect.backoff.max.ms": ("reconnect_backoff_max_ms", 1_000, 0, REFUSED),
    "connections.max.idle.ms": ("max_idle_ms", 540_000, FOREVER_MS, FOREVER_MS),
    "metadata.max.age.ms": ("metadata_max_age_ms", 300_000, FOREVER_MS, REFUSED),
}
#: For a reader, with the prefix ``consumer.``.
READING: dict[str, tuple[str, Any, Any, Any]] = {
    "fetch.wait.max.ms": ("max_wait_ms", 500, 0, REFUSED),
    "fetch.min.bytes": ("min_bytes", 1, 0, REFUSED),
    "fetch.max.bytes": ("max_bytes", 52_428_800, 0, REFUSED),
    "fetch.message.max.bytes": ("max_partition_bytes", 1_048_576, 0, REFUSED),
    "max.partition.fetch.bytes": ("max_partition_bytes", 1_048_576, 0, REFUSED),
    "fetch.queue.backoff.ms": ("queue_backoff_ms", 1_000, 0, REFUSED),
}
#: For a writer, with the prefix ``producer.``.
WRITING: dict[str, tuple[str, Any, Any, Any]] = {
    "linger.ms": ("linger_ms", 5, 0, REFUSED),
    "queue.buffering.max.ms": ("linger_ms", 5, 0, REFUSED),
    "batch.size": ("batch_bytes", 1_000_000, 0, REFUSED),
    "message.max.bytes": ("max_request_bytes", 1_000_000, 0, REFUSED),
    "delivery.timeout.ms": ("delivery_timeout_ms", 300_000, FOREVER_MS, FOREVER_MS),
    "message.timeout.ms": ("delivery_timeout_ms", 300_000, FOREVER_MS, FOREVER_MS),
    "transaction.timeout.ms": ("transaction_timeout_ms", 60_000, 0, REFUSED),
    "queue.buffering.max.kbytes": ("buffer_bytes", 32 * 1024 * 1024, 0, REFUSED),
}


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> Layers:
    """Return the settings from which each client of a supplier is created."""
    monkeypatch.setattr(client_supplier, "KafkaBrokers", lambda settings, creates_topics=False: settings)
    for kind in ("Fetcher", "KafkaProducer", "TransactionalKafkaProducer"):
        monkeypatch.setattr(client_supplier, kind, lambda brokers, settings, *rest: settings)
    for kind in ("GroupMember", "GroupOffsetsReader"):
        monkeypatch.setattr(client_supplier, kind, lambda what, settings, *rest, **named: settings)
    monkeypatch.setattr(client_supplier, "KafkaAdmin", lambda settings: settings)

    def made(**values: Any) -> dict[str, Any]:
        given = {name.replace("__", "."): value for name, value in values.items()}
        supplier = KafkaClientSupplier(
            StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:1", **given})
        )
        return {
            "main consumer": supplier.get_consumer("c"),
            "restore consumer": supplier.get_restore_consumer("c"),
            "global consumer": supplier.get_global_consumer("c"),
            "producer": supplier.get_producer("c"),
            "transactional producer": supplier.get_producer("c", "id"),
            "classic member": supplier.get_group_member("c", lambda members: {}),
            "streams member": supplier.get_streams_group_member("c", None),  # type: ignore[arg-type]
            "offsets reader": supplier.get_offsets_reader("c", 1),
            "admin": supplier.get_admin("c"),
        }

    return made


@pytest.mark.parametrize("key", SHARED)
def test_a_setting_of_all_clients_has_the_same_meaning_for_each(layers: Layers, key: str) -> None:
    field, unset, zero, minus_one = SHARED[key]
    name = key.replace(".", "__")
    for given, meaning in (({}, unset), ({name: 0}, zero), ({name: -1}, minus_one)):
        if meaning is REFUSED:
            with pytest.raises(ConfigError, match=key):
                layers(**given)
        else:
            assert {getattr(found, field) for found in layers(**given).values()} == {meaning}, given


def test_kafkas_names_have_their_meaning() -> None:
    given = {
        "fetch.max.wait.ms": "7",
        "max.request.size": 2_000_000,
        "producer.buffer.memory": 10 * 1024 * 1024,
        "consumer.interceptor.classes": "org.example.Interceptor",
        "max.block.ms": 5,
        "batch.size": 12_345,
    }
    supplier = KafkaClientSupplier(
        StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:1", **given})
    )
    read = fetch_settings(supplier._consumer_settings("c", "consumer.", "main.consumer."))
    written = produce_settings(supplier.producer_settings("p", None))
    assert read.max_wait_ms == 7
    assert (written.max_request_bytes, written.buffer_bytes, written.batch_bytes) == (2_000_000, 10 << 20, 12_345)
    assert not fetching.unknown_settings(supplier._consumer_settings("c", "consumer."))
    assert not producing.unknown_settings(supplier.producer_settings("p", None))


def test_a_size_that_is_no_number() -> None:
    supplier = KafkaClientSupplier(
        StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:1", "buffer.memory": "32 MB"})
    )
    with pytest.raises(ConfigError, match=r"buffer\.memory='32 MB' is not valid: expected a whole number"):
        supplier.get_producer("p")


def test_documented_defaults_are_the_defaults() -> None:
    shared = {NETWORK_FIELDS[next(iter(renamed({name: 0})))][0]: KEYS[name].default for name in SHARED}
    assert {field: getattr(NetworkSettings(), field) for field in shared} == shared


@pytest.mark.parametrize(
    ("read", "made", "key", "row"),
    [(fetch_settings, FetchSettings, *item) for item in READING.items()]
    + [(produce_settings, ProduceSettings, *item) for item in WRITING.items()],
)
def test_a_setting_of_one_client(read: Any, made: Any, key: str, row: tuple[str, Any, Any, Any]) -> None:
    field, unset, zero, minus_one = row
    assert getattr(read({}), field) == getattr(made(), field) == unset
    assert getattr(read({key: 0}), field) == zero
    if minus_one is REFUSED:
        with pytest.raises(ConfigError, match=f"{key}=-1"):
            read({key: -1})
    else:
        assert getattr(read({key: -1}), field) == minus_one
