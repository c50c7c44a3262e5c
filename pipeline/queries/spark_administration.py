"""The status of an application on Spark, for `penstock status`, `lag` and `top`, Prometheus and the other endpoints.

It has the form of the local engine's status: each query appears as a stream thread, each of its partitions as a task.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from penstock.supervisor.application_state import ApplicationState
from penstock.supervisor.control.administration import Administration
from penstock.supervisor.control.control_actions import actions
from penstock.supervisor.control.control_socket import ControlSocket
from penstock.supervisor.http.forwarding import HttpHosts
from penstock.supervisor.http.server import HttpServer
from penstock.supervisor.logs.recent_errors import RecentErrors
from penstock.supervisor.processes.worker import ThreadStatus
from penstock.supervisor.queries.queries import Answers
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.control.messages import CommandResult, Measure, TaskStatus
from penstock.workers.metrics.client_health import FETCH_GROUP
from penstock.workers.metrics.sensors import MetricGroup
from penstock.workers.thread.thread_status import THREAD_GROUP

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from ..spark_streams import SparkStreams
    from .query_progress import PartitionProgress, QueryProgress

#: The commands of the control socket on Spark; the others concern processes and stores of the local engine.
COMMANDS = ("status", "lag", "metrics")


class SparkSupervisor:
    """The part of a supervisor that Administration and HttpView use, implemented by Spark's queries. Thread-safe.

    Totals count from the first read of the progress; the status line reads it every second. client_id: as in metrics.
    """

    paused = False
    reason = ""
    failed_stream_threads = 0
    process_id = ""  # a Spark application has no such id
    memory = SimpleNamespace(budget=None)

    def __init__(self, queries: Callable[[], Sequence[StreamingQuery]], client_id: str) -> None:
        self._queries = queries
        self.client_id = client_id
        self.errors = RecentErrors()
        self._started = time.monotonic()
        #: By query, before the micro-batch of the first read: the sum of its offsets, and the id of the previous
        #: micro-batch.
        self._first: dict[int, tuple[int, int]] = {}
        #: The progress of all queries as of the last read.
        self._last: list[tuple[QueryProgress, list[PartitionProgress]]] = []

    @property
    def states(self) -> Any:
        """The application's state: RUNNING as long as all queries are."""
        running = all(progress.running for progress, _ in self._look())
        return SimpleNamespace(state=ApplicationState.RUNNING if running else ApplicationState.ERROR)

    @property
    def alive_stream_threads(self) -> int:
        """The number of queries."""
        return len(self._look())

    def progress(self) -> list[QueryProgress]:
        """Return the progress of each query, by sub-topology."""
        found = self._look()
        for each in found:
            self._since(*each)
        return [progress for progress, _ in found]

    def thread_status(self) -> list[ThreadStatus]:
        """Return each query as a stream thread."""
        return [
            ThreadStatus(
                name=progress.name,
                slot=progress.subtopology,
                pid=os.getpid(),
                state=_state(progress),
                tasks=tuple(_tasks(progress, partitions)),
                records_processed=self._since(progress, partitions)[0],
                records_per_second=progress.records_per_second,
                lag=progress.behind,
                restore_rate=0.0,
                rss_bytes=0,  # Spark's executors have the memory, and share it among queries
                memory_share_bytes=None,
                cpu_percent=0.0,
                uptime_seconds=time.monotonic() - self._started,
                restarts=0,
            )
            for progress, partitions in self._look()
        ]

    def metrics(self) -> dict[str, dict[str, float]]:
        """Return the metrics of each query under the names for stream threads."""
        return {
            progress.name: {
                "process-rate": progress.records_per_second,
                "process-total": float(self._since(progress, partitions)[0]),
                "process-records-avg": float(progress.records),
                "commit-total": float(self._since(progress, partitions)[1]),
                "commit-latency-avg": float(progress.batch_ms),
            }
            for progress, partitions in self._look()
        }

    def ask(self, question: object, answers: Answers, _timeout: float) -> list[CommandResult]:
        """Answer queries to all stream threads: metrics; raises TimeoutError for others."""
        if question is not Measure:
            raise TimeoutError
        threads = (MetricGroup(THREAD_GROUP, {"thread-id": name}, found) for name, found in self.metrics().items())
        answers.results.append(CommandResult(0, (*threads, *self._lags())))
        return answers.results

    def call(self, function: Callable[[], object], _timeout: float) -> Any:
        """Call a function directly, because there is no loop."""
        return function()

    def query(self, *_: object, **__: object) -> NoReturn:
        """Raise: state is in Spark's executors, and Spark manages the processes."""
        raise StreamsError(
            "The application runs on Spark: its stores cannot be queried from here, and Spark starts and stops its "
            "processes. `penstock handover --to local` brings it back."
        )

    pause = resume = add_thread = remove_thread = restart_thread = shut_down = query

    def _lags(self) -> Iterator[MetricGroup]:
        for progress, partitions in self._look():
            for each in partitions:
                tags = {"topic": each.topic, "partition": str(each.partition), "client-id": f"{progress.name}-consumer"}
                yield MetricGroup(FETCH_GROUP, tags, {"records-lag": float(each.behind)})

    def _look(self) -> list[tuple[QueryProgress, list[PartitionProgress]]]:
        from .failures import JAVA_ERRORS
        from .query_progress import partitions_of, progress_of

        try:
            newest = {progress_of(query).subtopology: query for query in self._queries()}
            self._last = [(progress_of(query), partitions_of(query)) for _, query in sorted(newest.items())]
        except JAVA_ERRORS:  # await_termination() raises it
            self._last = [(replace(progress, running=False), partitions) for progress, partitions in self._last]
        return self._last

    def _since(self, progress: QueryProgress, partitions: Sequence[PartitionProgress]) -> tuple[int, int]:
        """Return how many records and micro-batches a query has processed since the one before the first read."""
        if progress.batch < 0:
            return 0, 0
        read = sum(each.read for each in partitions)
        first = self._first.setdefault(progress.subtopology, (read - progress.records, progress.batch - 1))
        return read - first[0], progress.batch - first[1]


def _state(progress: QueryProgress) -> str:
    return "RUNNING" if progress.running else "DEAD"


def _tasks(progress: QueryProgress, partitions: Sequence[PartitionProgress]) -> Iterator[TaskStatus]:
    lags: dict[int, dict[TopicPartition, int | None]] = {}
    for each in partitions:
        lags.setdefault(each.partition, {})[TopicPartition(each.topic, each.partition)] = each.behind
    for number, found in sorted(lags.items()):
        yield TaskStatus(f"{progress.subtopology}_{number}", "active", _state(progress), lags=found)


@contextmanager
def administered(streams: SparkStreams) -> Iterator[SparkSupervisor]:
    """Make a started application available to `penstock status` on this host, and over HTTP if configured.

    Raises ConfigError if HTTP cannot be served.
    """
    looking = SparkSupervisor(lambda: streams.queries, f"{streams.config['application.id']}-spark")
    supervisor: Any = looking
    administration = Administration(supervisor, streams.config)
    socket = ControlSocket(streams.directory, {name: actions(administration)[name] for name in COMMANDS})
    server = HttpServer(supervisor, administration, streams.config, HttpHosts(streams.config["penstock.http.token"]))
    socket.start()
    try:
        server.start()
        yield looking
    finally:
        server.stop()
        socket.stop()
