"""The demo with ``--engine spark``: the same questions, answered by a Spark in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from penstock import StreamsConfig
from penstock.cli.on_spark import ShownProgress
from penstock.pipeline import SparkStreams

TOPOLOGY = "examples.flights.topology:build_for_both"


def run_on_spark(
    config: StreamsConfig, checkpoint: Path, console: Console, show_answers: Callable[[], None], follow: bool
) -> None:
    """Process what the topics have, show the answers; with follow continue until Ctrl-C.

    Raises PenstockError: no pyspark, no JDK, a query that failed.
    """
    master = f"local[{config['num.stream.threads']}]"
    with console.status("Starting Spark …"):
        spark = SparkStreams(TOPOLOGY, config, master=master, checkpoint=str(checkpoint))
    with spark:
        console.print(f"Spark runs; its checkpoint: {spark.checkpoint}", soft_wrap=True)
        with ShownProgress(spark.status, console=console):
            read = spark.process_available()
        console.print(f"Spark has read {read:,} records, repartition topics included")
        show_answers()
        if follow:
            console.print("Following: Ctrl-C ends it")
            spark.start()
            spark.await_termination()
