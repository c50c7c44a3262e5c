"""An application as a user runs it, and its topics."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.clients import programs
from tests.read_to_end import read_to_end
from tests.topics import create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[2]


class Application:
    """`penstock run` of one of the programs, with one stream thread.

    config: added to the settings that keep tests short. module: runs in place of the command, with the same arguments.
    """

    def __init__(
        self,
        folder: Path,
        program: str,
        application_id: str,
        source: str,
        sink: str,
        config: dict[str, object],
        module: str = "penstock.cli",
    ) -> None:
        self.application_id = application_id
        self.log_file = folder / "log"
        self._command = [sys.executable, "-m", module, "run", f"tests.clients.programs:{program}"]
        self._folder = folder
        self._environment = {programs.SOURCE_VARIABLE: source, programs.SINK_VARIABLE: sink, "PYTHONPATH": str(ROOT)}
        self._config = {
            "application.id": application_id,
            "state.dir": str(folder / "state"),
            "commit.interval.ms": 200,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 300,
            **config,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **config: object) -> Application:
        """Start it; config: changes, with _ for the dots of keys."""
        self._config |= {key.replace("_", "."): value for key, value in config.items()}
        settings = [part for key, value in self._config.items() for part in ("-c", f"{key}={value}")]
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *settings], cwd=self._folder, env=os.environ | self._environment, stderr=log
            )
        return self

    @property
    def exit_code(self) -> int | None:
        """The exit code if it ended by itself, None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        """Its log so far."""
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def wait_until_begun(self, value: str) -> None:
        """Wait until the program ``slow`` processes a value."""
        file = self._folder / programs.BEGUN
        eventually(
            lambda: file.exists() and value in file.read_text().splitlines(), lambda: f"{value} awaited: {self.log}"
        )

    def kill(self) -> None:
        """Kill it and its workers, as a power failure would; no effect if it does not run."""
        if self._process is not None:
            self._process.kill()  # its workers end with it
            self._process.wait()


class Topics:
    """Topics of a broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def create(self, topic: str, partitions: int = 1) -> str:
        """Create a topic and wait until the broker shows it."""
        create_topics(self._admin, NewTopic(topic, partitions, 1))
        return topic

    def delete(self, topic: str) -> None:
        """Delete a topic and wait until no broker has it any more."""
        delete_topics(self._admin, topic)

    def write(self, topic: str, values: Sequence[str | bytes], **config: object) -> None:
        """Write values, with keys that spread them, and wait until they are acknowledged."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        producer = Producer({"bootstrap.servers": self.bootstrap_servers, **settings})
        errors: set[KafkaError | None] = set()
        for number, value in enumerate(values):
            producer.produce(topic, value, f"k{number}", on_delivery=lambda error, _: errors.add(error))
            producer.poll(0)
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert errors == {None}, errors

    def values(self, topic: str) -> list[str]:
        """Return all committed values of a topic."""
        return [(message.value() or b"").decode() for message in read_to_end(self.bootstrap_servers, topic)]


def wait_for_values(
    application: Application,
    topics: Topics,
    sink: str,
    values: Sequence[str],
    repeated: Sequence[str] = (),
) -> None:
    """Wait until a topic has these values, in any order; fails at once if the application ends.

    repeated: these may be there, too, and more than once: with at-least-once a task that restarts processes again what
    it had not committed.
    """
    wanted = sorted(values)

    def arrived() -> bool:
        found = sorted(topics.values(sink))
        assert application.exit_code is None, (
            f"exit code {application.exit_code}, {len(found)} of {len(wanted)} values:\n{application.log[-4000:]}"
        )
        return found == wanted or (set(wanted) <= set(found) and set(found) <= set(repeated))

    def shown() -> str:
        found = topics.values(sink)
        return f"{len(found)} values {found[:20]} instead of {len(wanted)}:\n{application.log[-4000:]}"

    eventually(arrived, shown)
