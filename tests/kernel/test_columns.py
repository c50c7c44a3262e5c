"""Columns of rows as Arrow's buffers, compared with struct and with slices."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernel.columns import bytes_column, number_column, take_rows

Rows = list[tuple[bytes, bytes]]


@given(numbers=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**31), 2**31 - 1), st.binary())))
def test_numbers_are_turned_to_the_order_of_the_machine(numbers: list[tuple[int, int, bytes]]) -> None:
    rows = [(struct.pack(">q", long) + rest, struct.pack(">qi", long, small)) for long, small, rest in numbers]
    ends = [(rest + struct.pack(">qi", long, small), b"") for long, small, rest in numbers]
    longs = struct.pack(f"<{len(numbers)}q", *(long for long, _, _ in numbers))
    smalls = struct.pack(f"<{len(numbers)}i", *(small for _, small, _ in numbers))
    assert number_column(rows, 0, 0, 8) == number_column(rows, 1, 0, 8) == number_column(ends, 0, -12, 8) == longs
    assert number_column(rows, 1, 8, 4, True) == number_column(ends, 0, -4, 4) == smalls


@given(parts=st.lists(st.binary()), front=st.integers(0, 9), back=st.integers(0, 9))
def test_parts_of_keys_and_values_are_joined(parts: list[bytes], front: int, back: int) -> None:
    rows = [(bytes(front) + part + bytes(back), part) for part in parts]
    ends = [sum(map(len, parts[:count])) for count in range(len(parts) + 1)]
    expected = struct.pack(f"<{len(ends)}i", *ends), b"".join(parts)
    assert bytes_column(rows, 0, front, back) == bytes_column(rows, 1, 0, 0) == expected


@pytest.mark.parametrize(("row", "at", "whole"), [(b"1234567", 0, False), (b"12345678", 1, False), (b"", -8, False)])
def test_rows_without_a_number_are_an_error(row: bytes, at: int, whole: bool) -> None:
    with pytest.raises(ValueError, match="are no row of the store: there is no number of 8 bytes"):
        number_column([(row, row)], 0, at, 8, whole)


def test_a_number_with_more_behind_it_is_an_error_if_it_must_be_whole() -> None:
    assert number_column([(b"", bytes(9))], 1, 0, 8) == bytes(8)
    with pytest.raises(ValueError, match="9 bytes are no row"):
        number_column([(b"", bytes(9))], 1, 0, 8, True)


def test_short_keys_and_other_types_are_an_error() -> None:
    with pytest.raises(ValueError, match="11 bytes are no row of the store: it has at least 12"):
        bytes_column([(bytes(11), b"")], 0, 8, 4)
    for rows in ([("text", b"")], [[b"", b""]]):
        with pytest.raises(TypeError):
            bytes_column(rows, 0, 0, 0)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            number_column(rows, 0, 0, 1)  # type: ignore[arg-type]


def test_rows_are_taken_up_to_a_number_and_a_size() -> None:
    rows = iter([(b"a", b"1"), (b"b", b"22"), (b"c", b""), (b"d", bytes(100)), (b"e", b"")])
    assert take_rows(rows, 2, 100) == [(b"a", b"1"), (b"b", b"22")]
    assert take_rows(rows, 9, 100) == [(b"c", b""), (b"d", bytes(100))]
    assert take_rows(rows, 9, 1) == [(b"e", b"")]
    assert take_rows(rows, 9, 1) == []
    with pytest.raises(TypeError):
        take_rows(iter([("text", b"")]), 1, 1)  # type: ignore[list-item]
