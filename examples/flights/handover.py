"""The year in four quarters on two engines: ``python -m examples.flights.handover [--kill]``.

Half of the flights are processed locally, the third quarter on Spark, the last locally again, with `penstock handover`
in between; then the answers are compared with plain Python's. With --kill each handover is killed in the middle and
repeated.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import click

from examples.flights import dataset, loader, topics
from examples.flights.progress import ProgressReader, partitions_of
from examples.flights.verify import verify
from penstock import KafkaStreams, StreamsConfig
from penstock.clients.cluster.admin import KafkaAdmin
from penstock.clients.network_settings import network_settings
from penstock.dev.dev_broker import DevBroker
from penstock.supervisor.source.config_loader import load_config
from penstock.workers.tasks.partition_offsets import PartitionOffsets

TOPOLOGY = "examples.flights.topology:build_for_both"
CONFIG_FILE = Path(__file__).with_name("penstock.toml")
INPUTS = (topics.FLIGHTS, topics.WEATHER, topics.PLANES, topics.AIRLINES, topics.AIRPORTS)
LOOK_SECONDS = 0.2
#: How long a part may take, in seconds.
PATIENCE_SECONDS = 1800.0


class HandoverDemo:
    """One application that moves between engines. directory: for its state, its checkpoint and logs."""

    def __init__(self, bootstrap_servers: str, directory: Path, kill: bool) -> None:
        own = {
            "application.id": "flights-handover",
            "bootstrap.servers": bootstrap_servers,
            "state.dir": str(directory / "state"),
        }
        self.config: StreamsConfig = load_config(CONFIG_FILE, os.environ).with_overrides(own, "the demo")
        self._servers = bootstrap_servers
        self._directory = directory
        self._checkpoint = directory / "checkpoint"
        self._kill = kill

    def run(self) -> bool:
        """Run all parts; return True if the results equal those of plain Python."""
        half, third = dataset.ROWS[topics.FLIGHTS] // 2, dataset.ROWS[topics.FLIGHTS] * 3 // 4
        loader.create_topics(self._servers)
        tables = {topic: source for topic, source in loader.SOURCES.items() if topic != topics.FLIGHTS}
        loader.produce(self._servers, tables)
        self._flights(0, half)
        self._locally()
        self._hand_over("spark", lambda: any(self._checkpoint.glob("handover-*/seed-*/_SUCCESS")))
        self._flights(half, third)
        self._on_spark()
        ends = self._changelog_ends()
        self._hand_over("local", lambda: self._changelog_ends() > ends)
        self._flights(third, None)
        self._locally()
        verdicts = verify(self._servers)
        print(*verdicts, sep="\n")
        return all(verdict.equal for verdict in verdicts)

    def _flights(self, first: int, last: int | None) -> None:
        loader.produce(self._servers, {topics.FLIGHTS: lambda: islice(loader.flights(), first, last)})
        print(f"Loaded flights {first:,} to {'the end' if last is None else f'{last:,}'}", flush=True)

    def _locally(self) -> None:
        """Run the local engine until all input is committed."""
        ended = threading.Event()
        application_id = self.config["application.id"]
        started = time.monotonic()
        with (
            KafkaStreams(TOPOLOGY, self.config) as streams,
            ProgressReader(self._servers, application_id, INPUTS) as reader,
        ):
            streams.set_state_listener(lambda new, _: ended.set() if new.has_completed_shutdown else None)
            streams.start()
            wait_for(lambda: ended.is_set() or reader.read().finished, "the local engine")
            if ended.is_set():
                raise click.ClickException(f"the local engine has ended: {streams.failure_reason}")
            streams.close(leave_group=True)
        print(f"Processed locally in {time.monotonic() - started:.0f} s", flush=True)

    def _on_spark(self) -> None:
        from penstock.pipeline import SparkStreams

        started = time.monotonic()
        with SparkStreams(TOPOLOGY, self.config, master="local[2]", checkpoint=str(self._checkpoint)) as streams:
            read = streams.process_available()
        print(f"Processed on Spark in {time.monotonic() - started:.0f} s: {read:,} records read", flush=True)

    def _hand_over(self, engine: str, in_the_middle: Callable[[], bool]) -> None:
        """Run `penstock handover`; with --kill first one that is killed once in_the_middle() holds."""
        if self._kill:
            with self._command(engine) as process:
                wait_for(lambda: in_the_middle() or process.poll() is not None, f"a handover to {engine}")
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                if process.wait() != -signal.SIGKILL:
                    raise click.ClickException(f"the handover to {engine} had ended before it could be killed")
            print(f"Killed a handover to {engine} in the middle", flush=True)
        with self._command(engine) as process:
            if process.wait():
                raise click.ClickException(f"penstock handover --to {engine} failed")

    @contextlib.contextmanager
    def _command(self, engine: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "penstock.cli", "handover", TOPOLOGY, "--config", str(CONFIG_FILE)]
        options = ["--to", engine, "--master", "local[2]", "--checkpoint", str(self._checkpoint), "--wait", "120"]
        names = ("application.id", "bootstrap.servers", "state.dir")
        own = [part for name in names for part in ("-c", f"{name}={self.config[name]}")]
        process = subprocess.Popen([*command, *options, *own], start_new_session=True)
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _changelog_ends(self) -> int:
        """Return the sum of the ends of all changelogs."""
        prefix = f"{self.config['application.id']}-"
        with contextlib.closing(KafkaAdmin(network_settings({"bootstrap.servers": self._servers}))) as admin:
            changelogs = partitions_of(admin, lambda topic: topic.startswith(prefix) and topic.endswith("-changelog"))
            return sum(PartitionOffsets(admin, committed_only=False).end_offsets(changelogs).values())


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; raises ClickException after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise click.ClickException(f"{what} took longer than {PATIENCE_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--kill", is_flag=True, help="Kill each handover in the middle, and repeat it.")
def main(kill: bool) -> None:
    """Process a year of flights on two engines, and compare the answers with plain Python's."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    with tempfile.TemporaryDirectory(prefix="flights-handover-") as directory, contextlib.ExitStack() as stack:
        broker = partial(DevBroker, "handover", Path(directory) / "broker")
        servers = given or stack.enter_context(broker()).bootstrap_servers
        equal = HandoverDemo(servers, Path(directory), kill).run()
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
