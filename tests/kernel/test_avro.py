"""Avro in the kernel gives the bytes, values and errors of fastavro."""

from __future__ import annotations

import datetime
import decimal
import io
import math
import random
import re
import uuid
from collections.abc import Callable
from typing import Any

import fastavro
import pytest
from fastavro.read import LOGICAL_READERS
from fastavro.write import LOGICAL_WRITERS
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernel.avro import HeaderChange, compiled, reader, unread_bytes, writer
from tests.examples import examples

HEADER, OTHER_HEADER = b"\0\0\0\0\7", b"\0\0\0\1\0"
UTC = datetime.UTC
INTEGERS = (0, 1, -1, 63, 64, -65, 8191, 8192, 2**31 - 1, -(2**31))
LONGS = (*INTEGERS, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.5, -1e30, math.inf, -math.inf)
TEXTS = ("", "a", "Überschuss €", "\U0001f600", "x" * 70, "y" * 5000)
#: Values for each type without parts; the first line has the usual ones.
PLAIN: dict[str, tuple[Any, ...]] = {
    "null": (None,),
    "boolean": (True, False),
    "int": INTEGERS,
    "long": LONGS,
    "float": (*FLOATS, 7),
    "double": (*FLOATS, 0.1, 1e300, 7, 2**60 + 1),
    "bytes": (b"", b"\0\xff", bytes(3000)),
    "string": TEXTS,
}
LOGICAL: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        (datetime.datetime(2026, 11, 27, 1, 2, 3, 4000, UTC), datetime.datetime(1969, 1, 1, tzinfo=UTC)),
    ),
    "date": ({"type": "int", "logicalType": "date"}, (datetime.date(2026, 11, 27), datetime.date(1, 1, 1))),
    "uuid": ({"type": "string", "logicalType": "uuid"}, (uuid.UUID(int=7), uuid.UUID(int=2**128 - 1))),
    "decimal": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        (decimal.Decimal("1.25"), decimal.Decimal("-99.99"), decimal.Decimal("0.00")),
    ),
    "unknown": ({"type": "long", "logicalType": "of another program"}, LONGS),
}
#: Values that do not fit, or only with one of fastavro's conversions.
ODD: tuple[Any, ...] = (
    None,
    True,
    7,
    2**31,
    2**63,
    -(2**70),
    1e39,
    math.nan,
    "7",
    "\ud800",
    b"7",
    bytearray(b"7"),
    [],
    {},
    (1, 2),
    ("int", 7),
    {"-type": "x"},
    object,
)
CHOSEN_BY_FASTAVRO = (["null", "string", "long"], ["null", "float", "double"])
DEFAULTS = {"int": 5, "string": "d", "null": None, "double": 1.5, "boolean": True}


