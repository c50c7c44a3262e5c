"""The kernel's part in a scan: it reads, merges and decodes rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernel.rows import DiskRows, MergedRows, SortedKeys, StoreIterator, read_rows
from penstock.statestore.rows.bytes_store import RawRow, Row
from penstock.statestore.rows.rocksdb_store import RocksDBStore

BYTES = st.binary(max_size=3)
BOUND = st.none() | BYTES
#: How many rows and bytes are read at once.
ROOMS = ((1, 1), (7, 10_000), (1_000, 300), (1_000, 1 << 62))


@given(stored=st.dictionaries(BYTES, BYTES), changed=st.dictionaries(BYTES, st.none() | BYTES), reverse=st.booleans())
def test_rows_are_merged(stored: dict[bytes, bytes], changed: dict[bytes, bytes | None], reverse: bool) -> None:
    rows: list[Row] = sorted(stored.items(), reverse=reverse)
    changes: list[RawRow] = sorted(changed.items(), key=lambda row: row[0], reverse=reverse)
    merged = list(MergedRows(iter(rows), changes, reverse))
    left = {key: value for key, value in {**stored, **changed}.items() if value is not None}
    assert merged == sorted(left.items(), reverse=reverse)


@given(keys=st.sets(BYTES), changes=st.lists(st.tuples(st.booleans(), BYTES)), start=BOUND, end=BOUND)
def test_keys_are_a_sorted_set(
    keys: set[bytes], changes: list[tuple[bool, bytes]], start: bytes | None, end: bytes | None
) -> None:
    index = SortedKeys(keys)
    for add, key in changes:
        if add and key not in keys:
            index.add(key)
            keys.add(key)
        elif not add and key in keys:
            index.remove(key)
            keys.remove(key)
    wanted = sorted(key for key in keys if (start is None or key >= start) and (end is None or key < end))
    assert index.between(start, end) == wanted


def test_a_key_outside_the_set_is_refused() -> None:
    index = SortedKeys([b"a", b"c"])
    for key in (b"", b"b", b"d"):
        with pytest.raises(KeyError):
            index.remove(key)
    texts: Any = ["a"]
    with pytest.raises(TypeError):
        SortedKeys(texts)


def test_many_keys_are_split_into_chunks() -> None:
    keys = [b"%06d" % (number * 7919 % 20_000) for number in range(20_000)]
    index = SortedKeys(keys[:5_000])
    for key in keys[5_000:]:
        index.add(key)
    assert max(map(len, index.chunks)) <= 1_024
    assert index.between(b"000500", b"015000") == sorted(keys)[500:15_000]
    assert index.between(b"015000", b"000500") == []
    assert index.between(None, None) == sorted(keys)
    for key in keys:
        index.remove(key)
    assert (index.between(None, None), index.chunks) == ([], [])
    index.add(b"a")
    assert index.between(None, None) == [b"a"]


def test_rows_are_read_from_a_cursor(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    for number in range(100):
        store.put(b"%02d" % number, b"x" * number)
    store.commit(1)
    bounds = (None, b"00", b"17", b"175", b"50", b"99", b"999")
    for start in bounds:
        for end in bounds:
            inside = [n for n in range(100) if (start or b"") <= b"%02d" % n < (end or b"\xff")]
            for reverse in (False, True):
                wanted = [(b"%02d" % n, b"x" * n) for n in (reversed(inside) if reverse else inside)]
                assert store.rows(start, end, reverse) == wanted
                for rows, size in ROOMS:
                    disk = DiskRows(store._db.iter, store._follow, store._failed, rows, size)
                    assert list(disk.scan(start, end, reverse)) == wanted
    store.close()


def test_no_more_rows_are_read_at_once_than_there_is_room_for(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    for number in range(100):
        store.put(b"%02d" % number, b"x" * number)
    store.commit(1)
    for rows, size in ROOMS:
        cursor, found, more = store._db.iter(), list[Row](), True
        cursor.seek_to_first()
        while more:
            some, more = read_rows(cursor, b"99", False, rows, size)
            assert len(some) <= rows
            assert sum(len(key) + len(value) for key, value in some[:-1]) <= size
            found += some
        assert len(found) == 99
    store.close()


def test_rows_are_decoded_one_by_one_until_the_iterator_is_closed() -> None:
    decoded: list[bytes] = []

    def decode(row: bytes) -> int:
        decoded.append(row)
        return int(row)

    rows: Iterator[Row] = iter([(b"a", b"1"), (b"b", b"2"), (b"c", b"x"), (b"d", b"4")])
    scan: StoreIterator[tuple[str, int]] = StoreIterator(rows, bytes.decode, decode)
    seen = []
    for row in scan:
        seen.append(row)
        if len(seen) == 2:
            scan.close()
    assert seen == [("a", 1), ("b", 2)]
    assert decoded == [b"1", b"2"]
    with pytest.raises(ValueError, match="invalid literal"):
        next(StoreIterator(rows, bytes.decode, decode))


def test_rows_are_shown_by_a_function_and_closed_with_its_results() -> None:
    rows: StoreIterator[tuple[str, int]] = StoreIterator(iter([(b"a", b"1"), (b"b", b"2")]), bytes.decode, int)
    with rows.mapped(lambda row: row[1] + 1) as shown:
        assert next(shown) == 2
    assert (list(rows), list(shown)) == ([], [])
    assert list(StoreIterator([3, 4]).mapped(str).mapped(len)) == [1, 1]


def test_closing_rows_closes_the_generator_that_makes_them() -> None:
    closed: list[bool] = []

    def made() -> Iterator[int]:
        try:
            yield from range(9)
        finally:
            closed.append(True)

    rows: StoreIterator[int] = StoreIterator(made())
    assert next(rows) == 0
    rows.close()
    rows.close()
    assert (list(rows), closed) == ([], [True])
