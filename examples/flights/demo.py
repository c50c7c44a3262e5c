"""The demo: ``bin/demo``, or ``python -m examples.flights.demo`` in an environment where Penstock is installed."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.live import Live
from typing_extensions import override

from examples.flights import loader, topics
from examples.flights.display import answer_tables, live_view, status_line
from examples.flights.progress import ProgressReader
from examples.flights.verify import read_table, verify
from penstock import KafkaStreams, StreamsConfig
from penstock.dev.dev_broker import DevBroker
from penstock.supervisor.source.config_loader import load_config
from penstock.topology.errors import PenstockError

TOPOLOGY = "examples.flights.topology:build"
CONFIG_FILE = Path(__file__).with_name("penstock.toml")
#: The topics that the application reads through its group; airports and airlines are global tables, read by every
#: thread.
GROUP_INPUTS = (topics.FLIGHTS, topics.WEATHER, topics.PLANES)
REFRESH_SECONDS = 0.25
LINE_EVERY = 12  # refreshes between status lines where there is no terminal
PROCESS_ID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a UUID in names of clients: noise to a reader
EXIT_INTERRUPTED = 128 + signal.SIGINT

console = Console(highlight=False)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--threads", type=click.IntRange(min=1), default=2, show_default=True, help="Stream threads: processes.")
@click.option("--follow", is_flag=True, help="Keep running after the answers, until Ctrl-C.")
@click.option("--fresh/--keep", default=False, help="Start over, or continue where the last run ended (default).")
@click.option("--verify", "verifies", is_flag=True, help="Compute the answers with plain Python too, and compare.")
@click.option(
    "--engine", type=click.Choice(["local", "spark"]), default="local", show_default=True, help="What runs it."
)
def main(threads: int, follow: bool, fresh: bool, verifies: bool, engine: str) -> None:
    """Run a year of real flights through Penstock, and show the answers.

    It starts a dev broker, loads 367,687 records into five topics, and processes them with the topology in
    examples/flights. A second run finds data and state, and takes seconds. $KAFKA_BOOTSTRAP_SERVERS names another
    cluster to use.
    """
    # A service manager's or a CI's stop is as orderly as Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with cluster(fresh) as (address, directory):
            demo = Demo(address, directory, threads)
            demo.load(fresh)
            (demo.run_on_spark if engine == "spark" else demo.run)(follow)
            equal = demo.verify() if verifies else True
    except KeyboardInterrupt:
        console.print("Stopped.")
        sys.exit(0 if follow else EXIT_INTERRUPTED)
    except PenstockError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if equal else 1)


@contextmanager
def cluster(fresh: bool) -> Iterator[tuple[str, Path]]:
    """Yield the address of the broker and a folder for the demo's own files."""
    broker = DevBroker("demo")
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    directory = broker.directory.parent.parent / "demo"
    directory.mkdir(parents=True, exist_ok=True)
    with _only_one(directory / "lock"):
        if fresh:
            broker.stop()  # of an earlier run that was killed
            broker.delete_data()
            shutil.rmtree(directory / "state", ignore_errors=True)
            shutil.rmtree(directory / "spark", ignore_errors=True)
        if given:
            yield given, directory
            return
        with console.status(f"Starting Kafka {broker.kafka_version} …"):
            broker.start(detached=False)
        try:
            console.print(f"Kafka {broker.kafka_version} serves {broker.bootstrap_servers}")
            yield broker.bootstrap_servers, directory
        finally:
            broker.stop()


@contextmanager
def _only_one(file: Path) -> Iterator[None]:
    """Refuse a second demo of the same user: it would reset the data of the first."""
    with file.open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PenstockError(f"the demo runs already: it holds {file}") from None
        yield


