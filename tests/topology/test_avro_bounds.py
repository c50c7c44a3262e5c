"""Avro that claims to be gigabytes, thousands of nested records, or a decimal of too many digits, is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import Serdes, SerializationError
from penstock.topology.serdes.avro_bounds import (
    DEPTH_MAX,
    EMPTY_ITEMS_MAX,
    _Types,
    _Walk,
    bounds_check,
    check_decimal,
)
from tests.examples import examples
from tests.kernel.test_avro import Made
from tests.topology.test_schema_registry_serdes import client

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecat.*")

COUNT = 30_000_000


def number(value: int) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, "long", value)
    return stream.getvalue()


def record(name: str, *types: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(types)]}


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


EMPTY = record("Empty", "null", {"type": "fixed", "name": "None0", "size": 0})
MANY = number(COUNT) + b"\0"
#: A schema, and bytes that claim too many items for a value.
TOO_MANY: dict[str, tuple[Any, bytes]] = {
    "null": (record("R", "long", array("null")), b"\2" + MANY),
    "records": (record("R", array(EMPTY)), MANY),
    "by name": (record("R", EMPTY, array("Empty")), MANY),
    "a size in front": (record("R", array("null")), number(-COUNT) + b"\2" + MANY),
    "many arrays": (record("R", array(array("null"))), number(600) + (number(50_000) + b"\0") * 600 + b"\0"),
    "in a map and a union": (
        record("R", {"type": "map", "values": ["null", array("null")]}),
        b"\2\2a\2" + MANY + b"\0",
    ),
}


#: A reader schema with none of the writer's fields.
OTHER = json.dumps({"type": "record", "name": "R", "fields": [{"name": "g", "type": "int", "default": 7}]})


def registered(schema: Any, *references: SchemaReference, registry: Any = None) -> tuple[Any, bytes]:
    """Return a registry with a schema, and the first bytes of its records."""
    registry = registry or client()
    found = registry.register_schema("in-value", Schema(json.dumps(schema), "AVRO", list(references)))
    return registry, b"\0" + int(found).to_bytes(4, "big")


@pytest.mark.parametrize("name", TOO_MANY)
@pytest.mark.parametrize("wanted", [None, OTHER], ids=["the writer's schema", "another schema"])
def test_the_number_of_items_without_bytes_is_limited(name: str, wanted: str | None) -> None:
    schema, data = TOO_MANY[name]
    registry, header = registered(schema)
    serde = Serdes.avro(wanted, registry)
    for _ in range(2):  # by the library, then by the reader of this schema
        with pytest.raises(SerializationError, match=r"damaged Avro: an array of [\d,]+ items without bytes"):
            serde.deserialize("in", header + data)


def test_schemas_with_references_have_the_same_limit() -> None:
    registry = client()
    registry.register_schema("empty", Schema(json.dumps(EMPTY), "AVRO"))
    _, header = registered(record("R", array("Empty")), SchemaReference("Empty", "empty", 1), registry=registry)
    serde = Serdes.avro(None, registry)
    assert serde.deserialize("in", header + b"\4\0") == {"f0": [{"f0": None, "f1": b""}] * 2}
    with pytest.raises(SerializationError, match="damaged Avro: an array of 30,000,000 items without bytes"):
        serde.deserialize("in", header + MANY)


NODE = record("Node", ["null", "Node"])
FORK = record("Fork", array({"type": "map", "values": "Fork"}))


@pytest.mark.parametrize(
    ("schema", "begin", "end", "last"), [(NODE, b"\2", b"", b"\0"), (FORK, b"\2\2\2a", b"\0\0", b"\0")]
)
def test_the_depth_of_nested_records_is_limited(schema: Any, begin: bytes, end: bytes, last: bytes) -> None:
    """In fastavro the stack overflows, which ends the process."""
    registry, header = registered(schema)
    serde = Serdes.avro(None, registry)
    for depth in (1, DEPTH_MAX - 1):
        value: Any = serde.deserialize("in", header + begin * depth + last + end * depth)
        for _ in range(depth):
            value = value["f0"] if schema is NODE else value["f0"][0]["a"]
        assert value == {"f0": None if schema is NODE else []}
    for _ in range(2):
        with pytest.raises(SerializationError, match="damaged Avro: more than 1000 records inside of each other"):
            serde.deserialize("in", header + begin * 100_000 + last + end * 100_000)


@pytest.mark.parametrize("count", [3, 1_001, EMPTY_ITEMS_MAX])
def test_a_reasonable_number_of_items_without_bytes_is_read(count: int) -> None:
    registry, header = registered(record("R", array("null")))
    serde = Serdes.avro(None, registry)
    for _ in range(2):
        assert serde.deserialize("in", header + number(count) + b"\0") == {"f0": [None] * count}


PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "Price", "size": size, "logicalType": "decimal", "precision": 10, "scale": 2}


#: A schema for decimals of a number of bytes; the bytes before and after one; how to get it out of a value.
DECIMALS: dict[str, tuple[Callable[[int], Any], bytes, bytes, Callable[[Any], Any]]] = {
    "bytes": (lambda size: record("R", PRICE), b"", b"", lambda value: value["f0"]),
    "fixed": (lambda size: record("R", fixed(size)), b"", b"", lambda value: value["f0"]),
    "in a union": (lambda size: record("R", ["null", PRICE]), b"\2", b"", lambda value: value["f0"]),
    "in an array": (lambda size: record("R", array(PRICE)), b"\2", b"\0", lambda value: value["f0"][0]),
    "in a map": (
        lambda size: record("R", {"type": "map", "values": fixed(size)}),
        b"\2\2a",
        b"\0",
        lambda value: value["f0"]["a"],
    ),
    "in a record": (lambda size: record("R", record("Inner", PRICE)), b"", b"", lambda value: value["f0"]["f0"]),
    "by name": (
        lambda size: record("R", ["null", fixed(size)], "Price"), b"\0", b"", lambda value: value["f1"],
    ),
    "in a record that contains itself": (
        lambda size: record("R", PRICE, ["null", "R"]), b"", b"\0", lambda value: value["f0"],
    ),
}  # fmt: skip


def in_price(unscaled: bytes, name: str) -> tuple[Any, bytes]:
    """Return a serde, and a value with this decimal."""
    make, begin, end, _ = DECIMALS[name]
    schema = make(len(unscaled))
    length = b"" if '"fixed"' in json.dumps(schema) else number(len(unscaled))
    registry, header = registered(schema)
    return Serdes.avro(None, registry), header + begin + length + unscaled + end


@pytest.mark.parametrize("name", DECIMALS)
@pytest.mark.parametrize(
    "unscaled",
    [
        (10**10).to_bytes(5),
        (-(10**10)).to_bytes(5, signed=True),
        (10**10).to_bytes(500),
        b"\x7f" * 1_000,  # fastavro rounds these three to ten digits
        b"\x80" + bytes(200_000),  # and takes seconds for these
    ],
    ids=["eleven digits", "negative", "padded", "1,000 bytes", "200,000 bytes"],
)
def test_a_decimal_has_no_more_digits_than_its_precision(name: str, unscaled: bytes) -> None:
    serde, data = in_price(unscaled, name)
    for _ in range(2):  # by the library, then by the reader of this schema
        with pytest.raises(SerializationError, match=r"a decimal of more than 10 digits, in [\d,]+ bytes"):
            serde.deserialize("in", data)


@pytest.mark.parametrize("name", DECIMALS)
@pytest.mark.parametrize("size", [5, 6, 300, 100_000])
@pytest.mark.parametrize("unscaled", [0, 1, -1, 10**10 - 1, 1 - 10**10])
def test_a_decimal_may_be_padded_with_sign_bytes(name: str, size: int, unscaled: int) -> None:
    """As in Java's BigInteger."""
    serde, data = in_price(unscaled.to_bytes(size, signed=True), name)
    for _ in range(2):
        assert DECIMALS[name][3](serde.deserialize("in", data)) == Decimal(unscaled).scaleb(-2)


