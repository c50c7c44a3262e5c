"""The names of Penstock's metrics against those of Kafka Streams at its level TRACE, with stores of all kinds."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from datetime import timedelta
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import (
    EmitStrategy,
    KafkaStreams,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
)
from tests.java.conftest import driver_program
from tests.java.versions import is_since
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.broker,
    pytest.mark.skipif(not is_since((4, 4)), reason="the names are those of 4.4"),
]
PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
RECORDS = 300
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


def topology(source: str, sink: str) -> Topology:
    """MetricsProgram's topology."""
    builder = StreamsBuilder()
    grouped = builder.stream(source, **TEXT).group_by_key(**TEXT)
    grouped.count(store="rows").to_stream().to(sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
    grouped.count(store=Stores.in_memory_key_value_store("rows-in-memory"))
    grouped.count(store=Stores.lru_map("rows-lru", 100))
    versioned = Stores.persistent_versioned_key_value_store("rows-versioned", 5 * MINUTE)
    grouped.reduce(lambda one, other: other, store=versioned)
    windows = TimeWindows(10 * SECOND, grace=5 * SECOND)
    counted = grouped.windowed_by(windows).count(store="windows")
    counted.suppress(Suppressed.until_window_closes().with_name("buffer"))
    grouped.windowed_by(windows).count(store=Stores.in_memory_window_store("windows-in-memory", MINUTE, 10 * SECOND))
    final = grouped.windowed_by(windows).emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)
    final.count(store="windows-final")
    sessions = SessionWindows(10 * SECOND, grace=5 * SECOND)
    grouped.windowed_by(sessions).count(store="sessions")
    grouped.windowed_by(sessions).count(store=Stores.in_memory_session_store("sessions-in-memory", MINUTE))
    return builder.build()


def feed(servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        producer.produce(topic, f"value {number}", f"key {number % 7}", timestamp=1_000_000 + number * 100)
    assert producer.flush(PATIENCE_SECONDS) == 0


def by_java(folder: Path, config: dict[str, Any]) -> set[tuple[str, ...]]:
    """Return (group, name, names of tags) of all metrics."""
    file = folder / "program.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    command = driver_program(Path(__file__).with_name("MetricsProgram.java"), folder / "classes")
    lines = subprocess.run([*command, str(file)], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    return {tuple(line.split("|")) for line in lines.stdout.splitlines()}


def by_penstock(config: dict[str, Any]) -> set[tuple[str, ...]]:
    with KafkaStreams(topology(config.pop("metrics.input"), config.pop("metrics.output")), config) as streams:
        streams.start()

        def processed() -> float:
            total = ("stream-thread-metrics", "process-total")
            return sum(float(found.value) for found in streams.metrics() if (found.group, found.name) == total)

        eventually(lambda: processed() >= RECORDS, processed)
        # The rates of RocksDB come with a later report than the first records of a store.
        eventually(lambda: any(found.name == "bytes-read-compaction-rate" for found in streams.metrics()), "rates")
        return {(metric.group, metric.name, ",".join(sorted(metric.tags))) for metric in streams.metrics()}


def missing() -> list[tuple[list[str], str]]:
    """Return the groups and the pattern of names that each row of docs/metrics.md lists."""
    table = PAGE.read_text("utf-8").partition("| group | name | why |\n|---|---|---|\n")[2].partition("\n\n")[0]
    found = []
    for line in table.splitlines():
        groups, names, reason = (cell.strip() for cell in line.strip("|").split("|"))
        assert reason, line
        found += [(re.findall(r"`([^`]+)`", groups), name) for name in re.findall(r"`([^`]+)`", names)]
    return found


def test_each_name_of_kafka_streams_is_here_or_has_a_reason(
    bootstrap_servers: str,
    make_topic: Callable[..., str],
    application_id: str,
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    source = make_topic("in", 1)
    feed(bootstrap_servers, source)
    common = {
        "bootstrap.servers": bootstrap_servers,
        "commit.interval.ms": 200,
        "metrics.input": source,
        "metrics.recording.level": "TRACE",
    }
    ours = by_penstock(
        {
            **common,
            "application.id": application_id,
            "metrics.output": make_topic("ours", 1),
            "state.dir": str(tmp_path / "ours"),
        }
    )
    theirs: set[tuple[str, ...]] = set()
    for protocol in ("classic", "streams"):
        folder = tmp_path / protocol
        folder.mkdir()
        config = {
            **common,
            "application.id": unique_name(protocol),
            "group.protocol": protocol,
            "metrics.output": make_topic(f"theirs-{protocol}", 1),
            "state.dir": str(folder / "state"),
            "metrics.records": RECORDS,
            "auto.offset.reset": "earliest",
        }
        theirs |= by_java(folder, config)
        assert protocol == "streams" or len(theirs) == 707, "docs/metrics.md names the number"
    here = {(group, name) for group, name, _ in ours}
    absent = {(group, name) for group, name, _ in theirs} - here
    listed = dict(enumerate(missing()))

    covered = {
        row: {n for n in absent if n[0] in groups and fnmatchcase(n[1], name)} for row, (groups, name) in listed.items()
    }
    assert sorted(absent - set().union(*covered.values())) == []
    assert [listed[row] for row, names in covered.items() if not names] == []
    both = {(group, name) for group, name, _ in theirs} & here
    tags = {(g, n): {t for gg, nn, t in theirs if (gg, nn) == (g, n)} for g, n in both}
    wrong = sorted((g, n, t) for g, n, t in ours if (g, n) in both and t not in tags[g, n])
    assert wrong == []
