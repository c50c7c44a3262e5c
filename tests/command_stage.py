"""A real application for the tests of the commands: `penstock run` on the broker of the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.cli import cli
from tests.topics import create_topics, delete_topics_of
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 4
APP = """\
from penstock import Serdes, StreamsBuilder

def topology():
    builder = StreamsBuilder()
    words = builder.stream("@SOURCE@", key_serde=Serdes.string(), value_serde=Serdes.string())
    words.group_by_key().count(store="counts").to_stream().to(
        "@SINK@", key_serde=Serdes.string(), value_serde=Serdes.int64()
    )
    return builder.build()
"""


class Stage:
    """A user's folder with an application in it, its topics, and the commands as the user types them."""

    def __init__(self, folder: Path, bootstrap_servers: str, app: str = APP, tasks: int = PARTITIONS) -> None:
        self.folder = folder
        self.tasks = tasks
        self.bootstrap_servers = bootstrap_servers
        self.application_id = f"commands-{uuid.uuid4().hex[:8]}"
        self.source, self.sink = f"{self.application_id}.in", f"{self.application_id}.out"
        self.admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        self.config_file = folder / "penstock.toml"
        self.process: subprocess.Popen[str] | None = None
        #: The module's name is unique, because two tests in one process may import their own.
        self.topology = f"app_{uuid.uuid4().hex[:8]}:topology"
        (folder / f"{self.topology.partition(':')[0]}.py").write_text(
            app.replace("@SOURCE@", self.source).replace("@SINK@", self.sink)
        )
        self.configure({})

    def configure(self, more: dict[str, Any]) -> None:
        """Write the configuration file: the settings that every application needs here, and the additional ones."""
        values = {
            "application.id": self.application_id,
            "bootstrap.servers": self.bootstrap_servers,
            "state.dir": str(self.folder / "state"),
            "num.stream.threads": 2,
            "commit.interval.ms": 200,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 300,
            "penstock.worker.beat.interval.ms": 50,
            **more,
        }
        self.config_file.write_text("".join(f'"{key}" = {json.dumps(value)}\n' for key, value in values.items()))

    def make_topics(self, *topics: str) -> None:
        """Create topics of PARTITIONS partitions."""
        create_topics(self.admin, *(NewTopic(topic, PARTITIONS, 1) for topic in topics))

    def delete_topics(self) -> None:
        """Delete all topics of the application."""
        delete_topics_of(self.admin, self.application_id)

    def start(self) -> None:
        """Start the application and wait until all its tasks are processed."""
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "penstock.cli", "run", self.topology, "--config", str(self.config_file)]
        log = (self.folder / "log").open("a")
        with log:
            self.process = subprocess.Popen(command, cwd=self.folder, env=environment, stderr=log, text=True)
        eventually(self.is_settled, lambda: self.run("status").output + (self.folder / "log").read_text()[-3000:])

    def is_settled(self) -> bool:
        """Return True if the application is RUNNING with all its active tasks."""
        result = self.run("status", "--json")
        assert self.process is None or self.process.poll() is None, (self.folder / "log").read_text()[-3000:]
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        if result.exit_code:
            return False
        found = json.loads(result.output)
        tasks = [task for thread in found["threads"] for task in thread["tasks"]]
        active = [task["task_id"] for task in tasks if task["kind"] == "active" and task["state"] == "RUNNING"]
        return found["state"] == "RUNNING" and len(active) == len(set(active)) == self.tasks

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stop the application and wait until it has ended."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE_SECONDS)

    def run(self, *arguments: str, configured: bool = True, input_text: str | None = None) -> Result:
        """Run a command of penstock with the application's configuration file."""
        environment = {"PENSTOCK_CONFIG": str(self.config_file)} if configured else {}
        return CliRunner(env=environment).invoke(cli, arguments, input_text, prog_name="penstock")

    def json(self, *arguments: str) -> Any:
        """Run a command with --json, which must succeed, and return its decoded output."""
        result = self.run(*arguments, "--json")
        assert result.exit_code == 0, (result.output, result.exc_info)
        return json.loads(result.output)

    def produce(self, *records: tuple[str, str | None], topic: str = "", timestamp: int = 0) -> None:
        """Write records to the source, and wait until the broker has them. timestamp: 0 for the current time."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        for key, value in records:
            producer.produce(topic or self.source, key=key, value=value, timestamp=timestamp)
        assert producer.flush(PATIENCE_SECONDS) == 0


@contextmanager
def running(
    folder: Path, bootstrap_servers: str, app: str = APP, tasks: int = PARTITIONS, **config: Any
) -> Iterator[Stage]:
    """Yield an application of a module with this text; it counts by key, on two stream threads. tasks: their number."""
    stage = Stage(folder, bootstrap_servers, app, tasks)
    stage.configure({key.replace("_", "."): value for key, value in config.items()})
    stage.make_topics(stage.source, stage.sink)
    try:
        stage.start()
        yield stage
    finally:
        if stage.process is not None:
            stage.stop()
        stage.delete_topics()
