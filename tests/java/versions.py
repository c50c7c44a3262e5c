"""The versions of Kafka Streams that Penstock is tested with in one group, each pinned in a lock file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from benchmarks.systems import HERE
from penstock.pipeline.java.jar_lock import read_lock

#: Selects another version than the latest, for the processes of a test run.
VERSION_VARIABLE = "PENSTOCK_TEST_KAFKA_STREAMS"
#: Before this version, members cannot read later ones' records of grouped tables without upgrade.from (KIP-904), and
#: before 3.4 those of foreign-key joins (KIP-775).
NEWEST_FORMATS_SINCE = (3, 5)
#: Before this version, rack.aware.assignment.strategy is unknown (KIP-925).
RACKS_SINCE = (3, 7)
#: Before this version, Kafka Streams has no streams groups (KIP-1071).
STREAMS_PROTOCOL_SINCE = (4, 2)
#: Before this version, it refuses group.instance.id there (KAFKA-20169).
STATIC_STREAMS_MEMBERS_SINCE = (4, 4)
#: Before this version, it knows only one thread's tasks of each host in a streams group (KAFKA-20782).
WHOLE_HOSTS_SINCE = (4, 4)

FOLDER = Path(__file__).parent / "kafka_streams"
BENCHMARK = HERE / "kafka_streams" / "kafka_streams.lock"


def locks() -> Mapping[str, Path]:
    """Return the lock files by version; the benchmark's is one of them."""
    benchmark = next(jar.version for jar in read_lock(BENCHMARK) if jar.name == "kafka-streams")
    return {file.stem: file for file in FOLDER.glob("*.lock")} | {benchmark: BENCHMARK}


def chosen_lock() -> Path:
    """Return the lock file of the version that this run tests."""
    return locks()[chosen_version()]


def chosen_version() -> str:
    """Return the version that this run tests."""
    return os.environ.get(VERSION_VARIABLE) or max(locks(), key=numbers)


def is_since(version: tuple[int, ...]) -> bool:
    """Return True if the version that this run tests is at least this one."""
    return numbers(chosen_version()) >= version


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
