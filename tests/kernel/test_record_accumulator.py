"""Record batches that the kernel builds, read by kafka-python and by the kernel's own reader."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from penstock.kernel.record_accumulator import RecordAccumulator
from penstock.kernel.record_batches import RecordBatches, origin_of
from penstock.topology.context.partitioners import partition_for_key

TOPIC = "topic"
PARTITIONS = 4
DECIDES = -1
NOW_MS = 1_795_000_000_000
_CODEC_AT, _PAST_HEADER = 22, 61

Record = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]
DATA = st.none() | st.binary(max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=10)), max_size=3)
RECORDS = st.lists(st.tuples(DATA, DATA, st.integers(0, 2**62), HEADERS), min_size=1, max_size=40)


class Accumulated:
    """An accumulator whose batches are collected as they are closed."""

    def __init__(self, batch_bytes: int = 1_000, record_bytes: int = 5_000, seed: int = 0) -> None:
        self.closed: list[tuple[int, Any]] = []
        self.all: list[Any] = []
        self.accumulator = RecordAccumulator(batch_bytes, record_bytes, self._close, lambda: NOW_MS, seed)
        self.all += self.accumulator.know(TOPIC, PARTITIONS)

    def _close(self, records: Any) -> None:
        self.closed.append((records.index, records.close()))

    def offer(self, key: Any, value: Any = b"v", timestamp: int | None = 5, headers: Any = None, to: int = -1) -> bool:
        return bool(self.accumulator.offer(TOPIC, to, key, value, timestamp, headers))

    def close_all(self) -> list[tuple[int, Any]]:
        """Return (partition, batch) of all batches, in order within a partition."""
        for records in self.all:
            if records.growing is not None:
                self._close(records)
        return self.closed


def sealed(batch: Any, codec: str = "none", stamp: tuple[int, int, int, bool] = (-1, -1, -1, False)) -> bytes:
    batch.pack(codec)
    return bytes(batch.sealed(*stamp))


def decoded(data: bytes) -> list[Record]:
    """Return the records of a batch as kafka-python reads them; its checksum must fit."""
    batch = DefaultRecordBatch(data)
    assert batch.validate_crc()
    return [(r.key, r.value, r.timestamp, [(name, value) for name, value in r.headers]) for r in batch]


@given(records=RECORDS, codec=st.sampled_from(["none", "gzip", "lz4", "snappy", "zstd"]))
def test_records_survive_a_round_trip(records: list[Record], codec: str) -> None:
    accumulated = Accumulated(batch_bytes=700)
    for key, value, timestamp, headers in records:
        assert accumulated.offer(key, value, timestamp, headers, to=1)
    batches = [sealed(batch, codec) for _, batch in accumulated.close_all()]
    if codec not in ("snappy", "zstd"):  # for which kafka-python has no library here
        assert [record for data in batches for record in decoded(data)] == records
    origin = origin_of(TOPIC, 1)
    log = b"".join(batches)
    found: list[Any] = []
    RecordBatches(origin, log, 0, len(log), 0, None, True).take(found, len(records))
    assert [(m.key(), m.value(), m.timestamp()[1], m.headers() or []) for m in found] == records


def test_the_fields_of_the_header() -> None:
    accumulated = Accumulated()
    for timestamp in (50, 40, 70):
        accumulated.offer(b"k", b"v", timestamp, to=0)
    ((_, batch),) = accumulated.close_all()
    assert batch.count == 3
    found = DefaultRecordBatch(sealed(batch, "lz4", (123_456_789_012, 5, 2_000_000_000, True)))
    assert found.compression_type == DefaultRecordBatch.CODEC_LZ4
    assert (found.base_offset, found.magic, found.last_offset_delta) == (0, 2, 2)
    assert (found.first_timestamp, found.max_timestamp) == (50, 70)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (123_456_789_012, 5, 2_000_000_000)
    assert found.is_transactional
    assert not found.is_control_batch
    again = DefaultRecordBatch(
        sealed(batch, "lz4", (1, 0, 0, False))
    )  # it was purged, and the space is used for another record
    assert again.validate_crc()
    assert (again.producer_id, again.base_sequence) == (1, 0)
    assert not again.is_transactional


def test_lz4_blocks_are_independent() -> None:
    """Java's reader accepts no others."""
    accumulated = Accumulated(batch_bytes=200_000, record_bytes=200_000)
    for number in range(2_000):
        accumulated.offer(b"%d" % number, b"value " * 10, to=0)
    data = sealed(accumulated.close_all()[0][1], "lz4")
    flags = data[_PAST_HEADER + 4]
    assert flags & 0b0010_0000, "the frame says that its blocks are linked"
    assert len(decoded(data)) == 2_000


