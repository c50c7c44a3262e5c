"""The effect of a serde's new version on the rows of an earlier one, determined before it reads them."""

from __future__ import annotations

import datetime
import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Serdes, StreamsBuilder
from penstock.topology.graph.topology_facts import PACKED_BYTES_MAX, facts_of, pack_facts, unpack_facts
from penstock.topology.graph.topology_plan import Verdict, compare
from penstock.topology.serdes.schema_shapes import avro_shape, json_schema_shape, protobuf_shape
from penstock.topology.serdes.shape_changes import shape_changes
from penstock.topology.serdes.shape_keywords import without_keywords


def struct(name: Any = "Total", **fields: Any) -> Any:
    """Return a struct; a field's value is its type, or (type, default)."""
    listed = [(field, *kind) if isinstance(kind, tuple) else (field, kind) for field, kind in fields.items()]
    return msgspec.defstruct(name, listed, kw_only=True)


@dataclass
class Old:
    count: int = 0


class Typed(TypedDict):
    count: int


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Tree(msgspec.Struct):
    name: str
    children: list[Tree] = []


class TreeWithSize(msgspec.Struct):
    name: str
    size: int
    children: list[TreeWithSize] = []


class Renamed(msgspec.Struct, rename="camel"):
    total_count: int = 0


class Point(NamedTuple):
    x: int
    y: int


class Turned(NamedTuple):
    y: int
    x: int


class Solid(NamedTuple):
    x: int
    y: int
    z: int = 0


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    other: int = 0


def changes(old: Any, new: Any) -> list[str]:
    before, after = Serdes.json(old).shape(), Serdes.json(new).shape()
    assert before is not None
    assert after is not None
    return [f"{c.effect.name} {c.path} {c.text}" for c in shape_changes(before, after, "value")]


def refused(keyword: str, old: object, new: object) -> str:
    return f"BREAKING value {keyword} was {old} and is {new}, which may refuse existing values"


LOST = "was removed: its values in existing rows are lost when they are written again"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (struct(count=(int, 0)), struct(count=(int, 0)), []),
        (struct(count=(int, 0)), Old, []),
        (Old, Typed, ["BREAKING value.count is required now, and existing rows may lack it"]),
        (
            struct(count=(int, 0)),
            struct(number=(int, 0)),
            [f"LOSSY value.count {LOST}", "COMPATIBLE value.number is new: existing rows read as 0"],
        ),
        (
            struct(),
            struct(tags=(list[str], msgspec.field(default_factory=list))),
            ["COMPATIBLE value.tags is new: existing rows read as []"],
        ),
        (struct(), struct(euros=float), ["BREAKING value.euros is new and required, and existing rows lack it"]),
        (struct(n=(int, 0)), struct(n=(int, 1)), ["COMPATIBLE value.n rows without it read as 1 instead of 0"]),
        (struct(n=int), struct(n=str), ["BREAKING value.n was integer and is string, which cannot read it"]),
        (struct(n=int), struct(n=float), []),
        (struct(n=int), struct(n=int | None), []),
        (struct(n=int | None), struct(n=int), ["BREAKING value.n was null and is integer, which cannot read it"]),
        (dict[str, int], dict[str, str], ["BREAKING value[…] was integer and is string, which cannot read it"]),
        (list[int], list[str], ["BREAKING value[…] was integer and is string, which cannot read it"]),
        (tuple[int, str], tuple[int, int], ["BREAKING value[1] was string and is integer, which cannot read it"]),
        (tuple[int, str], tuple[int], [refused("maxItems", 2, 1)]),
        (
            str,
            datetime.datetime,
            ["BREAKING value was string and is string (date-time, any zone), which cannot read it"],
        ),
        (
            list[int],
            tuple[int, str],
            [
                refused("minItems", "not limited", 2),
                refused("maxItems", "not limited", 2),
                "BREAKING value[1] was integer and is string, which cannot read it",
            ],
        ),
        (
            Point,
            Turned,
            [
                "BREAKING value[0] was x and is y: existing rows are read as another field",
                "BREAKING value[1] was y and is x: existing rows are read as another field",
            ],
        ),
        (Point, Solid, ["COMPATIBLE value[2] is new: existing rows read as 0"]),
        (
            dict[str, int],
            dict[int, int],
            ["BREAKING value (keys) was string and is string (integer), which cannot read it"],
        ),
        (dict, dict[str, int], ["BREAKING value[…] was any and is integer, which cannot read it"]),
        (
            list[int],
            set[int],
            [
                "LOSSY value is a set now: the order of its values, and those that are equal, are lost when they are "
                "written"
            ],
        ),
        (int, Annotated[float, msgspec.Meta(ge=0)], [refused("minimum", "not limited", 0)]),
        (Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=0)], []),
        (str, Color, ["BREAKING value was any string and is one of: 'blue', 'red'"]),
        (Color, Literal["red"], ["BREAKING value 'blue' is no longer one of its values"]),
        (Color, str, []),
        (Tree, TreeWithSize, ["BREAKING value.size is new and required, and existing rows lack it"]),
        (
            struct(total_count=(int, 0)),
            Renamed,
            [f"LOSSY value.total_count {LOST}", "COMPATIBLE value.totalCount is new: existing rows read as 0"],
        ),
        (
            Old,
            Strict,
            [
                "BREAKING value.count is gone, and unknown fields are refused",
                "COMPATIBLE value.other is new: existing rows read as 0",
            ],
        ),
        (
            struct(inner=struct("In", a=int)),
            struct(inner=struct("In", a=int, b=int)),
            ["BREAKING value.inner.b is new and required, and existing rows lack it"],
        ),
        (dict[str, int], struct(n=(int, 0)), ["BREAKING value was map and is object, which cannot read it"]),
    ],
)
def test_each_changed_field_is_compatible_lossy_or_breaking(old: Any, new: Any, expected: list[str]) -> None:
    assert changes(old, new) == expected