@dataclass
class Demo:
    """One run. directory: for the state and the log."""

    bootstrap_servers: str
    directory: Path
    threads: int

    def load(self, fresh: bool) -> None:
        """Load the data set, unless it is loaded already."""
        loaded = loader.loaded_rows(self.bootstrap_servers)
        if any(loaded.values()) and fresh:
            raise PenstockError(
                f"{self.bootstrap_servers} has topics of the demo already, which deletes none on a cluster that is not "
                f"its own: run it with --keep, or delete them ({', '.join(name for name, n in loaded.items() if n)})"
            )
        if loader.is_loaded(self.bootstrap_servers):
            console.print("The data set is loaded already")
        elif any(loaded.values()):
            raise PenstockError(f"an earlier load was interrupted ({loaded}): start over with --fresh")
        else:
            console.print(f"Loaded {loader.load(self.bootstrap_servers):,} records into {', '.join(loader.SOURCES)}")

    def run(self, follow: bool) -> None:
        """Run the topology until every flight is processed, and show the answers; with follow until Ctrl-C.

        Raises PenstockError if the application fails.
        """
        log_file = self.directory / "demo.log"
        with _logging(log_file):
            console.print(f"Starting {self.threads} stream threads; their log: {log_file}", soft_wrap=True)
            streams = KafkaStreams(TOPOLOGY, self._config())
            ended = threading.Event()
            streams.set_state_listener(lambda new, _: ended.set() if new.has_completed_shutdown else None)
            with streams:
                streams.start()
                if self._watch(streams, ended, until_finished=True):
                    self.show_answers()
                    if follow:
                        console.print("Following: Ctrl-C ends it")
                        self._watch(streams, ended, until_finished=False)
            if streams.exit_code:
                raise PenstockError(
                    f"the application ended with {streams.exit_code.name}: see {log_file}. --fresh starts over"
                )

    def run_on_spark(self, follow: bool) -> None:
        """Do what run does on Spark, as a separate application with its own offsets and state."""
        from examples.flights.on_spark import run_on_spark

        own = {"application.id": f"{self._config()['application.id']}-spark"}
        config = self._config().with_overrides(own, "the demo")
        run_on_spark(config, self.directory / "spark", console, self.show_answers, follow)

    def _config(self) -> StreamsConfig:
        own = {
            "bootstrap.servers": self.bootstrap_servers,
            "num.stream.threads": self.threads,
            "state.dir": str(self.directory / "state"),
        }
        return load_config(CONFIG_FILE, os.environ).with_overrides(own, "the demo")

    def _watch(self, streams: KafkaStreams, ended: threading.Event, until_finished: bool) -> bool:
        """Show the progress; return True once everything is processed, False if the application ends before."""
        application_id = streams.config["application.id"]
        with (
            ProgressReader(self.bootstrap_servers, application_id, GROUP_INPUTS) as reader,
            Live(console=console, auto_refresh=False, transient=not until_finished) as live,
        ):
            refreshes = 0
            while not ended.wait(REFRESH_SECONDS):
                state, threads, progress = streams.state, streams.status(), reader.read()
                if console.is_terminal:
                    live.update(live_view(state, threads, progress), refresh=True)
                elif refreshes % LINE_EVERY == 0:
                    console.print(status_line(state, threads, progress), soft_wrap=True)
                refreshes += 1
                if until_finished and progress.finished:
                    return True
        return False

    def show_answers(self) -> None:
        """Print the four answers."""
        answers = {topic.name: read_table(self.bootstrap_servers, topic.name) for topic in topics.ANSWERS}
        console.print(answer_tables(answers))

    def verify(self) -> bool:
        """Compare the answers with plain Python's; return whether all are equal."""
        with console.status("Computing the answers with plain Python …"):
            verdicts = verify(self.bootstrap_servers)
        for verdict in verdicts:
            console.print(str(verdict), style="green" if verdict.equal else "bold red")
        return all(verdict.equal for verdict in verdicts)


class _Transitions(logging.Handler):
    """Shows the state transitions of the application and its stream threads, but no other log lines."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "State transition from" in message and message.startswith(("stream-client", "stream-thread")):
            console.print(PROCESS_ID.sub("", message), style="dim", markup=False, soft_wrap=True)


@contextmanager
def _logging(file: Path) -> Iterator[None]:
    """Log to a file, and state transitions to the console, for the length of the block."""
    root = logging.getLogger()
    to_file = logging.FileHandler(file, encoding="utf-8")
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s (%(name)s)"))
    handlers = (to_file, _Transitions())
    level = root.level
    root.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        root.setLevel(level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


if __name__ == "__main__":
    main()
