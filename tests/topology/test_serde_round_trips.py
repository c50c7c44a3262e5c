"""No serde changes a value silently: it reads an equal value from its own bytes, or raises.

Serdes.json() writes tuples, dates and dataclasses in JSON's types, and Serdes.float32() rounds: that is documented, and
left out here.
"""

from __future__ import annotations

import json
import math
import pickle
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import Serde, Serdes, SerializationError, StreamsBuilder, Windowed
from penstock.testing import TopologyTestDriver
from penstock.topology.serdes.json_codec import json_decoder, json_encoder


class Level(IntEnum):
    HIGH = 2**40


#: Limits of number ranges, and one more and one less.
EDGES = [sign * 2**bits + more for bits in (15, 31, 53, 63, 64, 200) for sign in (1, -1) for more in (-1, 0, 1)]
INTEGERS = st.integers() | st.sampled_from(EDGES)
FLOATS = st.floats() | st.floats(width=32)
#: Includes surrogates, which UTF-8 cannot encode.
TEXTS = st.text(st.characters(exclude_categories=()))
JSON = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)
KINDS: st.SearchStrategy[Any] = (
    INTEGERS
    | FLOATS
    | TEXTS
    | st.binary()
    | st.binary().map(bytearray)
    | st.binary().map(lambda data: memoryview(data).toreadonly())
    | st.builds(lambda: memoryview(array("i", [1, -1])))
    | st.uuids()
    | st.uuids().map(str)
    | st.booleans()
    | st.decimals()
    | st.fractions()
    | st.datetimes()
    | st.just(Level.HIGH)
    | st.lists(st.none() | INTEGERS | st.booleans(), max_size=4)
    | st.tuples(INTEGERS)
    | st.builds(Windowed, st.text(), INTEGERS, INTEGERS)
)
SERDES = [
    Serdes.string(),
    Serdes.bytes(),
    Serdes.uuid(),
    Serdes.boolean(),
    Serdes.void(),
    Serdes.int16(),
    Serdes.int32(),
    Serdes.int64(),
    Serdes.float64(),
    Serdes.session_windowed(Serdes.string()),
    Serdes.list(Serdes.int64()),
    Serdes.list(Serdes.boolean()),
    Serdes.list(Serdes.list(Serdes.int16())),
]


def same(left: Any, right: Any) -> bool:
    """Return True for equal values; NaN equals NaN, True differs from 1, and the JSON 1.0 may be read as 1."""
    if left != left:
        return bool(right != right)
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def written(serde: Serde[Any], value: Any) -> bytes | None:
    """Return the bytes of a value, None if the serde refuses it."""
    try:
        return serde.serialize("topic", value)
    except SerializationError:
        return None


@pytest.mark.parametrize("serde", SERDES, ids=repr)
@given(KINDS)
@example(True)
@example(2**53 + 1)
@example("not a uuid")
def test_a_serde_reads_its_own_bytes_or_refuses_the_value(serde: Serde[Any], value: Any) -> None:
    data = written(serde, value)
    assert data is None or same(serde.deserialize("topic", data), value)


@pytest.mark.parametrize("allow_nan", [False, True])
@pytest.mark.parametrize("kind", [Any, dict[str, Any]], ids=["untyped", "typed"])
def test_json_is_exact_or_refuses(kind: Any, allow_nan: bool) -> None:
    encode, decode = json_encoder(kind, allow_nan), json_decoder(kind, allow_nan)

    @given(JSON)
    def check(value: Any) -> None:
        value = {"a": value, "b": None}
        try:
            data = encode(value)
        except SerializationError:
            assert not allow_nan
            assert holds_no_number(value)
        except (TypeError, UnicodeError):
            assert "\\ud" in ascii(value), "a surrogate alone"
        else:
            assert same(decode(data), value)

    check()