KINDS: Mapping[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**53), 2**53),  # a float has the digits of these
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    bool: st.booleans(),
    list[int]: st.lists(st.integers(0, 9)),
    dict[str, int]: st.dictionaries(st.text(), st.integers(0, 9)),
    int | None: st.none() | st.integers(0, 9),
    str | None: st.none() | st.text(),
}


@st.composite
def rows(draw: st.DrawFn) -> tuple[Any, bytes, Any]:
    """Return an old type, a row of it, and a new type."""
    types = []
    for _ in range(2):
        fields = draw(st.dictionaries(st.sampled_from("abc"), st.sampled_from(list(KINDS))))
        optional = draw(st.sets(st.sampled_from("abc")))
        types.append(
            struct(
                **{
                    name: (kind, draw(KINDS[kind]))
                    if name in optional and kind not in (list[int], dict[str, int])
                    else kind
                    for name, kind in fields.items()
                }
            )
        )
    old = types[0]
    values = {field.name: draw(KINDS[field.type]) for field in msgspec.structs.fields(old)}
    return old, msgspec.json.encode(old(**values)), types[1]


@given(rows())
def test_rows_are_readable_if_no_change_is_breaking(given_rows: tuple[Any, bytes, Any]) -> None:
    old, row, new = given_rows
    said = changes(old, new)
    if not any(change.startswith("BREAKING") for change in said):
        read = Serdes.json(new).deserialize("t", row)
        if not said:
            assert json.loads(msgspec.json.encode(read)) == json.loads(row)


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Total", "namespace": "n", "fields": list(fields)})


