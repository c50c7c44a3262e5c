"""``penstock run --engine spark``: an application on Spark until a signal ends it, and the progress of its queries."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from penstock.cli.options import SparkOptions
from penstock.cli.status_view import table
from penstock.pipeline.queries.spark_administration import administered
from penstock.pipeline.session.executors import ExecutorError
from penstock.pipeline.session.spark_session import cancel_jobs
from penstock.pipeline.spark_streams import SparkStreams
from penstock.supervisor.service.signals import STOP_SIGNALS, handled
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError

if TYPE_CHECKING:
    from penstock.pipeline.queries.query_progress import QueryProgress


#: Seconds between two refreshes of a terminal. A file gets one line per new micro-batch.
REFRESH_SECONDS = 1.0


def run_on_spark(
    topology: str, config: StreamsConfig, json_output: bool = False, **spark: Unpack[SparkOptions]
) -> None:
    """Run a topology until one of STOP_SIGNALS. spark: the arguments of SparkStreams.

    Shows the progress of the queries; json_output: as lines of JSON.
    """
    stop = threading.Event()
    streams: SparkStreams | None = None

    def request_stop(_number: int) -> None:
        stop.set()
        if streams is not None:
            streams.request_stop()
        else:  # it may wait for executors; a call of Java's that is under way allows no other one of the same thread
            threading.Thread(target=cancel_jobs, daemon=True).start()

    with handled(request_stop, STOP_SIGNALS):
        try:
            streams = SparkStreams(topology, config, **spark)
        except (ConfigError, ExecutorError):
            if stop.is_set():  # the signal has ended the Java that was starting, or the wait for executors
                return
            raise
        with streams:
            if stop.is_set():
                return
            streams.start()
            if stop.is_set():  # while start() was under way
                streams.request_stop()
            click.echo(f"Spark's UI: {streams.ui or 'off (spark.ui.enabled=false)'}", err=True)
            with administered(streams) as looking, ShownProgress(looking.progress, json_output):
                streams.await_termination()


class ShownProgress:
    """Context manager that shows progress, in its own thread.

    status: returns the progress of all queries, SparkStreams.status. console: by default the standard error stream, and
    for json_output the standard output.
    """

    def __init__(
        self, status: Callable[[], Sequence[QueryProgress]], json_output: bool = False, console: Console | None = None
    ) -> None:
        self._status = status
        self._json = json_output
        self._console = console or Console(stderr=True, highlight=False)
        self._told: dict[int, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="spark-progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._json or not self._console.is_terminal:
            self.write_progress(self._status())

    def _show(self) -> None:
        if self._json or not self._console.is_terminal:
            while not self._ended.wait(REFRESH_SECONDS):
                self.write_progress(self._status())
            return
        with Live(console=self._console, auto_refresh=False, transient=True) as live:
            while not self._ended.wait(REFRESH_SECONDS):
                live.update(status_table(self._status()), refresh=True)

    def write_progress(self, status: Sequence[QueryProgress]) -> None:
        """Write a line for each query that has finished a micro-batch with records."""
        for each in status:
            if each.batch > self._told.get(each.subtopology, -1):
                self._told[each.subtopology] = each.batch
                if self._json:
                    click.echo(json.dumps(dataclasses.asdict(each)))
                elif each.records:
                    self._console.print(progress_line(each), soft_wrap=True)


def progress_line(each: QueryProgress) -> str:
    """Return a query's progress as one line."""
    return (
        f"Sub-topology {each.subtopology}, micro-batch {each.batch}: {each.records:,} records in {each.batch_ms:,} ms, "
        f"{each.records_per_second:,.0f} records/s, {each.behind:,} behind"
    )


def status_table(status: Sequence[QueryProgress]) -> Table:
    """Return the queries' progress for a terminal, with the terms of ``penstock status``."""
    view = table("sub-topology", "state", "batch", "records", "records/s", "behind", "batch took", left=("state",))
    for each in status:
        view.add_row(
            str(each.subtopology),
            "RUNNING" if each.running else "ENDED",
            "-" if each.batch < 0 else str(each.batch),
            f"{each.records:,}",
            f"{each.records_per_second:,.0f}",
            f"{each.behind:,}",
            f"{each.batch_ms:,} ms",
        )
    return view
