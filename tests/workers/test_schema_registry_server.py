"""Schema Registry serdes against a real registry over HTTP, and stream threads while it is unavailable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    record_subject_name_strategy,
    topic_record_subject_name_strategy,
)
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

from penstock import SchemaRegistryUnavailableError, Serde, Serdes, StreamsBuilder
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.schema_registry import USER, Door, RegistryServer
from tests.workers.thread_stage import Application

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

FIELDS = [{"name": "currency", "type": "string"}, {"name": "cents", "type": "int"}]
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
EUROS = {"currency": "EUR", "cents": 250}
TIMEOUT_MS = 300_000


def record(*fields: Any, name: str = "Money") -> str:
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": [*FIELDS, *fields]})


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    server = RegistryServer(tmp_path_factory.mktemp("registry"))
    yield server
    server.close()


@pytest.fixture
def door(registry: RegistryServer) -> Iterator[Door]:
    with Door(registry.port) as door:
        yield door


@pytest.fixture
def topic(unique_topic: Callable[[], str]) -> str:
    return unique_topic()


@pytest.fixture
def unique_topic(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Make topic names that no other test uses: the tests share one registry."""
    names = (f"{request.node.name.partition('[')[0]}-{number}" for number in range(10))
    return lambda: next(names)


def subjects(door: Door) -> set[str]:
    return set(SchemaRegistryClient({"url": door.url}).get_subjects())


def test_a_reader_decodes_records_of_older_and_newer_schemas(door: Door, topic: str) -> None:
    old, new = Serdes.avro(record(), door.url), Serdes.avro(record(NOTE), door.url)
    written = [serde.serialize(topic, {**EUROS, "note": "tip"}) for serde in (old, new)]
    assert [old.deserialize(topic, data) for data in written] == [EUROS, EUROS]
    assert [row["note"] for data in written if (row := new.deserialize(topic, data))] == [None, "tip"]
    as_written = Serdes.avro(None, door.url)
    assert [as_written.deserialize(topic, data) for data in written] == [EUROS, {**EUROS, "note": "tip"}]


def test_a_schema_that_breaks_readers_is_refused(door: Door, topic: str) -> None:
    SchemaRegistryClient({"url": door.url}).set_compatibility(f"{topic}-value", "BACKWARD")
    Serdes.avro(record(), door.url).serialize(topic, EUROS)
    wrong = Serdes.avro(record({"name": "needed", "type": "string"}), door.url)
    with pytest.raises(Exception, match=r"Incompatible .*needed.* \(HTTP status code 409"):
        wrong.serialize(topic, {**EUROS, "needed": "x"})


def test_schemas_refer_to_each_other(door: Door, topic: str) -> None:
    Serdes.avro(record(), door.url).serialize(f"{topic}-money", EUROS)
    order = {"type": "record", "name": "Order", "namespace": "shop"}
    order["fields"] = [{"name": "id", "type": "string"}, {"name": "price", "type": "shop.Money"}]  # type: ignore[assignment]
    schema = Schema(json.dumps(order), "AVRO", [SchemaReference("shop.Money", f"{topic}-money-value", 1)])
    tea = {"id": "tea", "price": EUROS}
    data = Serdes.avro(schema, door.url).serialize(topic, tea)
    for serde in (Serdes.avro(schema, door.url), Serdes.avro(None, door.url)):
        assert serde.deserialize(topic, data) == tea


def messages(topic: str) -> tuple[Any, Any]:
    """Return two message classes, Money and Order; an Order has a Money as a field, which another file declares."""
    pool = descriptor_pool.DescriptorPool()
    money, order = descriptor_pb2.FileDescriptorProto(), descriptor_pb2.FileDescriptorProto()
    money.name, money.package, money.syntax = f"{topic}/money.proto", "shop", "proto3"
    field = descriptor_pb2.FieldDescriptorProto
    cents = money.message_type.add(name="Money").field.add(name="cents", number=1)
    cents.type, cents.label = field.TYPE_INT64, field.LABEL_OPTIONAL
    order.name, order.package, order.syntax = f"{topic}/order.proto", "shop", "proto3"
    order.dependency.append(money.name)
    price = order.message_type.add(name="Order").field.add(name="price", number=1)
    price.type, price.label, price.type_name = field.TYPE_MESSAGE, field.LABEL_OPTIONAL, ".shop.Money"
    for file in (money, order):
        pool.Add(file)
    found = [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"shop.{each}")) for each in ("Money", "Order")]
    return found[0], found[1]


