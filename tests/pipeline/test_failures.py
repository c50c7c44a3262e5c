"""The reported reasons of failed queries, and refused connectors. Without Spark.

The texts are those of Spark 4.2; tests/differential causes the failures themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from penstock import StreamsBuilder, StreamsConfig, StreamsError
from penstock.pipeline.checkpoint.checkpoint import Topics
from penstock.pipeline.checkpoint.checkpoint_lease import CheckpointLease
from penstock.pipeline.queries import failures
from penstock.pipeline.queries.failures import PYTHON_WAS_LATE, query_failure
from penstock.pipeline.queries.streaming_queries import StreamingQueries
from penstock.pipeline.session.connector import ConnectorError, check_version

ENDED = "[STREAM_FAILED] Query [id = 38, runId = 26] terminated with exception: "
CHECKPOINT = "file:/checkpoint"
TRACEBACK = """Job aborted. Traceback (most recent call last):
  File "/pyspark/worker.py", line 1, in main
    process()
  File "/app.py", line 3, in process
    raise
"""


def reported(text: str) -> str:
    return str(query_failure("app-0", StreamingQueryException(ENDED + text), CHECKPOINT))


def test_an_operators_error_is_reported_in_penstocks_words() -> None:
    text = "penstock.topology.errors.StreamsError: Exception caught in process. taskId=0_0, processor=invert, offset=1"
    found = reported(f"{TRACEBACK}{text}\n\n\tat org.apache.spark.Task.run(Task.scala:1)")
    assert found == (
        "The Spark query app-0 failed: Exception caught in process. taskId=0_0, processor=invert, offset=1"
    )


def test_the_last_line_of_a_python_traceback_is_reported() -> None:
    found = reported(f"{TRACEBACK}ModuleNotFoundError: No module named 'my_app'\n SQLSTATE: XXKST")
    assert found.startswith("The Spark query app-0 failed: ModuleNotFoundError: No module named 'my_app'. The")
    assert "$PYSPARK_PYTHON" in found


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("org.apache.kafka.common.errors.UnknownTopicOrPartitionException: in", "A topic was deleted"),
        ("[KAFKA_DATA_LOSS.START_OFFSET_RESET] Some data may have been lost", "start with another --checkpoint"),
        ("Python worker failed to connect back. SQLSTATE: XXKST", "too busy to start a Python"),
        ("[CANNOT_WRITE_STATE_STORE.CANNOT_COMMIT] Error writing state store files", f"checkpoint {CHECKPOINT} there"),
        ("Cannot perform commit during state checkpoint. SQLSTATE: 58030", f"checkpoint {CHECKPOINT} there"),
        ("java.io.FileNotFoundException: File offsets/7 does not exist", f"checkpoint {CHECKPOINT} there"),
    ],
)
def test_sparks_own_failures_are_reported_with_advice(text: str, advice: str) -> None:
    found = reported(text)
    assert ENDED + text in found
    assert advice in found


def test_any_other_failure_is_reported_unchanged() -> None:
    assert reported("No space left\n\tat java") == f"The Spark query app-0 failed: {ENDED}No space left"


@pytest.mark.parametrize("file", ["spark-sql-kafka-0-10_2.13-4.2.0.jar", "spark-sql-kafka-0-10_2.13-4.2.1-own.jar", ""])
def test_a_connector_of_this_spark_or_without_a_version_is_accepted(file: str) -> None:
    check_version(f"/jars/{file}", "4.2.0", "2.13.18")


@pytest.mark.parametrize("file", ["spark-sql-kafka-0-10_2.12-3.5.1.jar", "spark-sql-kafka-0-10_2.13-4.0.0.jar"])
def test_a_connector_of_another_spark_is_refused(file: str) -> None:
    advice = "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,"
    with pytest.raises(ConnectorError, match=rf"{file} is not for Spark 4.2.0 with Scala 2.13. .*{advice}"):
        check_version(f"/jars/{file}", "4.2.0", "2.13.18")


class Query:
    """A query that ends with an error, or normally."""

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
        """Let two micro-batches pass per call."""
        if self._error is not None:
            raise StreamingQueryException(ENDED + self._error)
        for _ in range(min(self._left, 2)):
            self._done.append({"batchId": len(self._done), "numInputRows": 3})
            self._left -= 1

    def stop(self) -> None:
        """Do nothing, because nothing runs."""


def processed(*queries: Query) -> int:
    """Run one sub-topology, with each of these queries in turn; return the number of records read."""
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


def test_a_query_whose_python_started_too_late_is_restarted() -> None:
    assert processed(Query(LATE), Query(LATE), Query()) == 3


def test_a_query_whose_python_is_always_late_fails() -> None:
    assert PYTHON_WAS_LATE.starts_max is not None
    with pytest.raises(StreamsError, match="too busy to start a Python"):
        processed(*[Query(LATE)] * (PYTHON_WAS_LATE.starts_max + 1))


@pytest.mark.parametrize(
    "text",
    [
        "org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment. Call: fetchMetadata",
        "java.util.concurrent.TimeoutException: Cannot fetch record for offset 400 in 120000 milliseconds",
        "penstock.topology.errors.BrokerUnavailableError: Records could not be written to Kafka, the first to out: "
        "not acknowledged within 120000 ms",
        "penstock.topology.errors.BrokerUnavailableError: Micro-batch 3 could not commit its transaction for in-1 "
        "(transactional.id app-spark-0-1, group app-spark-0-0): the brokers did not complete the request within 60 s",
    ],
)
def test_a_query_is_restarted_until_the_brokers_are_back(
    text: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(failures, "BROKERS_ARE_AWAY", replace(failures.BROKERS_ARE_AWAY, pause_seconds=0.0))
    assert processed(*[Query(text)] * 30, Query()) == 3
    assert caplog.text.count("the brokers do not respond") == 30


def test_it_is_not_restarted_after_another_failure() -> None:
    with pytest.raises(StreamsError, match="No space left"):
        processed(Query("No space left"), Query())


def test_all_micro_batches_are_counted_even_those_spark_no_longer_keeps() -> None:
    assert processed(Query(micro_batches=7)) == 21


def test_the_deepest_cause_of_a_failure_of_spark_itself_is_said_with_advice() -> None:
    error = StreamingQueryException(f"{ENDED}Cannot perform commit during state checkpoint. SQLSTATE: 58030")
    error._stackTrace = (  # type: ignore[attr-defined]
        "org.apache.spark.SparkException: Job aborted\n\tat org.apache.spark.Task.run(Task.scala:1)\n"
        "Caused by: org.apache.spark.SparkException: Cannot perform commit\n\t... 2 more\n"
        "Caused by: java.io.FileNotFoundException: /checkpoint/state/1.sst (No space left on device)\n\t... 5 more\n"
    )
    found = str(query_failure("app-0", error, CHECKPOINT))
    assert found.startswith(f"The Spark query app-0 failed: {ENDED}Cannot perform commit during state checkpoint")
    assert found.endswith(
        ": /checkpoint/state/1.sst (No space left on device). "
        "Make room there. The next start continues from the checkpoint."
    )
