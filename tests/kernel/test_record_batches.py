"""Record batches and responses encoded by kafka-python are read correctly; any other bytes are refused."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import cramjam
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchResponse as KafkaPythonFetchResponse
from lz4.frame import LZ4FrameDecompressor

from penstock.clients.protocol.api import correlation_id as correlation_id_of
from penstock.kernel import compression
from penstock.kernel.messages import decode_text
from penstock.kernel.nodes import PythonNode, RecordContext, Source
from penstock.kernel.record_batches import (
    CorruptRecordsError,
    FetchResponse,
    LargeRecordError,
    RecordBatches,
    UnknownFormatError,
    origin_of,
)
from tests.examples import examples
from tests.record_bytes import (
    APPEND_TIME,
    GZIP,
    LZ4,
    NONE,
    SNAPPY,
    TOPIC_ID,
    ZSTD,
    Given,
    GivenAnswer,
    GivenBatch,
    GivenResponse,
    control_batch,
    encoded,
    encoded_log,
    encoded_response,
    framed,
    many,
    size_in_offsets,
    with_records,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

pytestmark = pytest.mark.medium

TEXTS = st.one_of(st.none(), st.binary(max_size=12), st.text(max_size=6).map(str.encode))
RECORDS = st.builds(
    Given,
    key=TEXTS,
    value=st.one_of(TEXTS, st.binary(min_size=100, max_size=300)),
    timestamp=st.integers(0, 1 << 45),
    headers=st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3),
    gap=st.sampled_from([0, 0, 0, 1, 200]),
)
BATCHES = st.lists(
    st.builds(
        GivenBatch,
        records=st.lists(RECORDS, min_size=1, max_size=8),
        codec=st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD]),
        more_attributes=st.sampled_from([0, APPEND_TIME]),
        epoch=st.integers(0, 1 << 20),
        behind=st.sampled_from([0, 3]),
    ),
    max_size=5,
)
ONE = GivenBatch([Given(b"a", b"1"), Given(b"b", b"2")])


def opened(data: bytes, offset: int = 0, aborted: Any = None, texts: bool = False, checked: bool = True) -> Any:
    origin = origin_of("in", 7)
    if texts:
        read_as_texts(origin)
    return RecordBatches(origin, data, 0, len(data), offset, aborted, checked)


def fail(*given: object) -> None:
    pytest.fail(f"a record was not read: {given}")


def read_as_texts(origin: Any) -> None:
    """Let a loop read the keys of this origin as texts once: from then on they are read that way."""
    log = encoded(GivenBatch([Given(b"x")]), 0)
    run: list[Any] = []
    RecordBatches(origin, log, 0, len(log), 0, None, True).take(run, 1)
    keys: list[Any] = []
    task = RecordContext()
    see = PythonNode(task, "see", lambda key, *_: keys.append(key))
    source = Source(task, "source", see, decode_text, False, None, False, None, None, None, fail, fail)
    source.process_batch(run)
    assert keys == ["x"]


def fields(message: Any) -> tuple[Any, ...]:
    place = message.topic(), message.partition(), message.offset()
    return *place, message.key(), message.value(), message.timestamp(), message.headers(), message.error()


def expected(given_batches: list[GivenBatch], start: int) -> list[tuple[Any, ...]]:
    """Return the fields of the messages from an offset on."""
    found, offset = [], 0
    for batch in given_batches:
        latest = max(record.timestamp for record in batch.records)
        for record in batch.records:
            offset += record.gap
            at = (2, latest) if batch.more_attributes & APPEND_TIME else (1, record.timestamp)
            if offset >= start:
                found.append(
                    ("in", 7, offset, record.key, record.value, at, [*map(tuple, record.headers)] or None, None)
                )
            offset += 1
        offset += batch.behind
    return found


@given(BATCHES, st.integers(0, 40), st.lists(st.integers(1, 7), min_size=1, max_size=5), st.booleans(), st.data())
def test_all_records_from_an_offset_on_are_read_in_runs_of_any_size(
    given_batches: list[GivenBatch], start: int, limits: list[int], texts: bool, data: st.DataObject
) -> None:
    log = encoded_log(given_batches)
    cut = data.draw(st.integers(0, 60), label="bytes of a next batch")
    log += encoded(ONE, 10_000)[:cut]
    if not given_batches and cut:
        with pytest.raises(CorruptRecordsError):
            opened(log)
        return
    tested = opened(log, start, texts=texts)
    run: list[Any] = []
    while not tested.finished:
        limit = limits[len(run) % len(limits)]
        before = len(run)
        assert tested.take(run, limit) == len(run) - before <= limit
    assert tested.take(run, 1) == 0
    assert [fields(message) for message in run] == expected(given_batches, start)
    end = sum(map(size_in_offsets, given_batches))
    assert tested.next_offset == (end if given_batches else start)
    assert tested.leader_epoch == (given_batches[-1].epoch if given_batches else -1)


def offsets(data: bytes, aborted: list[tuple[int, int]] | None) -> list[int]:
    run: list[Any] = []
    opened(data, 0, aborted).take(run, 1_000)
    return [message.offset() for message in run]


def test_records_of_aborted_transactions_and_markers_are_left_out() -> None:
    def of(producer_id: int) -> GivenBatch:
        return GivenBatch([Given(), Given()], LZ4, producer_id, True)

    log = encoded_log(
        [
            of(1),  # 0, 1: aborted
            of(2),  # 2, 3: committed
            control_batch(1, 0),  # 4
            of(1),  # 5, 6: another transaction of the same producer, committed
            control_batch(2, 1),  # 7
            GivenBatch([Given()], NONE, 1, False),  # 8: outside of transactions
            control_batch(1, 1),  # 9
            of(2),  # 10, 11: aborted
            control_batch(2, 0),  # 12
        ]
    )
    assert offsets(log, [(2, 10), (1, 0)]) == [2, 3, 5, 6, 8]
    assert offsets(log, []) == [0, 1, 2, 3, 5, 6, 8, 10, 11]
    assert offsets(log, None) == [0, 1, 2, 3, 5, 6, 8, 10, 11]
    assert opened(log).next_offset == 13


def test_a_wrong_checksum_is_reported_after_the_records_before_it() -> None:
    log = bytearray(encoded_log([ONE, ONE, ONE]))
    log[-3] ^= 1
    run: list[Any] = []
    tested = opened(bytes(log))
    assert tested.take(run, 100) == 4
    for _ in range(2):
        with pytest.raises(CorruptRecordsError, match="checksum of the record batch at offset 4"):
            tested.take(run, 100)
    assert len(run) == 4
    assert not tested.finished


def test_formats_that_only_librdkafka_reads_are_reported() -> None:
    packed = bytearray(encoded(ONE, 0))
    struct.pack_into(">h", packed, 21, 5)
    with pytest.raises(UnknownFormatError, match="codec 5"):
        opened(bytes(packed), checked=False).take([], 1)
    old = bytearray(encoded(ONE, 0))
    old[16] = 1
    with pytest.raises(UnknownFormatError, match="message format v1"):
        opened(bytes(old))
    small = bytes(16) + b"\1" + bytes(17)  # less than a batch's header
    with pytest.raises(UnknownFormatError, match="message format v1"):
        opened(small)
    for last in (bytes(old), small):
        tested = opened(encoded(ONE, 0) + last)
        assert (tested.take([], 10), tested.next_offset) == (2, 2)


def test_snappy_frames_with_any_blocks_are_read() -> None:
    plain = encoded(ONE, 0)
    records = plain[61:]
    for blocks in ([records], [records[:5], records[5:]], [bytes([byte]) for byte in records]):
        run: list[Any] = []
        opened(bytes(with_records(plain, SNAPPY, framed(*blocks))), checked=False).take(run, 10)
        assert [message.key() for message in run] == [b"a", b"b"]


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        framed(),
        framed(b"abc")[:-1],
        framed(b"abc") + b"\0\0\0",
        framed(b"abc") + b"\xff\xff\xff\xff",
        b"\xff\xff\xff\xff\x0f\0",  # a block that claims 4 GiB
    ],
    ids=["nothing", "no block", "half a block", "half a length", "less than nothing", "too much"],
)
def test_invalid_snappy_is_refused(packed: bytes) -> None:
    with pytest.raises(CorruptRecordsError):
        opened(bytes(with_records(encoded(ONE, 0), SNAPPY, packed)), checked=False).take([], 1)


CODECS = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD], ids=["gzip", "snappy", "lz4", "zstd"])
NAMES = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
PIECE = 1 << 20


@CODECS
@pytest.mark.parametrize("limit", [1, 3, 100])
def test_records_may_cross_the_boundaries_of_decompressed_pieces(codec: int, limit: int) -> None:
    sizes = [0, PIECE - 70, 1, 100, 5 * PIECE // 2, 10, PIECE - 20, PIECE - 20, 40, PIECE, 3 * PIECE]
    given = GivenBatch([Given(value=random.Random(size).randbytes(size)) for size in sizes], codec)
    tested = opened(encoded_log([given, ONE]))
    run: list[Any] = []
    while not tested.finished:
        tested.take(run, limit)
    assert [fields(message) for message in run] == expected([given, ONE], 0)


FRAMES = pytest.mark.parametrize(
    ("codec", "decoder"),
    [
        ("gzip", compression._Gzip),
        ("lz4", LZ4FrameDecompressor),
        ("zstd", zstd.ZstdDecompressor),
    ],
    ids=["gzip", "lz4", "zstd"],
)


@FRAMES
@pytest.mark.parametrize("size", [0, 1, 300])
def test_many_frames_take_time_in_proportion_to_their_bytes(codec: str, decoder: Callable[[], Any], size: int) -> None:
    """A decoder copies the bytes behind its frame, so it must not get them all."""
    taken = 0

    class Counting:
        def __init__(self) -> None:
            self.real = decoder()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        def decompress(self, data: bytes, max_length: int) -> bytes:
            nonlocal taken
            taken += len(data)
            return bytes(self.real.decompress(data, max_length))

    def taken_bytes(frames: int) -> int:
        nonlocal taken
        taken = 0
        value = random.Random(size).randbytes(size)
        reading = compression._Frames(Counting, compression.CODECS[codec].compress(value) * frames)
        found = 0
        while piece := reading.read(PIECE):
            found += len(piece)
        assert found == size * frames
        return taken

    assert taken_bytes(4_000) < 2.5 * taken_bytes(2_000)


@FRAMES
@pytest.mark.parametrize("limit", [1, 1_000, 1 << 16, PIECE])
def test_frames_of_any_size_follow_each_other(codec: str, decoder: Callable[[], Any], limit: int) -> None:
    sizes = [0, 1, 3_000, 0, 5_000] if limit == 1 else [0, 1, 4_096, 200_000, 0, 70_000, 5]
    values = [random.Random(size).randbytes(size) for size in sizes]
    data = b"".join(bytes(compression.CODECS[codec].compress(value)) for value in values)
    reading = compression._Frames(decoder, data)
    pieces = []
    while piece := reading.read(limit):
        pieces.append(piece)
    assert b"".join(pieces) == b"".join(values)
    assert max(map(len, pieces)) <= limit
    assert reading.read(limit) == b""


#: Reads a batch that expands to 512 MB, and prints how many records there were and how many MB it took.
READS_MANY = """
import resource, sys
from penstock.kernel.record_batches import RecordBatches, origin_of
log = sys.stdin.buffer.read()
tested = RecordBatches(origin_of("in", 0), log, 0, len(log), 0, None, True)
before, count = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
while not tested.finished:
    count += tested.take([], 100)
