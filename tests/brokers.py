"""Dev brokers for tests: small ones, and a second one beside another; tests/chaos/cluster.py has whole clusters."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
from typing_extensions import override

from penstock.dev.dev_broker import HOST, STOP_TIMEOUT_SECONDS, DevBroker

CONTROLLER, SECOND, THIRD = 1, 2, 3
#: Half the memory of compiled code and a quicker start; a broker under a light load needs no better code.
SMALL_COMPILER = "-XX:TieredStopAtLevel=1"
START_SECONDS = 180.0


class SmallBroker(DevBroker):
    """A broker that starts soon and has little to do."""

    memory_options = ("-Xmx512m", SMALL_COMPILER)

    @override
    def start(self, timeout: float = START_SECONDS, *, detached: bool = True) -> str:
        """Waits longer, because the machine may be busy."""
        return super().start(timeout, detached=detached)


class LedBroker(DevBroker):
    """A broker that uses the controller of the broker first, which must run."""

    def __init__(
        self, first: DevBroker, name: str, directory: Path, config: dict[str, str], node_id: int = SECOND
    ) -> None:
        super().__init__(name, directory, config={**config, "process.roles": "broker", "node.id": str(node_id)})
        self._voter = controller_port(first)
        identity = dict(
            line.split("=", 1) for line in _meta(first.directory).read_text().splitlines() if not line.startswith("#")
        )
        data = _meta(directory)  # what the storage tool would write, but for another cluster
        data.parent.mkdir(parents=True)
        data.write_text(f"version=1\ncluster.id={identity['cluster.id']}\nnode.id={node_id}\n")

    def _settings(self, port: int, controller_port: int) -> dict[str, str]:
        return {
            **super()._settings(port, controller_port),
            "listeners": f"BROKER://{HOST}:{port}",
            "controller.quorum.voters": f"{CONTROLLER}@{HOST}:{self._voter}",
        }

    def kill(self) -> None:
        """End it as a power failure would."""
        pid = self.status().pid
        assert pid is not None, "it does not run"
        process = psutil.Process(pid)
        process.kill()
        process.wait(STOP_TIMEOUT_SECONDS)


def controller_port(broker: DevBroker) -> int:
    """Return the port of a running broker's controller."""
    port: int = json.loads((broker.directory / "state.json").read_text())["controller_port"]
    return port


def _meta(directory: Path) -> Path:
    return directory / "data" / "meta.properties"
