"""Sorted tables: damaged blobs, sizes, lookups and merges, compared with a dict."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernel.sorted_tables import Merged, SortedTable, find, packed
from tests.examples import examples

ROWS = [(b"%04d" % number, b"v" * number) for number in range(40)]
keys = st.binary(max_size=3)
runs = st.lists(st.dictionaries(keys, st.binary(max_size=5), min_size=1, max_size=30), min_size=1, max_size=5)
DELETED = b"gone"


def tables(rows: dict[bytes, bytes] | list[tuple[bytes, bytes]], size: int = 1 << 20) -> list[SortedTable]:
    return list(map(SortedTable, packed(sorted(dict(rows).items()), size)))


def test_a_blob_that_is_cut_is_refused() -> None:
    (data,) = packed(ROWS, 1 << 20)
    for end in range(len(data)):
        with pytest.raises(ValueError, match="a table of rows is damaged"):
            SortedTable(data[:end])
        with pytest.raises(ValueError, match="a table of rows is damaged"):
            SortedTable(data[len(data) - end :])


def test_damaged_bytes_are_errors_or_other_rows_but_never_reads_elsewhere() -> None:
    """A read outside of the blob would end the process, sooner or later."""
    (data,) = packed(ROWS, 1 << 20)
    draw = random.Random(1)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= draw.randrange(1, 256)
        with suppress(ValueError):
            table = SortedTable(bytes(damaged))
            rows = table.between(None, None)
            assert len(rows) == len(ROWS)
            assert all(len(key) + len(value) < len(data) for key, value in rows)
            for key, _ in ROWS:
                find([table], key)


def test_an_empty_run_has_no_tables() -> None:
    assert packed([], 1) == []
    assert list(Merged([[], tables(ROWS), []], None, 1 << 20)) == packed(ROWS, 1 << 20)
    assert list(Merged([tables({b"a": DELETED})], DELETED, 1)) == []


@pytest.mark.parametrize("size", [1, 60, 200, 10_000])
def test_a_table_ends_when_its_rows_have_the_size(size: int) -> None:
    found = tables(ROWS, size)
    parts = [table.between(None, None) for table in found]
    assert [row for part in parts for row in part] == ROWS
    for part, table in zip(parts, found, strict=True):
        assert len(part) == len(table)
        assert row_bytes(part[:-1]) < size
        assert row_bytes(part) >= size or part is parts[-1]


def row_bytes(rows: list[tuple[bytes, bytes]]) -> int:
    return sum(8 + len(key) + len(value) for key, value in rows)


@settings(max_examples=examples(400), deadline=None)
@given(runs, st.integers(1, 60), st.one_of(st.none(), keys), st.one_of(st.none(), keys))
def test_the_first_run_with_a_key_counts(
    runs: list[dict[bytes, bytes]], size: int, start: bytes | None, end: bytes | None
) -> None:
    model: dict[bytes, bytes] = {}
    for run in reversed(runs):
        model.update(run)
    packed_runs = [tables(run, size) for run in runs]
    every = [table for run in packed_runs for table in run]
    for key in {*model, b"", b"\xff" * 4}:
        assert find(every, key) == model.get(key)
    merged = list(map(SortedTable, Merged(packed_runs, None, size)))
    assert [row for table in merged for row in table.between(None, None)] == sorted(model.items())
    expected = [row for row in sorted(model.items()) if (start or b"") <= row[0] and (end is None or row[0] < end)]
    assert [row for table in merged for row in table.between(start, end)] == expected


@settings(max_examples=examples(100), deadline=None)
@given(runs, st.sets(keys))
def test_dropped_rows_hide_those_of_other_runs(runs: list[dict[bytes, bytes]], deleted: set[bytes]) -> None:
    model: dict[bytes, bytes] = {}
    for run in reversed(runs):
        model.update(run)
    first = dict.fromkeys(deleted, DELETED) or {b"none": DELETED}
    merged = Merged([tables(first), *map(tables, runs)], DELETED, 40)
    rows = [row for data in merged for row in SortedTable(data).between(None, None)]
    assert rows == [row for row in sorted(model.items()) if row[0] not in first and row[1] != DELETED]


def test_the_filter_lets_few_other_keys_pass() -> None:
    """Searching a table takes its time; here a table is searched if a wrong row would be found there."""
    keys = [b"key-%06d" % number for number in range(0, 100_000, 2)]
    (data,) = packed([(key, b"") for key in keys], 1 << 30)
    table = SortedTable(data)
    assert all(find([table], key) == b"" for key in keys)
    filter_bytes = len(data) - sum(8 + len(key) for key in keys) - 4 * len(keys) - 16
    assert filter_bytes == pytest.approx(len(keys) * 10 / 8, abs=64)
    # Without the starts of the rows, a search raises.
    blind = bytearray(data)
    at = sum(8 + len(key) for key in keys)
    blind[at + 4 : at + 4 * len(keys) - 4] = b"\xff" * (4 * len(keys) - 8)
    blinded, searched = [SortedTable(bytes(blind))], 0
    for number in range(1, 100_000, 2):
        try:
            assert find(blinded, b"key-%06d" % number) is None
        except ValueError:
            searched += 1
    assert 0 < searched < 0.03 * len(keys)


def test_what_is_not_a_table_is_refused() -> None:
    with pytest.raises(TypeError):
        find([b"no table"], b"key")  # type: ignore[list-item]
    with pytest.raises(TypeError):
        list(Merged([[b"no table"]], None, 1))  # type: ignore[list-item]