print(count, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@CODECS
def test_a_batch_takes_little_memory_even_if_it_expands_to_many_bytes(codec: int) -> None:
    log = many(Given(value=bytes(1_000_000)), 512, codec)
    found = subprocess.run([sys.executable, "-c", READS_MANY], input=log, capture_output=True, check=True).stdout
    count, megabytes = map(int, found.split())
    assert count == 512
    assert megabytes < 200  # of which 100 are the records of one run


def test_a_run_ends_when_its_records_have_enough_bytes() -> None:
    tested = opened(many(Given(value=bytes(1_000_000)), 10, ZSTD))
    run: list[Any] = []
    assert (tested.take(run, 100, 2_500_000), tested.taken_bytes // 1_000_000) == (3, 3)
    assert (tested.take(run, 100, 1), tested.taken_bytes // 1_000_000) == (1, 1)
    assert (tested.take(run, 100), tested.taken_bytes // 1_000_000) == (6, 6)


def limited(log: bytes, largest: int) -> Any:
    return RecordBatches(origin_of("in", 7), log, 0, len(log), 0, None, False, largest)


@CODECS
def test_a_record_above_the_limit_is_refused_after_the_records_before_it(codec: int) -> None:
    values = [bytes(10_000), bytes(2_500_000), b"never read"]
    log = encoded(GivenBatch([Given(value=value) for value in values], NONE), 40)
    log = bytes(with_records(log, codec, compression.CODECS[NAMES[codec]].compress(log[61:])))
    run: list[Any] = []
    tested = limited(log, 2_499_999)
    assert tested.take(run, 100) == 1
    for _ in range(2):
        says = r"batch at offset 40 decompresses to a record of 2,500,0\d\d bytes; the limit is 2,499,999 bytes"
        with pytest.raises(LargeRecordError, match=says):
            tested.take(run, 100)
    assert limited(log, 2_500_100).take(run, 100) == 3


def test_a_snappy_block_above_the_limit_is_refused() -> None:
    """librdkafka writes a single block, which cannot be decompressed in pieces."""
    log = encoded(GivenBatch([Given(value=bytes(1000))] * 1000, SNAPPY), 7)
    says = r"batch at offset 7 decompresses to a snappy block of 1,009,936 bytes; the limit is 1,000,000 bytes"
    with pytest.raises(LargeRecordError, match=says):
        limited(log, 1_000_000).take([], 1)
    assert limited(log, 2_000_000).take([], 2_000) == 1_000


#: Has memory for 64 MB more than now, and reads a batch that needs 200 MB at once.
READS_TOO_MUCH = """
import resource, sys
from penstock.kernel.record_batches import LargeRecordError, RecordBatches, origin_of
log = sys.stdin.buffer.read()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), -1))
try:
    RecordBatches(origin_of("in", 0), log, 0, len(log), 0, None, True).take([], 100)
except LargeRecordError as error:
    print(error)
"""


@CODECS
def test_too_little_memory_is_an_error_and_does_not_end_the_process(codec: int) -> None:
    log = encoded(GivenBatch([Given(value=bytes(200_000_000))], codec), 11)
    found = subprocess.run([sys.executable, "-c", READS_TOO_MUCH], input=log, capture_output=True, check=True).stdout
    assert found.startswith(b"the record batch at offset 11 decompresses to more bytes than there is memory for"), found


def take_all(tested: Any, run: list[Any]) -> None:
    while not tested.finished:
        tested.take(run, 4)


@CODECS
def test_damage_in_a_later_piece_is_reported_after_the_records_before_it(codec: int) -> None:
    values = [random.Random(seed).randbytes(200_000) for seed in range(20)]
    given = GivenBatch([Given(value=value) for value in values], NONE)
    plain = encoded(given, 90)
    packed = compression.CODECS[NAMES[codec]].compress(plain[61:])
    for broken in (packed[: len(packed) * 3 // 4], packed[: len(packed) * 3 // 4] + b"\xff" * (len(packed) // 4)):
        run: list[Any] = []
        tested = opened(bytes(with_records(plain, codec, broken)), checked=False)
        for _ in range(2):
            with pytest.raises(CorruptRecordsError, match="batch at offset 90"):
                take_all(tested, run)
        assert 5 <= len(run) < 20
        assert [message.value() for message in run[:5]] == values[:5]


def test_an_endless_length_is_refused_quickly() -> None:
    """It is 300 MB of 0xff, compressed to 30 KB."""
    plain = encoded(ONE, 0)
    packer = cramjam.zstd.Compressor()
    for _ in range(300):
        packer.compress(b"\xff" * 1_000_000)
    log = bytes(with_records(plain, ZSTD, bytes(packer.finish())))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordsError, match="batch at offset 0 has a wrong length"):
            opened(log, checked=False).take([], 1)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@settings(max_examples=examples(500))
@given(st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), st.binary(max_size=200), st.booleans())
def test_any_bytes_are_decompressed_or_refused(codec: int, packed: bytes, is_begun: bool) -> None:
    """is_begun: after the correct first bytes, so that a codec does not refuse them at once."""
    begins = {GZIP: b"\x1f\x8b\x08", SNAPPY: framed(), LZ4: b"\x04\x22\x4d\x18", ZSTD: b"\x28\xb5\x2f\xfd"}
    data = bytes(with_records(encoded(ONE, 0), codec, (begins[codec] if is_begun else b"") + packed))
    run: list[Any] = []
    with suppress(CorruptRecordsError):
        opened(data, checked=False).take(run, 10)
    for message in run:
        fields(message)


def test_fewer_bytes_than_announced_are_refused() -> None:
    log = encoded(ONE, 0)
    with pytest.raises(CorruptRecordsError, match="too short for"):
        RecordBatches(origin_of("in", 0), log, 1, len(log), 0, None, True)


@settings(max_examples=examples(300))
@given(BATCHES.filter(bool), st.integers(0, 1 << 30), st.booleans())
def test_damaged_bytes_give_errors_or_records_and_nothing_else(
    given_batches: list[GivenBatch], seed: int, texts: bool
) -> None:
    """Checksums are off, so that damaged bytes are read. A sanitizer or valgrind shows reads beyond the end."""
    log, chance = bytearray(encoded_log(given_batches)), random.Random(seed)
    for _ in range(chance.randrange(1, 4)):
        log[chance.randrange(len(log))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    data = bytes(log[: chance.randrange(1, len(log) + 1)])
    run: list[Any] = []
    try:
        tested = opened(data, texts=texts, checked=False)
        for _ in range(1_000):
            if tested.finished:
                break
            tested.take(run, 50)
    except (CorruptRecordsError, UnknownFormatError):
        pass
    for message in run:
        fields(message)


ANSWERS = st.lists(
    st.builds(
        GivenAnswer,
        partition=st.integers(0, 1 << 20),
        error=st.integers(-1, 120),
        high_watermark=st.integers(-1, 1 << 60),
        last_stable_offset=st.integers(0, 1 << 60),
        aborted=st.one_of(st.none(), st.lists(st.tuples(st.integers(0, 1 << 60), st.integers(0, 1 << 60)), max_size=3)),
        preferred_replica=st.integers(-1, 1 << 30),
        records=st.one_of(st.none(), st.binary(max_size=200)),
        leader=st.one_of(st.none(), st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 30))),
        diverging=st.one_of(st.none(), st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 60))),
        topic=st.sampled_from(["in", "other", "a" * 200]),
    ),
    max_size=6,
)


@given(
    st.builds(
        GivenResponse,
        ANSWERS,
        error=st.integers(-1, 120),
        throttle_ms=st.integers(0, 1 << 30),
        session_id=st.integers(0, 1 << 30),
        ids=st.just({"in": TOPIC_ID, "other": UUID(int=1), "a" * 200: UUID(int=2)}),
    ),
    st.integers(0, 1 << 30),
    st.sampled_from(range(12, 18)),
)
def test_a_response_is_read_correctly(response: GivenResponse, correlation_id: int, version: int) -> None:
    data = encoded_response(response, correlation_id, version)
    answer = FetchResponse(data, version)
    assert (correlation_id_of(data), answer.throttle_time_ms, answer.error, answer.session_id) == (
        correlation_id,
        response.throttle_ms,
        response.error,
        response.session_id,
    )
    meant = sorted(response.partitions, key=lambda p: [q.topic for q in response.partitions].index(p.topic))
    for found, given_answer in zip(answer.partitions, meant, strict=True):
        topic = given_answer.topic if version == 12 else response.ids[given_answer.topic].bytes
        assert (found.topic, found.partition, found.error) == (
            topic,
            given_answer.partition,
            given_answer.error,
        )
        assert found.high_watermark == given_answer.high_watermark
        assert found.last_stable_offset == given_answer.last_stable_offset
        assert found.aborted == given_answer.aborted
        assert found.preferred_replica == given_answer.preferred_replica
        assert data[found.start : found.start + found.size] == (given_answer.records or b"")
        assert (found.leader, found.leader_epoch) == (given_answer.leader or (-1, -1))
        assert found.diverging_offset == (given_answer.diverging or (-1, -1))[1]


def test_a_truncated_response_is_refused() -> None:
    response = GivenResponse([GivenAnswer(aborted=[(1, 2)], records=b"abc", leader=(1, 2), diverging=(3, 4))])
    for version in (12, 13, 17):
        data = encoded_response(response, 1, version)
        assert KafkaPythonFetchResponse.decode(data[5:], version=version).responses[0].partitions[0].records == b"abc"
        for size in range(len(data) - 1):
            with pytest.raises(ValueError, match=r"ends too early|does not end|an empty response"):
                FetchResponse(data[:size], version)


@settings(max_examples=examples(300))
@given(st.binary(max_size=120), st.sampled_from(range(12, 18)))
def test_any_bytes_are_a_response_or_refused(data: bytes, version: int) -> None:
    with suppress(ValueError):
        FetchResponse(data, version)
