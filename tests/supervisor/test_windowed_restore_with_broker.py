"""The restore of a window store on a real broker, with exactly-once: without the records that have expired."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from broker_stage import read_now
from confluent_kafka import Producer

from penstock import IsolationLevel, KafkaStreams, Serdes, StateRestoreListener, StreamsBuilder, TimeWindows
from penstock.topology.records import TopicPartition
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
RECORDS = 3_000
STEP_MS = 3_000
#: The time of the last record. Of today: the broker deletes old records.
LAST = time.time_ns() // 1_000_000 // 10_000 * 10_000


class Totals(StateRestoreListener):
    """Notes how many records each restore has read."""

    def __init__(self) -> None:
        self.restored: list[int] = []

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        self.restored.append(total_restored)


def newest(streams: KafkaStreams) -> list[Any]:
    """Wait until the last window is committed; return the rows of the last minute."""
    rows: list[Any] = []
    store: Any = streams.store("counts", isolation=IsolationLevel.READ_COMMITTED)

    def are_there() -> bool:
        rows[:] = read_now(lambda: store.fetch_range("k", LAST - 60_000, LAST)) or ()
        return bool(rows) and rows[-1][0] == LAST

    eventually(are_there, lambda: rows)
    return rows


def test_only_the_newest_records_are_read(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source = make_topic("in")
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.string())
    stream.group_by_key().windowed_by(TimeWindows(timedelta(seconds=10))).count(store="counts")
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number in range(1, RECORDS + 1):
        producer.produce(source, "v", "k", timestamp=LAST - (RECORDS - number) * STEP_MS)
    assert producer.flush(PATIENCE_SECONDS) == 0
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
        "processing.guarantee": "exactly_once_v2",
        "statestore.cache.max.bytes": 0,
    }
    found = []
    for _ in range(2):
        totals = Totals()
        with KafkaStreams(builder.build(), config) as streams:
            streams.set_global_state_restore_listener(totals)
            streams.start()
            found.append(newest(streams))
            streams.close(leave_group=True)  # the id of its process is in the state directory
        shutil.rmtree(tmp_path / "state")
    assert found[0] == found[1]
    print(f"\nread {totals.restored} of {RECORDS} records")
    assert 0 < sum(totals.restored) < 100
