"""The Reader and Writer of a stream thread: Penstock's own, or librdkafka's behind an adapter."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.clients.librdkafka import LibrdkafkaReader, LibrdkafkaWriter, as_reader, as_writer
from penstock.clients.reading.fetcher import Fetcher
from penstock.clients.writing.kafka_producer import KafkaProducer
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.topology.errors import ConfigError
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.workers.test_client_supplier import config

pytestmark = pytest.mark.medium


def test_penstocks_clients_are_the_default(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    def kinds(**values: Any) -> tuple[type, type, type]:
        supplier = KafkaClientSupplier(config(**values))
        made = supplier.get_consumer("c"), supplier.get_producer("p"), supplier.get_producer("p", "tx")
        for client in made:
            client.close()
        return tuple(map(type, made))  # type: ignore[return-value]

    assert kinds() == (Fetcher, KafkaProducer, TransactionalKafkaProducer)
    assert caplog.text == ""
    assert kinds(consumer__queued__min__messages=7) == (LibrdkafkaReader, KafkaProducer, TransactionalKafkaProducer)
    assert "Reading with librdkafka, which knows queued.min.messages" in caplog.text
    assert kinds(producer__compression__level=3) == (Fetcher, LibrdkafkaWriter, LibrdkafkaWriter)
    assert "Writing with librdkafka, which knows compression.level" in caplog.text


def test_clients_push_their_metrics_unless_that_is_disabled() -> None:
    def pushing(**values: Any) -> list[str]:
        supplier = KafkaClientSupplier(config(**values))
        makes = (supplier.get_consumer, supplier.get_restore_consumer, supplier.get_global_consumer)
        made: list[Any] = [make(name) for make, name in zip(makes, ("main", "restore", "global"), strict=True)]
        made += [supplier.get_producer("producer")]
        assert not any(isinstance(client, LibrdkafkaReader | LibrdkafkaWriter) for client in made)
        for client in made:
            client.close()
        return sorted(supplier.telemetries())

    assert pushing() == ["global", "main", "producer", "restore"]
    assert pushing(enable__metrics__push=False) == []
    assert pushing(producer__enable__metrics__push="false") == ["global", "main", "restore"]
    assert pushing(restore__consumer__enable__metrics__push=False) == ["global", "main", "producer"]


def test_clients_of_a_custom_supplier_are_used() -> None:
    """The supplier may return confluent-kafka's clients, or objects with their methods."""

    class Wrapped:
        def __init__(self, client: Any) -> None:
            self._client = client

        def __getattr__(self, name: str) -> Any:
            return getattr(self._client, name)

    supplier = KafkaClientSupplier(config())
    consumer, producer = supplier.confluent_consumer("c"), supplier.confluent_producer("p")
    readers: list[Any] = [consumer, Wrapped(consumer)]
    writers: list[Any] = [producer, Wrapped(producer)]
    assert all(isinstance(as_reader(given), LibrdkafkaReader) for given in readers)
    assert all(isinstance(as_writer(given), LibrdkafkaWriter) for given in writers)
    reader, writer = LibrdkafkaReader(consumer), LibrdkafkaWriter(producer)
    assert as_reader(reader) is reader
    assert as_writer(writer) is writer


@pytest.mark.parametrize("setting", ["consumer__fetch__min__bytes", "producer__batch__size"])
@pytest.mark.parametrize("value", ["many", -1])
def test_an_invalid_value_is_a_config_error_that_names_the_key(setting: str, value: Any) -> None:
    supplier = KafkaClientSupplier(config(**{setting: value}))
    name = setting.split("__", 1)[1].replace("__", r"\.")
    with pytest.raises(ConfigError, match=f"{name}={value} is not valid"):
        supplier.get_consumer("c") if setting.startswith("consumer") else supplier.get_producer("p")
