"""Schema Registry serdes, against confluent-kafka's in-memory registry.

A real one over HTTP: tests/workers/test_schema_registry_server.py.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka.schema_registry import (
    Rule,
    RuleKind,
    RuleMode,
    RuleSet,
    Schema,
    SchemaReference,
    topic_record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.rule_registry import RuleRegistry
from confluent_kafka.schema_registry.serde import RuleExecutor
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock import (
    ConfigError,
    SchemaRegistryUnavailableError,
    Serde,
    Serdes,
    SerializationError,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
)
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.supervisor.source import pickling
from penstock.supervisor.source.topology_source import TopologySource
from penstock.testing import TopologyTestDriver
from penstock.testing.driver_task import Clock, DriverTask
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.records import RawRecord, Windowed
from penstock.topology.serdes.serdes import deserializer_for, serializer_for
from penstock.topology.serdes.windowed_serdes import ChangedSerde
from tests.free_port import free_port

# Deprecations of the extra's own dependencies cannot be fixed here.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecat.*")

FIELDS = [{"name": "currency", "type": "string"}, {"name": "cents", "type": "int"}]
AVRO = json.dumps({"type": "record", "name": "Money", "fields": FIELDS})
JSON_SCHEMA = json.dumps(
    {
        "title": "Money",
        "type": "object",
        "properties": {"currency": {"type": "string"}, "cents": {"type": "integer"}},
        "required": ["currency", "cents"],
    }
)
MONEY = {"currency": "EUR", "cents": 250}


def client() -> Any:
    from penstock.topology.serdes.schema_registry_serdes import registry_client

    return registry_client("mock://")


def doubled(serde: Serde[Any], value: Any, double: Any) -> tuple[list[Any], bytes]:
    """Return the result of a topology that doubles values, and the bytes that it wrote."""
    builder = StreamsBuilder()
    money = builder.stream("in", value_serde=serde)
    kept = money.map_values(lambda value: None if value is None else double(value)).to_table(
        store="money", value_serde=serde
    )
    kept.to_stream().to("out", value_serde=serde)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", value_serde=serde).pipe_input("tea", value)
        driver.create_input_topic("in", value_serde=serde).pipe_input("gone", None)
        raw = driver.create_output_topic("out", Serdes.bytes(), Serdes.bytes()).read_record().value
        stored = driver.get_key_value_store("money").get("tea")
    return [serde.deserialize("out", raw), stored], raw


@pytest.mark.parametrize("kind", ["avro", "json_schema"])
def test_dicts_survive_stores_and_topics(kind: str) -> None:
    registry = client()
    serde = getattr(Serdes, kind)(AVRO if kind == "avro" else JSON_SCHEMA, registry)
    twice = {"currency": "EUR", "cents": 500}
    results, raw = doubled(serde, MONEY, lambda money: {**money, "cents": money["cents"] * 2})
    assert results == [twice, twice]
    assert raw[0] == 0, "Confluent's wire format begins with a zero and the schema's id"
    assert set(registry.get_subjects()) >= {"in-value", "out-value"}


def test_protobuf_messages_survive_stores_and_topics() -> None:
    from google.type.money_pb2 import Money  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def double(money: Any) -> Any:
        return Money(currency_code=money.currency_code, units=money.units * 2)

    serde = Serdes.protobuf(Money, client())
    results, raw = doubled(serde, Money(currency_code="EUR", units=2), double)
    assert results == [Money(currency_code="EUR", units=4)] * 2
    assert raw[0] == 0


def test_keys_have_their_own_subject_and_nulls_stay_null() -> None:
    registry = client()
    serde = Serdes.avro(AVRO, registry, is_key=True)
    data = serde.serialize("prices", MONEY)
    assert serde.deserialize("prices", data) == MONEY
    assert registry.get_subjects() == ["prices-key"]
    assert serde.serialize("prices", None) is serde.deserialize("prices", None) is None


def test_options_reach_the_serializer() -> None:
    serde = Serdes.avro(AVRO, client(), auto_register_schemas=False)
    with pytest.raises(Exception, match=r"(?i)not found"):
        serde.serialize("prices", MONEY)


def test_a_value_outside_the_schema_fails_with_the_operators_name() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out", value_serde=Serdes.json_schema(JSON_SCHEMA, client()), name="sink")
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(StreamsError, match="sink"):
        driver.create_input_topic("in").pipe_input("tea", {"currency": 5})


@pytest.mark.parametrize("kind", ["avro", "protobuf", "json_schema"])
def test_without_the_extra_the_error_says_how_to_get_it(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.schema_registry", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock-streams\[schema-registry\]'"):
        getattr(Serdes, kind)("{}", "http://localhost:8081")


def test_a_strategy_names_the_subjects() -> None:
    registry = client()
    serde = Serdes.avro(AVRO, registry, subject_name_strategy=topic_record_subject_name_strategy)
    assert serde.deserialize("prices", serde.serialize("prices", MONEY)) == MONEY
    assert registry.get_subjects() == ["prices-Money"]


# -- objects of a type

LOGICAL = [
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "raw", "type": "bytes"},
    {"name": "note", "type": ["null", "string"], "default": None},
]
PAYMENT = json.dumps({"type": "record", "name": "Payment", "fields": LOGICAL})


class Payment(msgspec.Struct):
    amount: decimal.Decimal
    at: datetime.datetime
    day: datetime.date
    raw: bytes
    note: str | None = None


@dataclass
class PaymentData:
    amount: decimal.Decimal
    at: datetime.datetime
    day: datetime.date
    raw: bytes
    note: str | None = None


FIELDS_OF_ONE = {
    "amount": decimal.Decimal("2.50"),
    "at": datetime.datetime(2026, 11, 26, 7, 0, tzinfo=datetime.UTC),
    "day": datetime.date(2026, 11, 26),
    "raw": b"\0\xff",
}


@pytest.mark.parametrize("kind", [Payment, PaymentData])
def test_avro_as_objects(kind: Any) -> None:
    """Including logical types, which are Python objects on both sides."""
    serde, payment = Serdes.avro(PAYMENT, client(), kind=kind), kind(**FIELDS_OF_ONE)
    results, _ = doubled(serde, payment, lambda value: value)
    assert results == [payment, payment]


class Money(msgspec.Struct):
    currency: str
    cents: int


def test_json_schema_as_objects() -> None:
    serde = Serdes.json_schema(JSON_SCHEMA, client(), kind=Money)
    results, _ = doubled(serde, Money("EUR", 2), lambda money: Money(money.currency, money.cents * 2))
    assert results == [Money("EUR", 4)] * 2


class Price(msgspec.Struct):
    price: int


def test_the_error_for_a_record_of_another_type_names_the_field() -> None:
    registry = client()
    data = Serdes.avro(AVRO, registry).serialize("prices", MONEY)
    with pytest.raises(SerializationError, match="missing required field `price`"):
        Serdes.avro(None, registry, kind=Price).deserialize("prices", data)


class Unknown:
    def __init__(self, anything: object) -> None: ...


@pytest.mark.parametrize("kind", ["avro", "json_schema"])
def test_a_type_that_cannot_be_created_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match="kind=Unknown: use a msgspec"):
        getattr(Serdes, kind)(AVRO if kind == "avro" else JSON_SCHEMA, client(), kind=Unknown)


# -- known schemas: without confluent-kafka's serializers

NEWER = json.dumps(
    {"type": "record", "name": "Money", "fields": [{"name": "country", "type": "string", "default": "DE"}, *FIELDS]}
)


def of_the_library(schema: str | None, registry: Any) -> tuple[Any, Any]:
    """Return confluent-kafka's own serializer and deserializer of a value."""
    conf = {"subject.name.strategy.type": "TOPIC"}
    context = SerializationContext("prices", MessageField.VALUE)
    write, read = AvroSerializer(registry, schema, conf=conf), AvroDeserializer(registry, schema, conf=conf)
    return (lambda value: write(value, context)), (lambda data: read(data, context))