@pytest.mark.parametrize(
    "fields",
    [
        {"anything": (object, None)},
        {"made": (Any, object())},
        {"missing": (int | msgspec.UnsetType, msgspec.UNSET)},
        {"unknown": complex},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_every_type_that_msgspec_reads_has_a_shape(fields: dict[str, Any]) -> None:
    assert changes(struct(**fields), struct(**fields)) == []
    assert json.dumps(Serdes.json(struct(**fields)).shape())


def test_a_default_that_rows_leave_out_must_stay() -> None:
    old, new = (
        msgspec.defstruct("Total", [("n", int, default)], omit_defaults=True, module=__name__) for default in (0, 1)
    )
    assert changes(old, new) == ["BREAKING value.n rows without it read as 1 instead of 0"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (record({"name": "n", "type": "int"}), record({"name": "n", "type": "long"}), []),
        (record({"name": "n", "type": "long"}), record({"name": "n", "type": "int"}), ["BREAKING"]),
        (record({"name": "n", "type": "int"}), record({"name": "m", "type": "int", "aliases": ["n"]}), []),
        (record({"name": "n", "type": "int"}), record({"name": "m", "type": "int"}), ["LOSSY", "BREAKING"]),
        (record(), record({"name": "m", "type": ["null", "n.Total"], "default": None}), ["COMPATIBLE"]),
        (record({"name": "n", "type": "string"}), record({"name": "n", "type": "bytes"}), []),
        (
            record({"name": "n", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"]}}),
            record({"name": "n", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}),
            ["BREAKING"],
        ),
        (
            record({"name": "n", "type": {"type": "map", "values": "int"}}),
            record({"name": "n", "type": {"type": "map", "values": {"type": "array", "items": "int"}}}),
            ["BREAKING"],
        ),
        (record(), json.dumps({"type": "record", "name": "Sum", "fields": []}), ["BREAKING"]),
        (record(), json.dumps({"type": "record", "name": "Sum", "fields": [], "aliases": ["Total"]}), []),
        (
            record({"name": "n", "type": {"type": "enum", "name": "E", "symbols": ["A"]}}),
            record({"name": "n", "type": "string"}),
            ["BREAKING"],
        ),
    ],
)
def test_avro_schemas_are_compared_by_avros_rules(old: str, new: str, expected: list[str]) -> None:
    found = shape_changes(avro_shape(old), avro_shape(new), "value")
    assert [change.effect.name for change in found] == expected


def one_field(schema: object, **more: object) -> dict[str, Any]:
    """Return a JSON Schema of an object with the field ``a``."""
    return {"type": "object", "title": "Row", "properties": {"a": schema}, **more}


A_TEXT, A_NUMBER, NOTHING = {"type": "string"}, {"type": "integer"}, {"type": "null"}
TO_A = {"$ref": "#/definitions/A"}
DEFINED = {"definitions": {"A": A_TEXT}}, {"definitions": {"A": A_NUMBER}}
BREAKING_FIELD = ["BREAKING value.a"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (one_field({"enum": ["a", "b"]}), one_field({"const": "a"}), BREAKING_FIELD),
        (one_field({"const": "a"}), one_field({"enum": ["a", "b"]}), []),
        (one_field({"const": True}), one_field({"const": 1}), BREAKING_FIELD),
        (one_field(True), one_field(A_TEXT), BREAKING_FIELD),
        (one_field(A_TEXT), one_field(True), []),
        (one_field(A_TEXT), one_field(False), BREAKING_FIELD),
        (one_field({"type": "array"}), one_field({"type": "array", "items": A_TEXT}), ["BREAKING value.a[…]"]),
        (one_field({"type": "object"}), one_field({"type": "object", "additionalProperties": A_TEXT}), ["BREAKING"]),
        (one_field(A_TEXT), one_field(A_TEXT, additionalProperties=False), ["BREAKING value[…]"]),
        (one_field(TO_A, **DEFINED[0]), one_field(TO_A, **DEFINED[1]), BREAKING_FIELD),
        (one_field({"$ref": "x.json#"}), one_field({"$ref": "y.json#"}), BREAKING_FIELD),
        (one_field({"oneOf": [NOTHING, A_NUMBER]}), one_field({"oneOf": [NOTHING, A_TEXT]}), BREAKING_FIELD),
        (one_field({"oneOf": [NOTHING, A_NUMBER]}), one_field({"oneOf": [A_TEXT, A_NUMBER, NOTHING]}), []),
        (one_field({"type": "number"}), one_field({"oneOf": [{"type": "number"}, A_NUMBER]}), BREAKING_FIELD),
        (one_field({"allOf": [A_NUMBER]}), one_field({"allOf": [A_TEXT]}), BREAKING_FIELD),
        (one_field({"allOf": [A_NUMBER]}), one_field(A_NUMBER), []),
        (one_field({"not": A_NUMBER}), one_field({"not": A_TEXT}), BREAKING_FIELD),
        (one_field({"not": TO_A}, **DEFINED[0]), one_field({"not": TO_A}, **DEFINED[1]), BREAKING_FIELD),
        (one_field({"not": A_NUMBER}), one_field({}), []),
        (one_field(A_TEXT), one_field({**A_TEXT, "minLength": 1}), BREAKING_FIELD),
        (one_field({**A_TEXT, "minLength": 2}), one_field({**A_TEXT, "minLength": 1}), []),
    ],
)
def test_json_schemas_are_compared_by_what_they_allow(old: Any, new: Any, expected: list[str]) -> None:
    plan = compare(*(declared(Serdes.json_schema(json.dumps(schema), "mock://shapes")) for schema in (old, new)))
    assert plan.verdict is (Verdict.REFUSE if expected else Verdict.SAFE)
    found = shape_changes(json_schema_shape(json.dumps(old)), json_schema_shape(json.dumps(new)), "value")
    said = [f"{change.effect.name} {change.path}" for change in found]
    assert [place[: len(wanted)] for place, wanted in zip(said, expected, strict=True)] == expected


def messages(**fields: int) -> Any:
    """Return the descriptor of a message; fields: the number of each."""
    from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]

    file = descriptor_pb2.FileDescriptorProto(name="total.proto", syntax="proto3")
    message = file.message_type.add(name="Total")
    for name, number in fields.items():
        message.field.add(name=name, number=number, type=3 if name.startswith("n") else 9, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool.FindMessageTypeByName("Total")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"n": 1}, {"number": 1}, []),
        ({"n": 1}, {"text": 1}, ["BREAKING value.field 1"]),
        ({"n": 1}, {"n": 2}, ["LOSSY value.field 1", "COMPATIBLE value.field 2"]),
    ],
)
def test_protobuf_fields_are_compared_by_their_numbers(old: Any, new: Any, expected: list[str]) -> None:
    found = shape_changes(protobuf_shape(messages(**old)), protobuf_shape(messages(**new)), "value")
    assert [f"{change.effect.name} {change.path}" for change in found] == expected


