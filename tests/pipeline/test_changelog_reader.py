"""A changelog is read once for a handover: every committed record of it, or an error. Without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from typing_extensions import override

from penstock import StreamsConfig, StreamsError
from penstock.pipeline.tasks import changelog_reader
from penstock.pipeline.tasks.changelog_reader import live_keys, read_changelog
from penstock.testing import EmbeddedKafka
from penstock.testing.wire import Blackhole, Direction, Fail, Rule, WireProxy
from penstock.topology.errors import BrokerUnavailableError
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.waiting import PATIENCE_SECONDS

TOPIC = "app-counts-changelog"
#: The clients that a supplier was asked for.
SUPPLIED: list[str] = []


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka(topics={TOPIC: 1}) as running:
        yield running


@pytest.fixture
def proxy(kafka: EmbeddedKafka) -> Iterator[WireProxy]:
    with WireProxy(kafka.bootstrap_servers) as made:
        yield made


class NotingSupplier(KafkaClientSupplier):
    @override
    def get_restore_consumer(self, client_id: str) -> Any:
        SUPPLIED.append(client_id)
        return super().get_restore_consumer(client_id)


def config(servers: str, **more: object) -> StreamsConfig:
    return StreamsConfig({"application.id": "app", "bootstrap.servers": servers, **more})


def producer(kafka: EmbeddedKafka, **more: object) -> Producer:
    return Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 3, **more})


def transactional(kafka: EmbeddedKafka, name: str = "tx") -> Producer:
    made = producer(kafka, **{"transactional.id": name})
    made.init_transactions(PATIENCE_SECONDS)
    return made


def write(to: Producer, *rows: tuple[bytes, bytes | None], headers: Any = None) -> None:
    for key, value in rows:
        to.produce(TOPIC, value, key, headers=headers)
    to.flush(PATIENCE_SECONDS)


def read(servers: str, settings: Any = None, end: int | None = None) -> list[tuple[bytes | None, bytes | None]]:
    batches = read_changelog(config(servers, **settings or {}), TOPIC, 0, end)
    return [(message.key(), message.value()) for batch in batches for message in batch]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_record_is_read_with_its_headers(kafka: EmbeddedKafka, codec: str) -> None:
    to = producer(kafka, **{"compression.type": codec})
    write(to, (b"a", b"1" * 500), (b"b", None), headers=[("h", b"x"), ("n", None)])
    (batch,) = read_changelog(config(kafka.bootstrap_servers), TOPIC, 0, None)
    assert [(m.key(), m.value(), m.headers()) for m in batch] == [
        (b"a", b"1" * 500, [("h", b"x"), ("n", None)]),
        (b"b", None, [("h", b"x"), ("n", None)]),
    ]


@pytest.mark.parametrize("fetcher", ["auto", "librdkafka"])
def test_aborted_records_are_not_read_even_last_ones(kafka: EmbeddedKafka, fetcher: str) -> None:
    to = transactional(kafka)
    for value, end in ((b"1", to.commit_transaction), (b"2", to.abort_transaction)):
        to.begin_transaction()
        write(to, (b"a", value))
        end(PATIENCE_SECONDS)
    assert read(kafka.bootstrap_servers, {"penstock.fetcher": fetcher}) == [(b"a", b"1")]


def test_a_transaction_that_is_about_to_end_is_waited_for(kafka: EmbeddedKafka) -> None:
    """A commit returns before all partitions have its marker."""
    to = transactional(kafka)
    to.begin_transaction()
    write(to, (b"a", b"1"))
    found: list[object] = []
    reading = threading.Thread(target=lambda: found.extend(read(kafka.bootstrap_servers)))
    reading.start()
    reading.join(0.5)
    assert reading.is_alive()
    to.commit_transaction(PATIENCE_SECONDS)
    reading.join(PATIENCE_SECONDS)
    assert found == [(b"a", b"1")]


def test_it_ends_at_the_given_offset(kafka: EmbeddedKafka) -> None:
    write(producer(kafka), (b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    assert read(kafka.bootstrap_servers, end=2) == [(b"a", b"1"), (b"b", b"2")]
    assert read(kafka.bootstrap_servers, end=0) == []
    assert len(read(kafka.bootstrap_servers, end=9)) == 3


def test_live_keys_are_those_without_a_tombstone(kafka: EmbeddedKafka) -> None:
    write(producer(kafka), (b"a", b"1"), (b"b", b"2"), (b"a", None), (b"c", None), (b"c", b"3"))
    assert live_keys(config(kafka.bootstrap_servers), TOPIC, 0) == {b"b", b"c"}


def test_the_clients_are_those_of_the_supplier(kafka: EmbeddedKafka) -> None:
    SUPPLIED.clear()
    write(producer(kafka), (b"a", b"1"))
    assert read(kafka.bootstrap_servers, {"default.client.supplier": NotingSupplier}) == [(b"a", b"1")]
    assert SUPPLIED == ["app-handover"]


def test_a_deleted_beginning_is_an_error(kafka: EmbeddedKafka, proxy: WireProxy) -> None:
    """Reading on at the new beginning, or at the end, would lose keys."""
    write(producer(kafka), (b"a", b"1"))
    proxy.set_rules([Rule(Fail("OFFSET_OUT_OF_RANGE"), api="Fetch")])
    with pytest.raises(StreamsError, match=f"{TOPIC}-0 cannot be read on from offset 0: .* Repeat the command"):
        read(proxy.bootstrap_servers)


def test_an_error_names_the_missing_permission(kafka: EmbeddedKafka, proxy: WireProxy) -> None:
    write(producer(kafka), (b"a", b"1"))
    proxy.set_rules([Rule(Fail("TOPIC_AUTHORIZATION_FAILED"), api="Fetch")])
    with pytest.raises(StreamsError, match=f"{TOPIC}-0 cannot be read: TOPIC_AUTHORIZATION_FAILED.*READ on the topic"):
        read(proxy.bootstrap_servers)


def test_errors_that_pass_are_repeated(kafka: EmbeddedKafka, proxy: WireProxy) -> None:
    write(producer(kafka), (b"a", b"1"))
    moved = Fail("NOT_LEADER_OR_FOLLOWER")
    proxy.set_rules([Rule(moved, api=api, times=2) for api in ("ListOffsets", "Fetch")])
    assert read(proxy.bootstrap_servers) == [(b"a", b"1")]
    assert {event.api for event in proxy.events} == {"ListOffsets", "Fetch"}


def test_a_missing_topic_is_named(kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog_reader, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(
        BrokerUnavailableError, match=r"offsets of .gone-0. .* within 0.5 s: UNKNOWN_TOPIC_OR_PARTITION"
    ):
        list(read_changelog(config(kafka.bootstrap_servers), "gone", 0, None))


def test_brokers_that_return_nothing_are_an_error(
    kafka: EmbeddedKafka, proxy: WireProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog_reader, "PATIENCE_SECONDS", 0.5)
    write(producer(kafka), (b"a", b"1"))
    proxy.set_rules([Rule(Blackhole(Direction.ANSWER), api="Fetch")])
    with pytest.raises(BrokerUnavailableError, match=f"{TOPIC}-0 returned nothing for 0 s at offset 0, its end is 1"):
        read(proxy.bootstrap_servers)
