"""The buffer of a store's rows behaves like plain dicts."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Serdes
from penstock.kernel.nodes import Node, RecordContext
from penstock.kernel.rows import RowBuffer, in_order
from penstock.kernel.sinks import Changelog
from penstock.kernel.table_nodes import StoredRows, TableSource
from penstock.testing.driver_task import DriverOutput
from penstock.topology.records import SentRecord

KEYS = st.sampled_from([b"a", b"b", b"c", b"d"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "put", "add", "delete", "commit", "look", "index", "clear"]),
        KEYS,
        st.binary(min_size=8, max_size=12),
    ),
    max_size=60,
)


class PlainBuffer:
    """A RowBuffer of plain dicts, sorted for each read of a range. added: since rows were looked up."""

    index = None

    def __init__(self, read: Any, check: Any, check_at: int, refill: Any) -> None:
        self.read, self.check, self.check_at, self.refill = read, check, check_at, refill
        self.all: dict[bytes, bytes | None] = {}
        self.added: list[bytes] = []
        self.known = 0
        self.recent: dict[bytes, bytes | None] = {}
        self.found = self.read_room = 0

    @property
    def rows(self) -> dict[bytes, bytes | None]:
        self.known, self.added = len(self.all), []
        return self.all

    def __len__(self) -> int:
        return self.known + len(self.added)

    def in_order(self) -> list[tuple[bytes, bytes | None]]:
        return sorted(self.all.items())

    def get(self, key: bytes) -> bytes | None:
        if key in self.rows:
            return self.rows[key]
        if key in self.recent:
            self.found += 1
            return self.recent[key]
        row: bytes | None = self.read(key)
        if self.read_room:
            if self.read_room > 0:
                self.recent[key] = row
            self.read_room += -1 if self.read_room > 0 else 1
            if not self.read_room:
                self.refill()
        return row

    def put(self, key: bytes, value: bytes | None) -> None:
        self.rows[key] = value
        if len(self.rows) >= self.check_at:
            self.check()

    def add(self, key: bytes, value: bytes | None) -> None:
        self.all[key] = value
        self.added.append(key)
        if len(self) >= self.check_at:
            self.check()

    def between(self, start: bytes | None, end: bytes | None) -> list[tuple[bytes, bytes | None]]:
        return sorted((k, v) for k, v in self.rows.items() if (start or b"") <= k and (end is None or k < end))

    def clear(self) -> None:
        self.all.clear()
        self.known, self.added = 0, []


def run(kind: Any, steps: list[tuple[str, bytes, bytes]]) -> list[Any]:
    """Return everything visible in a buffer of this kind while the steps are executed."""
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
        elif action == "add":
            buffer.add(key, value)
            seen.append((len(buffer), *checks))
            continue  # what follows looks up rows
        elif action == "look":
            seen.append(buffer.in_order())
            continue
        elif action == "commit":
            disk |= buffer.rows
            buffer.recent, buffer.read_room = dict(buffer.rows), 1
            buffer.clear()
            buffer.check_at += 1
        elif action == "index":
            seen.append(buffer.between(key, None))
        else:
            buffer.clear()
        seen.append((dict(buffer.rows), dict(buffer.recent), buffer.found, *checks, *refills))
    return seen


@given(steps=STEPS)
def test_it_behaves_like_plain_dicts(steps: list[tuple[str, bytes, bytes]]) -> None:
    assert run(RowBuffer, steps) == run(PlainBuffer, steps)


def test_the_rows_put_last_are_a_sample() -> None:
    buffer = RowBuffer(lambda key: None, pytest.fail, 100, pytest.fail)
    assert buffer.newest(2) == []
    for key in (b"a", b"b", b"c"):
        buffer.put(key, b"row")
    assert buffer.newest(2) == [(b"c", b"row"), (b"b", b"row")]
    buffer.add(b"a", None)
    assert buffer.newest(2) == [(b"a", None)]
    buffer.add(b"d", b"")
    buffer.add(b"e", b"")
    assert buffer.newest(2) == [(b"d", b""), (b"e", b"")]
    assert [key for key, _ in buffer.in_order()] == [b"a", b"b", b"c", b"d", b"e"]


def table_of(buffer: RowBuffer, output: DriverOutput) -> Node:
    """Return a table's node that writes bytes into a buffer, and headers of tombstones into the changelog."""
    task, serde = RecordContext(), Serdes.bytes()
    of_bytes = serde, None, serde, None, None, None, None
    rows = StoredRows(task, buffer, Changelog(output, "store"), *of_bytes, (False, True), False)
    return TableSource(task, "table", None, rows, pytest.fail)


@given(
    row_time=st.integers(-(2**63), 2**63 - 1),
    timestamp=st.integers(-(2**63), 2**63 - 1),
    value=st.binary(max_size=20),
)
def test_rows_begin_with_their_timestamp(row_time: int, timestamp: int, value: bytes) -> None:
    buffer = RowBuffer({b"disk": struct.pack(">q", row_time) + value}.get, pytest.fail, 100, pytest.fail)
    assert buffer.find(b"none") is None
    assert buffer.find(b"disk") == value
    output = DriverOutput({"store": "log"})
    put = table_of(buffer, output).receive
    put(b"k", value, timestamp, [("h", b"")])
    assert buffer.get(b"k") == struct.pack(">q", timestamp) + value
    assert buffer.find(b"k") == value
    put(b"k", None, timestamp, [("h", b"")])
    assert buffer.get(b"k") is None
    changes = [SentRecord("log", b"k", value, timestamp, None), SentRecord("log", b"k", None, timestamp, [("h", b"")])]
    assert output.take() == changes


def test_a_row_that_is_too_short_is_an_error() -> None:
    buffer = RowBuffer({b"k": b"short"}.get, pytest.fail, 100, pytest.fail)
    with pytest.raises(ValueError, match="a row of 5 bytes has no timestamp"):
        buffer.find(b"k")


def test_exceptions_while_reading_reach_the_caller() -> None:
    def read(_key: bytes) -> bytes:
        raise OSError("a damaged block")

    buffer = RowBuffer(read, pytest.fail, 100, pytest.fail)
    for get in (buffer.get, buffer.find):
        with pytest.raises(OSError, match="a damaged block"):
            get(b"k")


def test_exceptions_of_check_reach_the_caller() -> None:
    def check() -> None:
        raise OSError("no commit")

    buffer = RowBuffer(lambda key: None, check, 1, pytest.fail)
    with pytest.raises(OSError, match="no commit"):
        buffer.put(b"k", b"v")
    with pytest.raises(OSError, match="no commit"):
        table_of(buffer, DriverOutput({"store": "log"})).receive(b"k", b"v", 1, None)


@given(
    rows=st.dictionaries(
        st.binary(max_size=12) | st.binary(max_size=12).map(b"all begin with this".__add__), st.binary() | st.none()
    ),
    shared=st.binary(max_size=10),
)
def test_rows_are_ordered_by_their_keys(rows: dict[bytes, bytes | None], shared: bytes) -> None:
    given_rows = {shared + key: row for key, row in rows.items()}
    assert in_order(given_rows) == sorted(given_rows.items())


def test_only_rows_with_keys_of_bytes_are_ordered() -> None:
    wrong: Any = {b"k": b"", "k": b""}
    with pytest.raises(TypeError):
        in_order(wrong)
