"""The history of topics in files: Parquet with the columns of Kafka's records, or lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import orjson
import pyarrow as pa
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType, TimestampType

from penstock.topology.errors import SerializationError, StreamsError
from penstock.topology.graph.processor_topology import ProcessorTopology, SourceNode
from penstock.workers.queries.record_lines import TopicSerdes, read_line

from ..checkpoint.hadoop_files import HadoopFiles
from ..checkpoint.ownership import JSON_FILES, PARQUET_FILES, Offsets
from ..tasks.record_batches import RECORD_DDL, RECORD_SCHEMA, MapInArrow
from .failures import own_message

#: The required columns of a Parquet file; headers are optional. timestamp: ms since 1970, or Spark's TIMESTAMP.
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
#: The fields of a line that a topic's own record would not need.
_PLACE = ("topic", "partition", "offset", "timestamp")
_TYPES = {"topic": "string", "partition": "int", "offset": "bigint", "key": "binary", "value": "binary"}
_HEADERS = "array<struct<key: string, value: binary>>"
#: So much of a line is shown in an error.
_SHOWN = 200


@dataclass(frozen=True)
class HistoryFiles:
    """Files as named: ``parquet:PATH``, ``json:PATH``, or the path of Parquet files; PATH as Spark accepts it.

    serdes: of the application's topics. They serialize the values in lines of JSON.
    """

    named: str
    serdes: Mapping[str, TopicSerdes]

    def stream(self, spark: SparkSession, topics: Iterable[str]) -> DataFrame:
        """Return the records of topics as a stream, in the columns of record_batches.RECORD_DDL."""
        path = self._path
        if HadoopFiles(spark).is_file(path):
            path = f"{path[:-1]}[{path[-1]}]"  # a pattern: a stream takes any other path for that of a folder
        if self._is_json:
            found = self._from_lines(spark.readStream.text(path))
        else:
            schema = self._schema(spark)
            found = _as_records(spark.readStream.schema(schema).parquet(path), schema)
        return found.where(f.col("topic").isin(sorted(topics)))

    def stretch(
        self, spark: SparkSession, topics: Collection[str], since_ms: int | None, until_ms: int | None
    ) -> tuple[dict[str, dict[int, int]], dict[str, dict[int, int]]]:
        """Return the start offsets of the selected records of topics, and the offsets after them, by topic and
        partition.

        since_ms, until_ms: by the records' timestamps, as for a topic: from the first record at or after since_ms,
        until the first one at or after until_ms. Topics without a record in the files are in neither. Raises
        StreamsError if there are no files, or if they do not contain records.
        """
        records = self._records(spark).where(f.col("topic").isin(sorted(topics)))
        late = f.lit(False) if until_ms is None else f.col("timestamp") >= until_ms
        wanted = f.lit(True) if since_ms is None else f.col("timestamp") >= since_ms
        found = records.groupBy("topic", "partition").agg(
            f.min(f.when(wanted, f.col("offset"))).alias("first"),
            f.min(f.when(late, f.col("offset"))).alias("late"),
            (f.max("offset") + 1).alias("last"),
        )
        starts: dict[str, dict[int, int]] = {}
        ends: dict[str, dict[int, int]] = {}
        try:
            rows = found.collect()
        except PythonException as error:
            raise StreamsError(own_message(str(error)) or str(error)) from error
        for row in rows:
            end = row["last"] if row["late"] is None else row["late"]
            start = end if row["first"] is None else min(row["first"], end)
            starts.setdefault(row["topic"], {})[row["partition"]] = start
            ends.setdefault(row["topic"], {})[row["partition"]] = end
        return starts, ends

    def check_follows(self, ends: Offsets, first: Offsets, last: Offsets) -> None:
        """Raise StreamsError unless each topic continues where its files end; first, last: its offsets."""
        for topic, partitions in ends.items():
            for number, end in partitions.items():
                low, high = first.get(topic, {}).get(number), last.get(topic, {}).get(number)
                if low is None or high is None or not low <= end <= high:
                    missing = low is None or high is None
                    there = "it does not exist" if missing else f"it has the offsets {low} to {high}"
                    raise StreamsError(
                        f"{topic}-{number} does not continue where the history in {self._path} ends, at offset {end}: "
                        f"{there}. The local engine would lose records or process some twice."
                    )

    @property
    def _is_json(self) -> bool:
        return self.named.startswith(JSON_FILES)

    @property
    def _path(self) -> str:
        return self.named.removeprefix(JSON_FILES).removeprefix(PARQUET_FILES)

    def _records(self, spark: SparkSession) -> DataFrame:
        if not self._is_json:
            schema = self._schema(spark)
            return _as_records(spark.read.parquet(self._path), schema)
        try:
            return self._from_lines(spark.read.text(self._path))
        except AnalysisException as error:
            raise StreamsError(f"There is no history in lines of JSON at {self._path}: {_first_line(error)}") from error

    def _schema(self, spark: SparkSession) -> StructType:
        try:
            schema = spark.read.parquet(self._path).schema
        except AnalysisException as error:
            raise StreamsError(f"There is no history in Parquet files at {self._path}: {_first_line(error)}") from error
        missing = [name for name in COLUMNS if name not in schema.names]
        if missing:
            raise StreamsError(
                f"The Parquet files at {self._path} lack the columns {', '.join(missing)}. They need those of Kafka's "
                f"records: {', '.join(COLUMNS)}, and headers if there are any."
            )
        return schema

    def _from_lines(self, lines: DataFrame) -> DataFrame:
        return lines.select("value", "_metadata.file_path").mapInArrow(_reader_of_lines(dict(self.serdes)), RECORD_DDL)


def source_serdes(built: Iterable[ProcessorTopology]) -> dict[str, TopicSerdes]:
    """Return the serdes of the topics that an application reads."""
    return {
        topic: TopicSerdes(node.key_serde, node.value_serde)
        for each in built
        for node in each.nodes.values()
        if isinstance(node, SourceNode)
        for topic in node.topics
    }


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


def _reader_of_lines(serdes: Mapping[str, TopicSerdes]) -> MapInArrow:
    """Return a function for mapInArrow that makes records of lines and the paths of their files."""

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            lines = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)
            records = [record for line, file in lines if line.strip() and (record := _record(line, file, serdes))]
            yield pa.RecordBatch.from_pylist(records, RECORD_SCHEMA)

    return read


def _record(line: str, file: str, serdes: Mapping[str, TopicSerdes]) -> dict[str, object] | None:
    """Return the record of a line, None if the application does not read its topic; raises StreamsError."""
    try:
        place = orjson.loads(line)
        if missing := [name for name in _PLACE if not isinstance(place, dict) or place.get(name) is None]:
            raise SerializationError(f"a record of history needs {', '.join(missing)}")
        topic = place["topic"]
        if topic not in serdes:
            return None
        found = read_line(line.encode(), topic, serdes[topic])
        offsets = {"partition": int(place["partition"]), "offset": int(place["offset"])}
    except (ValueError, TypeError, SerializationError) as error:
        raise StreamsError(f"A line of {file} is no record: {error}. It begins {json.dumps(line[:_SHOWN])}") from error
    headers = [{"key": name, "value": data} for name, data in found.headers]
    record = {"timestamp": found.timestamp, "key": found.key, "value": found.value, "headers": headers or None}
    return {"topic": topic, **offsets, **record}


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
