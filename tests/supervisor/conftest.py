"""Supervisors with real processes that a test controls; no process survives the test."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.supervisor.source.topology_source import TopologySource
from penstock.supervisor.supervisor import Supervisor
from penstock.topology.config.streams_config import StreamsConfig

sys.path.insert(0, str(Path(__file__).parent))  # spawned processes inherit the path, and import worker_targets by name

import worker_targets
from broker_stage import PARTITIONS, App, Counting
from stage import Application, Conductor, LogLines, MakeApplication

from tests.waiting import PATIENCE_SECONDS


@pytest.fixture
def conductor(tmp_path: Path) -> Iterator[Conductor]:
    conductor = Conductor(tmp_path / "conductor")
    yield conductor
    conductor.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[LogLines]:
    lines = LogLines()
    root = logging.getLogger()
    root.addHandler(lines)
    with caplog.at_level(logging.INFO):
        yield lines
    root.removeHandler(lines)


@pytest.fixture
def application(conductor: Conductor) -> Iterator[MakeApplication]:
    """Make and start an application of puppets: ``application(2, {"key": value}, target=…)``."""
    made: list[Application] = []

    def make(threads: int = 1, config: dict[str, Any] | None = None, **options: Any) -> Application:
        values = {
            "application.id": "app",
            "num.stream.threads": threads,
            "penstock.worker.beat.interval.ms": 20,
            worker_targets.CONDUCTOR: str(conductor.path),
            **(config or {}),
        }
        target = options.pop("target", worker_targets.puppet)
        handler = options.pop("exception_handler", None)
        topology = options.pop("topology", TopologySource(reference="nothing:topology"))
        supervisor = Supervisor(
            StreamsConfig(values), topology, target, client_id="app-id", process_id="process-id", **options
        )
        if handler is not None:
            supervisor.exception_handler = handler
        made.append(Application(supervisor))
        supervisor.start()
        return made[-1]

    yield make
    for one in made:
        one.supervisor.signal(signal.SIGQUIT)
        assert one.supervisor.join(PATIENCE_SECONDS)


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """A real socket that replaces systemd's notification socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(PATIENCE_SECONDS)
        yield receiver


@pytest.fixture
def counting(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Counting:
    """An application that counts by key, with PARTITIONS tasks, on the broker of the run."""
    source, sink = make_topic("in", PARTITIONS), make_topic("out", PARTITIONS)
    return Counting(bootstrap_servers, application_id, source, sink, tmp_path / "state")


@pytest.fixture
def app(tmp_path: Path, bootstrap_servers: str, application_id: str) -> Iterator[App]:
    """A user's folder, and the command that runs its module on the broker of the run."""
    made = App(tmp_path, bootstrap_servers, application_id)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
            process.communicate()
