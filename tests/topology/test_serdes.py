"""Serdes: bytes equal Kafka's, null stays null, and the properties used by the hot path are correct."""

from __future__ import annotations

import enum
import math
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    ConfigError,
    Materialized,
    Serde,
    Serdes,
    SerializationError,
    StreamsBuilder,
    TimeWindows,
    Windowed,
)
from penstock.kernel.codecs import private_dicts
from penstock.testing import TopologyTestDriver
from penstock.topology.records import Change
from penstock.topology.serdes.json_codec import json_decoder, json_encoder
from penstock.topology.serdes.serdes import as_serde, deserializer_for, resolve_serde, serializer_for
from penstock.topology.serdes.windowed_serdes import ChangedSerde

BYTES = [
    (Serdes.string(), "é", b"\xc3\xa9"),
    (Serdes.bytes(), b"\x00\xff", b"\x00\xff"),
    (Serdes.int16(), -2, b"\xff\xfe"),
    (Serdes.int32(), 1, b"\x00\x00\x00\x01"),
    (Serdes.int64(), -1, b"\xff" * 8),
    (Serdes.float32(), 1.5, struct.pack(">f", 1.5)),
    (Serdes.float64(), -0.0, b"\x80" + bytes(7)),
    (Serdes.json(), {"a": [1, None]}, b'{"a":[1,null]}'),
    (Serdes.uuid(), UUID(int=1), b"00000000-0000-0000-0000-000000000001"),
    (Serdes.boolean(), True, b"\x01"),
    (Serdes.list(Serdes.int32()), [1, None], b"\x00" + struct.pack(">iiii", 1, 1, 2, 1)),
    (Serdes.list("string"), ["a", None], b"\x01" + struct.pack(">ii", 2, 1) + b"a" + struct.pack(">i", -1)),
    (Serdes.time_windowed(Serdes.string(), 10), Windowed("a", 5, 15), b"a" + struct.pack(">q", 5)),
    (Serdes.session_windowed(Serdes.string()), Windowed("a", 5, 9), b"a" + struct.pack(">qq", 9, 5)),
]


class Odd(dict[str, int]):
    pass


class Oddity(int, enum.Enum):
    ONE = 1


@pytest.mark.parametrize(("serde", "value", "data"), BYTES, ids=repr)
def test_bytes_equal_kafkas_in_both_directions(serde: Serde[Any], value: Any, data: bytes) -> None:
    assert serde.serialize("topic", value) == serializer_for(serde, "topic")(value) == data
    assert serde.deserialize("topic", data) == deserializer_for(serde, "topic")(data) == value


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff", "\ufffd"),
        (b"a\xc3", "a\ufffd"),
        (b"\xe2\x82z", "\ufffdz"),
        (b"\xed\xa0\x80z", "\ufffdz"),
        (b"\xc0\x80", "\ufffd" * 2),
    ],
)
def test_invalid_utf8_is_replaced_as_in_java(data: bytes, text: str) -> None:
    assert Serdes.string().deserialize("topic", data) == text


@pytest.mark.parametrize(("serde", "value", "data"), BYTES, ids=repr)
def test_null_stays_null(serde: Serde[Any], value: Any, data: bytes) -> None:
    assert serde.serialize("topic", None) is serializer_for(serde, "topic")(None) is None
    assert serde.deserialize("topic", None) is deserializer_for(serde, "topic")(None) is None


#: Serdes whose bytes do not depend on the topic.
REWRITING: dict[str, Serde[Any]] = {
    "string": Serdes.string(),
    "bytes": Serdes.bytes(),
    "int16": Serdes.int16(),
    "int32": Serdes.int32(),
    "int64": Serdes.int64(),
    "float32": Serdes.float32(),
    "float64": Serdes.float64(),
    "uuid": Serdes.uuid(),
    "boolean": Serdes.boolean(),
    "void": Serdes.void(),
    "json": Serdes.json(),
    "json of a type": Serdes.json(dict[str, float]),
    "json with NaN": Serdes.json(allow_nan=True),
    "time windowed": Serdes.time_windowed(Serdes.string(), 10),
    "time windowed float32": Serdes.time_windowed(Serdes.float32(), 10),
    "session windowed": Serdes.session_windowed(Serdes.int16()),
}


