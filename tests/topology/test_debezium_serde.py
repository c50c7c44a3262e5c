"""Serdes.debezium(): rows from change events in the format of Debezium's JSON converter; see docs/databases.md."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import pickle
from typing import Any

import msgspec
import pytest

from penstock import Serdes, StreamsBuilder
from penstock.testing import TopologyTestDriver
from penstock.topology.errors import SerializationError
from penstock.topology.serdes.schema_registry_serdes import registry_client

SOURCE = {
    "version": "3.3.1",
    "connector": "postgresql",
    "db": "shop",
    "schema": "public",
    "table": "customers",
    "lsn": 7,
}
ADA, BOB = {"id": 7, "name": "Ada"}, {"id": 7, "name": "Bob"}


def event(operation: str, before: Any, after: Any, schema: bool) -> bytes:
    payload = {"before": before, "after": after, "source": SOURCE, "op": operation, "ts_ms": 1, "transaction": None}
    return json.dumps({"schema": {"type": "struct", "fields": []}, "payload": payload} if schema else payload).encode()


@pytest.mark.parametrize("schema", [True, False], ids=["schema", "no schema"])
@pytest.mark.parametrize(
    ("operation", "before", "after", "row"),
    [("c", None, ADA, ADA), ("r", None, ADA, ADA), ("u", ADA, BOB, BOB), ("d", ADA, None, None)],
)
def test_the_row_after_the_change(operation: str, before: Any, after: Any, row: Any, schema: bool) -> None:
    assert Serdes.debezium().deserialize("t", event(operation, before, after, schema)) == row


@pytest.mark.parametrize("data", [None, b'{"schema": null, "payload": null}'])
def test_a_tombstone_has_no_row(data: bytes | None) -> None:
    assert Serdes.debezium().deserialize("t", data) is None


@pytest.mark.parametrize("schema", [True, False], ids=["schema", "no schema"])
@pytest.mark.parametrize("operation", ["t", "m"])
def test_an_event_that_changes_no_row(operation: str, schema: bool) -> None:
    with pytest.raises(SerializationError, match=rf"shop\.customers: this is not a row's change .*op='{operation}'"):
        Serdes.debezium().deserialize("shop.customers", event(operation, None, None, schema))


@pytest.mark.parametrize("data", [b"{}", b'{"id": 7}', b'{"payload": {"id": 7}}', b'{"op": "c"}', b"[]", b"no JSON"])
def test_invalid_events(data: bytes) -> None:
    with pytest.raises(SerializationError):
        Serdes.debezium().deserialize("t", data)


class Customer(msgspec.Struct):
    id: int
    name: str


def test_rows_as_objects() -> None:
    serde = Serdes.debezium(Customer)
    assert serde.deserialize("t", event("c", None, ADA, True)) == Customer(7, "Ada")
    assert serde.deserialize("t", serde.serialize("t", Customer(7, "Ada"))) == Customer(7, "Ada")
    with pytest.raises(SerializationError, match=r"Expected `int`, got `str` - at `\$\.id`"):
        serde.deserialize("t", event("c", None, {"id": "x", "name": "Ada"}, False))
    assert (repr(serde), repr(Serdes.debezium())) == ("Serdes.debezium(Customer)", "Serdes.debezium()")
    copy = pickle.loads(pickle.dumps(serde))
    assert copy.deserialize("t", event("c", None, ADA, True)) == Customer(7, "Ada")


@pytest.mark.parametrize("optimization", ["none", "all"])
def test_a_table_is_kept_in_its_store(optimization: str) -> None:
    """With all optimizations, the topic itself is the changelog."""
    builder = StreamsBuilder()
    builder.table("customers", key_serde=Serdes.json(), value_serde=Serdes.debezium(), store="rows")
    config = {"topology.optimization": optimization}
    with TopologyTestDriver(builder.build(config), config) as driver:
        topic = driver.create_input_topic("customers", Serdes.json(), Serdes.bytes())
        for number, data in enumerate([event("c", None, ADA, True), event("u", ADA, BOB, True)]):
            topic.pipe_input({"id": 7}, data)
            assert driver.get_key_value_store("rows").get({"id": 7}) == (ADA, BOB)[number]
        topic.pipe_input({"id": 7}, event("d", BOB, None, True))
        assert driver.get_key_value_store("rows").get({"id": 7}) is None


VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "name", "type": "string"},
        {"name": "born", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None},
        {
            "name": "credit",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}],
            "default": None,
        },
    ],
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.public.customers",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}
BORN, CREDIT = datetime.date(1815, 12, 10), decimal.Decimal("12.50")
FULL_ADA = {**ADA, "born": BORN, "credit": CREDIT}


@pytest.fixture
def registry() -> Any:
    return registry_client("mock://")


def avro(registry: Any, operation: str, before: Any, after: Any) -> bytes:
    found = {"before": before, "after": after, "op": operation, "ts_ms": 1}
    return Serdes.avro(json.dumps(ENVELOPE), registry).serialize("t", found) or b""


class FullCustomer(msgspec.Struct):
    id: int
    name: str
    born: datetime.date | None = None
    credit: decimal.Decimal | None = None


@pytest.mark.parametrize(
    ("operation", "before", "after", "row"),
    [("c", None, ADA, ADA), ("r", None, ADA, ADA), ("u", ADA, BOB, BOB), ("d", ADA, None, None)],
)
def test_the_row_after_the_change_in_avro(registry: Any, operation: str, before: Any, after: Any, row: Any) -> None:
    serde = Serdes.debezium(registry=registry)
    expected = None if row is None else {**row, "born": None, "credit": None}
    assert serde.deserialize("t", avro(registry, operation, before, after)) == expected
    assert serde.deserialize("t", None) is None


def test_a_row_is_equal_from_the_topic_and_from_a_store(registry: Any) -> None:
    for serde, expected in (
        (Serdes.debezium(registry=registry), {**ADA, "born": "1815-12-10", "credit": "12.50"}),
        (Serdes.debezium(FullCustomer, registry), FullCustomer(7, "Ada", BORN, CREDIT)),
    ):
        row = serde.deserialize("t", avro(registry, "c", None, FULL_ADA))
        assert row == expected
        assert serde.deserialize("app-customers-changelog", serde.serialize("app-customers-changelog", row)) == expected


@pytest.mark.parametrize("operation", ["t", "m"])
def test_an_avro_event_that_changes_no_row(registry: Any, operation: str) -> None:
    with pytest.raises(SerializationError, match=rf"t: this is not a row's change .*op='{operation}'"):
        Serdes.debezium(registry=registry).deserialize("t", avro(registry, operation, None, None))


def test_invalid_avro_events(registry: Any) -> None:
    data = Serdes.avro('"string"', registry).serialize("t", "c")
    with pytest.raises(SerializationError, match=r"not a row's change .*op=None"):
        Serdes.debezium(registry=registry).deserialize("t", data)


def test_a_serde_for_avro_has_a_repr_and_can_be_sent() -> None:
    serde = Serdes.debezium(Customer, "mock://")
    assert repr(pickle.loads(pickle.dumps(serde))) == repr(serde) == "Serdes.debezium(Customer, …)"
    assert repr(Serdes.debezium(registry="mock://")) == "Serdes.debezium(…)"


READING = {
    "type": "record",
    "name": "Envelope",
    "namespace": "lab.public.readings",
    "fields": [
        {
            "name": "after",
            "type": {
                "type": "record",
                "name": "Value",
                "fields": [
                    {"name": "mean", "type": "double"},
                    {"name": "low", "type": "float"},
                    {"name": "values", "type": {"type": "array", "items": "double"}},
                    {"name": "count", "type": "long"},
                ],
            },
        },
        {"name": "op", "type": "string"},
    ],
}


class Reading(msgspec.Struct):
    mean: float
    low: float
    values: list[float]
    count: int = 0


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 0.5])
@pytest.mark.parametrize("kind", [None, Reading])
def test_nan_in_avro_is_equal_from_the_topic_and_from_a_store(registry: Any, kind: Any, number: float) -> None:
    row: dict[str, Any] = {"mean": number, "low": number, "values": [1.5, number], "count": 2**62}
    data = Serdes.avro(json.dumps(READING), registry).serialize("t", {"after": row, "op": "c"})
    serde: Any = Serdes.debezium(kind, registry)
    expected = row if kind is None else Reading(**row)
    found = serde.deserialize("t", data)
    assert repr(found) == repr(expected)  # NaN is not equal to itself
    assert repr(serde.deserialize("store", serde.serialize("store", found))) == repr(expected)


def test_nan_in_a_row_of_json_is_an_error() -> None:
    with pytest.raises(SerializationError, match="JSON has no nan"):
        Serdes.debezium().serialize("t", {"mean": math.nan})
