from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside the tests

from memory_kafka import Cluster, ManualClock
from thread_stage import Application, Stage


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def stage(tmp_path: Path, cluster: Cluster, clock: ManualClock) -> Iterator[Stage]:
    """Stream threads over a cluster in memory, stepped by the test; all are closed at the end."""
    with Stage(tmp_path, cluster, clock) as made:
        yield made


@pytest.fixture
def application(stage: Stage) -> Callable[..., Application]:
    """Make an application: ``application(topology, **config)``."""

    def make(topology: Any, **config: Any) -> Application:
        return Application(stage, topology, config)

    return make


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem for localhost, its key.pem, and locked.pem, the same key under the password ``secret``."""
    folder = tmp_path_factory.mktemp("tls")
    make = "openssl req -x509 -newkey rsa:2048 -keyout key.pem -out cert.pem -days 2 -nodes -subj /CN=localhost -addext"
    lock = "openssl rsa -in key.pem -aes256 -passout pass:secret -out locked.pem"
    for command in ([*make.split(), "subjectAltName=DNS:localhost"], lock.split()):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder
