from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.thread_stage import Application, Stage


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def cluster(clock: ManualClock) -> DirectKafka:
    return DirectKafka(clock)


@pytest.fixture
def stage(tmp_path: Path, cluster: DirectKafka, clock: ManualClock) -> Iterator[Stage]:
    """Stream threads over the in-memory broker, stepped by the test; all are closed at the end."""
    with Stage(tmp_path, cluster, clock) as made:
        yield made


@pytest.fixture
def application(stage: Stage) -> Callable[..., Application]:
    """Make an application: ``application(topology, **config)``."""

    def make(topology: Any, **config: Any) -> Application:
        return Application(stage, topology, config)

    return make
