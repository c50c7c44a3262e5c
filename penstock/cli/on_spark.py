"""``penstock run --engine spark``: an application on Spark until a signal ends it."""

from __future__ import annotations

import threading

from penstock.cli.spark_status import ShownProgress
from penstock.pipeline.queries.spark_administration import administered
from penstock.pipeline.spark_streams import SparkStreams
from penstock.supervisor.service.signals import STOP_SIGNALS, handled
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError


def run_on_spark(
    topology: str,
    config: StreamsConfig,
    master: str | None,
    checkpoint: str | None,
    packages: str | None = None,
    json_output: bool = False,
) -> None:
    """Run a topology until one of STOP_SIGNALS.

    Shows the progress of the queries; json_output: as lines of JSON.
    """
    stop = threading.Event()
    streams: SparkStreams | None = None

    def request_stop(_number: int) -> None:
        stop.set()
        if streams is not None:
            streams.request_stop()

    with handled(request_stop, STOP_SIGNALS):
        try:
            streams = SparkStreams(topology, config, master=master, checkpoint=checkpoint, packages=packages)
        except ConfigError:
            if stop.is_set():  # the signal has ended the Java that was starting
                return
            raise
        with streams:
            if stop.is_set():
                return
            streams.start()
            if stop.is_set():  # while start() was under way
                streams.request_stop()
            with administered(streams) as looking, ShownProgress(looking.progress, json_output):
                streams.await_termination()
