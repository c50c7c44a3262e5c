"""The kernel's codecs read and write the same as Python's own types."""

from __future__ import annotations

import math
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import SerializationError, ValueAndTimestamp
from penstock.kernel.codecs import TimestampedDecoder, checked_json
from penstock.kernel.conversions import Guarded
from penstock.topology.serdes import codecs


@given(st.uuids())
def test_a_uuid_is_converted_as_by_python(value: uuid.UUID) -> None:
    assert codecs.encode_uuid(value) == str(value).encode()
    read = codecs.decode_uuid(str(value).encode())
    assert (type(read), read, read.int, read.is_safe, hash(read)) == (
        uuid.UUID, value, value.int, uuid.SafeUUID.unknown, hash(value)
    )  # fmt: skip


@pytest.mark.parametrize(
    "text", ["{12345678-1234-5678-1234-567812345678}", "12345678123456781234567812345678", "ABCDEF00-" + "0" * 4 * 6]
)
def test_other_forms_of_a_uuid_are_read_as_by_python(text: str) -> None:
    assert codecs.decode_uuid(text.encode()) == uuid.UUID(text)


@given(st.text("0123456789abcdefABCDEFg-{}", min_size=30, max_size=38))
def test_a_text_is_a_uuid_exactly_if_python_accepts_it(text: str) -> None:
    try:
        expected = uuid.UUID(text)
    except ValueError:
        with pytest.raises(ValueError, match=r"badly formed|invalid literal"):
            codecs.decode_uuid(text.encode())
    else:
        assert codecs.decode_uuid(text.encode()) == expected


def test_invalid_uuids_are_refused() -> None:
    with pytest.raises(SerializationError, match="a UUID"):
        codecs.encode_uuid("12345678-1234-5678-1234-567812345678")


@given(st.binary(max_size=30), st.integers(-(2**63), 2**63 - 1))
def test_a_row_with_a_timestamp_is_read_as_by_python(data: bytes, timestamp: int) -> None:
    decode = TimestampedDecoder(bytes.hex, ValueAndTimestamp)
    found = decode(timestamp.to_bytes(8, signed=True) + data)
    assert (type(found), found) == (ValueAndTimestamp, (data.hex(), timestamp))
    assert decode(None) is None
    with pytest.raises(ValueError, match="at least 8 bytes, not 7"):
        decode(b"1234567")


def test_a_null_is_found_wherever_it_begins() -> None:
    """Blocks of several sizes are searched, and the last one overlaps the one before."""
    for size in range(140):
        for data in [b"n" * size, *(b"n" * at + b"null" + b"ul" * (size - at) for at in range(size))]:
            write = checked_json({math.inf: data}.__getitem__, lambda *_: b"again", True)
            assert write(math.inf) == (b"again" if b"null" in data else data)


def test_errors_of_a_serdes_function_are_refused_with_the_value() -> None:
    refused: list[tuple[object, Exception]] = []

    def refuse(value: object, error: Exception) -> None:
        refused.append((value, error))
        if value == "x":
            raise SerializationError("a better one") from error

    number = Guarded(int, refuse)
    assert (number("7"), number.__wrapped__) == (7, int)
    with pytest.raises(SerializationError, match="a better one") as better:
        number("x")
    with pytest.raises(TypeError) as own:  # refuse has returned
        number(None)
    assert [(value, type(error)) for value, error in refused] == [("x", ValueError), (None, TypeError)]
    assert (better.value.__cause__, own.value) == (refused[0][1], refused[1][1])


def test_what_is_no_exception_is_not_refused() -> None:
    def stop(value: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Guarded(stop, lambda value, error: pytest.fail("it was refused"))(1)


def test_a_failure_leaves_sys_exception_as_it_was() -> None:
    def refuse(value: object, error: Exception) -> None:
        raise SerializationError("refused") from error

    try:
        raise LookupError("handled")
    except LookupError:
        with pytest.raises(SerializationError):
            Guarded(int, refuse)("x")
        assert isinstance(sys.exception(), LookupError)