@pytest.mark.parametrize("schema", [AVRO, PAYMENT])
@pytest.mark.parametrize("read_with", ["the same schema", "a newer one", "the one that wrote it"])
def test_each_record_is_encoded_as_by_confluent_kafka(schema: str, read_with: str) -> None:
    registry = client()
    values = (
        [{"currency": "€" * n, "cents": 10**n} for n in range(9)]
        if schema == AVRO
        else [{**FIELDS_OF_ONE, "raw": bytes(n), "note": "n" * n or None} for n in range(9)]
    )
    reader = {"the same schema": schema, "a newer one": NEWER if schema == AVRO else PAYMENT}.get(read_with)
    writing, reading = Serdes.avro(schema, registry), Serdes.avro(reader, registry)
    write, (_, read) = of_the_library(schema, registry)[0], of_the_library(reader, registry)
    for value in values:
        data = writing.serialize("prices", value)
        assert data == write(value)
        assert reading.deserialize("prices", data) == read(data)


def test_a_record_of_a_known_schema_needs_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = client()
    serde: Serde[Any] = Serdes.avro(AVRO, registry)
    get_schema, asked = registry.get_schema, []

    def noted(*arguments: Any) -> Any:
        asked.append(arguments)
        return get_schema(*arguments)

    monkeypatch.setattr(registry, "get_schema", noted)
    data = [serde.serialize("prices", {**MONEY, "cents": n}) for n in range(20)]
    assert [serde.deserialize("prices", each) for each in data] == [{**MONEY, "cents": n} for n in range(20)]
    assert len(asked) == 2, "by confluent-kafka for the first record, and for what is known from then on"


