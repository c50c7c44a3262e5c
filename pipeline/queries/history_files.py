"""History in Parquet files: Kafka's records in the columns of Spark's Kafka source, or of foreach_batch."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType, TimestampType

from penstock.topology.errors import StreamsError

from ..checkpoint.ownership import Offsets

#: The required columns of a file; headers are optional. timestamp: ms since 1970, or Spark's TIMESTAMP.
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
_TYPES = {"topic": "string", "partition": "int", "offset": "bigint", "key": "binary", "value": "binary"}
_HEADERS = "array<struct<key: string, value: binary>>"


def schema_of(spark: SparkSession, path: str) -> StructType:
    """Return the files' schema. Raises StreamsError if there are none, or a column is missing."""
    try:
        schema = spark.read.parquet(path).schema
    except AnalysisException as error:
        first = str(error).strip().splitlines()[0]
        raise StreamsError(f"There is no history in Parquet files at {path}: {first}") from error
    missing = [name for name in COLUMNS if name not in schema.names]
    if missing:
        raise StreamsError(
            f"The Parquet files at {path} lack the columns {', '.join(missing)}. They need those of Kafka's records: "
            f"{', '.join(COLUMNS)}, and headers if there are any."
        )
    return schema


def stream_of(spark: SparkSession, path: str, topics: Iterable[str]) -> DataFrame:
    """Return the records of topics as a stream, in the columns of record_batches.RECORD_DDL."""
    schema = schema_of(spark, path)
    found = _as_records(spark.readStream.schema(schema).parquet(path), schema)
    return found.where(f.col("topic").isin(sorted(topics)))


def _as_records(frame: DataFrame, schema: StructType) -> DataFrame:
    millis = "unix_millis(timestamp)" if isinstance(schema["timestamp"].dataType, TimestampType) else "timestamp"
    headers = "headers" if "headers" in schema.names else "NULL"
    plain = {name: f"CAST({name} AS {kind}) AS {name}" for name, kind in _TYPES.items()}
    return frame.selectExpr(
        *(plain[name] for name in ("topic", "partition", "offset")),
        f"CAST({millis} AS bigint) AS timestamp",
        *(plain[name] for name in ("key", "value")),
        f"CAST({headers} AS {_HEADERS}) AS headers",
    )


def stretch(
    spark: SparkSession, path: str, topics: Collection[str], since_ms: int | None, until_ms: int | None
) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
    """Return the start offsets of the selected records of topics, and the offsets after them, by topic and partition.

    since_ms, until_ms: by the records' timestamps, as for a topic: from the first record at or after since_ms, until
    the first one at or after until_ms. Topics without a record in the files are in neither.
    """
    schema = schema_of(spark, path)
    records = _as_records(spark.read.parquet(path), schema).where(f.col("topic").isin(sorted(topics)))
    late = f.lit(False) if until_ms is None else f.col("timestamp") >= until_ms
    wanted = f.lit(True) if since_ms is None else f.col("timestamp") >= since_ms
    found = records.groupBy("topic", "partition").agg(
        f.min(f.when(wanted, f.col("offset"))).alias("first"),
        f.min(f.when(late, f.col("offset"))).alias("late"),
        (f.max("offset") + 1).alias("last"),
    )
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    for row in found.collect():
        end = row["last"] if row["late"] is None else row["late"]
        starts.setdefault(row["topic"], {})[row["partition"]] = end if row["first"] is None else min(row["first"], end)
        ends.setdefault(row["topic"], {})[row["partition"]] = end
    return starts, ends


def check_follows(ends: Offsets, first: Offsets, last: Offsets, path: str) -> None:
    """Raise StreamsError unless each topic continues where its files end; first, last: its offsets."""
    for topic, partitions in ends.items():
        for number, end in partitions.items():
            low, high = first.get(topic, {}).get(number), last.get(topic, {}).get(number)
            if low is None or high is None or not low <= end <= high:
                there = "it does not exist" if low is None or high is None else f"it has the offsets {low} to {high}"
                raise StreamsError(
                    f"{topic}-{number} does not continue where the history in {path} ends, at offset {end}: {there}. "
                    "The local engine would lose records or process some twice."
                )