def test_imported_protobuf_files_become_references(door: Door, topic: str) -> None:
    money, order = messages(topic)
    serde = Serdes.protobuf(order, door.url)
    data = serde.serialize(topic, order(price=money(cents=250)))
    read = serde.deserialize(topic, data)
    assert read is not None
    assert read.price.cents == 250
    assert {f"{topic}/money.proto", f"{topic}-value"} <= subjects(door)


def test_json_schema(door: Door, topic: str) -> None:
    properties = {"currency": {"type": "string"}, "cents": {"type": "integer"}}
    serde = Serdes.json_schema(json.dumps({"title": "Money", "type": "object", "properties": properties}), door.url)
    assert serde.deserialize(topic, serde.serialize(topic, EUROS)) == EUROS
    with pytest.raises(Exception, match="'many' is not of type 'integer'"):
        serde.serialize(topic, {"currency": "EUR", "cents": "many"})


@pytest.mark.parametrize(
    ("strategy", "subject"),
    [
        (None, "{}-key"),
        (record_subject_name_strategy, "shop.Money"),
        (topic_record_subject_name_strategy, "{}-shop.Money"),
    ],
)
def test_subjects_of_keys(door: Door, topic: str, strategy: Any, subject: str) -> None:
    options = {} if strategy is None else {"subject_name_strategy": strategy}
    serde = Serdes.avro(record(), door.url, is_key=True, **options)
    before = subjects(door)
    assert serde.deserialize(topic, serde.serialize(topic, EUROS)) == EUROS
    assert subjects(door) - before == {subject.format(topic)}


def test_a_schema_is_requested_once(door: Door, topic: str) -> None:
    writer, reader = Serdes.avro(record(), door.url), Serdes.avro(record(), door.url)
    data = [writer.serialize(topic, {**EUROS, "cents": cents}) for cents in range(100)]
    assert [row["cents"] for each in data if (row := reader.deserialize(topic, each))] == list(range(100))
    assert [request.partition("?")[0] for request in door.requests] == [
        f"POST /subjects/{topic}-value/versions",
        "GET /schemas/ids/" + str(int.from_bytes((data[0] or b"")[1:5], "big")),
    ]


