"""A handful of cases on a real Spark and a real broker; ``python -m tests.differential`` runs them all."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import Serdes, StreamsBuilder, StreamsError
from penstock.pipeline.checkpoint import CheckpointError
from penstock.spark import SparkStreams, spark_session
from tests.goldens.case import read

from .engines import SparkEngine, compare

pytestmark = [pytest.mark.broker, pytest.mark.slow]
CASES = Path(__file__).resolve().parents[1] / "goldens" / "cases"
END_SECONDS = 60
STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """One session: its start takes as long as several cases."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own, of sockets and deprecated modules
        session = spark_session("tests", "local[2]")
        yield session
        process = session.sparkContext._gateway.proc  # type: ignore[union-attr]
        session.stop()
        process.stdin.close()  # Spark's Java ends when it sees that its Python has
        process.wait(END_SECONDS)


# Counted with a cache; a table that re-groups; an outer join with a late side; a buffer that two micro-batches share.
@pytest.mark.parametrize(
    ("name", "batches"),
    [
        ("count_cache_10485760", 1),
        ("ktable_group_by_changing_key", 1),
        ("stream_stream_left", 2),
        ("suppress_time_limit", 2),
    ],
)
def test_a_case_has_the_same_results_on_both_engines(
    spark: Any, bootstrap_servers: str, tmp_path: Path, name: str, batches: int
) -> None:
    engine = SparkEngine(spark, bootstrap_servers, str(tmp_path))
    assert compare(read(CASES / f"{name}.json"), engine, batches) is None


def test_an_exception_arrives_with_operator_topic_partition_and_offset(
    spark: Any, bootstrap_servers: str, tmp_path: Path, application_id: str, make_topic: Callable[..., str]
) -> None:
    topic, out = make_topic("in"), make_topic("out")
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for value in ("1", "0"):
        producer.produce(topic, value, "k")
    producer.flush()
    builder = StreamsBuilder()
    builder.stream(topic, **STRINGS).map_values(lambda value: str(1 / int(value)), name="invert").to(out)
    config = {"application.id": application_id, "bootstrap.servers": bootstrap_servers}
    checkpoint = str(tmp_path / "checkpoint")
    where = r"processor=invert, topic=\S+, partition=0, offset=1.*ZeroDivisionError"
    with (
        SparkStreams(builder, config, spark, checkpoint=checkpoint) as streams,
        pytest.raises(StreamsError, match=where),
    ):
        streams.process_available()
    other = StreamsBuilder()
    other.stream(topic, **STRINGS).to(out)
    streams = SparkStreams(other, config, spark, checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match=r"belongs to another topology: .*invert"):
        streams.process_available()
