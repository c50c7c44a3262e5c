"""No serde changes a value silently: what it wrote it reads as an equal value, or it raises.

Serdes.json() writes tuples, dates and dataclasses as what JSON has for them, and Serdes.float32() rounds: that is
documented, and left out here.
"""

from __future__ import annotations

import math
import pickle
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import Serde, Serdes, SerializationError, StreamsBuilder, Windowed
from penstock.kernel import codecs as kernel_codecs
from penstock.testing import TopologyTestDriver
from penstock.topology.serdes import codecs
from penstock.topology.serdes.json_codec import json_decoder, json_encoder


class Level(IntEnum):
    HIGH = 2**40


#: Numbers of a limit, one more, one less.
EDGES = [sign * 2**bits + more for bits in (15, 31, 53, 63, 64, 200) for sign in (1, -1) for more in (-1, 0, 1)]
INTEGERS = st.integers() | st.sampled_from(EDGES)
FLOATS = st.floats() | st.floats(width=32)
#: Also surrogates, which UTF-8 does not have.
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
    """Return whether values are equal; NaN is, True is not 1, and the JSON 1.0 may be read as 1."""
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
    except Exception:  # noqa: BLE001 - whatever a serde raises is not silent
        return None


@pytest.mark.parametrize("serde", SERDES, ids=repr)
@given(KINDS)
@example(True)
@example(2**53 + 1)
@example("not a uuid")
def test_a_serde_reads_what_it_wrote_or_refuses(serde: Serde[Any], value: Any) -> None:
    data = written(serde, value)
    assert data is None or same(serde.deserialize("topic", data), value)


@pytest.fixture(params=["kernel", "python"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return json_encoder, with and without the kernel."""
    if request.param == "python":
        monkeypatch.setattr(codecs, "kernel_codecs", None)
    elif kernel_codecs is None:
        pytest.skip("there is no kernel")
    return json_encoder


@pytest.mark.parametrize("allow_nan", [False, True])
@pytest.mark.parametrize("kind", [Any, dict[str, Any]], ids=["untyped", "typed"])
def test_json_is_exact_or_refused(make: Callable[..., Any], kind: Any, allow_nan: bool) -> None:
    encode, decode = make(kind, allow_nan), json_decoder(kind, allow_nan)

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
def test_nan_and_infinity_are_an_error(make: Callable[..., Any], value: Any) -> None:
    with pytest.raises(SerializationError, match=r"JSON has no (nan|-?inf).*allow_nan=True"):
        make()(value)


@pytest.mark.parametrize("value", [None, "null", Text("null"), Point(1.5), [(None, 1.5)], {"a": {"b": None}}], ids=repr)
def test_a_null_that_is_meant_is_written(make: Callable[..., Any], value: Any) -> None:
    assert b"null" in make()([value, None])


def test_numbers_beyond_64_bits_are_whole(make: Callable[..., Any]) -> None:
    encode = make()
    for value in (Point(1.5, 2**70), {"a": [2**64, -(2**63) - 1]}, 10**30):
        assert encode(value) == encode(value)
    assert encode(Point(1.5, 2**70)) == b'{"x":1.5,"y":%d}' % 2**70
    assert Serdes.json().deserialize("t", b"123456789012345678901234567890") == 123456789012345678901234567890
    with pytest.raises(TypeError, match=r"not JSON serializable: decimal\.Decimal"):
        encode([2**70, Decimal(1)])


def test_json_of_a_type_is_exact_too(make: Callable[..., Any]) -> None:
    with pytest.raises(SerializationError, match="JSON has no nan"):
        make(Sum)(Sum(None, math.nan))
    assert make(Sum)(Sum(None, 1.5)) == b'{"n":null,"total":1.5}'
    assert make(Sum)(Sum(2**70, None)) == b'{"n":%d,"total":null}' % 2**70
    serde = Serdes.json(Sum, allow_nan=True)
    assert serde.serialize("t", Sum(2**70, -math.inf)) == b'{"n":%d,"total":-Infinity}' % 2**70
    assert serde.deserialize("t", b'{"n":1,"total":-Infinity}') == Sum(1, -math.inf)
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int \| null`, got `str` - at `\$.n`"):
        serde.deserialize("t", b'{"n":"1","total":NaN}')


def test_nan_can_be_asked_for() -> None:
    serde = Serdes.json(allow_nan=True)
    assert serde.serialize("t", {"a": math.nan, "b": [math.inf, 1, None]}) == b'{"a":NaN,"b":[Infinity,1,null]}'
    assert serde.deserialize("t", b"[Infinity,-Infinity]") == [math.inf, -math.inf]
    assert pickle.loads(pickle.dumps(serde)) is serde is Serdes.json(allow_nan=True)
    assert repr(serde) == "Serdes.json(allow_nan=True)"
    for data in (b"NaN", b"1e400"):
        with pytest.raises(msgspec.DecodeError):
            Serdes.json().deserialize("t", data)
    with pytest.raises(ValueError, match="1e400 is beyond"):
        serde.deserialize("t", b"1e400")


def test_a_record_that_json_cannot_say_goes_to_the_production_handler() -> None:
    builder = StreamsBuilder()
    numbers = builder.stream("in", value_serde=Serdes.json(allow_nan=True))
    numbers.map_values(lambda value: {"avg": value / 2}).to("out", value_serde=Serdes.json())
    config = {"production.exception.handler": "log_and_continue"}
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in").pipe_value_list([math.inf, 3])
        assert driver.create_output_topic("out").read_values_to_list() == [{"avg": 1.5}]
