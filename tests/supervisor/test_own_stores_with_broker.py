"""Operators over users' own stores in real processes on a real broker, with exactly-once: killed and restored."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from broker_stage import kill_one, read_now, shared_by
from confluent_kafka import Producer

from penstock import DslStoreSuppliers, KafkaStreams, Serdes, StreamsBuilder, TimeWindows
from tests.own_stores import LastingSuppliers, OwnSuppliers
from tests.read_to_end import read_to_end
from tests.waiting import LONGEST_SESSION_MS, PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PARTITIONS = 4
WORDS = [f"word-{number}" for number in range(20)]
KILLS = 3
TEXT = Serdes.string()
#: The begin of this hour: the broker deletes changelogs of windows by the age of their records.
HOUR_MS = int(time.time()) // 3600 * 3_600_000
Pairs = list[tuple[str, str]]


def topology(source: str, counts: str, windows: str) -> Any:
    """Count words, and in windows of an hour."""
    builder = StreamsBuilder()
    grouped = builder.stream(source, key_serde=TEXT, value_serde=TEXT).group_by_key(key_serde=TEXT, value_serde=TEXT)
    grouped.count(store="counts").to_stream().map_values(str).to(counts, key_serde=TEXT, value_serde=TEXT)
    hourly = grouped.windowed_by(TimeWindows.of_size_with_no_grace(3_600_000)).count(store="windows")
    hourly.to_stream(lambda window, count: window.key).map_values(str).to(windows, key_serde=TEXT, value_serde=TEXT)
    return builder.build()


@pytest.mark.parametrize("suppliers", [OwnSuppliers, LastingSuppliers])
def test_killed_processes_neither_lose_nor_repeat_a_count(
    suppliers: type[DslStoreSuppliers],
    bootstrap_servers: str,
    application_id: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    source, *sinks = (make_topic(name, PARTITIONS) for name in ("in", "counts", "windows"))
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": 100,
        "session.timeout.ms": LONGEST_SESSION_MS,
        "heartbeat.interval.ms": 300,
        "num.stream.threads": 2,
        "statestore.cache.max.bytes": 0,
        "state.dir": str(tmp_path),
        "dsl.store.suppliers.class": suppliers,
    }
    expected: Counter[str] = Counter()

    def produce(rounds: int) -> None:
        producer = Producer({"bootstrap.servers": bootstrap_servers})
        for word in WORDS * rounds:
            producer.produce(source, word, word, timestamp=HOUR_MS)
            expected[word] += 1
        assert producer.flush(PATIENCE_SECONDS) == 0

    def written(topic: str) -> Pairs:
        found = read_to_end(bootstrap_servers, topic)
        return sorted(((one.key() or b"").decode(), (one.value() or b"").decode()) for one in found)

    def every_count() -> Pairs:
        return sorted((word, str(number)) for word in WORDS for number in range(1, expected[word] + 1))

    choice = random.Random(7)
    with KafkaStreams(topology(source, *sinks), config) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2, PARTITIONS), "two threads share the tasks")
        for _ in range(KILLS):
            produce(5)
            kill_one(streams, choice)
            produce(5)
            eventually(lambda: shared_by(streams, 2, PARTITIONS), "the process is replaced")
        eventually(lambda: written(sinks[0]) == every_count(), lambda: written(sinks[0]))
        counts = dict.fromkeys(WORDS, KILLS * 10)
        eventually(lambda: dict(read_now(streams.store("counts").all) or ()) == counts, "the store can be read")
    assert written(sinks[1]) == every_count()
