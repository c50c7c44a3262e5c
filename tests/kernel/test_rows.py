"""The compiled buffer of a store's rows does what the plain one does; loops over it do what they do without it."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import kernel
from penstock.statestore.rows.row_buffer import RowBuffer

pytestmark = pytest.mark.skipif(kernel.rows is None, reason="the compiled kernel is not built here")

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "put", "delete", "commit", "index", "clear"]), KEYS, st.binary(min_size=8, max_size=12)
    ),
    max_size=60,
)


def run(kind: Any, steps: list[tuple[str, bytes, bytes]]) -> list[Any]:
    """Return all that can be seen of a buffer of this kind while the steps are taken."""
    disk = {b"c": b"on disk:c", b"d": b"on disk:d"}
    checks: list[int] = []

    def check() -> None:
        checks.append(len(buffer.rows))

    def refill() -> None:
        buffer.read_room = 2 if len(refills) % 2 else -2
        refills.append(len(buffer.recent))

    refills: list[int] = []
    buffer: Any = kind(disk.get, check, 3, refill)
    buffer.read_room = -1
    seen: list[Any] = []
    for action, key, value in steps:
        if action == "get":
            seen.append(buffer.get(key))
        elif action == "put":
            buffer.put(key, value)
        elif action == "delete":
            buffer.put(key, None)
        elif action == "commit":
            disk |= buffer.rows
            buffer.recent, buffer.read_room = dict(buffer.rows), 1
            buffer.clear()
            buffer.check_at += 1
        elif action == "index":
            seen.append(buffer.between(key, None))
        else:
            buffer.clear()
        indexed = None if buffer.index is None else buffer.between(None, None, reverse=True)
        rows = dict(buffer.rows), dict(buffer.recent), indexed and list(indexed)
        seen.append((*rows, buffer.found, *checks, *refills))
    return seen


@given(steps=STEPS)
def test_it_is_the_plain_buffer(steps: list[tuple[str, bytes, bytes]]) -> None:
    assert run(kernel.rows.RowBuffer, steps) == run(RowBuffer, steps)


@given(
    row_time=st.integers(-(2**63), 2**63 - 1),
    timestamp=st.integers(-(2**63), 2**63 - 1),
    value=st.binary(max_size=20),
)
def test_rows_begin_with_their_timestamp(row_time: int, timestamp: int, value: bytes) -> None:
    buffer = kernel.rows.RowBuffer({b"disk": struct.pack(">q", row_time) + value}.get, pytest.fail, 100, pytest.fail)
    assert buffer.find(b"none") is None
    assert buffer.find(b"disk") == value
    assert buffer.newest(timestamp) == max(timestamp, row_time)
    changes: list[tuple[Any, ...]] = []
    put = kernel.sinks.row_writer(buffer, lambda *change: changes.append(change), "store")
    put(b"k", value, timestamp)
    assert buffer.get(b"k") == struct.pack(">q", timestamp) + value
    assert buffer.find(b"k") == value
    put(b"k", None, timestamp, [("h", b"")])
    assert buffer.get(b"k") is None
    assert changes == [("store", b"k", value, timestamp, None), ("store", b"k", None, timestamp, [("h", b"")])]


def test_a_row_that_is_too_short_is_told() -> None:
    buffer = kernel.rows.RowBuffer({b"k": b"short"}.get, pytest.fail, 100, pytest.fail)
    with pytest.raises(ValueError, match="a row of 5 bytes has no timestamp"):
        buffer.find(b"k")


def test_what_reading_raises_reaches_the_caller() -> None:
    def read(_key: bytes) -> bytes:
        raise OSError("a damaged block")

    buffer = kernel.rows.RowBuffer(read, pytest.fail, 100, pytest.fail)
    for get in (buffer.get, buffer.find):
        with pytest.raises(OSError, match="a damaged block"):
            get(b"k")


def test_what_check_raises_reaches_the_caller() -> None:
    def check() -> None:
        raise OSError("no commit")

    buffer = kernel.rows.RowBuffer({}.get, check, 1, pytest.fail)
    with pytest.raises(OSError, match="no commit"):
        buffer.put(b"k", b"v")
    with pytest.raises(OSError, match="no commit"):
        kernel.sinks.row_writer(buffer, lambda *_: None, "store")(b"k", b"v", 1)