class Made:
    """A random schema, with values that fit it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0
        #: Schemas by type name, for a second use by name.
        self.named: dict[str, Any] = {}
        self.schema = self.record(3)

    def name(self) -> str:
        self.names += 1
        return f"n{self.names}"

    def record(self, depth: int) -> dict[str, Any]:
        fields = []
        for _ in range(self.random.randrange(5)):
            field: dict[str, Any] = {"name": self.name(), "type": self.type(depth - 1)}
            if str(field["type"]) in DEFAULTS and self.random.random() < 0.5:
                field["default"] = DEFAULTS[field["type"]]
            fields.append(field)
        return self.keep({"type": "record", "name": self.name(), "fields": fields})

    def keep(self, schema: dict[str, Any]) -> dict[str, Any]:
        self.named[schema["name"]] = schema
        return schema

    def type(self, depth: int, *, in_union: bool = False) -> Any:
        choice = self.random.randrange(14 if depth > 0 else 8)
        if choice < 4:
            return self.random.choice([name for name in PLAIN if not (in_union and name == "null")])
        if choice == 4:
            return self.random.choice(list(LOGICAL.values()))[0]
        if choice == 5:
            return self.keep({"type": "enum", "name": self.name(), "symbols": ["A", "B", "C"]})
        if choice == 6:
            return self.keep({"type": "fixed", "name": self.name(), "size": self.random.randrange(5)})
        if choice == 7 and self.named:
            return self.random.choice(list(self.named))
        if choice == 8:
            return {"type": "array", "items": self.item(depth - 1)}
        if choice == 9:
            return {"type": "map", "values": self.type(depth - 1)}
        if choice in (10, 11) and not in_union:
            if self.random.random() < 0.2:
                return self.random.choice(CHOSEN_BY_FASTAVRO)
            both = ["null", self.type(depth - 1, in_union=True)]
            return both if self.random.random() < 0.5 else both[::-1]
        return self.record(depth)

    def item(self, depth: int) -> Any:
        """Return a type of at least one byte: damaged bytes may claim any number of items."""
        if depth > 0 and self.random.random() < 0.5:
            first = {"name": self.name(), "type": "long"}
            return self.keep(
                {
                    "type": "record",
                    "name": self.name(),
                    "fields": [first, {"name": self.name(), "type": self.type(depth)}],
                }
            )
        return self.random.choice([name for name in PLAIN if name != "null"])

    def value(self, schema: Any, odd: float = 0) -> Any:
        """Return a value; odd: the share of parts that do not fit, or that only fastavro accepts."""
        if self.random.random() < odd:
            return self.random.choice(ODD)
        if isinstance(schema, list):
            return self.value(self.random.choice(schema), odd)
        if isinstance(schema, str):
            if schema in PLAIN:
                return self.random.choice(PLAIN[schema])
            return self.value(self.named[schema], odd)
        kind = schema["type"]
        if kind == "record":
            record = {
                field["name"]: self.value(field["type"], odd)
                for field in schema["fields"]
                if "default" not in field or self.random.random() < 0.7
            }
            if self.random.random() < odd:
                missing = self.random.choice(["more", *record])  # one too many, or one too few
                return {name: found for name, found in {**record, "more": 1}.items() if name != missing}
            return {**record, "-type": "x"} if self.random.random() < odd else record
        if kind == "array":
            return [self.value(schema["items"], odd) for _ in range(self.random.randrange(4))]
        if kind == "map":
            return {
                self.random.choice(TEXTS): self.value(schema["values"], odd) for _ in range(self.random.randrange(4))
            }
        if kind == "enum":
            return self.random.choice(schema["symbols"])
        if kind == "fixed":
            return self.random.randbytes(schema["size"])
        return self.random.choice(next(values for found, values in LOGICAL.values() if found == schema))


class Both:
    """A schema in fastavro and in the kernel; counts the calls that the kernel leaves to fastavro."""

    def __init__(self, schema: Any) -> None:
        self.parsed = fastavro.parse_schema(schema, named_schemas={})
        self.left = 0
        found = compiled(self.parsed, LOGICAL_READERS, LOGICAL_WRITERS)
        assert found is not None
        self.unread = unread_bytes(found, {HEADER, OTHER_HEADER})
        self.write, self.read = (
            writer(found, HEADER, self._left(self.by_fastavro)),
            reader(found, self._left(self.read_by_fastavro)),
        )

    def _left(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(argument: Any) -> Any:
            self.left += 1
            return function(argument)

        return call

    def by_fastavro(self, value: Any) -> bytes:
        stream = io.BytesIO()
        stream.write(HEADER)
        fastavro.schemaless_writer(stream, self.parsed, value)
        return stream.getvalue()

    def read_by_fastavro(self, data: bytes) -> Any:
        stream = io.BytesIO(data)
        stream.seek(len(HEADER))
        return fastavro.schemaless_reader(stream, self.parsed, None)


def result(function: Callable[[Any], Any], argument: Any) -> Any:
    """Return a text for a function's result or error, with types and NaN."""
    try:
        return repr(function(argument))
    except Exception as error:  # noqa: BLE001 - whatever it is, both must raise it
        return type(error), re.sub("0x[0-9a-f]+", "", str(error))