def holds_no_number(value: Any) -> bool:
    if isinstance(value, dict | list):
        return any(map(holds_no_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)


class Color(Enum):
    NONE = float("nan")


@dataclass
class Point:
    x: float
    y: int = 0
    _hidden: float = math.inf


class Text(str):
    __slots__ = ()


class Sum(msgspec.Struct):
    n: int | None
    total: float | None


@pytest.mark.parametrize(
    "value",
    [math.nan, [math.inf], {"a": (-math.inf,)}, Color.NONE, Point(math.nan), {"a": Point(math.nan), Text("b"): None}],
    ids=repr,
)
def test_nan_and_infinity_are_an_error(value: Any) -> None:
    with pytest.raises(SerializationError, match=r"JSON has no (nan|-?inf).*allow_nan=True"):
        json_encoder()(value)


@pytest.mark.parametrize("value", [None, "null", Text("null"), Point(1.5), [(None, 1.5)], {"a": {"b": None}}], ids=repr)
def test_an_intended_null_is_written(value: Any) -> None:
    assert b"null" in json_encoder()([value, None])


def test_integers_beyond_64_bits_are_exact() -> None:
    encode = json_encoder()
    for value in (Point(1.5, 2**70), {"a": [2**64, -(2**63) - 1]}, 10**30):
        assert encode(value) == encode(value)
    assert encode(Point(1.5, 2**70)) == b'{"x":1.5,"y":%d}' % 2**70
    assert Serdes.json().deserialize("t", b"123456789012345678901234567890") == 123456789012345678901234567890
    with pytest.raises(TypeError, match=r"not JSON serializable: decimal\.Decimal"):
        encode([2**70, Decimal(1)])


def test_json_of_a_type_is_exact_too() -> None:
    with pytest.raises(SerializationError, match="JSON has no nan"):
        json_encoder(Sum)(Sum(None, math.nan))
    assert json_encoder(Sum)(Sum(None, 1.5)) == b'{"n":null,"total":1.5}'
    assert json_encoder(Sum)(Sum(2**70, None)) == b'{"n":%d,"total":null}' % 2**70
    serde = Serdes.json(Sum, allow_nan=True)
    assert serde.serialize("t", Sum(2**70, -math.inf)) == b'{"n":%d,"total":-Infinity}' % 2**70
    assert serde.deserialize("t", b'{"n":1,"total":-Infinity}') == Sum(1, -math.inf)
    with pytest.raises(SerializationError, match=r"Expected `int \| null`, got `str` - at `\$.n`"):
        serde.deserialize("t", b'{"n":"1","total":NaN}')


def test_nan_can_be_allowed() -> None:
    serde = Serdes.json(allow_nan=True)
    assert serde.serialize("t", {"a": math.nan, "b": [math.inf, 1, None]}) == b'{"a":NaN,"b":[Infinity,1,null]}'
    assert serde.deserialize("t", b"[Infinity,-Infinity]") == [math.inf, -math.inf]
    assert pickle.loads(pickle.dumps(serde)) is serde is Serdes.json(allow_nan=True)
    assert repr(serde) == "Serdes.json(allow_nan=True)"
    for data in (b"NaN", b"1e400"):
        with pytest.raises(SerializationError):
            Serdes.json().deserialize("t", data)
    with pytest.raises(SerializationError, match="Number out of range"):
        serde.deserialize("t", b"1e400")


class Numbers(list):  # type: ignore[type-arg]
    pass


class Named(dict):  # type: ignore[type-arg]
    pass


@dataclass
class Box:
    inside: Any


class Held(Enum):
    LIST = Numbers([math.nan])
    BOX = Box(math.inf)


class Ratio(float, Enum):
    NONE = math.nan


#: Values with a NaN or infinity inside, and their results; "?" represents the number.
UNUSUAL: list[tuple[Callable[[float], Any], Any]] = [
    (lambda number: Numbers([number]), ["?"]),
    (lambda number: Numbers([1, Numbers([number])]), [1, ["?"]]),
    (lambda number: Named(a=Numbers([number])), {"a": ["?"]}),
    (lambda number: (Numbers([number]),), [["?"]]),
    (lambda number: Box(Numbers([number])), {"inside": ["?"]}),
    (lambda number: [numpy.float64(number), numpy.float32(number)], ["?", "?"]),
    (lambda number: {"a": numpy.float16(number), "b": None}, {"a": "?", "b": None}),
]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("make_value", "read"), UNUSUAL)
@pytest.mark.parametrize("kind", [Any, list[Any]], ids=["untyped", "typed"])
def test_unusual_numbers_are_detected_everywhere(
    kind: Any, make_value: Callable[[float], Any], read: Any, number: float
) -> None:
    value = [make_value(number), None]
    with pytest.raises(SerializationError, match="JSON has no"):
        json_encoder(kind)(value)
    expected = json.loads(json.dumps([read, None]).replace('"?"', json.dumps(number)))
    assert same(json_decoder(kind, allow_nan=True)(json_encoder(kind, allow_nan=True)(value)), expected)


@pytest.mark.parametrize("value", [Held.LIST, Held.BOX, Ratio.NONE])
def test_a_number_inside_an_enum_is_detected(value: Enum) -> None:
    with pytest.raises(SerializationError, match="JSON has no"):
        json_encoder()([value])


