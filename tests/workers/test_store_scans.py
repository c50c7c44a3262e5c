"""Open scans of a stream thread: limits, readers that are gone, and tasks that close."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from penstock import InvalidStateStoreError, Serdes
from penstock.statestore.view.spelling import BadKeyError
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.workers.control.messages import ReadScan, ReadStore
from penstock.workers.queries.store_answers import ScanRead
from penstock.workers.queries.store_scans import (
    SCANS_MAX,
    UNREAD_SECONDS,
    OpenScans,
    ScansFullError,
    columns_read,
)
from tests.statestore.support import OpenStore

ROWS = 100_000
SCHEMA = pa.schema([("key", pa.string()), ("value", pa.int64())])
COLUMNS = SCHEMA.serialize().to_pybytes()


@pytest.fixture
def opened(tmp_path: Path) -> OpenStore:
    of = StoreBuilder("counts", StoreKind.KEY_VALUE, Serdes.string(), Serdes.int64())
    opened = OpenStore(of, tmp_path)
    for number in range(ROWS):
        opened.store.put(f"{number:06}", number)
    opened.commit()
    return opened


def request(scan: int, **more: str) -> ReadStore:
    return ReadStore(0, "counts", columns=COLUMNS, scan=scan, **more)  # type: ignore[arg-type]


def values(read: ScanRead | None) -> list[int]:
    assert read is not None
    batches = [pa.ipc.read_record_batch(pa.py_buffer(batch), SCHEMA) for batch in read.batches]
    return [value for batch in batches for value in batch.column("value").to_pylist()]


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_scan_is_read_in_parts_and_closed_at_its_end(opened: OpenStore) -> None:
    scans = OpenScans()
    scans.open(request(7), opened.store, opened.store)
    found, parts, has_more = [], 0, True
    while has_more:
        read = scans.read(ReadScan(0, 7))
        assert read is not None
        found += values(read)
        has_more, parts = read.has_more, parts + 1
        assert sum(map(len, read.batches)) < 2 << 20
    assert found == list(range(ROWS))
    assert parts > 2
    assert len(scans) == 0
    assert scans.read(ReadScan(0, 7)) is None
    opened.store.close()


def test_rows_of_small_tasks_come_together(opened: OpenStore) -> None:
    scans = OpenScans()
    for first, last in (("000000", "000001"), ("000005", "000005"), ("1", "2")):
        scans.open(request(1, key_from=first, key_to=last), opened.store, opened.store)
    read = scans.read(ReadScan(0, 1))
    assert values(read) == [0, 1, 5]
    assert read is not None
    assert not read.has_more
    opened.store.close()


def test_another_process_answers_for_a_global_store(opened: OpenStore) -> None:
    scans = OpenScans()
    scans.open(request(1, key_from="000001", key_to="000001"), opened.store, opened.store)
    assert scans.read(ReadScan(0, 1, os.getpid() + 1)) is None
    assert values(scans.read(ReadScan(0, 1, os.getpid()))) == [1]
    opened.store.close()


def test_a_scan_of_a_closed_store_is_an_error_and_not_a_part(opened: OpenStore) -> None:
    scans = OpenScans()
    scans.open(request(1), opened.store, opened.store)
    assert values(scans.read(ReadScan(0, 1)))
    opened.store.close()
    with pytest.raises(InvalidStateStoreError, match="A task of counts has moved while it was read"):
        scans.read(ReadScan(0, 1))
    assert len(scans) == 0


def test_scans_without_a_reader_are_closed(opened: OpenStore) -> None:
    clock = Seconds()
    scans = OpenScans(clock)
    scans.open(request(1), opened.store, opened.store)
    clock.now = UNREAD_SECONDS
    scans.open(request(2), opened.store, opened.store)
    scans.end_unread()
    assert len(scans) == 2
    clock.now += 1
    scans.end_unread()
    assert len(scans) == 1
    assert scans.read(ReadScan(0, 1)) is None
    assert values(scans.read(ReadScan(0, 2)))
    scans.end(2)
    scans.end(2)
    assert len(scans) == 0
    opened.store.close()


def test_only_so_many_scans_are_open(opened: OpenStore) -> None:
    scans = OpenScans()
    for number in range(SCANS_MAX):
        scans.open(request(number), opened.store, opened.store)
    scans.open(request(0), opened.store, opened.store)  # another task of the same scan
    with pytest.raises(ScansFullError, match=f"{SCANS_MAX} scans of stores are open already"):
        scans.open(request(SCANS_MAX), opened.store, opened.store)
    opened.store.close()


def test_bounds_must_fit_the_store(opened: OpenStore) -> None:
    with pytest.raises(BadKeyError, match="time_from= and time_to= are for window and session stores"):
        OpenScans().open(ReadStore(0, "counts", columns=COLUMNS, time_from=1), opened.store, opened.store)
    opened.store.close()


def test_columns_of_no_task_are_not_known(opened: OpenStore) -> None:
    assert columns_read([]) is None
    found = columns_read([opened.store, opened.store])
    assert found is not None
    assert pa.ipc.read_schema(pa.py_buffer(found.schema)).names == ["key", "value"]
    assert (found.key_order, found.sessions) == ("string", False)
    opened.store.close()
