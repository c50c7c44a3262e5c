"""SortedRuns compared with the in-memory store, and the number of its calls of Spark's state."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.pipeline.tasks.packed_rows import pack_rows
from penstock.pipeline.tasks.sorted_runs import DIRECTORY, ELSEWHERE, SortedRuns, stored_rows
from penstock.pipeline.tasks.value_log import SPACE_MAX
from penstock.statestore.memory_store import InMemoryStore
from penstock.topology.errors import StreamsError
from tests.examples import examples

SIZES = TABLE_BYTES, LARGE_BYTES, SEGMENT_BYTES = 64, 8, 160
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
    """Blobs in a dict, and at most one open SortedRuns of them."""

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}
        self._machines = Path(mkdtemp())
        self.directory, self._other = self._machines / "one", self._machines / "two"
        self.read_numbers: list[int] = []
        self.written_numbers: list[int] = []
        self.written_bytes = self.directory_bytes = 0
        self._runs: SortedRuns | None = None

    def opened(self, *sizes: int) -> SortedRuns:
        """Return other runs, and close the earlier ones. sizes: as those of SortedRuns."""
        if self._runs is not None:
            self._runs.close()
        self._runs = SortedRuns(self, *sizes)
        return self._runs

    def close(self) -> None:
        """Close the runs, and remove the files."""
        if self._runs is not None:
            self._runs.close()
        rmtree(self._machines)

    def move(self) -> None:
        """Continue on the other machine, with the files that it has."""
        self.directory, self._other = self._other, self.directory

    def read(self, numbers: Sequence[int]) -> list[bytes | None]:
        self.read_numbers += numbers
        return [self.data.get(number) for number in numbers]

    def write(self, number: int, data: bytes) -> None:
        self.written_numbers.append(number)
        self.written_bytes += len(data)
        self.directory_bytes += len(data) if number == DIRECTORY else 0
        self.data[number] = data

    def remove(self, number: int) -> None:
        del self.data[number]


@pytest.fixture
def blobs() -> Iterator[Blobs]:
    with closing(Blobs()) as made:
        yield made


@settings(max_examples=examples(300), deadline=None)
@given(steps)
def test_runs_have_the_rows_of_the_in_memory_store(steps: list[tuple[str, bytes | None, bytes | None]]) -> None:
    """retry: Spark repeats a micro-batch after another one in its place was written; move: to another executor."""
    with closing(Blobs()) as blobs:
        runs, model = blobs.opened(*SIZES), InMemoryStore()
        for name, first, second in steps:
            if name == "put" and first is not None:
                runs.put(first, second)
                model.put(first, second)
                assert runs.get(first) == model.get(first)
            elif name == "scan":
                assert list(runs.scan(first, second)) == list(model.scan(first, second))
                assert runs.rows(first, second, reverse=True) == model.rows(first, second, reverse=True)
            elif name == "delete_range" and first is not None and second is not None:
                runs.delete_range(first, second)
                model.delete_range(first, second)
            elif name == "rollback":
                runs.rollback()
                model.rollback()
            else:
                if name == "retry":
                    before = dict(blobs.data)
                    runs.put(b"other", b"of the first attempt")
                    runs.commit(None)
                    blobs.data = before
                    blobs.move()
                    runs = blobs.opened(*SIZES)
                    for key, value in runs.rows(None, None):
                        if model.get(key) != value:
                            runs.put(key, model.get(key))
                    for key, value in model.rows(None, None):
                        runs.put(key, value)
                runs.commit(None, {"time": 7})
                model.commit(None)
                assert_little_waste(blobs)
            if name in ("reopen", "move"):
                if name == "move":
                    blobs.move()
                runs.close()
                runs = blobs.opened(*SIZES)
                assert runs.committed_mark("time") == 7
                assert sorted(stored_rows(sorted(blobs.data.items()))) == runs.rows(None, None)
            assert runs.rows(None, None) == model.rows(None, None)


@pytest.mark.parametrize("seed", range(examples(40)))
def test_small_commits_over_many_rows_have_the_rows_of_a_dict(blobs: Blobs, seed: int) -> None:
    """Most runs are not merged with the oldest one, and most segments are cleaned while some of their rows change."""
    draw = random.Random(seed)
    keys = [b"%03d" % number for number in range(100)]
    model = {key: key * draw.choice((1, 5)) for key in keys}
    rows = blobs.opened(*SIZES)
    for key, value in model.items():
        rows.put(key, value)
    rows.commit(None)
    most_runs = 0
    for _ in range(40):
        if draw.random() < 0.5:
            rows.close()
            rows = blobs.opened(*SIZES)
        for key in draw.sample(keys, draw.choice((1, 2, 3, 12))):
            assert rows.get(key) == model.get(key)
            if draw.random() < 0.3:
                rows.put(key, None)
                model.pop(key, None)
            else:
                model[key] = bytes([draw.randrange(256)]) * draw.choice((3, 15))
                rows.put(key, model[key])
        rows.commit(None)
        assert rows.rows(None, None) == sorted(model.items())
        assert_little_waste(blobs)
        most_runs = max(most_runs, len(rows._runs))
    assert most_runs >= 3
    assert dict(stored_rows(sorted(blobs.data.items()))) == model
    assert len(list(blobs.directory.iterdir())) == len(blobs.data) - 1, "a file for each blob but the directory"


def assert_little_waste(blobs: Blobs) -> None:
    """The segments have at most so many times the bytes of the rows that are in them."""
    size = sum(len(data) for number, data in blobs.data.items() if number < DIRECTORY)
    rows = stored_rows(sorted(blobs.data.items()))
    live = sum(8 + len(k) + len(v) for k, v in rows if len(v) > LARGE_BYTES or v.startswith(ELSEWHERE))
    assert size <= SPACE_MAX * live + SEGMENT_BYTES


def test_segments_of_which_little_is_left_are_cleaned(blobs: Blobs) -> None:
    keys = [b"%02d" % number for number in range(40)]
    model = {}
    for number in range(4):
        rows = blobs.opened(*SIZES)
        for place, key in enumerate(keys):
            if place % 5 >= number:  # a segment has five rows, and in the end one of them is left
                model[key] = b"%02d-%d" % (place, number) * 4
                rows.put(key, model[key])
        rows.commit(None)
        rows.close()
        assert blobs.opened(*SIZES).rows(None, None) == sorted(model.items())
        assert_little_waste(blobs)


def filled(blobs: Blobs, count: int) -> None:
    rows = blobs.opened(TABLE_BYTES)
    for number in range(count):
        rows.put(b"%04d" % number, b"value")
    rows.commit(None)


def test_a_commit_writes_what_has_changed_and_rarely_more(blobs: Blobs) -> None:
    rows = blobs.opened()
    for number in range(20_000):
        rows.put(b"%05d" % number, b"value")
    rows.commit(None)
    blobs.written_bytes = blobs.directory_bytes = 0
    for number in range(256):
        rows = blobs.opened()
        for place in range(20):
            key = b"%05d" % ((number * 20 + place) * 7919 % 20_000)
            assert rows.get(key) == b"value"
            rows.put(key, b"other")
        rows.commit(None)
        rows.close()
    # Each merge at least doubles a run, so a row is written at most 1 + log2(256) times. A table has 4 bytes and 10
    # bits beside a row of 18 bytes, and at least 80 bytes.
    assert blobs.written_bytes - blobs.directory_bytes < 256 * 9 * (20 * 24 + 80)
    assert blobs.directory_bytes < 256 * 500


def test_the_tables_of_a_store_are_files_that_are_read_without_spark(blobs: Blobs) -> None:
    filled(blobs, 200)
    blobs.read_numbers.clear()
    rows = blobs.opened(TABLE_BYTES)
    assert [rows.get(b"%04d" % number) for number in range(201)] == [b"value"] * 200 + [None]
    assert blobs.read_numbers == [DIRECTORY]


def test_tables_that_the_machine_does_not_have_are_read_once(blobs: Blobs) -> None:
    filled(blobs, 200)
    rmtree(blobs.directory)
    blobs.read_numbers.clear()
    for _ in range(2):
        assert len(blobs.opened(TABLE_BYTES).rows(None, None)) == 200
    tables = [number for number in blobs.data if number != DIRECTORY]
    assert sorted(blobs.read_numbers) == [DIRECTORY, DIRECTORY, *tables]


def test_a_batch_that_only_reads_writes_nothing(blobs: Blobs) -> None:
    filled(blobs, 20)
    blobs.written_numbers.clear()
    rows = blobs.opened(TABLE_BYTES)
    assert rows.get(b"0003") == b"value"
    rows.commit(None)
    assert blobs.written_numbers == []


def test_tables_without_rows_are_removed(blobs: Blobs) -> None:
    filled(blobs, 200)
    rows = blobs.opened(TABLE_BYTES)
    rows.delete_range(b"", b"\xff")
    rows.commit(None)
    assert list(blobs.data) == [DIRECTORY]
    assert blobs.opened(TABLE_BYTES).rows(None, None) == []
    assert list(blobs.directory.iterdir()) == []


def test_an_update_of_large_rows_writes_them_together_and_reads_files(blobs: Blobs) -> None:
    keys = with_large_rows(blobs)
    blobs.written_numbers.clear()
    blobs.read_numbers.clear()
    again = blobs.opened()
    for key in keys[::10]:
        assert again.get(key) == key * 100
        again.put(key, b"w" * 1000)
    again.commit(None)
    assert sum(number < DIRECTORY for number in blobs.written_numbers) == 1
    assert not any(number < DIRECTORY for number in blobs.read_numbers)
    assert blobs.opened().get(b"0040") == b"w" * 1000


def test_a_segment_that_the_machine_does_not_have_is_read_once(blobs: Blobs) -> None:
    keys = with_large_rows(blobs)
    rmtree(blobs.directory)
    for _ in range(2):
        rows = blobs.opened()
        assert [rows.get(key) for key in keys] == [key * 100 for key in keys]
        rows.close()
    assert [number for number in blobs.read_numbers if number < DIRECTORY] == [-1]


@pytest.mark.parametrize("torn", [b"", b"torn"])
def test_files_that_something_has_cut_are_read_again_from_spark(blobs: Blobs, torn: bytes) -> None:
    keys = with_large_rows(blobs)
    files = list(blobs.directory.iterdir())
    assert len(files) == 2, "a segment and a table"
    for file in files:
        file.write_bytes(torn)
    assert blobs.opened().rows(None, None) == [(key, key * 100) for key in keys]
    assert all(file.stat().st_size > 1000 for file in files)


def test_a_disk_that_takes_no_file_is_an_error_that_names_it(blobs: Blobs) -> None:
    blobs.directory.write_bytes(b"")
    rows = blobs.opened()
    rows.put(b"key", b"v" * 1000)
    with pytest.raises(StreamsError, match=r"cannot be written: .*spark.local.dir"):
        rows.commit(None)


def test_a_store_of_the_format_with_pages_is_refused(blobs: Blobs) -> None:
    blobs.data[DIRECTORY] = pack_rows(((b"", b""), (b"", b"")))
    with pytest.raises(StreamsError, match=r"in the format 1, and this Penstock reads format 2.*--to local"):
        blobs.opened()


@pytest.mark.parametrize("number", [-1, 1])
def test_a_blob_that_spark_has_lost_or_cut_is_an_error(blobs: Blobs, number: int) -> None:
    keys = with_large_rows(blobs)
    rmtree(blobs.directory)
    whole = blobs.data.pop(number)
    with pytest.raises(StreamsError, match=f"Blob {number} of a store is not in Spark's state, whose directory"):
        blobs.opened().get(keys[0])
    blobs.data[number] = whole[:-1]
    with pytest.raises(StreamsError, match=f"Blob {number} of a store has {len(whole) - 1} bytes in place of"):
        blobs.opened().get(keys[0])


def with_large_rows(blobs: Blobs) -> list[bytes]:
    """Write large rows, and return their keys."""
    rows = blobs.opened()
    keys = [b"%04d" % number for number in range(1000)]
    for key in keys:
        rows.put(key, key * 100)
    rows.commit(None)
    return keys
