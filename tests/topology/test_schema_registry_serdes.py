"""Serdes of a schema registry, against confluent-kafka's registry in memory; penstock-streams[schema-registry]."""

from __future__ import annotations

import importlib.util
import json
from typing import Any

import pytest

from penstock import ConfigError, Serde, Serdes, StreamsBuilder, StreamsError
from penstock.testing import TopologyTestDriver

HAS_EXTRA = all(importlib.util.find_spec(name) for name in ("fastavro", "jsonschema", "google", "httpx"))
needs_extra = pytest.mark.skipif(not HAS_EXTRA, reason="needs pip install 'penstock-streams[schema-registry]'")
# What the extra's own dependencies deprecate is not ours to fix.
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
    """Return what a topology that doubles values gives, and the bytes that it wrote."""
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


@needs_extra
@pytest.mark.parametrize("kind", ["avro", "json_schema"])
def test_dicts_go_through_stores_and_topics(kind: str) -> None:
    registry = client()
    serde = getattr(Serdes, kind)(AVRO if kind == "avro" else JSON_SCHEMA, registry)
    twice = {"currency": "EUR", "cents": 500}
    results, raw = doubled(serde, MONEY, lambda money: {**money, "cents": money["cents"] * 2})
    assert results == [twice, twice]
    assert raw[0] == 0, "Confluent's wire format begins with a zero and the schema's id"
    assert set(registry.get_subjects()) >= {"in-value", "out-value"}


@needs_extra
def test_protobuf_messages_go_through_stores_and_topics() -> None:
    from google.type.money_pb2 import Money  # type: ignore[import-not-found,import-untyped,unused-ignore]

    def double(money: Any) -> Any:
        return Money(currency_code=money.currency_code, units=money.units * 2)

    serde = Serdes.protobuf(Money, client())
    results, raw = doubled(serde, Money(currency_code="EUR", units=2), double)
    assert results == [Money(currency_code="EUR", units=4)] * 2
    assert raw[0] == 0


@needs_extra
def test_keys_have_a_subject_of_their_own_and_nulls_stay() -> None:
    registry = client()
    serde = Serdes.avro(AVRO, registry, is_key=True)
    data = serde.serialize("prices", MONEY)
    assert serde.deserialize("prices", data) == MONEY
    assert registry.get_subjects() == ["prices-key"]
    assert serde.serialize("prices", None) is serde.deserialize("prices", None) is None


@needs_extra
def test_options_reach_the_serializer() -> None:
    serde = Serdes.avro(AVRO, client(), auto_register_schemas=False)
    with pytest.raises(Exception, match=r"(?i)not found"):
        serde.serialize("prices", MONEY)


@needs_extra
def test_a_value_that_the_schema_does_not_admit_fails_with_the_operator() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out", value_serde=Serdes.json_schema(JSON_SCHEMA, client()), name="sink")
    with TopologyTestDriver(builder.build()) as driver, pytest.raises(StreamsError, match="sink"):
        driver.create_input_topic("in").pipe_input("tea", {"currency": 5})


@pytest.mark.skipif(HAS_EXTRA, reason="the extra is installed")
@pytest.mark.parametrize("kind", ["avro", "protobuf", "json_schema"])
def test_without_the_extra_the_error_says_how_to_get_it(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"pip install 'penstock-streams\[schema-registry\]'"):
        getattr(Serdes, kind)("{}", "http://localhost:8081")
