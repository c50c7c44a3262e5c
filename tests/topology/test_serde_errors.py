"""Built-in serdes raise SerializationError for everything that they cannot convert, with the original error as its
cause.

Handlers, programs and the documentation rely on that, for every way of calling a serde.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import Int64Value  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from penstock import Serde, Serdes, SerializationError, StreamsBuilder, Windowed
from penstock.testing import TopologyTestDriver
from penstock.topology.context.exception_handlers import Response
from penstock.topology.operators.foreign_key_serdes import SubscriptionResponseWrapperSerde, SubscriptionWrapperSerde
from penstock.topology.operators.stream_join_serdes import LeftOrRightValueSerde, TimestampedKeyAndJoinSideSerde
from penstock.topology.records import Change
from penstock.topology.serdes.schema_registry_serdes import registry_client
from penstock.topology.serdes.serdes import deserializer_for, direct, serializer_for
from penstock.topology.serdes.typed_json_serde import TypedJsonSerde
from penstock.topology.serdes.windowed_serdes import ChangedSerde
from tests.examples import one_of

# What the extra's own dependencies deprecate is not ours to fix.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*deprecat.*")

AVRO = json.dumps({"type": "record", "name": "Row", "fields": [{"name": "n", "type": "int"}]})
JSON_SCHEMA = json.dumps({"title": "Row", "type": "object", "properties": {"n": {"type": "integer"}}})


class Row(msgspec.Struct):
    n: int
    price: Decimal = Decimal(0)


PLAIN = ["string", "bytes", "json", "uuid", "boolean", "void", "int16", "int32", "int64", "float32", "float64"]
SERDES: dict[str, Callable[[], Serde[Any]]] = {
    **{name: lambda name=name: Serdes.of(name) for name in PLAIN},  # type: ignore[misc]
    "list of numbers": lambda: Serdes.list(Serdes.of("int64")),
    "list of texts": lambda: Serdes.list(Serdes.of("string")),
    "json of a type": lambda: TypedJsonSerde(Row),
    "json with NaN": lambda: TypedJsonSerde(Any, allow_nan=True),
    "json of a type with NaN": lambda: TypedJsonSerde(Row, allow_nan=True),
    "time windowed": lambda: Serdes.time_windowed(Serdes.of("int32"), 10),
    "session windowed": lambda: Serdes.session_windowed(Serdes.of("string")),
    "windowed avro": lambda: Serdes.time_windowed(Serdes.avro(AVRO, registry_client("mock://")), 10),
    "avro": lambda: Serdes.avro(AVRO, registry_client("mock://")),
    "avro as objects": lambda: Serdes.avro(AVRO, registry_client("mock://"), kind=Row),
    "json schema": lambda: Serdes.json_schema(JSON_SCHEMA, registry_client("mock://")),
    "protobuf": lambda: Serdes.protobuf(Int64Value, registry_client("mock://")),
    "debezium": Serdes.debezium,
    "debezium in avro": lambda: Serdes.debezium(Row, registry_client("mock://")),
    "changes": lambda: ChangedSerde(Serdes.of("int64")),
    "subscriptions": lambda: SubscriptionWrapperSerde("topic", Serdes.of("int64")),
    "responses": lambda: SubscriptionResponseWrapperSerde(Serdes.of("int64")),
    "sides of a join": lambda: LeftOrRightValueSerde(Serdes.of("int64"), Serdes.of("json")),
    "keys of a join": lambda: TimestampedKeyAndJoinSideSerde(Serdes.of("int64")),
}
#: A valid value for each serde, whose bytes are then mutated.
GOOD: dict[str, Any] = {
    "avro": {"n": 1},
    "avro as objects": Row(1),
    "json schema": {"n": 1},
    "protobuf": Int64Value(value=7),
    "json of a type": Row(1),
    "json of a type with NaN": Row(1),
    "debezium": {"n": 1},
    "debezium in avro": Row(1),
    "time windowed": Windowed(5, 0, 10),
    "session windowed": Windowed("a", 0, 10),
    "windowed avro": Windowed({"n": 1}, 0, 10),
    "list of numbers": [1, None],
    "list of texts": ["a", None],
    "changes": Change(1, 2, True),
    "int16": 1,
    "int32": 1,
    "int64": 1,
    "float32": 1.0,
    "float64": 1.0,
}

BYTES = st.binary(max_size=40) | st.sampled_from(
    [b"", b"\0", b"\1", b"\xff" * 8, b"NaN", b"[1", b'"\xff"', b"[" * 5000]
)
VALUES = (
    st.text(st.characters(exclude_categories=()), max_size=4)
    | st.integers()
    | st.sampled_from([2**15, 2**31, 2**63, -(2**63) - 1, 2**200])
    | st.floats()
    | st.booleans()
    | st.sampled_from([object(), {1, 2}, b"a", {1: "a"}, {"n": "a"}, {"n": 2**40}, [object()], ["\ud800"], Row("a")])  # type: ignore[arg-type]
    | st.sampled_from([Windowed(1, 2**70, 0), Windowed("a", 0, -(2**63) - 1), Windowed(None, 0, 0), (1, 2), (1, 2, 3)])
    | st.sampled_from([Change(None, None, True), Change("a", object(), True), Decimal("1.5"), float, (1, 2, 3, 4, 5)])
)


def converted(function: Callable[[Any], Any], value: Any) -> Any:
    """Return the result of a serde's function; None if it refuses the value with the right error."""
    try:
        return function(value)
    except SerializationError:
        return None