def raised(function: Callable[[], Any]) -> Any:
    """Return a function's result, or the type of its error."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - compared by its type
        return type(error)


@pytest.mark.parametrize("serde", REWRITING.values(), ids=REWRITING.keys())
@given(data=st.data())
def test_rewriting_bytes_equals_reading_and_writing_them(serde: Serde[Any], data: st.DataObject) -> None:
    """A loop uses the result of rewrite as the row's key, without reading it."""
    written: dict[str, list[bytes | str]] = {
        "0 and 1": [b"\0", b"\1"],
        "texts": ["a", "ä", "\u2028"],
        "floats": [struct.pack(">d", number) for number in (0.0, -0.0, math.nan, math.inf)],
        "NaNs": [b"\x7f\xa0\0\1", b"\xff\xf8\0\0\0\0\0\7", b"\x7f\xf0\0\0\0\0\0\1"],
        "UUIDs": [str(UUID(int=7 << 90)), str(UUID(int=7 << 90)).upper(), "{" + str(UUID(int=5)) + "}", "0" * 36],
        "JSON": [
            '{"b":1,"a":2.0}',
            '{ "a" : 1.50 }',
            '{"a":1e3}',
            '"\\u00e4"',
            "NaN",
            "null",
            "[1 , 2]",
            '{"a":1,"a":2}',
        ],
    }
    known = [text.encode() if isinstance(text, str) else text for texts in written.values() for text in texts]
    times = data.draw(st.sampled_from([b"", b"", struct.pack(">q", 5), struct.pack(">qq", 9, 5)]))
    given_bytes = data.draw(st.one_of(st.sampled_from(known), st.binary(max_size=12))) + times
    rewrite = serde.rewrite
    assert rewrite is not None
    expected = raised(lambda: serde.serialize("topic", serde.deserialize("topic", given_bytes)))
    assert raised(lambda: rewrite(given_bytes)) == expected
    if serde.is_written is not None and serde.is_written(given_bytes):
        assert given_bytes == expected


def test_most_keys_need_no_decoding() -> None:
    expected = {"float32", "boolean", "void", "json", "json of a type", "json with NaN", "time windowed float32"}
    assert {name for name, serde in REWRITING.items() if serde.is_written is None} == expected


@pytest.mark.parametrize(
    "serde", [Serdes.int64(), Serdes.string(), Serdes.bytes(), Serdes.time_windowed(Serdes.int32())]
)
def test_a_wrong_type_is_refused(serde: Serde[Any]) -> None:
    with pytest.raises(SerializationError):
        serde.serialize("topic", ["no", "such"])


def test_javas_class_names_select_the_same_serdes() -> None:
    assert Serdes.long() is Serdes.int64() is Serdes.of("org.apache.kafka.common.serialization.Serdes$LongSerde")
    assert Serdes.integer() is Serdes.int32() is Serdes.of("integer")
    assert Serdes.double() is Serdes.float64() is Serdes.of("DoubleSerde")


def test_the_error_for_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r'no serde "lng".*long'):
        Serdes.of("lng")


class Suffixed:
    """A user's serde whose bytes depend on the topic."""

    def serialize(self, topic: str, value: list[str] | None) -> bytes | None:
        return None if value is None else ",".join([*value, topic]).encode()

    def deserialize(self, topic: str, data: bytes | None) -> list[str] | None:
        return None if data is None else data.decode().split(",")[:-1]


def test_a_users_serde_gets_the_topic() -> None:
    serde = as_serde(Suffixed())
    assert serde is not None
    assert serializer_for(serde, "t")(["a"]) == b"a,t"
    assert deserializer_for(serde, "t")(b"a,t") == ["a"]


def test_no_property_is_assumed_of_a_users_serde() -> None:
    serde = as_serde(Suffixed())
    assert serde is not None
    assert serde.rewrite is serde.exact is None


@pytest.mark.parametrize("wrong", [Suffixed, 5, object()])
def test_an_object_that_is_no_serde_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="serde"):
        as_serde(wrong)


def test_a_name_is_accepted_wherever_a_serde_is_declared() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key_serde="uuid", value_serde="long", store=Materialized("s", value_serde="int64"))
    table.to_stream().group_by(lambda k, v: v, key_serde="long").windowed_by(TimeWindows(10)).reduce(
        lambda a, b: b, store="w", value_serde="LongSerde"
    ).to_stream().to("out", key_serde=Serdes.time_windowed("long"), value_serde="double")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", key_serde="uuid", value_serde="int64").pipe_input(UUID(int=1), 7)
        out = driver.create_output_topic("out", key_serde=Serdes.time_windowed("int64", 10), value_serde="float64")
        assert out.read_key_values_to_list() == [(Windowed(7, 0, 10), 7.0)]
    with pytest.raises(ConfigError, match='no serde "strnig"'):
        StreamsBuilder().stream("in", value_serde="strnig")


def test_defaults_replace_undeclared_serdes() -> None:
    config = {"default.key.serde": "string", "default.value.serde": Suffixed()}
    assert resolve_serde(None, config, True, "x") is Serdes.string()
    assert resolve_serde(None, config, False, "x").serialize("t", ["a"]) == b"a,t"
    assert resolve_serde(Serdes.int64(), config, True, "x") is Serdes.int64()