def is_chosen_by_fastavro(schema: Any) -> bool:
    """Return True if a schema has a union with more than null and one other type."""
    return any(str(union) in str(schema) for union in CHOSEN_BY_FASTAVRO)


@settings(deadline=None, max_examples=examples(300))
@given(st.integers(0, 2**32))
def test_values_of_the_schemas_types_need_no_fastavro(seed: int) -> None:
    made = Made(seed)
    both = Both(made.schema)
    for _ in range(5):
        value = made.value(made.schema)
        both.left = 0
        data = both.write(value)
        assert data == both.by_fastavro(value)
        assert both.left == 0 or is_chosen_by_fastavro(made.schema)
        both.left = 0
        assert repr(both.read(data)) == repr(both.read_by_fastavro(data))
        assert both.left == 0


@settings(deadline=None, max_examples=examples(500))
@given(st.integers(0, 2**32))
def test_values_that_do_not_fit_are_left_to_fastavro(seed: int) -> None:
    made = Made(seed)
    both = Both(made.schema)
    for _ in range(5):
        value = made.value(made.schema, 0.15)
        assert result(both.write, value) == result(both.by_fastavro, value)


@settings(deadline=None, max_examples=examples(300))
@given(st.integers(0, 2**32))
def test_damaged_bytes_are_left_to_fastavro(seed: int) -> None:
    made = Made(seed)
    both = Both(made.schema)
    data = bytearray(both.by_fastavro(made.value(made.schema)))
    for _ in range(10):
        damaged = data[: made.random.randint(len(HEADER), len(data))]
        if len(damaged) > len(HEADER):
            damaged[made.random.randrange(len(HEADER), len(damaged))] = made.random.choice([0, 1, 2, 127, 128, 255])
        assert result(both.read, bytes(damaged)) == result(both.read_by_fastavro, bytes(damaged))


def has_several_forms(schema: Any) -> bool:
    """Return True if a schema has types whose values may be written in several ways, or that Python converts."""
    converted = (found["logicalType"] for name, (found, _) in LOGICAL.items() if name != "unknown")
    return is_chosen_by_fastavro(schema) or any(repr(part) in str(schema) for part in ("array", "map", *converted))


@settings(deadline=None, max_examples=examples(500))
@given(st.integers(0, 2**32))
def test_bytes_that_stay_unread_are_those_of_their_values(seed: int) -> None:
    made = Made(seed)
    both = Both(made.schema)
    assert (both.unread is None) == has_several_forms(made.schema)
    if both.unread is None:
        return
    change = HeaderChange(both.unread, {"topic": OTHER_HEADER}, "topic")
    written = both.by_fastavro(made.value(made.schema))
    assert both.unread(written) is written
    for data in (written, *(damaged(made.random, written) for _ in range(20))):
        if both.unread(data) is None:
            assert change(data) is None
        else:
            assert both.by_fastavro(both.read_by_fastavro(data)) == both.unread(data) == data
            assert change(data) == OTHER_HEADER + data[len(HEADER) :]


def damaged(draw: random.Random, written: bytes) -> bytes:
    """Return bytes with fewer, more or other bytes after the header, or with a number in one more byte."""
    data = bytearray(written)
    at = draw.randint(len(HEADER), len(data))
    kind = draw.randrange(4)
    if kind == 0:
        del data[at:]
    elif kind == 1:
        data[at:at] = draw.choice([b"\0", b"\x80", b"\xff", b"\x80\0", b"\x81\1"])
    elif at < len(data):
        data[at : at + 1] = bytes([data[at] | 128, 0] if kind == 2 else [draw.choice([0, 1, 2, 3, 127, 128, 192, 255])])
    return bytes(data)


