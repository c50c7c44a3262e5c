"""Pairs of types, held against what reads the rows: whether each change is reported that a row does not survive.

A pair is wrong if a row is refused or changed and no change is reported. It is a nuisance if rows are read and a change
is called breaking. The accepted nuisances are listed with their reasons.
"""

from __future__ import annotations

import copy
import datetime
import enum
import io
import json
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import fastavro
import jsonschema  # type: ignore[import-untyped]
import msgspec
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from penstock.topology.serdes.schema_shapes import avro_shape, json_schema_shape, protobuf_shape, without_words
from penstock.topology.serdes.shape_changes import Change, Effect, shape_changes
from penstock.topology.serdes.shape_keywords import Shape, without_keywords
from penstock.topology.serdes.type_shapes import type_shape

UTC = datetime.UTC
ROW_REFUSED, ROW_CHANGED, ROW_READ = "refused", "changed", "read"


def check(old: Shape, new: Shape, rows: list[str], nuisance: str | None) -> None:
    """Compare the changes that are reported between two types with what happened to rows.

    nuisance: why a false alarm is accepted, None if there must be none.
    """
    found: list[Change] = list(shape_changes(old, new, "value"))
    worst = max((change.effect for change in found), default=Effect.COMPATIBLE)
    if ROW_REFUSED in rows:
        assert worst is Effect.BREAKING, (rows, found)
    elif ROW_CHANGED in rows:
        assert worst is not Effect.COMPATIBLE, (rows, found)
    else:
        assert worst is not Effect.BREAKING or nuisance, found


# Types of Python in JSON


class Letter(enum.Enum):
    A = "a"
    LONG = "a long one"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 200


class Pair(NamedTuple):
    first: int
    second: int


class Swapped(NamedTuple):
    second: int
    first: int


class Triple(NamedTuple):
    first: int
    second: int
    third: int = 0


class Array(msgspec.Struct, array_like=True):
    first: int
    second: int


class SwappedArray(msgspec.Struct, array_like=True):
    second: int
    first: int


class LongArray(msgspec.Struct, array_like=True):
    first: int
    second: int
    third: int = 0


class ShortArray(msgspec.Struct, array_like=True):
    first: int