@pytest.mark.parametrize("kind", [Any, list[Any]], ids=["untyped", "typed"])
def test_numpys_numbers_are_numbers(kind: Any) -> None:
    value = [
        numpy.float32(0.5),
        numpy.int64(7),
        {"a": numpy.bool_(True)},
        numpy.uint64(2**64 - 1),
        Numbers([numpy.int8(1)]),
    ]
    assert json_encoder(kind)(value) == b'[0.5,7,{"a":true},18446744073709551615,[1]]'


class Price(msgspec.Struct):
    exact: Decimal
    about: float
    whole: int = 0
    names: dict[str, Decimal] = {}


@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**300), max_value=10**300),
    st.sampled_from(["NaN", "Infinity", "-Infinity"]),
)
@example(Decimal("1.23456789012345678901"), "NaN")
@example(Decimal("1.10"), "NaN")
@example(Decimal("1E+3"), "-Infinity")
def test_a_decimal_beside_nan_keeps_its_digits(exact: Decimal, name: str) -> None:
    number = str(exact)
    read = Serdes.json(Price, allow_nan=True).deserialize(
        "t", b'{"exact":%s,"about":%s,"names":{"NaN":%s}}' % (number.encode(), name.encode(), number.encode())
    )
    strict = Serdes.json(Price).deserialize(
        "t", b'{"exact":%s,"about":1,"names":{"NaN":%s}}' % ((number.encode(),) * 2)
    )
    assert read is not None
    assert strict is not None
    assert str(read.exact) == str(strict.exact) == str(read.names["NaN"])
    assert same(read.about, float(name.lower().removesuffix("inity")))


@given(JSON)
def test_values_beside_nan_are_read_as_without_it(value: Any) -> None:
    """All values have the same reader: values that json.loads would accept, or change, are no exception."""
    if not holds_no_number(value):
        try:
            data = Serdes.json().serialize("t", value)
        except SerializationError:
            return
        found: Any = Serdes.json(allow_nan=True).deserialize("t", b"[NaN," + (data or b"null") + b"]")
        assert same(found[1], Serdes.json().deserialize("t", data))


@pytest.mark.parametrize(
    "data",
    [
        b"[NaN, 1e400]",
        b"[NaN, 01]",
        b"[1NaN]",
        b"[NaN1]",
        b"[-NaN]",
        b"[NaN NaN]",
        b"[NaN, nan]",
        b"[NaN,]",
        b'[NaN, "\t"]',
        b'[NaN, "\xff"]',
        b"[NaN, 1] 2",
        b"\xef\xbb\xbf[NaN]",
        b'{"a": NaN, NaN: 1}',
        b'"NaN',
        b'["\\\\", NaN',
    ],
)
def test_json_with_nan_is_checked_equally_strictly(data: bytes) -> None:
    with pytest.raises(SerializationError, match=r"JSON|range|truncated|utf-8"):
        Serdes.json(allow_nan=True).deserialize("t", data)


def test_text_is_not_converted_to_a_number() -> None:
    for text in ("NaN", 'a"NaN', "\\", '\\"NaN', "0.1e3", "Infinity"):
        value = [text, math.inf, {text: text}]
        serde = Serdes.json(allow_nan=True)
        assert serde.deserialize("t", serde.serialize("t", value)) == value
    found: Any = Serdes.json(allow_nan=True).deserialize("t", b"[0.1e3, 0.10, NaN]")
    assert found[:2] == [100.0, 0.1]


class Both(msgspec.Struct):
    price: Decimal
    rest: list[Any]


def test_a_number_that_cannot_be_exact_is_refused() -> None:
    serde = Serdes.json(Both, allow_nan=True)
    found = serde.deserialize("t", b'{"price":12.5,"rest":[NaN,0.5]}')
    assert found is not None
    assert (str(found.price), same(found.rest, [math.nan, 0.5])) == ("12.5", True)
    for number in (b"12.50", b"1.23456789012345678901"):
        with pytest.raises(SerializationError, match="beside a NaN may be a Decimal or a float"):
            serde.deserialize("t", b'{"price":%s,"rest":[NaN]}' % number)
        assert serde.deserialize("t", b'{"price":%s,"rest":[1]}' % number) == Both(Decimal(number.decode()), [1])


def test_a_record_that_json_cannot_express_goes_to_the_production_handler() -> None:
    builder = StreamsBuilder()
    numbers = builder.stream("in", value_serde=Serdes.json(allow_nan=True))
    numbers.map_values(lambda value: {"avg": value / 2}).to("out", value_serde=Serdes.json())
    config = {"production.exception.handler": "log_and_continue"}
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in").pipe_value_list([math.inf, 3])
        assert driver.create_output_topic("out").read_values_to_list() == [{"avg": 1.5}]