FORMS: dict[str, tuple[Any, tuple[bytes, ...], tuple[bytes, ...]]] = {
    "boolean": ("boolean", (b"\0", b"\1"), (b"\2", b"\xff", b"")),
    "int": (
        "int",
        (b"\0", b"\x80\1", b"\xff\xff\xff\xff\x0f"),
        (b"\x80\0", b"\xff\x80\0", b"\x80\x80\x80\x80\x10", b"\0\0"),
    ),
    "long": (
        "long",
        (b"\x7f", b"\xff" * 9 + b"\1"),
        (b"\xff" * 9, b"\xff" * 9 + b"\0", b"\xff" * 9 + b"\3", b"\xff" * 10 + b"\1", b"\x80" * 9 + b"\1\0"),
    ),
    "float": ("float", (b"\0\0\0\x80", b"\0\0\x80\x7f"), (b"\1\0\x80\x7f", b"\0\0\xc0\x7f", b"\0\0\0")),
    "double": ("double", (b"\0" * 7 + b"\x80",), (b"\0" * 7, b"\0" * 9)),
    "bytes": ("bytes", (b"\0", b"\2\xff"), (b"\1", b"\4\xff", b"\x82\0\xff")),
    "string": (
        "string",
        (b"\4\xc3\xa4", b"\x08\xf0\x9f\x98\x80"),
        (b"\2\xc3", b"\6\xed\xa0\x80", b"\4\xc0\x80", b"\4\xc3\xa4\0"),
    ),
    "fixed": ({"type": "fixed", "name": "F", "size": 2}, (b"\0\xff",), (b"\0", b"\0\0\0")),
    "enum": ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, (b"\0", b"\2"), (b"\4", b"\1", b"\x82\0")),
    "union": (["null", "long"], (b"\0", b"\2\4"), (b"\4", b"\1", b"\x80\0", b"\2", b"\0\0")),
    "union with null last": (["string", "null"], (b"\2", b"\0\2a"), (b"\4", b"\0", b"\0\2")),
}


@pytest.mark.parametrize("name", FORMS)
def test_bytes_in_another_form_are_read(name: str) -> None:
    schema, shortest, others = FORMS[name]
    unread = Both({"type": "record", "name": "R", "fields": [{"name": "f", "type": schema}]}).unread
    assert unread is not None
    assert all(unread(HEADER + data) == HEADER + data for data in shortest)
    assert not any(unread(HEADER + data) for data in others)
    assert not any(unread(data) for data in (b"", HEADER, b"\0\0\0\0\1" + shortest[0], b"\1\0\0\0\7" + shortest[0]))


def test_a_recursive_record_is_left_to_fastavro() -> None:
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [{"name": "left", "type": ["null", "Tree"]}, {"name": "right", "type": ["null", "Tree"]}],
    }
    assert compiled(fastavro.parse_schema(tree, named_schemas={}), {}, {}) is None


def test_types_too_deep_for_the_stack_are_left_to_fastavro() -> None:
    fields = [{"name": "f0", "type": {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "long"}]}}]
    for n in range(1, 200):
        inner = [{"name": "x", "type": f"R{n - 1}"}]
        fields.append({"name": f"f{n}", "type": {"type": "record", "name": f"R{n}", "fields": inner}})
    for number, is_compiled in ((50, True), (200, False)):
        schema = {"type": "record", "name": "R", "fields": fields[:number]}
        found = compiled(fastavro.parse_schema(schema, named_schemas={}), {}, {})
        assert (found is not None) == is_compiled


def test_blocks_with_a_size_are_read() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "long"}}]}
    both = Both(schema)
    data = HEADER + bytes([3, 4, 2, 4, 2, 6, 0])  # a block of 2 items in 2 bytes, a block of 1, the end
    assert both.read(data) == both.read_by_fastavro(data) == {"a": [1, 2, 3]}
    assert both.left == 0


def test_more_items_than_bytes_are_left_to_fastavro() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}
    both = Both(schema)
    assert both.read(HEADER + b"\x06\0") == {"a": [None] * 3}
    assert both.left == 1
