"""Keys and bytes as people type and read them: one notation for the command line and for HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.statestore.view.spelling import BadKeyError, read_bytes, read_key, spell_bytes
from penstock.statestore.view.store_view import plain
from penstock.topology.errors import SerializationError
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.queries.store_reads import to_json


@given(st.binary() | st.text().map(str.encode) | st.sampled_from([b"0x", b"0x61", b"0xzz", b"", b" "]))
def test_displayed_bytes_can_be_typed(data: bytes) -> None:
    assert read_bytes(spell_bytes(data)) == data


@pytest.mark.parametrize(("data", "text"), [(b"abc", "abc"), (b"\xff\0", "0xff00"), (b"a\n", "0x610a"), (b"", "")])
def test_the_command_line_and_http_show_the_same_bytes(data: bytes, text: str) -> None:
    assert plain(data) == text
    assert orjson.loads(to_json({"value": data})) == {"value": text}
    assert orjson.loads(to_json({"value": [data]})) == plain({"value": [data]})


class Point(NamedTuple):
    x: int
    tag: bytes


class Line(msgspec.Struct):
    ends: list[Point]
    of: Line | None = None


def test_the_command_line_and_http_show_the_same_fields() -> None:
    line = Line([Point(1, b"\xff")], Line([]))
    shown = {"ends": [{"x": 1, "tag": "0xff"}], "of": {"ends": [], "of": None}}
    assert plain(line) == shown
    assert orjson.loads(to_json({"value": line})) == {"value": shown}


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}, lambda value: Line([], value)])
def test_a_value_that_is_too_deep_is_an_error(wrap: Callable[[Any], Any]) -> None:
    value = None
    for _ in range(2_000):
        value = wrap(value)
    with pytest.raises(SerializationError, match="too many lists or objects inside of each other"):
        to_json({"value": value})


@pytest.mark.parametrize(
    ("serde", "text", "key"),
    [
        (Serdes.string(), "17", "17"),
        (Serdes.string(), "0xff", "0xff"),
        (Serdes.int64(), "17", 17),
        (Serdes.float64(), "1.5", 1.5),
        (Serdes.bytes(), "abc", b"abc"),
        (Serdes.bytes(), "0xFF00", b"\xff\0"),
        (Serdes.json(), '{"id": 1}', {"id": 1}),
        (Serdes.json(), "alice", "alice"),
        (Serdes.uuid(), "00000000-0000-0000-0000-000000000001", UUID(int=1)),
    ],
)
def test_a_key_is_parsed_by_its_serde(serde: Any, text: str, key: object) -> None:
    assert read_key(text, serde, "counts") == key


@pytest.mark.parametrize(
    ("serde", "text", "expected"),
    [
        (Serdes.int64(), "seven", "a whole number"),
        (Serdes.bytes(), "0xzz", "text, or hexadecimal digits after 0x"),
        (Serdes.uuid(), "7", "a UUID"),
    ],
)
def test_the_error_for_an_invalid_key_shows_a_valid_form(serde: Any, text: str, expected: str) -> None:
    with pytest.raises(BadKeyError, match=rf"'{text}' is no key of the store counts, .*: expected {expected} \("):
        read_key(text, serde, "counts")
