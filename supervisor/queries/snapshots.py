"""Makes all stream threads of a running application take a snapshot of their stores."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from penstock.statestore.directory.snapshot import Snapshot, complete, new_snapshot
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError
from penstock.workers.control.messages import TakeSnapshot
from penstock_distribution import version

from ..source.state_places import application_directory
from ..source.topology_gate import FACTS_FILE_NAME
from ..supervisor import Supervisor
from .queries import Answers

#: Time limit for stream threads. Each continues with its records as soon as it has taken its own part.
SNAPSHOT_SECONDS = 300.0


def snapshot_name(now_ms: int) -> str:
    """Return the default name of a snapshot: its time, in UTC."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_ms / 1000))


def create(supervisor: Supervisor, config: StreamsConfig, directory: Path, name: str | None) -> dict[str, Any]:
    """Create a snapshot ``<directory>/<name>`` and return its contents.

    Raises ConfigError if it cannot be created there, StreamsError if a stream thread fails to take its part.
    """
    now_ms = time.time_ns() // 1_000_000
    name = name or snapshot_name(now_ms)
    with new_snapshot(directory, name) as path:
        results = supervisor.ask(lambda number: TakeSnapshot(number, str(path)), Answers(), SNAPSHOT_SECONDS)
        errors = sorted({result.error for result in results if result.error is not None})
        if errors:
            raise StreamsError(f"No snapshot was taken: {'; '.join(errors)}")
        tasks = {task: stores for result in results for task, stores in result.value.items()}
        if not tasks:
            raise StreamsError("No snapshot was taken: no task on this host has a store on disk now.")
        snapshot = Snapshot(config["application.id"], now_ms, version(), tasks)
        complete(path, snapshot, application_directory(config) / FACTS_FILE_NAME)
    return {"path": str(directory / name), "tasks": tasks}
