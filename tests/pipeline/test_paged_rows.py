"""PagedRows compared with the in-memory store, and the number of its calls of Spark's state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.tasks.paged_rows import DIRECTORY, ELSEWHERE, PagedRows, stored_rows
from penstock.pipeline.tasks.value_log import SPACE_MAX
from penstock.statestore.memory_store import InMemoryStore
from penstock.topology.errors import StreamsError
from tests.examples import examples

PAGE_BYTES, LARGE_BYTES, SEGMENT_BYTES = 64, 8, 160
keys = st.text("abcd", min_size=1, max_size=2).map(str.encode)
values = st.one_of(
    st.none(),
    st.tuples(st.sampled_from(b"xyz"), st.integers(0, 20)).map(lambda each: bytes([each[0]]) * each[1]),
    st.just(ELSEWHERE),
    st.just(ELSEWHERE + b"x" * 16),
)
bounds = st.one_of(st.none(), keys)
steps = st.lists(
    st.one_of(
        *[st.tuples(st.just("put"), keys, values)] * 3,
        st.tuples(st.just("scan"), bounds, bounds),
        st.tuples(st.just("delete_range"), keys, keys),
        st.tuples(st.sampled_from(("commit", "rollback", "reopen", "retry", "move")), st.none(), st.none()),
    ),
    min_size=20,  # by itself hypothesis tries lists of some five
    max_size=60,
)


class Blobs:
    """Blobs in a dict, with counted calls."""

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}
        self.calls = 0
        machines = Path(mkdtemp())
        finalize(self, rmtree, machines)
        self.directory, self._other = machines / "one", machines / "two"
        self.read_numbers: list[int] = []
        self.written_numbers: list[int] = []

    def move(self) -> None:
        """Continue on the other machine, with the files that it has."""
        self.directory, self._other = self._other, self.directory

    def read(self, numbers: Sequence[int]) -> list[bytes | None]:
        self.calls += 1
        self.read_numbers += numbers
        return [self.data.get(number) for number in numbers]

    def write(self, number: int, data: bytes) -> None:
        self.written_numbers.append(number)
        self.data[number] = data

    def remove(self, number: int) -> None:
        del self.data[number]


@settings(max_examples=examples(300), deadline=None)
@given(steps)
def test_pages_have_the_rows_of_the_in_memory_store(steps: list[tuple[str, bytes | None, bytes | None]]) -> None:
    """retry: Spark repeats a micro-batch after another one in its place was written; move: to another executor."""
    blobs = Blobs()
    paged, model = opened(blobs), InMemoryStore()
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
            if name == "retry":
                before = dict(blobs.data)
                paged.put(b"other", b"of the first attempt")
                paged.commit(None)
                blobs.data = before
                blobs.move()
                paged = opened(blobs)
                for key, value in paged.rows(None, None):
                    if model.get(key) != value:
                        paged.put(key, model.get(key))
                for key, value in model.rows(None, None):
                    paged.put(key, value)
            paged.commit(None, {"time": 7})
            model.commit(None)
            assert_little_waste(blobs)
        if name in ("reopen", "move"):
            if name == "move":
                blobs.move()
            paged.close()
            paged = opened(blobs)
            assert paged.committed_mark("time") == 7
            assert sorted(stored_rows(sorted(blobs.data.items()))) == paged.rows(None, None)
        assert paged.rows(None, None) == model.rows(None, None)


def opened(blobs: Blobs) -> PagedRows:
    return PagedRows(blobs, PAGE_BYTES, LARGE_BYTES, SEGMENT_BYTES)


def assert_little_waste(blobs: Blobs) -> None:
    """The segments have at most so many times the bytes of the rows that are in them."""
    size = sum(len(data) for number, data in blobs.data.items() if number < DIRECTORY)
    rows = stored_rows(sorted(blobs.data.items()))
    live = sum(8 + len(k) + len(v) for k, v in rows if len(v) > LARGE_BYTES or v.startswith(ELSEWHERE))
    assert size <= SPACE_MAX * live + SEGMENT_BYTES


def test_segments_of_which_little_is_left_are_cleaned() -> None:
    blobs = Blobs()
    keys = [b"%02d" % number for number in range(40)]
    model = {}
    for number in range(4):
        rows = opened(blobs)
        for place, key in enumerate(keys):
            if place % 5 >= number:  # a segment has five rows, and in the end one of them is left
                model[key] = b"%02d-%d" % (place, number) * 4
                rows.put(key, model[key])
        rows.commit(None)
        rows.close()
        assert opened(blobs).rows(None, None) == sorted(model.items())
        assert_little_waste(blobs)


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


def test_an_update_of_large_rows_writes_them_together_and_reads_files() -> None:
    blobs, keys = with_large_rows()
    blobs.written_numbers.clear()
    blobs.read_numbers.clear()
    again = PagedRows(blobs)
    for key in keys[::10]:
        assert again.get(key) == key * 100
        again.put(key, b"w" * 1000)
    again.commit(None)
    assert sum(number < DIRECTORY for number in blobs.written_numbers) == 1
    assert not any(number < DIRECTORY for number in blobs.read_numbers)
    assert PagedRows(blobs).get(b"0040") == b"w" * 1000


def test_a_segment_that_the_machine_does_not_have_is_read_once() -> None:
    blobs, keys = with_large_rows()
    rmtree(blobs.directory)
    for _ in range(2):
        rows = PagedRows(blobs)
        assert [rows.get(key) for key in keys] == [key * 100 for key in keys]
        rows.close()
    assert [number for number in blobs.read_numbers if number < DIRECTORY] == [-1]


def test_a_file_that_is_too_short_is_an_error_that_names_it() -> None:
    blobs, keys = with_large_rows()
    (file,) = blobs.directory.iterdir()
    file.write_bytes(b"torn")
    with pytest.raises(StreamsError, match=f"{file.name} ends before byte"):
        PagedRows(blobs).get(keys[-1])


def test_a_disk_that_takes_no_file_is_an_error_that_names_it() -> None:
    blobs = Blobs()
    blobs.directory.write_bytes(b"")
    rows = PagedRows(blobs)
    rows.put(b"key", b"v" * 1000)
    with pytest.raises(StreamsError, match=r"cannot be written: .*spark.local.dir"):
        rows.commit(None)


def test_a_segment_that_spark_has_lost_is_an_error() -> None:
    blobs, keys = with_large_rows()
    rmtree(blobs.directory)
    del blobs.data[-1]
    with pytest.raises(StreamsError, match="Segment 1 of the large values of a store is not in Spark's state"):
        PagedRows(blobs).get(keys[0])


def with_large_rows() -> tuple[Blobs, list[bytes]]:
    """Return the blobs of large rows, and their keys."""
    blobs = Blobs()
    rows = PagedRows(blobs)
    keys = [b"%04d" % number for number in range(1000)]
    for key in keys:
        rows.put(key, key * 100)
    rows.commit(None)
    return blobs, keys


def small_pages() -> tuple[Blobs, list[bytes]]:
    """Return the blobs of a thousand rows in pages of one or two, and the rows' keys."""
    blobs = Blobs()
    keys = [b"%04d" % number for number in range(1000)]
    rows = PagedRows(blobs, PAGE_BYTES)
    for key in keys:
        rows.put(key, key * 10)
    rows.commit(None)
    return blobs, keys


def test_pages_of_a_micro_batch_are_read_in_few_calls() -> None:
    blobs, keys = small_pages()
    again = PagedRows(blobs)
    again.expect(keys)
    blobs.calls = 0
    blobs.read_numbers.clear()
    assert [again.get(key) for key in keys] == [key * 10 for key in keys]
    assert blobs.calls < 20
    assert len(blobs.read_numbers) == len(set(blobs.read_numbers))


def test_pages_are_hardly_read_for_records_that_a_filter_drops() -> None:
    blobs, keys = small_pages()
    again = PagedRows(blobs)
    again.expect(keys)
    blobs.read_numbers.clear()
    needed = keys[::50]
    assert [again.get(key) for key in needed] == [key * 10 for key in needed]
    assert len(blobs.read_numbers) < 4 * len(needed)
