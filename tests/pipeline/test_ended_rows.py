"""Rows and timers that are due by the wall clock between two micro-batches. Without Spark."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

from penstock import Materialized, Processor, Punctuation, Record, Serdes, Stores, StreamsBuilder, StreamsConfig, Ttl
from penstock.pipeline.tasks.spark_task import SparkTask, TaskPlan
from penstock.topology.records import RawRecord
from tests.pipeline.test_wake_up import DictState

TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
DAY_MS = 24 * 3_600_000


class Later(Processor[str, str, str, str]):
    """Sends a key on a minute after its last record."""

    stores = (Stores.timer_store_builder(Stores.persistent_key_value_store("timers"), Serdes.string()),)

    def process(self, record: Record[str, str]) -> None:
        self.context.timer(record.key, int(record.value) + 60_000, Punctuation.WALL_CLOCK_TIME)
        self.context.forward(record)

    def on_timer(self, key: str, at: int) -> None:
        self.context.forward(Record(key, "quiet", at))


def values(builder: StreamsBuilder) -> list[list[bytes | None]]:
    """Return what two micro-batches send, a day apart, each with one record whose value is the time."""
    config = StreamsConfig({"application.id": "app"})
    (topology,) = builder.build().internal_builder.build_subtopologies(config)
    plan, state, sent = TaskPlan(topology, config, {"in": 1, "out": 1}), DictState(), []
    for number, now_ms in enumerate((0, DAY_MS)):
        task = SparkTask(plan, 0, state, partial(int, now_ms))
        task.process({"in": [RawRecord("in", 0, number, now_ms, b"ann", str(now_ms).encode())]})
        task.commit()
        task.close()
        sent.append([record.value for record in task.take_sent()])
    return sent


def test_a_row_that_has_ended_is_not_read() -> None:
    builder = StreamsBuilder()
    ttl = Ttl(timedelta(hours=8), Punctuation.WALL_CLOCK_TIME)
    visits = builder.stream("in", **TEXTS).group_by_key().count(store=Materialized("visits", ttl=ttl))
    visits.to_stream().map_values(str).to("out", **TEXTS)
    assert values(builder) == [[b"1"], [b"None", b"1"]]


def test_a_timer_fires_before_a_later_record_replaces_it() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXTS).process(Later).to("out", **TEXTS)
    assert values(builder) == [[b"0"], [b"quiet", str(DAY_MS).encode()]]
