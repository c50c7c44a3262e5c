"""The output of `penstock status` and Prometheus for an application on Spark, from queries as Spark reports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from penstock import StreamsConfig, StreamsError
from penstock.cli.running_application import RunningApplication
from penstock.cli.status import status
from penstock.pipeline.queries.spark_administration import SparkSupervisor, administered
from penstock.supervisor.control.administration import Administration
from penstock.supervisor.http.prometheus import exposition
from penstock.supervisor.queries.metric import by_name, metrics

CONFIG = StreamsConfig({"application.id": "my-app", "bootstrap.servers": "localhost:1"})


class Query:
    """The part of a StreamingQuery that is shown."""

    name = "my-app-1"
    isActive = True  # noqa: N815 - Spark's

    def __init__(self) -> None:
        self.lastProgress: Any = None

    def finish(self, batch: int, records: int, read: int, behind: int) -> None:
        """End a micro-batch, after which the query is at this position in its first partition."""
        source = {"endOffset": {"in": {"0": read, "1": 5}}, "latestOffset": {"in": {"0": read + behind, "1": 5}}}
        self.lastProgress = {
            "batchId": batch,
            "numInputRows": records,
            "processedRowsPerSecond": 50.0,
            "batchDuration": 200,
            "sources": [source],
        }


@pytest.fixture
def query() -> Query:
    return Query()


@pytest.fixture
def supervisor(query: Query) -> Any:
    return SparkSupervisor(lambda: [query], "my-app-spark")  # type: ignore[list-item]


@pytest.fixture
def running(query: Query, tmp_path: Path) -> Iterator[Path]:
    config = CONFIG.with_overrides({"state.dir": str(tmp_path)}, "test")
    streams: Any = SimpleNamespace(config=config, queries=[query], directory=tmp_path / "my-app")
    streams.directory.mkdir()
    with administered(streams):
        yield streams.directory


def test_a_query_is_shown_as_a_stream_thread_and_its_partitions_as_tasks(query: Query, supervisor: Any) -> None:
    administration = Administration(supervisor, CONFIG)
    assert administration.status()["threads"][0]["tasks"] == [], "before its first micro-batch"
    query.finish(batch=7, records=10, read=100, behind=3)
    assert administration.status()["totals"]["records_processed"] == 10
    query.finish(batch=9, records=20, read=140, behind=4)
    found = administration.status()
    (thread,) = found["threads"]
    assert (found["state"], thread["name"], thread["number"], thread["state"]) == ("RUNNING", "my-app-1", 1, "RUNNING")
    assert (thread["records_processed"], thread["records_per_second"], thread["lag"]) == (50, 50.0, 4)
    assert [(task["task_id"], task["lag"]) for task in thread["tasks"]] == [("1_0", 4), ("1_1", 0)]
    assert [(row["topic"], row["partition"], row["lag"]) for row in administration.lag()] == [
        ("in", 0, 4),
        ("in", 1, 0),
    ]
    query.isActive = False
    assert administration.status()["state"] == "ERROR"


def test_metrics_have_the_local_engines_names(query: Query, supervisor: Any) -> None:
    query.finish(batch=0, records=10, read=5, behind=3)
    query.finish(batch=1, records=20, read=25, behind=4)
    found = metrics(supervisor, CONFIG)
    assert by_name(found, "process-rate", thread_id="my-app-1") == [50.0]
    assert by_name(found, "records-lag", topic="in", partition=0) == [4.0]
    assert by_name(found, "alive-stream-threads") == [1.0]
    text = exposition(found)
    assert 'kafka_stream_thread_process_total{thread_id="my-app-1"} 20.0\n' in text
    assert 'kafka_stream_state{client_id="my-app-spark",value="RUNNING"} 1.0\n' in text


def test_penstock_status_finds_it(query: Query, running: Path) -> None:
    query.finish(batch=0, records=10, read=5, behind=1_234)
    given = {"application.id": "my-app", "bootstrap.servers": "localhost:1", "state.dir": str(running.parent)}
    options = [word for key, value in given.items() for word in ("-c", f"{key}={value}")]
    done = CliRunner().invoke(status, options, catch_exceptions=False)
    assert "my-app is RUNNING" in done.output
    assert "1 thread, 2 tasks, 50 records/s, 1,234 records behind" in done.output
    with RunningApplication(running) as application, pytest.raises(StreamsError, match="There is no command 'pause'"):
        application.ask("pause")
