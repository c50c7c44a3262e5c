"""Brokers that are not alone, as in production: a controller in a process of its own, and brokers that it leads."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import psutil

from penstock.dev_broker import ANSWER_TIMEOUT_SECONDS, HOST, STOP_TIMEOUT_SECONDS, DevBroker

CONTROLLER, SECOND, THIRD = 1, 2, 3


class Controller(DevBroker):
    """A controller alone. It goes on when brokers die, and hears of it."""

    def _write_config(self, port: int, controller_port: int) -> None:
        listener = f"CONTROLLER://{HOST}:{controller_port}"
        self._config |= {"process.roles": "controller", "listeners": listener, "advertised.listeners": listener}
        super()._write_config(port, controller_port)

    def _serves(self, running: Any) -> bool:
        try:
            socket.create_connection((HOST, running.controller_port), ANSWER_TIMEOUT_SECONDS).close()
        except OSError:
            return False
        return True


class LedBroker(DevBroker):
    """A broker whose controller is first's, which has to run."""

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

    def _write_config(self, port: int, controller_port: int) -> None:
        self._config["listeners"] = f"BROKER://{HOST}:{port}"
        self._config["controller.quorum.voters"] = f"{CONTROLLER}@{HOST}:{self._voter}"
        super()._write_config(port, controller_port)

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
