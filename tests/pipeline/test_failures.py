"""What a failed query is reported as, and which connectors are refused. Without Spark.

The texts are those that Spark 4.2 has given; tests/differential has the failures themselves.
"""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock import StreamsBuilder, StreamsConfig, StreamsError
from penstock.pipeline.checkpoint.checkpoint import Topics
from penstock.pipeline.checkpoint.checkpoint_lease import CheckpointLease
from penstock.pipeline.queries.failures import query_failure
from penstock.pipeline.queries.streaming_queries import LATE_STARTS_MAX, StreamingQueries
from penstock.pipeline.session.connector import ConnectorError, check_version

ENDED = "[STREAM_FAILED] Query [id = 38, runId = 26] terminated with exception: "
TRACEBACK = """Job aborted. Traceback (most recent call last):
  File "/pyspark/worker.py", line 1, in main
    process()
  File "/app.py", line 3, in process
    raise
"""


def reported(text: str) -> str:
    return str(query_failure("app-0", StreamingQueryException(ENDED + text)))


def test_an_error_of_an_operator_is_reported_in_penstocks_own_words() -> None:
    text = "penstock.topology.errors.StreamsError: Exception caught in process. taskId=0_0, processor=invert, offset=1"
    found = reported(f"{TRACEBACK}{text}\n\n\tat org.apache.spark.Task.run(Task.scala:1)")
    assert found == (
        "The Spark query app-0 failed: Exception caught in process. taskId=0_0, processor=invert, offset=1"
    )


def test_of_a_python_traceback_the_last_line_is_reported() -> None:
    found = reported(f"{TRACEBACK}ModuleNotFoundError: No module named 'my_app'\n SQLSTATE: XXKST")
    assert found.startswith("The Spark query app-0 failed: ModuleNotFoundError: No module named 'my_app'. The")
    assert "$PYSPARK_PYTHON" in found


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: in", "A topic was deleted"),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", "start with another --checkpoint"),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node", "whether the brokers run"),
        ("Python worker failed to connect back. SQLSTATE: XXKST", "too busy to start a Python"),
    ],
)
def test_what_spark_itself_fails_with_comes_with_what_to_do(text: str, advice: str) -> None:
    found = reported(text)
    assert ENDED + text in found
    assert advice in found


def test_another_failure_is_reported_as_it_is() -> None:
    assert reported("No space left\n\tat java") == f"The Spark query app-0 failed: {ENDED}No space left"


@pytest.mark.parametrize("file", ["spark-sql-kafka-0-10_2.13-4.2.0.jar", "spark-sql-kafka-0-10_2.13-4.2.1-own.jar", ""])
def test_a_connector_of_this_spark_or_without_a_version_is_taken(file: str) -> None:
    check_version(f"/jars/{file}", "4.2.0", "2.13.18")


@pytest.mark.parametrize("file", ["spark-sql-kafka-0-10_2.12-3.5.1.jar", "spark-sql-kafka-0-10_2.13-4.0.0.jar"])
def test_a_connector_of_another_spark_is_refused(file: str) -> None:
    advice = "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,"
    with pytest.raises(ConnectorError, match=rf"{file} is not for Spark 4.2.0 with Scala 2.13. .*{advice}"):
        check_version(f"/jars/{file}", "4.2.0", "2.13.18")


class Query:
    """A query that ends with an error, or in order."""

    name = "app-0"
    lastProgress = None  # noqa: N815 - Spark's

    def __init__(self, error: str | None = None, micro_batches: int = 1) -> None:
        self._error = error
        self._left = micro_batches
        self._done: list[dict[str, int]] = []

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's
        return self._left > 0

    @property
    def recentProgress(self) -> list[dict[str, int]]:  # noqa: N802 - Spark's
        """Return the last three micro-batches; Spark keeps a hundred."""
        return self._done[-3:]

    def awaitTermination(self, seconds: int) -> None:  # noqa: N802 - Spark's
        """Two micro-batches pass at a time."""
        if self._error is not None:
            raise StreamingQueryException(ENDED + self._error)
        for _ in range(min(self._left, 2)):
            self._done.append({"batchId": len(self._done), "numInputRows": 3})
            self._left -= 1

    def stop(self) -> None:
        """Nothing runs."""


def processed(*queries: Query) -> int:
    """Run one sub-topology, with one of these queries after the other; return how many records were read."""
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "broker:9092"})
    session: Any = None
    lease = CheckpointLease(session, "/checkpoint")  # no file is read before it is acquired
    streams: Any = StreamingQueries(builder.build(), config, session, lease, lambda built: Topics({}, {}))
    following = iter(queries)
    streams._start = lambda topology, available_now: next(following)
    read: int = streams._run_available(streams._built[0])
    return read


LATE = "Python worker failed to connect back. SQLSTATE: XXKST"


def test_a_query_whose_python_was_late_is_started_again() -> None:
    assert processed(Query(LATE), Query(LATE), Query()) == 3


def test_but_not_for_ever() -> None:
    with pytest.raises(StreamsError, match="too busy to start a Python"):
        processed(*[Query(LATE)] * (LATE_STARTS_MAX + 1))


def test_and_not_after_another_failure() -> None:
    with pytest.raises(StreamsError, match="No space left"):
        processed(Query("No space left"), Query())


def test_all_micro_batches_are_counted_also_those_that_spark_no_longer_keeps() -> None:
    assert processed(Query(micro_batches=7)) == 21
