"""Serdes.debezium(): rows out of change events as Debezium's JSON converter writes them; see docs/databases.md."""

from __future__ import annotations

import json
import pickle
from typing import Any

import msgspec
import pytest

from penstock import Serdes, StreamsBuilder
from penstock.testing import TopologyTestDriver
from penstock.topology.errors import SerializationError

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
def test_what_is_no_change_of_a_row(operation: str, schema: bool) -> None:
    with pytest.raises(SerializationError, match=rf"shop\.customers: this is no change of a row .*op='{operation}'"):
        Serdes.debezium().deserialize("shop.customers", event(operation, None, None, schema))


@pytest.mark.parametrize("data", [b"{}", b'{"id": 7}', b'{"payload": {"id": 7}}', b'{"op": "c"}', b"[]", b"no JSON"])
def test_what_is_no_event(data: bytes) -> None:
    with pytest.raises((SerializationError, msgspec.DecodeError)):
        Serdes.debezium().deserialize("t", data)


class Customer(msgspec.Struct):
    id: int
    name: str


def test_rows_as_objects() -> None:
    serde = Serdes.debezium(Customer)
    assert serde.deserialize("t", event("c", None, ADA, True)) == Customer(7, "Ada")
    assert serde.deserialize("t", serde.serialize("t", Customer(7, "Ada"))) == Customer(7, "Ada")
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$\.id`"):
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