class AddOne(RuleExecutor):
    """A rule that changes values when they are read."""

    def type(self) -> str:
        return "ADD_ONE"

    def transform(self, ctx: Any, message: Any) -> Any:
        return {**message, "cents": message["cents"] + 1}


def test_schema_rules_apply_to_each_record() -> None:
    RuleRegistry.register_rule_executor(AddOne())
    rule = Rule("add", None, RuleKind.TRANSFORM, RuleMode.READ, "ADD_ONE", None, None, None, None, None, False)
    serde = Serdes.avro(Schema(AVRO, "AVRO", [], None, RuleSet(None, [rule])), client())
    data = serde.serialize("prices", MONEY)
    assert [serde.deserialize("prices", data) for _ in range(3)] == [{**MONEY, "cents": 251}] * 3


def test_a_schema_with_references_is_resolved_each_time() -> None:
    registry = client()
    registry.register_schema("money", Schema(AVRO, "AVRO"))
    bill = json.dumps({"type": "record", "name": "Bill", "fields": [{"name": "total", "type": "Money"}]})
    serde = Serdes.avro(Schema(bill, "AVRO", [SchemaReference("Money", "money", 1)]), registry)
    for cents in range(3):
        value = {"total": {**MONEY, "cents": cents}}
        assert serde.deserialize("bills", serde.serialize("bills", value)) == value


def test_truncated_bytes_are_refused_each_time() -> None:
    serde = Serdes.avro(AVRO, client())
    data = serde.serialize("prices", MONEY)
    assert data is not None
    for _ in range(2):
        assert serde.deserialize("prices", data) == MONEY
        with pytest.raises(SerializationError, match=r"EOFError|IndexError"):
            serde.deserialize("prices", data[:-1])


