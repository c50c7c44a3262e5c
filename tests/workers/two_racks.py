"""A second broker, in another rack, that joins a dev broker: for tests of racks and of leaders that move."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from penstock.dev_broker import HOST, DevBroker

RACKS = ("red", "blue")
FIRST, SECOND = 1, 2
#: Both keep what is internal, so that either may die; its leaders move when it has been silent for so long.
CONFIG = {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "500",
}


class SecondBroker(DevBroker):
    """A broker without a controller of its own: first's is its, and first has to run."""

    def __init__(self, first: DevBroker, directory: Path, config: dict[str, str]) -> None:
        super().__init__("second", directory, config={**config, "process.roles": "broker", "node.id": str(SECOND)})
        self._voter = json.loads((first.directory / "state.json").read_text())["controller_port"]
        identity = dict(
            line.split("=", 1) for line in _meta(first.directory).read_text().splitlines() if not line.startswith("#")
        )
        data = _meta(directory)  # what the storage tool would write, but for another cluster
        data.parent.mkdir(parents=True)
        data.write_text(f"version=1\ncluster.id={identity['cluster.id']}\nnode.id={SECOND}\n")

    def _write_config(self, port: int, controller_port: int) -> None:
        self._config["listeners"] = f"BROKER://{HOST}:{port}"
        self._config["controller.quorum.voters"] = f"{FIRST}@{HOST}:{self._voter}"
        super()._write_config(port, controller_port)

    def kill(self) -> None:
        """End it as a power failure would."""
        pid = self.status().pid
        assert pid is not None, "it does not run"
        process = psutil.Process(pid)
        process.send_signal(signal.SIGKILL)
        process.wait()


@dataclass(frozen=True)
class TwoRacks:
    """Broker FIRST in rack red, broker SECOND in rack blue."""

    bootstrap_servers: str
    second: SecondBroker


@contextmanager
def two_racks(directory: Path) -> Iterator[TwoRacks]:
    """Run both brokers."""
    with DevBroker("first", directory / "first", config={**CONFIG, "broker.rack": RACKS[0]}) as first:
        config = {**CONFIG, "broker.rack": RACKS[1]}
        with SecondBroker(first, directory / "second", config) as second:
            yield TwoRacks(f"{first.bootstrap_servers},{second.bootstrap_servers}", second)


def _meta(directory: Path) -> Path:
    return directory / "data" / "meta.properties"
