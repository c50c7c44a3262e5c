"""Record batches and Fetch responses encoded by kafka-python, which the kernel must be able to read."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import cramjam
import lz4.frame
from crc32c import crc32c
from kafka.protocol.consumer import FetchResponse
from kafka.record.default_records import DefaultRecordBatchBuilder

Header = tuple[str, bytes | None]
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
APPEND_TIME, CONTROL = 8, 32
_LENGTH_AT, _ATTRIBUTES_AT, _CRC_AT, _PAST_CRC, _RECORDS_AT = 8, 21, 17, 21, 61
_LAST_OFFSET_DELTA_AT, _COUNT_AT = 23, 57
#: Codecs for which kafka-python has no library here.
_COMPRESS: dict[int, Callable[[Any], Any]] = {SNAPPY: cramjam.snappy.compress_raw, ZSTD: cramjam.zstd.compress}


@dataclass(frozen=True)
class Given:
    """A record. gap: the number of compacted offsets before it."""

    key: bytes | None = None
    value: bytes | None = b"value"
    timestamp: int = 1_700_000_000_000
    headers: Sequence[Header] = ()
    gap: int = 0


@dataclass(frozen=True)
class GivenBatch:
    """A record batch. more_attributes: APPEND_TIME, CONTROL. behind: the number of compacted offsets at its end."""

    records: Sequence[Given]
    codec: int = NONE
    producer_id: int = -1
    is_transactional: bool = False
    more_attributes: int = 0
    epoch: int = 3
    behind: int = 0


def control_batch(producer_id: int, kind: int) -> GivenBatch:
    """Return a transaction marker; kind: 0 aborts, 1 commits."""
    record = Given(key=struct.pack(">hh", 0, kind), value=b"\0" * 6)
    return GivenBatch([record], NONE, producer_id, True, CONTROL)


def encoded(batch: GivenBatch, base_offset: int) -> bytes:
    """Return a batch's bytes."""
    codec = NONE if batch.codec in _COMPRESS else batch.codec
    builder = DefaultRecordBatchBuilder(2, codec, batch.is_transactional, batch.producer_id, 0, 0, 1 << 30)
    offset = -1
    for record in batch.records:
        offset += 1 + record.gap
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    made = bytearray(builder.build())
    if batch.codec in _COMPRESS:
        made = with_records(made, batch.codec, bytes(_COMPRESS[batch.codec](made[_RECORDS_AT:])))
    struct.pack_into(">q", made, 0, base_offset)
    struct.pack_into(">i", made, 12, batch.epoch)
    (attributes,) = struct.unpack_from(">h", made, _ATTRIBUTES_AT)
    struct.pack_into(">hi", made, _ATTRIBUTES_AT, attributes | batch.more_attributes, offset + batch.behind)
    return with_checksum(made)


def with_records(batch: bytes | bytearray, codec: int, records: bytes) -> bytearray:
    """Return a batch with its compressed records replaced; its checksum is not updated."""
    made = bytearray(batch[:_RECORDS_AT]) + records
    struct.pack_into(">i", made, _LENGTH_AT, len(made) - 12)
    struct.pack_into(">h", made, _ATTRIBUTES_AT, codec)
    return made


def with_checksum(batch: bytearray) -> bytes:
    """Return a batch with a correct checksum."""
    struct.pack_into(">I", batch, _CRC_AT, crc32c(bytes(batch[_PAST_CRC:])))
    return bytes(batch)


def many(record: Given, count: int, codec: int) -> bytes:
    """Return a batch of many equal records, whose uncompressed bytes are never in memory as a whole."""
    one = encoded(GivenBatch([record]), 0)
    packed = bytearray(with_records(one, codec, _packed(one[_RECORDS_AT:], count, codec)))
    struct.pack_into(">i", packed, _LAST_OFFSET_DELTA_AT, count - 1)
    struct.pack_into(">i", packed, _COUNT_AT, count)
    return with_checksum(packed)


def framed(*blocks: bytes) -> bytes:
    """Return snappy blocks framed as by Java: a header, and the length before each block."""
    packed = [bytes(cramjam.snappy.compress_raw(block)) for block in blocks]
    return b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + b"".join(len(block).to_bytes(4, "big") + block for block in packed)


def _packed(record: bytes, count: int, codec: int) -> bytes:
    if codec == SNAPPY:
        return framed(*[record] * count)
    if codec == ZSTD:
        packer = cramjam.zstd.Compressor()
        for _ in range(count):
            packer.compress(record)
        return bytes(packer.finish())
    made: Any = zlib.compressobj(wbits=zlib.MAX_WBITS | 16) if codec == GZIP else lz4.frame.LZ4FrameCompressor()
    begun = [made.begin()] if codec == LZ4 else []
    return b"".join([*begun, *(made.compress(record) for _ in range(count)), made.flush()])


def size_in_offsets(batch: GivenBatch) -> int:
    """Return the number of offsets in a batch."""
    return sum(1 + record.gap for record in batch.records) + batch.behind


def encoded_log(batches: Sequence[GivenBatch], base_offset: int = 0) -> bytes:
    """Return several batches, one after the other."""
    parts, offset = [], base_offset
    for batch in batches:
        parts.append(encoded(batch, offset))
        offset += size_in_offsets(batch)
    return b"".join(parts)


@dataclass
class GivenAnswer:
    """A partition's part of a response."""

    partition: int = 0
    error: int = 0
    high_watermark: int = 0
    last_stable_offset: int = -1
    aborted: list[tuple[int, int]] | None = None
    preferred_replica: int = -1
    records: bytes | None = b""
    leader: tuple[int, int] | None = None
    diverging: tuple[int, int] | None = None
    topic: str = "in"


#: The topic's id in responses since version 13.
TOPIC_ID = UUID(int=1 << 100 | 7)


@dataclass
class GivenResponse:
    """A whole response."""

    partitions: list[GivenAnswer] = field(default_factory=list)
    error: int = 0
    throttle_ms: int = 0
    session_id: int = 0
    ids: Mapping[str, UUID] = field(default_factory=lambda: {"in": TOPIC_ID})


def encoded_response(response: GivenResponse, correlation_id: int, version: int = 12) -> bytes:
    """Return a response without its length prefix."""
    topics: dict[str, list[Any]] = {}
    kinds = FetchResponse.FetchableTopicResponse
    data = kinds.PartitionData
    for given in response.partitions:
        optional: dict[str, Any] = {}
        if given.leader is not None:
            optional["current_leader"] = data.LeaderIdAndEpoch(*given.leader)
        if given.diverging is not None:
            optional["diverging_epoch"] = data.EpochEndOffset(*given.diverging)
        topics.setdefault(given.topic, []).append(
            data(
                partition_index=given.partition,
                error_code=given.error,
                high_watermark=given.high_watermark,
                last_stable_offset=given.high_watermark if given.last_stable_offset < 0 else given.last_stable_offset,
                log_start_offset=0,
                aborted_transactions=None
                if given.aborted is None
                else [data.AbortedTransaction(producer_id=p, first_offset=o) for p, o in given.aborted],
                preferred_read_replica=given.preferred_replica,
                records=given.records,
                **optional,
            )
        )
    made = FetchResponse(
        throttle_time_ms=response.throttle_ms,
        error_code=response.error,
        session_id=response.session_id,
        responses=[
            kinds(topic=topic, topic_id=response.ids.get(topic), partitions=partitions)
            for topic, partitions in topics.items()
        ],
    )
    header = struct.pack(">i", correlation_id) + b"\0"  # without tags
    return header + bytes(made.encode(version=version))