def test_a_wrapped_registry_serde_creates_its_functions_once_per_topic() -> None:
    inner = Serdes.avro(AVRO, client(), is_key=True)
    for serde in (Serdes.time_windowed(inner, 1000), ChangedSerde(inner)):
        assert serializer_for(serde, "prices") is serializer_for(serde, "prices")
        assert deserializer_for(serde, "prices") is deserializer_for(serde, "prices")
    windowed = Windowed(MONEY, 3000, 4000)
    windows = Serdes.time_windowed(inner, 1000)
    for _ in range(2):
        data = serializer_for(windows, "prices")(windowed)
        assert data == windows.serialize("prices", windowed)
        assert data == (inner.serialize("prices", MONEY) or b"") + (3000).to_bytes(8)
        assert deserializer_for(windows, "prices")(data) == windows.deserialize("prices", data) == windowed
    assert serializer_for(windows, "prices")(None) is None


def joined(serde: Serde[Any], keys: list[bytes], directory: Path) -> tuple[list[Any], Any]:
    """Join records with these keys to a table that has all of them; return what is written, and what is dropped."""
    builder = StreamsBuilder()
    serdes: Any = {"key_serde": serde, "value_serde": Serdes.string()}
    table = builder.table("table", **serdes)
    builder.stream("in", **serdes).left_join(table, lambda left, right: f"{left} {right}").to("out", **serdes)
    builder.stream("in", **serdes).group_by_key().reduce(max).to_stream().to("largest", **serdes)
    given = {"application.id": "a", "bootstrap.servers": "localhost:0", "deserialization.exception.handler": "continue"}
    config = StreamsConfig(given)
    topology = build_whole_topology(builder.build().internal_builder, config)
    task = DriverTask(topology, config, Clock(0), directory, ThreadCache(1 << 20))
    for topic in ("table", "in"):
        source = task.compiled.source_of(topic)
        assert source is not None
        source.process_batch([RawRecord(topic, 0, n, n, key, b"v%d" % n) for n, key in enumerate(keys)])
        task.commit()
    sent = [(record.topic, record.key, record.value) for record in task.take_produced()]
    task.close()
    return sent, task.dropped


@pytest.mark.parametrize("kind", [None, Money])
def test_unread_keys_are_written_as_if_they_were_read(kind: Any, tmp_path: Path) -> None:
    found = []
    for stays_unread in (True, False):
        registry = client()
        keys = [Serdes.avro(AVRO, registry).serialize("a", {**MONEY, "cents": n}) or b"" for n in range(6)]
        keys.append(Serdes.avro(NEWER, registry).serialize("b", {**MONEY, "country": "FR"}) or b"")
        keys += [keys[3] + b"more", keys[4][:-1] + b"\x88\0", keys[5][:-1], keys[0][:5], b""]
        keys.append(b"\0\0\0\0\x63" + keys[2][5:])
        keys += [keys[0].replace(b"EUR", b"\xc0\xc0\xc0"), keys[0].replace(b"EUR", "€".encode()), keys[0], keys[3]]
        serde = Serdes.avro(AVRO, registry, kind=kind, is_key=True)
        assert (serde.unread is None) == (kind is not None)
        if not stays_unread:
            serde.unread = None
        found.append((*joined(serde, keys, tmp_path / str(stays_unread)), sorted(registry.get_subjects())))
    assert found[0] == found[1]
    assert len({key[:5] for topic, key, _ in found[0][0]}) == 4, "a subject for each topic"
    assert sum(found[0][1].values()) == 2 * 5


# -- another process


def test_a_topology_with_a_registry_can_be_sent_to_the_stream_threads() -> None:
    from google.protobuf.wrappers_pb2 import StringValue  # type: ignore[import-untyped]

    serdes = {
        "avro": Serdes.avro(AVRO, "mock://"),
        "protobuf": Serdes.protobuf(StringValue, {"url": "mock://"}),
        "json_schema": Serdes.json_schema(JSON_SCHEMA, "mock://", is_key=True),
        "debezium": Serdes.debezium(registry="mock://"),
    }
    builder = StreamsBuilder()
    for name, serde in serdes.items():
        values = None if name == "json_schema" else serde
        builder.stream(name, key_serde=None if values else serde, value_serde=values).to(f"{name}-out")
    serdes["avro"].serialize("avro", MONEY)  # its schema is known
    sent = TopologySource.of(builder.build())
    assert sent.load().describe() == builder.build().describe()