@pytest.mark.parametrize("name", one_of(4, SERDES))
def test_unreadable_bytes(name: str) -> None:
    serde = SERDES[name]()
    good = serde.serialize("t", GOOD[name]) if name in GOOD else b""
    assert good is not None
    assert name not in GOOD or serde.deserialize("t", good) is not None
    functions = [lambda data: serde.deserialize("t", data), deserializer_for(serde, "t"), serde.topic_deserializer("t")]
    functions += [found for found in [direct(deserializer_for(serde, "t"))] if found is not None]
    places = st.integers(0, len(good))
    mutated = st.builds(lambda at, data: good[:at] + data + good[at + 1 :], places, st.binary(max_size=2))

    @given(BYTES | mutated | places.map(lambda size: good[:size]))
    def check(data: bytes) -> None:
        results = [repr(converted(function, data)) for function in functions]
        assert len(set(results)) == 1

    check()


@pytest.mark.parametrize("name", one_of(4, SERDES))
def test_unwritable_values(name: str) -> None:
    serde = SERDES[name]()
    functions = [lambda value: serde.serialize("t", value), serializer_for(serde, "t"), serde.topic_serializer("t")]
    functions += [found for found in [direct(serializer_for(serde, "t"))] if found is not None]

    @given(VALUES)
    def check(value: Any) -> None:
        assert len({converted(function, value) for function in functions}) == 1

    check()


@pytest.mark.parametrize(("serde", "data"), [(Serdes.int64(), b"abc"), (Serdes.json(), b"{"), (Serdes.uuid(), b"no")])
def test_the_message_names_the_serde_and_the_cause(serde: Serde[Any], data: bytes) -> None:
    with pytest.raises(SerializationError, match=rf"Serdes\.\w+\(\) cannot read {len(data)} bytes: \w+: ") as caught:
        serde.deserialize("t", data)
    assert caught.value.__cause__ is not None


BAD: dict[str, tuple[Serde[Any], bytes, Any]] = {
    "int64": (Serdes.int64(), b"abc", 2**70),
    "int32": (Serdes.int32(), b"abc", 2**40),
    "json": (Serdes.json(), b"{", {"a": {1}}),
    "json of a type": (Serdes.json(Row), b'{"n":"1"}', Row(object())),  # type: ignore[arg-type]
    "uuid": (Serdes.uuid(), b"no", "no"),
    "string": (Serdes.string(), b"", "\ud800"),
    "windowed": (Serdes.time_windowed(Serdes.int32(), 10), b"abc", Windowed(1, 2**70, 0)),
}


class Seen:
    """A handler that keeps its exceptions."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def handle_error(self, context: Any, record: Any, exception: Exception) -> Response:
        self.errors.append(exception)
        return Response.resume()


def errors_of(declare: Callable[[StreamsBuilder], Any], value: bytes) -> list[Exception]:
    """Return the exceptions that handlers receive for a record with this value."""
    seen, builder = Seen(), StreamsBuilder()
    declare(builder)
    kinds = ("deserialization", "processing", "production")
    with TopologyTestDriver(builder.build(), {f"{kind}.exception.handler": seen for kind in kinds}) as driver:
        driver.create_input_topic("in", Serdes.bytes(), Serdes.bytes()).pipe_input(b"k", value)
    return seen.errors


@pytest.mark.parametrize("name", [name for name in BAD if name != "string"])
def test_a_deserialization_handler_receives_it(name: str) -> None:
    serde, data, _ = BAD[name]
    for declare in (
        lambda builder: builder.stream("in", value_serde=serde, key_serde=Serdes.bytes()).foreach(lambda k, v: None),
        lambda builder: builder.table("in", value_serde=serde, key_serde=Serdes.bytes()),
    ):
        (error,) = errors_of(declare, data)
        assert type(error) is SerializationError


@pytest.mark.parametrize("name", BAD)
def test_handlers_of_sinks_and_stores_receive_the_error(name: str) -> None:
    serde, _, value = BAD[name]
    text: Any = {"key_serde": Serdes.bytes(), "value_serde": Serdes.bytes()}
    for declare in (
        lambda builder: builder.stream("in", **text).map_values(lambda _: value).to("out", value_serde=serde),
        lambda builder: builder.stream("in", **text).map(lambda *_: (value, b"")).to("out", key_serde=serde),
        lambda builder: (
            builder.stream("in", **text)
            .group_by_key()
            .aggregate(lambda: None, lambda k, v, a: value, store="sums", key_serde=Serdes.bytes(), value_serde=serde)
        ),
        lambda builder: builder.table("in", **text).map_values(lambda _: value, store="rows", value_serde=serde),
    ):
        (error,) = errors_of(declare, b"v")
        assert type(error) is SerializationError
