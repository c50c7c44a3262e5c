"""What the kernel does in a scan: it reads, merges and decodes rows as Python does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import kernel
from penstock.statestore.rows.bytes_store import RawRow, Row, plain_merge
from penstock.statestore.rows.rocksdb_store import RocksDBStore, read_rows
from penstock.statestore.rows.sorted_keys import CHUNK, SortedKeys
from penstock.statestore.stores.store_iterator import StoreIterator

pytestmark = pytest.mark.skipif(kernel.rows is None, reason="the compiled kernel is not built here")

BYTES = st.binary(max_size=3)
BOUND = st.none() | BYTES


@given(stored=st.dictionaries(BYTES, BYTES), changed=st.dictionaries(BYTES, st.none() | BYTES), reverse=st.booleans())
def test_rows_are_merged(stored: dict[bytes, bytes], changed: dict[bytes, bytes | None], reverse: bool) -> None:
    rows: list[Row] = sorted(stored.items(), reverse=reverse)
    changes: list[RawRow] = sorted(changed.items(), key=lambda row: row[0], reverse=reverse)
    merged = list(kernel.rows.MergedRows(iter(rows), changes, reverse))
    assert merged == list(plain_merge(iter(rows), changes, reverse))
    left = {key: value for key, value in {**stored, **changed}.items() if value is not None}
    assert merged == sorted(left.items(), reverse=reverse)


@given(keys=st.sets(BYTES), added=st.lists(BYTES), start=BOUND, end=BOUND)
def test_keys_are_sorted(keys: set[bytes], added: list[bytes], start: bytes | None, end: bytes | None) -> None:
    plain, compiled = SortedKeys(keys), kernel.rows.SortedKeys(keys)
    for key in dict.fromkeys(added):
        if key not in keys:
            plain.add(key)
            compiled.add(key)
    assert compiled.between(start, end) == plain.between(start, end)


def test_many_keys_are_in_chunks() -> None:
    keys = [b"%06d" % (number * 7919 % 20_000) for number in range(20_000)]
    index = kernel.rows.SortedKeys(keys[:5_000])
    for key in keys[5_000:]:
        index.add(key)
    assert max(map(len, index.chunks)) <= 2 * CHUNK
    assert index.between(b"000500", b"015000") == sorted(keys)[500:15_000]
    assert index.between(b"015000", b"000500") == []
    assert index.between(None, None) == sorted(keys)


def test_rows_are_read_from_a_cursor(tmp_path: Path) -> None:
    store = RocksDBStore(tmp_path / "store")
    for number in range(100):
        store.put(b"%02d" % number, b"x" * number)
    store.commit(1)
    bounds = (None, b"00", b"17", b"175", b"50", b"99", b"999")
    for start in bounds:
        for end in bounds:
            for rows, size in ((1, 1), (7, 10_000), (1_000, 300), (1_000, 1 << 62)):
                for reverse in (False, True):
                    read = []
                    for read_some in (read_rows, kernel.rows.read_rows):
                        cursor, found, more = store._seek(start, end, reverse), list[Row](), True
                        while more:
                            some, more = read_some(cursor, start if reverse else end, reverse, rows, size)
                            assert len(some) <= rows
                            assert sum(len(key) + len(value) for key, value in some[:-1]) <= size
                            found += some
                        read.append(found)
                    inside = (n for n in range(100) if (start or b"") <= b"%02d" % n < (end or b"\xff"))
                    wanted = [(b"%02d" % n, b"x" * n) for n in inside]
                    assert read == 2 * [wanted[::-1] if reverse else wanted]
    store.close()


def test_rows_are_decoded_one_by_one_until_they_are_closed() -> None:
    decoded: list[bytes] = []

    def decode(row: bytes) -> int:
        decoded.append(row)
        return int(row)

    rows: Iterator[Row] = iter([(b"a", b"1"), (b"b", b"2"), (b"c", b"x"), (b"d", b"4")])
    scan = StoreIterator(kernel.rows.DecodedRows(rows, bytes.decode, decode))
    seen = []
    for row in scan:
        seen.append(row)
        if len(seen) == 2:
            scan.close()
    assert seen == [("a", 1), ("b", 2)]
    assert decoded == [b"1", b"2"]
    with pytest.raises(ValueError, match="invalid literal"):
        next(kernel.rows.DecodedRows(rows, bytes.decode, decode))
