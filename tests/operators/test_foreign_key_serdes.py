"""The bytes of foreign-key joins, as Kafka Streams writes them."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock import Serdes
from penstock.topology.errors import SerializationError
from penstock.topology.operators.foreign_key_serdes import (
    CombinedKeySchema,
    Instruction,
    SubscriptionResponseWrapper,
    SubscriptionResponseWrapperSerde,
    SubscriptionWrapper,
    SubscriptionWrapperSerde,
)

HASH = bytes(range(16))
TEXT = Serdes.string()


@pytest.mark.parametrize(
    ("wrapper", "data"),
    [
        (
            SubscriptionWrapper(HASH, Instruction.DELETE_KEY_AND_PROPAGATE, "key", 3),
            b"\x01\x01" + HASH + b"key\x00\x00\x00\x03",
        ),
        (
            SubscriptionWrapper(None, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE, "key", 258),
            b"\x81\x03key\x00\x00\x01\x02",
        ),
        (
            SubscriptionWrapper(HASH, Instruction.DELETE_KEY_NO_PROPAGATE, "key", None, version=0),
            b"\x00\x00" + HASH + b"key",
        ),
        (
            SubscriptionWrapper(None, Instruction.PROPAGATE_NULL_IF_NO_FK_VAL_AVAILABLE, "key", None, version=0),
            b"\x80\x02key",
        ),
    ],
)
def test_a_subscription_is_version_instruction_hash_key_and_partition(
    wrapper: SubscriptionWrapper, data: bytes
) -> None:
    serde = SubscriptionWrapperSerde("topic", TEXT)
    assert serde.serialize("topic", wrapper) == data
    assert serde.deserialize("topic", data) == wrapper


def test_a_subscription_of_version_1_needs_its_partition() -> None:
    with pytest.raises(SerializationError, match="primary partition"):
        SubscriptionWrapperSerde("topic", TEXT).serialize(
            "topic", SubscriptionWrapper(None, Instruction.DELETE_KEY_NO_PROPAGATE, "key", None)
        )


@pytest.mark.parametrize(
    ("wrapper", "data"),
    [
        (SubscriptionResponseWrapper(HASH, "value", None), b"\x00" + HASH + b"value"),
        (SubscriptionResponseWrapper(HASH, None, None), b"\x00" + HASH),
        (SubscriptionResponseWrapper(None, "value", None), b"\x80value"),
        (SubscriptionResponseWrapper(None, None, None), b"\x80"),
    ],
)
def test_a_response_is_version_hash_and_value(wrapper: SubscriptionResponseWrapper, data: bytes) -> None:
    serde = SubscriptionResponseWrapperSerde(TEXT)
    assert serde.serialize("topic", wrapper) == data
    assert serde.deserialize("topic", data) == wrapper


@pytest.mark.parametrize("inner", [TEXT, None])
def test_message_serializers_can_be_sent_to_another_process(inner: Any) -> None:
    serde = pickle.loads(pickle.dumps(SubscriptionWrapperSerde("topic", inner)))
    schema = pickle.loads(pickle.dumps(CombinedKeySchema("foreign", inner, "primary", inner)))
    wrapper = SubscriptionWrapper(HASH, Instruction.DELETE_KEY_AND_PROPAGATE, "key", 3)
    assert serde.with_default(TEXT).serialize("topic", wrapper) == b"\x01\x01" + HASH + b"key\x00\x00\x00\x03"
    assert schema.with_default(TEXT).to_bytes("a", "b") == b"\x00\x00\x00\x01ab"


def test_a_combined_key_begins_with_the_length_of_the_foreign_key() -> None:
    schema = CombinedKeySchema("foreign", TEXT, "primary", Serdes.int64())
    data = b"\x00\x00\x00\x02fk" + b"\x00" * 7 + b"\x05"
    assert schema.to_bytes("fk", 5) == data
    assert data.startswith(schema.prefix_bytes("fk"))
    assert schema.primary_from_bytes(data.removeprefix(schema.prefix_bytes("fk"))) == 5


@pytest.mark.parametrize("serde", [SubscriptionWrapperSerde("topic", None), SubscriptionResponseWrapperSerde(None)])
def test_null_stays_null_and_the_error_names_a_missing_serde(serde: Any) -> None:
    assert serde.serialize("topic", None) is None
    assert serde.deserialize("topic", None) is None
    assert serde.open_part() in {"primary key", "value of the right table"}
    assert serde.with_default(TEXT).open_part() is None
    with pytest.raises(SerializationError, match="no serde"):
        serde.deserialize("topic", b"\x80\x00data")


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x01\x00" + HASH + b"\x00\x00\x00", b"\x81\x04key\x00\x00\x00\x03"])
def test_bytes_that_are_no_subscription_are_refused(data: bytes) -> None:
    """Too short for their version, or with an unknown instruction."""
    with pytest.raises(SerializationError):
        SubscriptionWrapperSerde("topic", TEXT).deserialize("topic", data)


@pytest.mark.parametrize("data", [b"", b"\x00" + HASH[:-1]])
def test_bytes_that_are_no_response_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError):
        SubscriptionResponseWrapperSerde(TEXT).deserialize("topic", data)


def test_messages_of_later_versions_are_read_for_the_error_that_names_them() -> None:
    subscription = SubscriptionWrapperSerde("topic", TEXT).deserialize("topic", b"\x82\x03key\x00\x00\x00\x07")
    assert subscription == (None, Instruction.PROPAGATE_ONLY_IF_FK_VAL_AVAILABLE, "key", 7, 2)
    assert SubscriptionResponseWrapperSerde(TEXT).deserialize("topic", b"\x81value") == (None, "value", None, 1)