def test_a_decimal_is_checked_when_another_schema_is_wanted() -> None:
    registry, header = registered(record("R", PRICE))
    serde = Serdes.avro(OTHER, registry)
    for _ in range(2):
        with pytest.raises(SerializationError, match="a decimal of more than 10 digits"):
            serde.deserialize("in", header + number(1_000) + b"\x7f" * 1_000)
        assert serde.deserialize("in", header + number(1) + b"\x7f") == {"g": 7}


@given(st.integers(1, 60), st.integers(-5, 5), st.booleans())
def test_precisions_are_exact(precision: int, above: int, negative: bool) -> None:
    unscaled = (10**precision + above) * (-1 if negative else 1)
    data = unscaled.to_bytes(40, signed=True)
    if above < 0:
        check_decimal(data, precision)
    else:
        with pytest.raises(SerializationError):
            check_decimal(data, precision)


def test_most_schemas_need_no_check() -> None:
    for schema in (record("R", "null", array("long"), {"type": "map", "values": "null"}), EMPTY, "string"):
        assert bounds_check(fastavro.parse_schema(schema, named_schemas={})) is None


@settings(deadline=None, max_examples=examples(300))
@given(st.integers(0, 2**32))
def test_the_check_ends_where_the_value_ends(seed: int) -> None:
    made = Made(seed)
    parsed = fastavro.parse_schema(made.schema, named_schemas={})
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, parsed, made.value(made.schema))
    walk = _Walk(stream.getvalue(), 0)
    walk.run(_Types(parsed).skip_of(parsed))
    assert (walk.at, walk.depth) == (len(stream.getvalue()), 0)
