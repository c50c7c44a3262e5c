"""PagedRows compared with the in-memory store, and the number of its calls of Spark's state."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.tasks.paged_rows import DIRECTORY, ELSEWHERE, PagedRows, rows_in
from penstock.statestore.memory_store import InMemoryStore
from tests.examples import examples

PAGE_BYTES, LARGE_BYTES = 64, 8
keys = st.binary(min_size=1, max_size=3)
values = st.one_of(st.none(), st.binary(max_size=12), st.just(ELSEWHERE), st.just(ELSEWHERE + b"12345678"))
bounds = st.one_of(st.none(), keys)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, values),
        st.tuples(st.just("scan"), bounds, bounds),
        st.tuples(st.just("delete_range"), keys, keys),
        st.tuples(st.sampled_from(("commit", "rollback", "reopen")), st.none(), st.none()),
    ),
    max_size=60,
)


class Blobs:
    """Blobs in a dict, with counted calls."""

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}
        self.calls = 0
        self.read_numbers: list[int] = []
        self.written_numbers: list[int] = []

    def read(self, numbers: Sequence[int]) -> list[bytes | None]:
        self.calls += 1
        self.read_numbers += numbers
        return [self.data.get(number) for number in numbers]

    def write(self, number: int, data: bytes) -> None:
        self.written_numbers.append(number)
        self.data[number] = data

    def remove(self, number: int) -> None:
        del self.data[number]


@settings(max_examples=examples(200), deadline=None)
@given(steps)
def test_pages_have_the_rows_of_the_in_memory_store(steps: list[tuple[str, bytes | None, bytes | None]]) -> None:
    blobs = Blobs()
    paged, model = PagedRows(blobs, PAGE_BYTES, LARGE_BYTES), InMemoryStore()
    for name, first, second in steps:
        if name == "put" and first is not None:
            paged.put(first, second)
            model.put(first, second)
            assert paged.get(first) == model.get(first)
        elif name == "scan":
            assert list(paged.scan(first, second)) == list(model.scan(first, second))
            assert paged.rows(first, second, reverse=True) == model.rows(first, second, reverse=True)
        elif name == "delete_range" and first is not None and second is not None:
            paged.delete_range(first, second)
            model.delete_range(first, second)
        elif name == "rollback":
            paged.rollback()
            model.rollback()
        else:
            paged.commit(None, {"time": 7})
            model.commit(None)
        if name == "reopen":
            paged = PagedRows(blobs, PAGE_BYTES, LARGE_BYTES)
            assert paged.committed_mark("time") == 7
            kept = [row for number, data in blobs.data.items() if number != DIRECTORY for row in rows_in(number, data)]
            assert sorted(kept) == paged.rows(None, None)
            large = [value for _, value in kept if len(value) > LARGE_BYTES or value.startswith(ELSEWHERE)]
            assert len(large) == sum(number < 0 for number in blobs.data)
        assert paged.rows(None, None) == model.rows(None, None)


def filled(blobs: Blobs, count: int) -> None:
    rows = PagedRows(blobs, PAGE_BYTES)
    for number in range(count):
        rows.put(b"%04d" % number, b"value")
    rows.commit(None)


def test_each_touched_page_is_read_once_and_written_once() -> None:
    blobs = Blobs()
    filled(blobs, 200)
    pages = len(blobs.data) - 1
    assert pages > 10, "too few pages for this test to say anything"
    blobs.read_numbers.clear()
    blobs.written_numbers.clear()
    rows = PagedRows(blobs, PAGE_BYTES)
    for _ in range(3):
        for key in (b"0010", b"0011", b"0100"):
            assert rows.get(key) is not None
            rows.put(key, b"other")
    rows.commit(None)
    assert len(blobs.read_numbers) == len(set(blobs.read_numbers)) <= 4
    assert sorted(blobs.written_numbers) == sorted(set(blobs.read_numbers) - {DIRECTORY})


def test_a_batch_that_only_reads_writes_nothing() -> None:
    blobs = Blobs()
    filled(blobs, 20)
    blobs.written_numbers.clear()
    rows = PagedRows(blobs, PAGE_BYTES)
    assert rows.get(b"0003") == b"value"
    rows.commit(None)
    assert blobs.written_numbers == []


def test_pages_without_rows_are_removed() -> None:
    blobs = Blobs()
    filled(blobs, 200)
    rows = PagedRows(blobs, PAGE_BYTES)
    rows.delete_range(b"", b"\xff")
    rows.commit(None)
    assert len(blobs.data) == 2, "the directory and one page are left"
    assert PagedRows(blobs, PAGE_BYTES).rows(None, None) == []


def test_an_update_of_a_large_row_writes_no_page() -> None:
    blobs = Blobs()
    rows = PagedRows(blobs)
    for number in range(100):
        rows.put(b"%04d" % number, b"v" * 1000)
    rows.commit(None)
    blobs.written_numbers.clear()
    again = PagedRows(blobs)
    assert again.get(b"0042") == b"v" * 1000
    again.put(b"0042", b"w" * 1000)
    again.commit(None)
    (written,) = blobs.written_numbers
    assert written < DIRECTORY
    assert PagedRows(blobs).get(b"0042") == b"w" * 1000


def with_large_rows() -> tuple[Blobs, list[bytes]]:
    """Return the blobs of large rows, and their keys."""
    blobs = Blobs()
    rows = PagedRows(blobs)
    keys = [b"%04d" % number for number in range(1000)]
    for key in keys:
        rows.put(key, key * 100)
    rows.commit(None)
    return blobs, keys


def test_large_rows_of_a_micro_batch_are_read_in_few_calls() -> None:
    blobs, keys = with_large_rows()
    again = PagedRows(blobs)
    again.expect(keys)
    blobs.calls = 0
    blobs.read_numbers.clear()
    assert [again.get(key) for key in keys] == [key * 100 for key in keys]
    assert blobs.calls < 20
    assert len(blobs.read_numbers) == len(set(blobs.read_numbers))


def test_rows_are_hardly_read_for_records_that_a_filter_drops() -> None:
    blobs, keys = with_large_rows()
    again = PagedRows(blobs)
    again.expect(keys)
    blobs.read_numbers.clear()
    needed = keys[::50]
    assert [again.get(key) for key in needed] == [key * 100 for key in needed]
    large = [number for number in blobs.read_numbers if number < DIRECTORY]
    assert len(large) < 4 * len(needed)