@given(key=st.binary(max_size=40), partitions=st.integers(1, 300))
def test_a_keys_partition_is_that_of_java(key: bytes, partitions: int) -> None:
    closed: list[int] = []
    accumulator = RecordAccumulator(1_000, 1_000, lambda records: closed.append(records.index), lambda: 0)
    made = accumulator.know(TOPIC, partitions)
    assert accumulator.offer(TOPIC, DECIDES, key, b"v", 1, None)
    assert [records.index for records in made if records.growing is not None] == [partition_for_key(key, partitions)]


def test_records_without_keys_stay_together_until_a_batch_is_closed() -> None:
    accumulated = Accumulated(batch_bytes=300, seed=2)
    for _ in range(100):
        assert accumulated.offer(None, b"x" * 20)
    order = [index for index, _ in accumulated.close_all()]
    assert order[:6] == [2, 3, 0, 1, 2, 3]
    assert max(Counter(order).values()) - min(Counter(order).values()) <= 1


def test_batches_keep_their_maximum_size() -> None:
    accumulated = Accumulated(batch_bytes=1_000, record_bytes=1_200)
    pick = random.Random(3)
    for number in range(300):
        assert accumulated.offer(b"%d" % number, b"x" * pick.randrange(200), to=0)
    sizes = [batch.size for _, batch in accumulated.close_all()]
    assert all(size <= 1_000 for size in sizes)
    assert min(sizes[:-1]) > 750, "a batch was closed that had room"
    assert [len(sealed(batch)) for _, batch in accumulated.closed] == sizes
    assert [batch.packed_size for _, batch in accumulated.closed] == sizes


def test_a_record_may_be_larger_than_a_batch_but_not_than_a_request() -> None:
    accumulated = Accumulated(batch_bytes=500, record_bytes=1_000)
    over = _PAST_HEADER + 2 + 8 + 1  # header, length, the record's other fields; one more byte is too many
    assert accumulated.offer(None, b"x" * (500 - over), to=0)
    assert not accumulated.offer(None, b"x" * 1_000, to=0)
    assert accumulated.offer(None, b"y", to=0), "what came before and comes after is taken"
    assert [batch.count for _, batch in accumulated.close_all()] == [1, 1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("other", DECIDES, b"k", b"v", 1, None), "a topic that is not known"),
        ((TOPIC, PARTITIONS, b"k", b"v", 1, None), "a partition that there is not"),
        ((TOPIC, -2, b"k", b"v", 1, None), "none at all"),
        ((TOPIC, 0, "ключ", b"v", 1, None), "a text that is not its own bytes"),
        ((TOPIC, 0, b"k", "v", 1, None), "a value that is not serialized"),
    ],
)
def test_refused_records(arguments: tuple[Any, ...], why: str) -> None:
    accumulated = Accumulated()
    assert not accumulated.accumulator.offer(*arguments), why
    assert not accumulated.close_all()


def test_invalid_headers_are_refused_and_leave_nothing_behind() -> None:
    accumulated = Accumulated()
    with pytest.raises(TypeError):
        accumulated.offer(b"k", headers=[("h", 5)], to=0)
    assert accumulated.offer(b"k", headers=[("h", "text"), ("n", None)], to=0)
    ((_, batch),) = accumulated.close_all()
    assert decoded(sealed(batch)) == [(b"k", b"v", 5, [("h", b"text"), ("n", None)])]


def test_times() -> None:
    accumulated = Accumulated()
    for timestamp in (None, 0, 2**62):
        assert accumulated.offer("k", timestamp=timestamp, to=0)
    ((_, batch),) = accumulated.close_all()
    assert [record[2] for record in decoded(sealed(batch))] == [NOW_MS, 0, 2**62]


def test_partitions_that_are_added_are_used() -> None:
    accumulated = Accumulated()
    assert [records.index for records in accumulated.accumulator.know(TOPIC, PARTITIONS + 2)] == [4, 5]
    assert accumulated.accumulator.partition_count(TOPIC) == 6
    assert accumulated.accumulator.partition_count("other") == 0
    assert accumulated.offer(b"k", to=5)


def test_removed_partitions_are_not_used_until_they_return() -> None:
    accumulated = Accumulated()
    assert not accumulated.accumulator.know(TOPIC, 2)
    assert accumulated.accumulator.partition_count(TOPIC) == 2
    assert not accumulated.offer(b"k", to=2)
    for number in range(20):
        assert accumulated.offer(b"%d" % number)
        assert accumulated.offer(None)
    assert {index for index, _ in accumulated.close_all()} == {0, 1}
    assert not accumulated.accumulator.know(TOPIC, PARTITIONS)
    assert accumulated.offer(b"k", to=2)


def test_the_start_of_a_batch_is_reported_once() -> None:
    accumulated = Accumulated(batch_bytes=200)
    for _ in range(10):
        accumulated.offer(b"k", b"x" * 50, to=3)
    begun = accumulated.accumulator.begun
    assert [records.index for records in begun] == [3] * begun[0].number
    assert begun[0].topic == TOPIC
    assert len(accumulated.close_all()) == begun[0].number
