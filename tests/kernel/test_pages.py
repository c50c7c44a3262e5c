"""Pages: a blob that is damaged, and how a page is split. test_paged_rows.py compares their rows with a dict's."""

from __future__ import annotations

import pytest

from penstock.kernel.pages import Page

ROWS = [(b"%04d" % number, b"v" * number) for number in range(40)]


def filled() -> Page:
    page = Page()
    for key, value in reversed(ROWS):
        page.put(key, value)
    page.fold()
    return page


def test_a_blob_cut_anywhere_within_a_row_is_refused() -> None:
    data = filled().fold()
    ends = {len(Page(data[:0]).fold())}
    for row in range(len(ROWS)):
        part = Page()
        for key, value in ROWS[: row + 1]:
            part.put(key, value)
        ends.add(len(part.fold()))
    for end in range(len(data)):
        if end in ends:
            assert Page(data[:end]).between(None, None) == ROWS[: sorted(ends).index(end)]
        else:
            with pytest.raises(ValueError, match="ends within a row"):
                Page(data[:end])


def test_a_length_beyond_the_blob_is_refused() -> None:
    with pytest.raises(ValueError, match="ends within a row"):
        Page(b"\xff\xff\xff\xff" + b"x" * 100)


@pytest.mark.parametrize("limit", [1, 60, 200, 10_000])
def test_parts_hold_all_rows_and_as_many_as_fit(limit: int) -> None:
    parts = filled().split(limit)
    assert [row for _, part in parts for row in part.between(None, None)] == ROWS
    for number, (first, part) in enumerate(parts):
        assert part.between(None, None)[0][0] == first
        assert len(part.fold()) <= limit or len(part) == 1
        if number:
            before = parts[number - 1][1]
            assert len(before.fold()) + row_bytes(part.between(None, None)[0]) > limit


def row_bytes(row: tuple[bytes, bytes]) -> int:
    return 8 + len(row[0]) + len(row[1])