def test_tls_and_a_password(registry: RegistryServer, certificate: Path, topic: str) -> None:
    with Door(registry.port, certificate, password=True) as door:
        trusted = {"url": door.url, "ssl.ca.location": str(certificate / "cert.pem")}
        serde = Serdes.avro(record(), {**trusted, "basic.auth.user.info": USER})
        assert serde.deserialize(topic, serde.serialize(topic, EUROS)) == EUROS
        with pytest.raises(Exception, match=r"who are you\? \(HTTP status code 401"):
            Serdes.avro(record(), trusted).serialize(topic, EUROS)
        strangers = Serdes.avro(record(), {"url": door.url, "basic.auth.user.info": USER, "max.retries": 0})
        with pytest.raises(SchemaRegistryUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            strangers.serialize(topic, EUROS)


class Price(msgspec.Struct):
    currency: str
    cents: int


@dataclass
class Amount:
    currency: str
    cents: int


@pytest.mark.parametrize("kind", [Price, Amount])
def test_avro_as_objects(door: Door, topic: str, kind: Callable[..., Any]) -> None:
    serde = Serdes.avro(record(), door.url, kind=kind)
    assert serde.deserialize(topic, serde.serialize(topic, kind("EUR", 250))) == kind("EUR", 250)


# -- while an application runs


def doubling(value_serde: Serde[Any]) -> Any:
    builder = StreamsBuilder()
    prices = builder.stream("in", key_serde=Serdes.string(), value_serde=value_serde)
    doubled = prices.map_values(lambda price: {**price, "cents": price["cents"] * 2})
    doubled.to("out", key_serde=Serdes.string(), value_serde=value_serde)
    return builder.build()


def impatient(door: Door) -> dict[str, Any]:
    return {"url": door.url, "max.retries": 0}


@pytest.fixture
def topics(cluster: DirectKafka) -> None:
    for name in ("in", "out"):
        cluster.create_topic(name, 1)


def written(cluster: DirectKafka, serde: Serde[Any]) -> list[int]:
    return [row["cents"] for each in cluster.records("out") if (row := serde.deserialize("out", each.value()))]


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_records_wait_while_the_registry_is_unavailable(
    cluster: DirectKafka, clock: ManualClock, application: Callable[..., Application], door: Door, guarantee: str
) -> None:
    """At the start, and later when a new schema arrives. The handler that drops bad records drops none of them."""
    writer = Serdes.avro(record(), door.url)
    config = {
        "deserialization.exception.handler": "log_and_continue",
        "production.exception.handler": "log_and_continue",
        "task.timeout.ms": TIMEOUT_MS,
        "processing.guarantee": guarantee,
    }
    door.is_open, first = False, writer.serialize("in", EUROS)
    thread = application(doubling(Serdes.avro(record(), impatient(door))), **config).thread().until_running()
    cluster.append("in", 0, b"tea", first)
    thread.step(10)
    assert thread.is_running
    assert written(cluster, writer) == []
    door.is_open = True
    thread.step(10).commit()
    assert written(cluster, writer) == [500]
    newer = Serdes.avro(record(NOTE), door.url).serialize("in", {**EUROS, "cents": 1, "note": "tip"})
    door.is_open = False
    for data in (first, newer, first):
        cluster.append("in", 0, b"tea", data)
    clock.advance(TIMEOUT_MS - 1)
    thread.step(10)
    door.is_open = True
    thread.step(10).commit()
    assert written(cluster, writer)[-3:] == [500, 2, 500]


@pytest.mark.usefixtures("topics")
def test_an_unknown_schema_is_passed_to_the_handler(
    cluster: DirectKafka, application: Callable[..., Application], door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    serde = Serdes.avro(record(), impatient(door))
    config = {"deserialization.exception.handler": "log_and_continue"}
    thread = application(doubling(serde), **config).thread().until_running()
    good = serde.serialize("in", EUROS)
    for data in (b"\0\0\x0f\x42\x3f\x06EUR\x02", b"no schema at all", good):
        cluster.append("in", 0, b"tea", data)
    thread.step(10).commit()
    assert written(cluster, serde) == [500]
    assert caplog.text.count("the record is dropped") == 2


class Customer(msgspec.Struct):
    id: int
    name: str
    email: str | None = None


def envelope(*fields: Any) -> str:
    """Return the schema of a table's change events, as Debezium with the Avro converter registers it."""
    columns = [{"name": "id", "type": "int"}, {"name": "name", "type": "string"}, *fields]
    row = {"type": "record", "name": "Value", "fields": columns}
    source = {"type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql"}
    source["fields"] = [{"name": "table", "type": "string"}, {"name": "lsn", "type": ["null", "long"], "default": None}]  # type: ignore[assignment]
    event = {"type": "record", "name": "Envelope", "namespace": "shop.public.customers"}
    event["fields"] = [  # type: ignore[assignment]
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": source},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ]
    return json.dumps(event)


def test_a_table_from_debeziums_events_in_avro(
    door: Door, cluster: DirectKafka, application: Callable[..., Application]
) -> None:
    """A column is added while it runs, and a row is deleted after a restart."""
    topic = "shop.public.customers"
    email = {"name": "email", "type": ["null", "string"], "default": None}
    old, new = Serdes.avro(envelope(), door.url), Serdes.avro(envelope(email), door.url)
    rows = Serdes.debezium(Customer, door.url)
    builder = StreamsBuilder()
    customers = builder.table(topic, key_serde=Serdes.json(), value_serde=rows, store="customers")
    customers.to_stream().to("out", key_serde=Serdes.json(), value_serde=Serdes.json(Customer))
    for name in (topic, "out", "app-customers-changelog"):
        cluster.create_topic(name, 1)
    app = application(builder.build())
    thread = app.thread().until_running()

    def change(serde: Serde[Any], operation: str, before: Any, after: Any) -> None:
        event = {"before": before, "after": after, "source": {"table": "customers", "lsn": 1}, "op": operation}
        cluster.append(topic, 0, b'{"id":7}', serde.serialize(topic, event))

    ada, bob = {"id": 7, "name": "Ada"}, {"id": 7, "name": "Bob"}
    change(old, "c", None, ada)
    change(new, "u", ada, {**bob, "email": "b@x"})
    thread.until_idle().commit()
    read = Serdes.json(Customer).deserialize
    found = [read("out", record.value()) for record in cluster.records("out")]
    assert found[-1] == Customer(7, "Bob", "b@x")
    thread.close()

    thread = app.thread().until_running()
    change(new, "d", {**bob, "email": None}, None)
    cluster.append(topic, 0, b'{"id":7}', None)  # Debezium's tombstone
    thread.until_idle().commit()
    assert cluster.records("out")[-1].value() is None
    assert cluster.table("app-customers-changelog") == {b'{"id":7}': None}