def keyed(serde: Any) -> dict[str, Any]:
    """Return the facts of a topology with a store and a repartition topic of these keys."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.string())
    stream.group_by(lambda key, value: value, name="by", key_serde=serde).count(store="totals")
    facts: dict[str, Any] = json.loads(
        json.dumps(facts_of(builder.build(), {"application.id": "app", "bootstrap.servers": "x"}))
    )
    return facts


def omitting(**fields: Any) -> Any:
    return msgspec.defstruct("Total", [(name, *kind) for name, kind in fields.items()], omit_defaults=True)


def inside(kind: Any) -> Any:
    """Return a type whose name is the same for all kinds: other names are refused anyway."""
    return struct("Outer", at=kind)


KEY_CHANGES: list[tuple[Any, Any, Any]] = [
    (struct(a=int), struct(a=int, b=(int, 7)), {"a": 1}),
    (struct(a=int), struct(a=(int | None, None)), {"a": 1}),
    (struct(a=int), struct(a=float), {"a": 1}),
    (list[int], list[float], [1]),
    (dict[str, int], dict[str, float], {"a": 1}),
    (int | str, float | str, 1),
    (int, int | str, 1),
    (Literal["a"], Literal["a", "b"], "a"),
    (Color, str, "red"),
    (Annotated[int, msgspec.Meta(le=5)], Annotated[int, msgspec.Meta(le=9)], 5),
    (omitting(a=(int, 0)), omitting(a=(int, 0), b=(int, 7)), {"a": 1}),
    (struct(a=str, b=str), struct(b=str, a=str), {"a": "1", "b": "2"}),
    (Point, NamedTuple("Point", [("x", int), ("y", int)]), [1, 2]),
]


@pytest.mark.parametrize(("old", "new", "example"), KEY_CHANGES)
def test_a_key_that_gets_other_bytes_is_refused(old: Any, new: Any, example: Any) -> None:
    """The serdes judge: they write a key, read it with the other version, and write it again."""
    before, after, same = (Serdes.json(inside(kind)) for kind in (old, new, old))
    written = before.serialize("t", before.deserialize("t", json.dumps({"at": example}).encode()))
    again = after.serialize("t", after.deserialize("t", written))
    plan = compare(keyed(before), keyed(after))
    assert (plan.verdict is Verdict.SAFE) == (again == written), (written, again, plan.findings)
    assert compare(keyed(before), keyed(same)).findings == ()
    if again != written:
        refused = [finding.subject for finding in plan.findings if finding.verdict is Verdict.REFUSE]
        assert sorted(refused) == ["by-repartition", "totals"]
        assert "keys get other bytes, so existing rows are not found" in str(plan.findings)
        windowed = Serdes.time_windowed(before, 1000), Serdes.time_windowed(after, 1000)
        assert compare(*map(keyed, windowed)).verdict is Verdict.REFUSE


def test_another_schema_of_a_key_in_a_registry_is_refused() -> None:
    """It has another id, with which each key begins."""

    def avro(*fields: dict[str, Any]) -> Any:
        schema = {"type": "record", "name": "K", "fields": [{"name": "a", "type": "int"}, *fields]}
        return Serdes.avro(json.dumps(schema), "mock://keys", is_key=True)

    more = {"name": "b", "type": "int", "default": 7}
    plan = compare(keyed(avro()), keyed(avro(more)))
    assert plan.verdict is Verdict.REFUSE
    assert "key of Serdes.avro" in str(plan.findings)
    assert "has another schema, whose id is in its bytes" in str(plan.findings)
    assert compare(keyed(avro(more)), keyed(avro(more))).findings == ()


def declared(serde: Any) -> dict[str, Any]:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json())
    stream.group_by_key().reduce(lambda old, new: new, store="totals", value_serde=serde)
    return facts_of(builder.build(), {"application.id": "app", "bootstrap.servers": "x"})


@pytest.mark.parametrize("wrap", [lambda serde: serde, Serdes.list], ids=["itself", "in a list"])
def test_the_plan_names_the_field(wrap: Any) -> None:
    old, new = (declared(wrap(Serdes.json(kind))) for kind in (struct(count=(int, 0)), struct(number=(int, 0))))
    plan = compare(json.loads(json.dumps(old)), new)
    assert plan.verdict is Verdict.REFUSE
    said = " ".join(finding.text for finding in plan.findings if finding.subject == "totals")
    assert ".count of Serdes." in said
    assert "(lossy)" in said
    assert "existing rows read as 0 (compatible)" in said
    assert compare(old, old).verdict is Verdict.SAFE


@pytest.mark.parametrize(
    ("old", "new"),
    [(str, datetime.datetime), (Literal[1, 2], str), (list[int], tuple[str, str]), (dict[str, int], dict[int, int])],
)
def test_the_plan_refuses_a_type_that_does_not_read_the_rows(old: Any, new: Any) -> None:
    facts = [declared(Serdes.json(struct(at=kind))) for kind in (old, new)]
    assert compare(*json.loads(json.dumps(facts))).verdict is Verdict.REFUSE


def test_a_new_field_with_a_default_is_safe() -> None:
    plan = compare(*(declared(Serdes.json(kind)) for kind in (struct(), struct(count=(int, 7)))))
    assert plan.verdict is Verdict.SAFE
    assert "value.count of Serdes.json(Total) is new: existing rows read as 7 (compatible)" in str(plan.findings)


def test_facts_of_an_earlier_penstock_have_no_shapes() -> None:
    old, new = (declared(Serdes.json(kind)) for kind in (struct(count=int), struct(number=int)))
    for field in ("key_serde_shape", "value_serde_shape"):
        del old["stores"]["totals"][field]
    assert compare(old, new).verdict is Verdict.SAFE


def test_a_shape_of_an_early_penstock_does_not_say_all() -> None:
    """It did not tell a datetime from a text: a change between them is reported as unknown, and safe."""
    text, date = (declared(Serdes.json(struct(at=kind))) for kind in (str, datetime.datetime))
    for old in (text, date):
        store = old["stores"]["totals"]
        early = without_keywords(store["value_serde_shape"], lambda keyword: keyword.startswith("x-"))
        plan = compare({**old, "stores": {"totals": {**store, "value_serde_shape": early}}}, date)
        assert [finding.verdict for finding in plan.findings] == [Verdict.SAFE]
        assert "was described by an early version of Penstock" in plan.findings[0].text


def test_shapes_are_left_out_of_too_large_facts() -> None:
    """The broker keeps the facts of all members in one record; shapes are dropped first."""
    kinds = [
        struct("T", **{f"field_{hash((number, other)):x}".replace("-", "m"): int for other in range(40)})
        for number in range(30)
    ]
    builder = StreamsBuilder()
    for number, kind in enumerate(kinds):
        stream = builder.stream(f"in-{number}", key_serde=Serdes.string(), value_serde=Serdes.json())
        stream.group_by_key().reduce(lambda old, new: new, store=f"totals-{number}", value_serde=Serdes.json(kind))
    packed = pack_facts(facts_of(builder.build(), {"application.id": "app", "bootstrap.servers": "x"}))
    assert 0 < len(packed) <= PACKED_BYTES_MAX
    facts = unpack_facts(packed)
    assert facts is not None
    assert "value_serde_shape" not in facts["stores"]["totals-1"]
