"""The format of records in Spark: many of one task packed into one Arrow stream, which is one value of one row.

A shuffle of single records costs Python one row per record in both directions; a packed one costs one row for
thousands.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from zlib import crc32

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock.topology.records import RawRecord, SentRecord

#: Kafka's record, as read by Spark's source (with timestamps in ms) and as sent by tasks. For sent records, offset is
#: -1; partition is -1 and timestamp is null if the producer sets them.
RECORD_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
#: The same in Spark's DDL.
RECORD_DDL = (
    "topic string, partition int, offset bigint, timestamp bigint, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
#: The columns, in Spark's SQL, that pass records to Python, with headers as text. Spark computes the size of each
#: column after each record, and for a list column that takes time proportional to the records so far, with or without
#: headers: it took two thirds of Java's time.
TO_PYTHON = (*RECORD_SCHEMA.names[:-1], "to_json(headers) AS headers")

#: Rows of packed records: the task (see pack_by_task), the source topic, the first record's offset.
PACKED_DDL = "task int, topic string, first_offset bigint, records binary"
#: A function for DataFrame.mapInArrow.
MapInArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_ARROW_TYPES = {"int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "binary": pa.binary()}
#: Records that packs_of and send_all pack into one value: enough for few rows, but small enough to hold several in
#: memory.
PACK_RECORDS_MAX = 20_000


def pack(records: pa.RecordBatch) -> bytes:
    """Return one batch of RECORD_SCHEMA as bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema) as writer:
        writer.write_batch(records)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(data: bytes) -> Iterator[pa.RecordBatch]:
    """Yield the batches of packed records."""
    with pa.ipc.open_stream(data) as reader:
        yield from reader


def pack_by_task(batches: Iterable[pa.RecordBatch], buckets: int = 1) -> Iterator[pa.RecordBatch]:
    """Turn records of Kafka's partitions into rows of PACKED_DDL, in mapInArrow before the shuffle.

    buckets: how many tasks share the keys of a partition; task: partition * buckets + the key's bucket.
    """
    for batch in batches:
        rows = [
            (_first(part, "partition") * buckets + bucket, topic, _first(part, "offset"), pack(part))
            for topic, _, whole in by_partition(batch)
            for bucket, part in _by_bucket(whole, buckets)
        ]
        yield to_batch(rows, PACKED_DDL)


def _first(batch: pa.RecordBatch, name: str) -> int:
    number: int = batch.column(name)[0].as_py()
    return number


def to_batch(rows: Sequence[tuple[object, ...]], ddl: str) -> pa.RecordBatch:
    """Return rows as a batch with the columns of a schema, in Spark's spelling."""
    schema = pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in map(str.split, ddl.split(", "))])
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    return pa.RecordBatch.from_arrays(list(map(pa.array, columns, schema.types)), schema=schema)


def _by_bucket(batch: pa.RecordBatch, buckets: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split a batch by the buckets of its keys, in the order of records; those without a key go to the first."""
    if buckets == 1:
        yield 0, batch
        return
    places: dict[int, list[int]] = {}
    for place, key in enumerate(batch.column("key").to_pylist()):
        places.setdefault(0 if key is None else crc32(key) % buckets, []).append(place)
    for bucket, indices in places.items():
        yield bucket, batch.take(pa.array(indices, pa.int32()))


def by_partition(batch: pa.RecordBatch) -> Iterator[tuple[str, int, pa.RecordBatch]]:
    """Split a batch by topic and partition, in the order of records; Spark rarely mixes them in one batch."""
    topics, partitions = batch.column("topic"), batch.column("partition")
    pairs = list(dict.fromkeys(zip(topics.to_pylist(), partitions.to_pylist(), strict=True)))
    for topic, partition in pairs:
        if len(pairs) == 1:
            yield topic, partition, batch
        else:
            chosen = batch.filter(pc.and_(pc.equal(topics, topic), pc.equal(partitions, partition)))
            yield topic, partition, chosen


def messages(batch: pa.RecordBatch) -> list[RawRecord]:
    """Return the records of a batch as messages for a source."""
    return list(map(RawRecord, *columns(batch)))


def columns(batch: pa.RecordBatch) -> Iterator[list[Any]]:
    """Yield the values of each column of RECORD_SCHEMA; headers may be TO_PYTHON's."""
    for name in RECORD_SCHEMA.names[:-1]:
        yield batch.column(name).to_pylist()
    yield _headers(batch.column("headers"))


def _headers(column: Any) -> list[list[tuple[str, bytes | None]] | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    if pa.types.is_list(column.type):
        listed = column.to_pylist()
        return [[(header["key"], header["value"]) for header in headers] if headers else None for headers in listed]
    return [_from_text(text) for text in column.to_pylist()]


def _from_text(text: str | None) -> list[tuple[str, bytes | None]] | None:
    headers = orjson.loads(text) if text else None
    if not headers:
        return None
    found = [(header["key"], header.get("value")) for header in headers]
    return [(key, None if value is None else b64decode(value)) for key, value in found]


def sent_batch(sent: Sequence[SentRecord]) -> pa.RecordBatch:
    """Return sent records as one batch of RECORD_SCHEMA."""
    headers = [
        None if not record.headers else [{"key": name, "value": value} for name, value in record.headers]
        for record in sent
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([record.topic for record in sent], pa.string()),
            pa.array([-1 if record.partition is None else record.partition for record in sent], pa.int32()),
            pa.array([-1] * len(sent), pa.int64()),
            pa.array([record.timestamp for record in sent], pa.int64()),
            pa.array([record.key for record in sent], pa.binary()),
            pa.array([record.value for record in sent], pa.binary()),
            pa.array(headers, RECORD_SCHEMA.field("headers").type),
        ],
        schema=RECORD_SCHEMA,
    )


def sent_batches(sent: Sequence[SentRecord]) -> Iterator[pa.RecordBatch]:
    """Yield sent records in batches of at most PACK_RECORDS_MAX, in order."""
    for start in range(0, len(sent), PACK_RECORDS_MAX):
        yield sent_batch(sent[start : start + PACK_RECORDS_MAX])


def unpack_all(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn rows with packed ``records`` into the records themselves, in mapInArrow before the sink."""
    for batch in batches:
        for data in batch.column("records").to_pylist():
            yield from unpack(data)