def test_a_default_reaches_the_key_inside_a_windowed_key() -> None:
    serde = resolve_serde(Serdes.time_windowed(), {"default.key.serde": "string"}, True, "x")
    assert serde.serialize("t", Windowed("a", 1, 2)) == b"a" + struct.pack(">q", 1)


def test_the_error_without_serde_and_default_names_the_operator() -> None:
    with pytest.raises(ConfigError, match=r"No value serde for sink X: pass value_serde= .* default\.value\.serde"):
        resolve_serde(None, {}, False, "sink X")


def test_a_time_window_without_size_ends_at_the_maximum_time() -> None:
    serde = Serdes.time_windowed(Serdes.string())
    assert serde.deserialize("t", b"a" + struct.pack(">q", 5)) == Windowed("a", 5, 2**63 - 1)


def test_the_topic_reaches_the_serde_inside_a_windowed_key() -> None:
    serde = Serdes.session_windowed(Suffixed())
    assert serde.serializer is None
    assert serde.serialize("t", Windowed(["a"], 1, 2)) == b"a,t" + struct.pack(">qq", 2, 1)


@pytest.mark.parametrize(
    ("change", "data"),
    [
        (Change(None, "o"), b"o\x00"),
        (Change("n", None), b"n\x01"),
        (Change("n" * 70, "o"), b"\x8c\x01" + b"n" * 70 + b"o\x02"),
    ],
)
def test_changes_have_kafkas_layout(change: Change, data: bytes) -> None:
    serde = ChangedSerde(Serdes.string())
    assert serde.serialize("t", change) == data
    assert serde.deserialize("t", data) == change


@pytest.mark.parametrize(
    ("data", "change"),
    [
        (b"o\x00\x03", Change(None, "o", False)),
        (b"n\x01\x04", Change("n", None, True)),
        (b"\x02no\x00\x05", Change("n", "o", False)),
    ],
)
def test_changes_of_versioned_tables_are_read(data: bytes, change: Change) -> None:
    assert ChangedSerde(Serdes.string()).deserialize("t", data) == change


def test_a_change_from_null_to_null_is_refused() -> None:
    with pytest.raises(SerializationError, match="Both old and new"):
        ChangedSerde(Serdes.string()).serialize("t", Change(None, None))


def test_an_unknown_kind_of_change_is_refused() -> None:
    with pytest.raises(SerializationError, match="flag 9"):
        ChangedSerde(Serdes.string()).deserialize("t", b"x\x09")


@pytest.mark.parametrize("data", [b"", b"\x04", b"\x02", b"\x8c\x01n\x02", b"\x03no\x02"])
def test_a_change_that_ends_too_early_is_refused(data: bytes) -> None:
    with pytest.raises(SerializationError, match="repartition topic"):
        ChangedSerde(Serdes.string()).deserialize("t", data)


@given(st.none() | st.integers(0, 2**15).map(bytes), st.none() | st.integers(0, 2**15).map(bytes))
def test_changes_survive_a_round_trip(new: bytes | None, old: bytes | None) -> None:
    if new is not None or old is not None:
        serde, change = ChangedSerde(Serdes.bytes()), Change(new, old)
        assert serde.deserialize("t", serde.serialize("t", change)) == change


def test_json_bytes_take_no_more_memory_than_needed() -> None:
    """A record cache may hold millions of values, and orjson leaves each of its texts in a block of 4 KB."""
    write = json_encoder()
    values = [{"n": number, "sum": number * 3} for number in range(2_000)]
    tracemalloc.start()
    try:
        written = [write(value) for value in values]
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / len(written) < 150


#: Values with mutable parts, or that are read back as another type.
KEPT_AS_BYTES = [{"a": [1]}, {"a": {}}, {"a": (1,)}, [1], "a", 1, Odd({"a": 1}), {"a": 2**63}, {"a": Oddity.ONE}]


def test_a_flat_dict_is_cached_as_a_copy_and_other_values_as_bytes() -> None:
    hold, read, bytes_of = private_dicts(json_encoder(), json_decoder())
    value = {"a": 1, "b": -2.5, "c": "\N{SNOWMAN}\U0001f600é", "d": None, "e": True, "": 2**63 - 1}
    before = dict(value)
    held = hold(value)
    value["a"] = 2
    given_out = read(held)
    assert given_out == before == json_decoder()(bytes_of(held) or b"")
    assert list(given_out) == list(before)
    given_out["a"] = 3
    assert read(held) == before
    for other in KEPT_AS_BYTES:
        assert type(hold(other)) is bytes, other
        assert bytes_of(hold(other)) == json_encoder()(other)
        assert read(hold(other)) == json_decoder()(json_encoder()(other))
    for unwritable in ({"a": "\ud800"}, {"\udfff": 1}, {1: "a"}, {"a": float("nan")}, {"a": object()}):
        with pytest.raises((TypeError, SerializationError)):
            hold(unwritable)
    assert hold(None) is read(None) is bytes_of(None) is None