class ClosedArray(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    first: int
    second: int


class TaggedArray(msgspec.Struct, array_like=True, tag="tag"):
    first: int


class Plain(msgspec.Struct):
    first: int
    second: int


class Short(msgspec.Struct):
    first: int


class Long(msgspec.Struct):
    first: int
    second: int
    third: int = 0


class Closed(msgspec.Struct, forbid_unknown_fields=True):
    first: int


class One(msgspec.Struct, tag="one"):
    first: int
    second: int


class Two(msgspec.Struct, tag="two"):
    first: int
    second: int


class Sparse(msgspec.Struct, omit_defaults=True):
    first: int = 0


class OtherSparse(msgspec.Struct, omit_defaults=True):
    first: int = 1


class Typed(TypedDict):
    first: int


class Total(TypedDict, total=False):
    first: int
    fourth: int


DAY, HOUR = datetime.date(2020, 1, 1), datetime.time(1)
NOON, NOON_UTC = datetime.datetime(2020, 1, 1, 12), datetime.datetime(2020, 1, 1, 12, tzinfo=UTC)
ID = UUID(int=5)

#: Types with some of their values.
TYPES: Mapping[str, tuple[Any, list[Any]]] = {
    "int": (int, [1, -500, 10**15]),
    "float": (float, [1.5, -1.5]),
    "bool": (bool, [True]),
    "None": (None, [None]),
    "str": (str, ["hello", "5", ""]),
    "bytes": (bytes, [b"", b"abcdef"]),
    "bytes up to 1": (Annotated[bytes, Meta(max_length=1)], [b"a"]),
    "bytes up to 3": (Annotated[bytes, Meta(max_length=3)], [b"abc"]),
    "datetime": (datetime.datetime, [NOON, NOON_UTC]),
    "datetime with a zone": (Annotated[datetime.datetime, Meta(tz=True)], [NOON_UTC]),
    "datetime without a zone": (Annotated[datetime.datetime, Meta(tz=False)], [NOON]),
    "date": (datetime.date, [DAY]),
    "time": (datetime.time, [HOUR, HOUR.replace(tzinfo=UTC)]),
    "time with a zone": (Annotated[datetime.time, Meta(tz=True)], [HOUR.replace(tzinfo=UTC)]),
    "time without a zone": (Annotated[datetime.time, Meta(tz=False)], [HOUR]),
    "timedelta": (datetime.timedelta, [datetime.timedelta(1, 1)]),
    "UUID": (UUID, [ID]),
    "Decimal": (Decimal, [Decimal("1.50"), Decimal("NaN")]),
    "Enum": (Letter, [*Letter]),
    "IntEnum": (Level, [*Level]),
    "Literal[1, 200]": (Literal[1, 200], [1, 200]),
    "Literal[1]": (Literal[1], [1]),
    "Literal['a']": (Literal["a"], ["a"]),
    "Literal[1, 'a', None]": (Literal[1, "a", None], [1, "a", None]),
    "int | None": (int | None, [5, None]),
    "int | str": (int | str, [5, "x"]),
    "float | str": (float | str, [1.5, "x"]),
    "int from 0": (Annotated[int, Meta(ge=0)], [0, 500]),
    "int from 1": (Annotated[int, Meta(ge=1)], [1, 500]),
    "int up to 9": (Annotated[int, Meta(le=9)], [-1, 9]),
    "float from 0": (Annotated[float, Meta(ge=0)], [0.5]),
    "str up to 3": (Annotated[str, Meta(max_length=3)], ["xyz", ""]),
    "str with a": (Annotated[str, Meta(pattern="^a")], ["a", "abcdef"]),
    "list": (list, [["y", 1]]),
    "list[int]": (list[int], [[2, 1, 1], []]),
    "list[str]": (list[str], [["b", "a", "a"], []]),
    "set[int]": (set[int], [{1}, set()]),
    "tuple[int, ...]": (tuple[int, ...], [(2, 1, 1), ()]),
    "tuple[()]": (tuple[()], [()]),
    "tuple[int]": (tuple[int], [(1,)]),
    "tuple[int, int]": (tuple[int, int], [(2, 1)]),
    "tuple[int, str]": (tuple[int, str], [(1, "a")]),
    "tuple[str, str]": (tuple[str, str], [("a", "b")]),
    **{kind.__name__: (kind, [kind(*range(1, len(kind._fields) + 1))]) for kind in (Pair, Swapped, Triple)},
    **{
        kind.__name__: (kind, [kind(*range(1, len(kind.__struct_fields__) + 1))])
        for kind in (Array, SwappedArray, LongArray, ShortArray, ClosedArray, TaggedArray)
    },
    **{
        kind.__name__: (kind, [kind(*range(1, len(kind.__struct_fields__) + 1))])
        for kind in (Plain, Short, Long, Closed, One, Two)
    },
    **{kind.__name__: (kind, [kind(), kind(7)]) for kind in (Sparse, OtherSparse)},
    "One | Two": (One | Two, [One(1, 2), Two(1, 2)]),
    "Typed": (Typed, [{"first": 1}]),
    "Total": (Total, [{}, {"first": 1, "fourth": 2}]),
    "dict": (dict, [{"x": "y", "z": 1}]),
    "dict[str, str]": (dict[str, str], [{"x": "y"}]),
    "dict[str, int]": (dict[str, int], [{"long": 1, "a": 1}]),
    "dict[str up to 3, int]": (dict[Annotated[str, Meta(max_length=3)], int], [{"xyz": 1}]),
    "dict[int, int]": (dict[int, int], [{1: 1, 10000: 1}]),
    "dict[float, int]": (dict[float, int], [{1.5: 1, 1000.5: 1}]),
    "dict[Decimal, int]": (dict[Decimal, int], [{Decimal("0.1000000000000000000001"): 1}]),
    "dict[UUID, int]": (dict[UUID, int], [{ID: 1}]),
    "dict[date, int]": (dict[datetime.date, int], [{DAY: 1}]),
    "dict[datetime, int]": (dict[datetime.datetime, int], [{NOON: 1}]),
    "dict[Enum, int]": (dict[Letter, int], [{Letter.A: 1, Letter.LONG: 2}]),
    "dict[IntEnum, int]": (dict[Level, int], [{Level.LOW: 1, Level.HIGH: 1}]),
    "dict[Literal['first'], int]": (dict[Literal["first"], int], [{"first": 1}]),
    "Any": (Any, ["q", 5, None]),
    "object": (object, ["q", 5, None]),
    "Raw": (msgspec.Raw, [msgspec.Raw(b'"q"'), msgspec.Raw(b"5"), msgspec.Raw(b"[5]")]),
}

_ENUMS = ("Enum", "IntEnum", "Literal[1, 200]", "Literal[1]", "Literal['a']")
_LIMITED = ("int from 0", "int from 1", "int up to 9", "float from 0", "str up to 3", "str with a")
_CLASSES = ("Plain", "Short", "Long", "Closed", "Typed", "Total", "Sparse", "OtherSparse")
#: Changes that are called breaking, but are not: old types, new types, reason.
NUISANCES = (
    (_ENUMS, _LIMITED, "limits are compared with limits, not with the values of an enum"),
    (
        ("dict[Literal['first'], int]", "dict[IntEnum, int]", "dict[Enum, int]"),
        ("str up to 3", "dict[str up to 3, int]", "dict[int, int]", "dict[float, int]", "dict[Decimal, int]"),
        "the keys of an enum are compared as texts",
    ),
    (("dict[Literal['first'], int]",), _CLASSES, "the keys of a map are not compared with the fields of a class"),
    (("Plain", "Long"), ("One", "Two"), "a tag is needed in a union; where it is not, is not in the shape"),
    (("dict[Decimal, int]",), ("dict[float, int]",), "a float may have other digits"),
)


def json_row(old: Any, value: Any, new: Any) -> str:
    """Return what happens to a row."""
    row = msgspec.json.encode(value)
    try:
        read = msgspec.json.decode(row, type=new)
    except msgspec.MsgspecError:
        return ROW_REFUSED
    before, after = fields_of(value, old), fields_of(read, new)
    if before is not None and after is not None:
        return ROW_READ if all(after.get(name) == before[name] for name in before) else ROW_CHANGED
    same = read == value or json.loads(msgspec.json.encode(read)) == json.loads(row)
    added = isinstance(value, tuple) and isinstance(after, dict) and [*value] == [*after.values()][: len(value)]
    return ROW_READ if same or added else ROW_CHANGED


def fields_of(value: Any, kind: Any) -> dict[str, object] | None:
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if kind in (Typed, Total):
        return dict(value)
    return value._asdict() if hasattr(value, "_asdict") else None


@pytest.mark.parametrize("where", ["itself", "in a field", "in a list"])
@pytest.mark.parametrize("old", TYPES)
def test_types_of_python(old: str, where: str) -> None:
    old_type, values = TYPES[old]
    for new, (new_type, _) in TYPES.items():
        nuisance = next((why for olds, news, why in NUISANCES if old in olds and new in news), None)
        rows = [json_row(old_type, value, new_type) for value in values]
        shapes = [type_shape(placed(kind, where)) for kind in (old_type, new_type)]
        try:
            check(shapes[0], shapes[1], rows, nuisance)
        except AssertionError as error:
            raise AssertionError(f"{old} -> {new}: {error}") from error


def placed(kind: Any, where: str) -> Any:
    if where == "itself":
        return kind
    return list[kind] if where == "in a list" else msgspec.defstruct("Row", [("field", kind)])


@pytest.mark.parametrize("kind", TYPES)
def test_an_early_shape_of_an_unchanged_type_has_no_changes(kind: str) -> None:
    given = TYPES[kind][0]
    if given is object:
        pytest.skip("it had no shape")
    assert_unchanged(without_words(msgspec.json.schema(given)), type_shape(given))


def assert_unchanged(old: Shape, new: Shape) -> None:
    """Check that at most one change is reported: that an early shape does not say all."""
    found = list(shape_changes(old, new, "value"))
    assert len(found) <= 1, found
    assert all(change.text.startswith("was described by an early version") for change in found), found


# Avro


def record(name: str, *fields: dict[str, Any], **more: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [*fields], **more}


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


def fixed(name: str, size: int, **more: object) -> dict[str, object]:
    return {"type": "fixed", "name": name, "size": size, **more}


def symbols(name: str, *names: str, **more: object) -> dict[str, object]:
    return {"type": "enum", "name": name, "symbols": [*names], **more}


A_INT = {"name": "a", "type": "int"}
AVRO: Mapping[str, tuple[Any, list[Any]]] = {
    "null": ("null", [None]),
    "boolean": ("boolean", [True]),
    "int": ("int", [5, -1]),
    "long": ("long", [5, 2**40]),
    "float": ("float", [1.5]),
    "double": ("double", [1.1]),
    "string": ("string", ["a", "é"]),
    "bytes": ("bytes", [b"a", b"\xff"]),
    "date": (logical("int", "date"), [DAY]),
    "millis": (logical("long", "timestamp-millis"), [NOON_UTC]),
    "micros": (logical("long", "timestamp-micros"), [NOON_UTC.replace(microsecond=7)]),
    "uuid": (logical("string", "uuid"), [ID]),
    "decimal": (logical("bytes", "decimal", precision=5, scale=2), [Decimal("1.50")]),
    "fixed F": (fixed("F", 2), [b"ab"]),
    "fixed F of 3": (fixed("F", 3), [b"abc"]),
    "fixed G": (fixed("G", 2), [b"ab"]),
    "fixed G or F": (fixed("G", 2, aliases=["F"]), [b"ab"]),
    "decimal F": (fixed("F", 2, logicalType="decimal", precision=3, scale=1), [Decimal("1.5")]),
    "enum E": (symbols("E", "A", "B"), ["A", "B"]),
    "enum E of A": (symbols("E", "A"), ["A"]),
    "enum n.E": (symbols("E", "A", "B", namespace="n"), ["A", "B"]),
    "enum D": (symbols("D", "A", "B"), ["A"]),
    "enum D or E": (symbols("D", "A", "B", aliases=["E"]), ["A"]),
    "record R": (record("R", A_INT), [{"a": 1}]),
    "record n.R": (record("R", A_INT, namespace="n"), [{"a": 1}]),
    "record Q": (record("Q", A_INT), [{"a": 1}]),
    "record Q or R": (record("Q", A_INT, aliases=["R"]), [{"a": 1}]),
    "record Q or n.R": (record("Q", A_INT, aliases=["n.R"]), [{"a": 1}]),
    "record R of a long": (record("R", {"name": "a", "type": "long"}), [{"a": 2**40}]),
    "record R with b": (record("R", A_INT, {"name": "b", "type": "int", "default": 7}), [{"a": 1, "b": 2}]),
    "record R needs b": (record("R", A_INT, {"name": "b", "type": "int"}), [{"a": 1, "b": 2}]),
    "record R of I": (record("R", {"name": "a", "type": record("I", A_INT)}), [{"a": {"a": 1}}]),
    "record R of J": (record("R", {"name": "a", "type": record("J", A_INT)}), [{"a": {"a": 1}}]),
    "array of int": ({"type": "array", "items": "int"}, [[1]]),
    "array of long": ({"type": "array", "items": "long"}, [[2**40]]),
    "array of string": ({"type": "array", "items": "string"}, [["a"]]),
    "map of int": ({"type": "map", "values": "int"}, [{"k": 1}]),
    "map of string": ({"type": "map", "values": "string"}, [{"k": "v"}]),
    "int or null": (["null", "int"], [None, 1]),
    "long or null": (["null", "long"], [None, 2**40]),
    "int or string": (["int", "string"], [1, "a"]),
    "R or null": (["null", record("R", A_INT)], [None, {"a": 1}]),
    "Q or null": (["null", record("Q", A_INT)], [None, {"a": 1}]),
    "R or Q": ([record("R", A_INT), record("Q", {"name": "b", "type": "int"})], [{"a": 1}, {"b": 1}]),
}
_LOGICAL = ("date", "millis", "micros", "uuid", "decimal", "decimal F")
AVRO_NUISANCES = (
    (AVRO.keys(), _LOGICAL, "read as it was written, with the type of Python of no logical type or another one"),
    (("record R with b",), ("record R needs b",), "there may be rows of before the field that has the default"),
)


def topped(schema: object) -> dict[str, Any]:
    return copy.deepcopy(record("Top", {"name": "field", "type": schema}))


def avro_row(old: object, value: object, new: object) -> str:
    written, wanted = (fastavro.parse_schema(topped(one), named_schemas={}) for one in (old, new))
    stream, again = io.BytesIO(), io.BytesIO()
    fastavro.schemaless_writer(stream, written, {"field": value})
    stream.seek(0)
    try:
        row: Any = fastavro.schemaless_reader(stream, written, wanted)
        fastavro.schemaless_writer(again, wanted, row)
    except Exception:  # noqa: BLE001 - fastavro has no class of errors, and each of them stops the application
        return ROW_REFUSED
    read = row["field"]
    if isinstance(value, dict) and isinstance(read, dict):
        return ROW_READ if all(read.get(name) == value[name] for name in value) else ROW_CHANGED
    same = read == value or (isinstance(read, bytes) and read == str(value).encode())
    return ROW_READ if same else ROW_CHANGED


@pytest.mark.parametrize("old", AVRO)
def test_types_of_avro(old: str) -> None:
    old_schema, values = AVRO[old]
    for new, (new_schema, _) in AVRO.items():
        nuisance = next((why for olds, news, why in AVRO_NUISANCES if old in olds and new in news), None)
        rows = [avro_row(old_schema, value, new_schema) for value in values]
        shapes = [avro_shape(json.dumps(topped(schema))) for schema in (old_schema, new_schema)]
        try:
            check(shapes[0], shapes[1], rows, nuisance)
        except AssertionError as error:
            raise AssertionError(f"{old} -> {new}: {error}") from error


# Protobuf

PROTOBUF: Mapping[str, list[Any]] = {
    "double": [1.5],
    "float": [1.5],
    "int64": [1, -1, 2**40],
    "uint64": [1, 2**63 + 1],
    "int32": [1, -1],
    "fixed64": [1, 2**63],
    "fixed32": [1, 2**31],
    "bool": [True],
    "string": ["a", "é"],
    "bytes": [b"a", b"\xff"],
    "uint32": [1, 2**31],
    "enum": [1, -1],
    "sfixed32": [1, -1],
    "sfixed64": [1, -1],
    "sint32": [1, -1],
    "sint64": [1, -1, 2**40],
}
PROTOBUF_NUISANCES = ((("int32", "bool"), ("enum",), "an enum of proto2 drops numbers that it does not know"),)


def message(kind: str) -> Any:
    """Return the class of a message with a field of a type."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{kind}.proto", syntax="proto3")
    numbers = file.enum_type.add(name="E")
    for name, number in (("ZERO", 0), ("ONE", 1), ("LESS", -1)):
        numbers.value.add(name=name, number=number)
    number = descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    field = file.message_type.add(name="Row").field.add(name="field", number=1, type=number, label=1)
    if kind == "enum":
        field.type_name = ".E"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Row"))


def protobuf_row(old: Any, value: object, new: Any) -> str:
    row = old(field=value).SerializeToString()
    try:
        read = new.FromString(row)
    except DecodeError:
        return ROW_REFUSED
    same = read.field == value or (isinstance(read.field, bytes) and read.field == str(value).encode())
    return ROW_READ if same and read.SerializeToString() == row else ROW_CHANGED


@pytest.mark.parametrize("old", PROTOBUF)
def test_types_of_protobuf(old: str) -> None:
    before = message(old)
    for new in PROTOBUF:
        after = message(new)
        nuisance = next((why for olds, news, why in PROTOBUF_NUISANCES if old in olds and new in news), None)
        rows = [protobuf_row(before, value, after) for value in PROTOBUF[old]]
        shapes = [protobuf_shape(one.DESCRIPTOR) for one in (before, after)]
        try:
            check(shapes[0], shapes[1], rows, nuisance)
        except AssertionError as error:
            raise AssertionError(f"{old} -> {new}: {error}") from error


def early(shape: Mapping[str, Any]) -> Any:
    """Return a shape of Avro or Protobuf as early versions wrote it."""
    return without_keywords(shape, lambda keyword: keyword.startswith("x-"))


def test_early_shapes_of_unchanged_schemas_have_no_changes() -> None:
    shapes = [avro_shape(json.dumps(topped(schema))) for schema, _ in AVRO.values()]
    shapes += [protobuf_shape(message(kind).DESCRIPTOR) for kind in PROTOBUF]
    for shape in shapes:
        assert_unchanged(early(shape), shape)
    assert early(avro_shape(json.dumps(topped("int")))) == {
        "$ref": "#/$defs/Top",
        "$defs": {
            "Top": {
                "type": "object",
                "properties": {"field": {"type": "integer", "format": "int"}},
                "required": ["field"],
            }
        },
    }
    assert early(protobuf_shape(message("sint32").DESCRIPTOR)) == {
        "$ref": "#/$defs/Row",
        "$defs": {"Row": {"type": "object", "properties": {"field 1": {"type": "zigzag varint"}}}},
    }


# JSON Schema

_NAMES = st.sampled_from("abc")
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from([0.5, 1.5, "", "a", "bb", "red"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=4,
)
_TYPE_NAMES = ("null", "boolean", "integer", "number", "string", "array", "object")


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=2)
    count = st.integers(0, 3)
    of: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from([*_TYPE_NAMES, ["string", "null"], ["object", "array"]]),
        "enum": st.lists(_VALUES, min_size=1, max_size=3),
        "const": _VALUES,
        "properties": st.dictionaries(_NAMES, inner, max_size=2),
        "required": st.lists(_NAMES, max_size=2, unique=True),
        "patternProperties": st.dictionaries(st.sampled_from(["a", "^b"]), inner, max_size=1),
        **dict.fromkeys(("additionalProperties", "propertyNames", "items", "contains", "not"), inner),
        **dict.fromkeys(("if", "then", "else"), inner),
        **dict.fromkeys(("prefixItems", "anyOf", "oneOf", "allOf"), some),
        **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength", "minProperties"), count),
        **dict.fromkeys(("minimum", "maximum"), st.integers(-2, 2)),
        "uniqueItems": st.booleans(),
        "multipleOf": st.sampled_from([1, 2]),
        "pattern": st.sampled_from(["a", "b"]),
        "$ref": st.sampled_from(["#/$defs/A", "#/definitions/B", "#"]),
        "unevaluatedProperties": st.booleans(),
    }
    chosen = st.lists(st.sampled_from(sorted(of)), min_size=1, max_size=3, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({name: of[name] for name in names}))


_SCHEMAS = st.recursive(
    st.booleans() | st.just({}) | st.sampled_from(_TYPE_NAMES).map(lambda kind: {"type": kind}),
    _keywords,
    max_leaves=6,
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    top = draw(_keywords(_SCHEMAS))
    return {**top, "$defs": {"A": draw(_SCHEMAS)}, "definitions": {"B": draw(_SCHEMAS)}}


@st.composite
def versions(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a schema and another one, which mostly differs in one place."""
    old = draw(documents())
    if draw(st.integers(0, 3)) == 0:
        return old, draw(documents())
    new = json.loads(json.dumps(old))
    place = draw(st.sampled_from([*_places(new)]))
    place[0][place[1]] = draw(_SCHEMAS | _VALUES)
    return old, new


def _places(schema: Any) -> Iterator[tuple[Any, Any]]:
    for key in schema if isinstance(schema, dict) else range(len(schema)) if isinstance(schema, list) else ():
        yield schema, key
        yield from _places(schema[key])


def validator(schema: object) -> Any:
    """Return a validator, None for a schema that is none."""
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError:
        return None
    return jsonschema.Draft202012Validator(schema)


@given(versions(), st.lists(_VALUES, min_size=8, max_size=8))
def test_values_of_a_json_schema_are_valid_if_no_change_is_breaking(
    schemas: tuple[dict[str, Any], dict[str, Any]], values: list[object]
) -> None:
    before, after = (json_schema_shape(json.dumps(schema)) for schema in schemas)
    found = list(shape_changes(before, after, "value"))
    old, new = map(validator, schemas)
    # A new field is taken for one that existing rows lack, though their schema did not refuse it.
    if any(change.effect is Effect.BREAKING or "is new" in change.text for change in found) or not (old and new):
        return
    for value in values:
        try:
            assert not old.is_valid(value) or new.is_valid(value), (value, found)
        except RecursionError:  # a schema that refers to itself without an end
            return


_KEYWORDS = (
    *("type", "enum", "const", "properties", "required", "additionalProperties", "propertyNames", "items", "not"),
    *("additionalItems", "prefixItems", "minItems", "maximum", "exclusiveMinimum", "uniqueItems", "pattern", "parts"),
    *("anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions", "aliases", "format", "default", "title", "x-kind"),
    *("x-names", "x-keys", "x-rules"),
)
_TEXTS = st.sampled_from(["string", "object", "#", "#/$defs/a", "#/anyOf/0", "#/a/b", "#x", "other.json", "a"])
_JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*_KEYWORDS, "a", "b"]), inner, max_size=4)
    ),
    max_leaves=15,
)
_JUNK_SCHEMAS = st.booleans() | st.dictionaries(st.sampled_from(_KEYWORDS), _JUNK, max_size=5)


@given(_JUNK_SCHEMAS, _JUNK_SCHEMAS)
def test_any_json_schema_is_compared(old: object, new: object) -> None:
    before, after = (json_schema_shape(json.dumps(schema)) for schema in (old, new))
    list(shape_changes(before, after, "value"))
    assert not [*shape_changes(before, json_schema_shape(json.dumps(old)), "value")] or "NaN" in json.dumps(old)
    list(shape_changes(early(before), after, "value"))
