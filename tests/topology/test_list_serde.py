"""Serdes.list: the bytes of Kafka's ListSerializer, recorded with kafka-clients 4.4.0; also boolean and void."""

from __future__ import annotations

import pickle
from typing import Any
from uuid import UUID

import pytest

from penstock import ConfigError, Serde, Serdes, SerializationError, StreamsBuilder
from penstock.testing import TopologyTestDriver
from penstock.topology.serdes.serdes import resolve_serde

RECORDED = [
    (Serdes.int32(), [1, None, -2, None], "000000000200000001000000030000000400000001fffffffe"),
    (Serdes.int16(), [1], "0000000000000000010001"),
    (Serdes.int64(), [], "000000000000000000"),
    (Serdes.float64(), [1.5, None], "000000000100000001000000023ff8000000000000"),
    (Serdes.float32(), [1.5], "0000000000000000013fc00000"),
    (
        Serdes.uuid(),
        [None, UUID(int=1)],
        "0000000001000000000000000230303030303030302d303030302d303030302d303030302d303030303030303030303031",
    ),
    (Serdes.string(), ["a", None, "", "é"], "01000000040000000161ffffffff0000000000000002c3a9"),
    (Serdes.boolean(), [True, None, False], "01000000030000000101ffffffff0000000100"),
    (Serdes.bytes(), [b"\x01\x02"], "0100000001000000020102"),
    (Serdes.list("int32"), [[1], None], "01000000020000000d00000000000000000100000001ffffffff"),
]


@pytest.mark.parametrize(("inner", "value", "data"), RECORDED, ids=repr)
def test_bytes_are_kafkas(inner: Serde[Any], value: list[Any], data: str) -> None:
    serde = Serdes.list(inner)
    assert serde.serialize("topic", value) == bytes.fromhex(data)
    assert serde.deserialize("topic", bytes.fromhex(data)) == value
    again = pickle.loads(pickle.dumps(serde))
    assert again.serialize("topic", value) == bytes.fromhex(data)


class Upper:
    """Maps an empty text to null, and records its topic."""

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        return f"{topic}:{value}".encode() if value else None

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else data.decode().removeprefix(f"{topic}:")


def test_the_serde_of_elements_gets_the_topic() -> None:
    serde = Serdes.list(Upper())
    data = serde.serialize("t", ["a"])
    assert data is not None
    assert data.endswith(b"t:a")
    assert serde.deserialize("t", data) == ["a"]
    with pytest.raises(SerializationError, match="wrote null for an element"):
        serde.serialize("t", [""])


@pytest.mark.parametrize("wrong", [(1, 2), "text", {1: 2}, 5])
def test_a_value_that_is_no_list_is_refused(wrong: Any) -> None:
    with pytest.raises(SerializationError, match=rf"expects a list, not a value of type {type(wrong).__name__}"):
        Serdes.list(Serdes.int64()).serialize("t", wrong)


@pytest.mark.parametrize("inner", [Serdes.int32(), Serdes.string()], ids=repr)
@pytest.mark.parametrize(
    "data",
    ["", "02", "00", "01", "0000000000000000020001", "010000000100000002ff", "0100000000ff", "00000000000000000000"],
)
def test_malformed_bytes_of_a_list_are_refused(inner: Serde[Any], data: str) -> None:
    with pytest.raises(SerializationError, match=r"Serdes\.list\(Serdes\.\w+\(\)\) cannot read \d+ bytes"):
        Serdes.list(inner).deserialize("t", bytes.fromhex(data))


def test_the_configuration_names_the_serde_of_elements() -> None:
    config = {
        "default.value.serde": "org.apache.kafka.common.serialization.Serdes$ListSerde",
        "default.list.value.serde.inner": "org.apache.kafka.common.serialization.Serdes$IntegerSerde",
    }
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with TopologyTestDriver(builder.build(), config) as driver:
        driver.create_input_topic("in").pipe_input("k", [1, None])
        assert driver.create_output_topic("out").read_value() == [1, None]
        assert driver.create_output_topic("out", value_serde=Serdes.list()).is_empty()
    with pytest.raises(ConfigError, match="elements of lists"):
        resolve_serde(Serdes.list(), {"default.value.serde": "string"}, False, "x")


def test_boolean_and_void_refuse_other_values() -> None:
    for value, data in ((1, b"\x02"), ("true", b""), (0.0, b"\x00\x00")):
        with pytest.raises(SerializationError, match="expects True or False"):
            Serdes.boolean().serialize("t", value)  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match="expects one byte"):
            Serdes.boolean().deserialize("t", data)
    with pytest.raises(SerializationError, match="expects None, not a value of type str"):
        Serdes.void().serialize("t", "x")  # type: ignore[arg-type]
    with pytest.raises(SerializationError, match="expects None"):
        Serdes.void().deserialize("t", b"")
    assert Serdes.of("Serdes$VoidSerde") is Serdes.void()
    assert Serdes.of("Serdes$BooleanSerde") is Serdes.boolean()
    assert Serdes.of("Serdes$ByteBufferSerde") is Serdes.bytebuffer()