def test_a_sent_serde_has_the_same_options() -> None:
    sent = pickling.loads(pickling.dumps(Serdes.avro(AVRO, "mock://", auto_register_schemas=False)))
    with pytest.raises(SerializationError, match="Schema Not Found"):
        sent.serialize("prices", MONEY)


# -- an unreachable registry


@pytest.fixture
def nobody() -> dict[str, Any]:
    """An address without a registry."""
    return {"url": f"http://127.0.0.1:{free_port()}", "max.retries": 0}


@pytest.mark.parametrize("where", ["source", "store", "sink"])
def test_no_handler_drops_a_record_for_an_unreachable_registry(nobody: dict[str, Any], where: str) -> None:
    away = Serdes.avro(AVRO, nobody)
    serdes = {each: away if each == where else Serdes.json() for each in ("source", "store", "sink")}
    builder = StreamsBuilder()
    table = builder.stream("in", value_serde=serdes["source"]).to_table(store="money", value_serde=serdes["store"])
    table.to_stream().to("out", value_serde=serdes["sink"])
    kinds = ("deserialization", "processing", "production")
    config: dict[str, Any] = {f"{kind}.exception.handler": "log_and_continue" for kind in kinds}
    config["statestore.cache.max.bytes"] = 0
    data = (
        Serdes.avro(AVRO, client()).serialize("in", MONEY) if where == "source" else b'{"currency": "EUR", "cents": 5}'
    )
    with TopologyTestDriver(builder.build(), config) as driver:
        topic = driver.create_input_topic("in", Serdes.bytes(), Serdes.bytes())
        with pytest.raises(SchemaRegistryUnavailableError, match=r"the schema registry is not available.*Connect"):
            topic.pipe_input(b"tea", data)


def test_json_schema_converts_numbers_exactly_or_refuses() -> None:
    schema = json.dumps({"title": "Sums", "type": "object", "properties": {"sum": {"type": "number"}}})
    serde: Any = Serdes.json_schema(schema, client())
    for number in (2**70, 10**40, -(2**64), 0.1):
        assert serde.deserialize("t", serde.serialize("t", {"sum": number})) == {"sum": number}
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(SerializationError, match="JSON has no"):
            serde.serialize("t", {"sum": number})


def test_subjects_of_internal_topics_include_the_application_id() -> None:
    """Two applications with the same declarations must not share a subject; Kafka Streams: KAFKA-9925."""
    registry = client()
    key, value = Serdes.avro(AVRO, registry, is_key=True), Serdes.avro(AVRO, registry)
    builder = StreamsBuilder()
    left = builder.table("left", key_serde=key, value_serde=value)
    right = builder.table("right", key_serde=key, value_serde=value)
    joined = left.join(right, lambda one, other: one, foreign_key=lambda money: money, name="fk")
    joined.to_stream().to("out", key_serde=key, value_serde=value)
    joined.to_stream().group_by(lambda k, v: v, key_serde=key, value_serde=value).count()
    with TopologyTestDriver(builder.build(), {"application.id": "shop"}) as driver:
        for topic in ("left", "right"):
            driver.create_input_topic(topic).pipe_input(MONEY, MONEY)
        assert driver.create_output_topic("out").read_key_values_to_list() == [(MONEY, MONEY)]
    internal = {subject for subject in registry.get_subjects() if not subject.startswith(("left-", "right-", "out-"))}
    assert {subject for subject in internal if not subject.startswith("shop-")} == set()
    assert {f"shop-fk-subscription-registration-topic-{part}" for part in ("pk-key", "fk-key", "vh-value")} <= internal
