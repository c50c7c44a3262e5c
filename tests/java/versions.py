"""The versions of Kafka Streams that Penstock is tested with in one group, each pinned in a lock file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.systems import HERE

#: Names another version than the latest, for the processes of a run of tests.
VERSION_VARIABLE = "PENSTOCK_TEST_KAFKA_STREAMS"
#: Kafka Streams before it cannot be in a streams group (KIP-1071).
STREAMS_PROTOCOL_SINCE = (4, 2)

LATEST = HERE / "kafka_streams" / "kafka_streams.lock"
OLDER = Path(__file__).parent / "older_versions"


def locks() -> Mapping[str, Path]:
    """Return the lock files of the older versions by version."""
    return {file.stem: file for file in OLDER.glob("*.lock")}


def chosen_lock() -> Path:
    """Return the lock file of the version that this run tests."""
    version = os.environ.get(VERSION_VARIABLE)
    return locks()[version] if version else LATEST


def has_streams_protocol() -> bool:
    """Return whether the version that this run tests can be in a streams group."""
    version = os.environ.get(VERSION_VARIABLE)
    return version is None or tuple(map(int, version.split(".")[:2])) >= STREAMS_PROTOCOL_SINCE
