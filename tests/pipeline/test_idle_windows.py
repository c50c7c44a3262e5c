"""Windows that close without input in a task of Spark, recreated from its state for each micro-batch. Without Spark."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock import EmitStrategy, Serdes, StreamsBuilder, StreamsConfig, Suppressed, TimeWindows
from penstock.pipeline.tasks.spark_task import SparkTask, TaskPlan
from penstock.topology.records import RawRecord, SentRecord
from tests.pipeline.test_wake_up import DictState

TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
TIMEOUT = timedelta(seconds=5)
CONFIG = {"application.id": "app", "__emit.interval.ms.kstreams.windowed.aggregation__": 0}


def counted(how: str) -> Any:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXTS, idle_timeout=TIMEOUT if how == "source" else None)
    windows = stream.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(seconds=10)))
    if how == "on close":
        counts = windows.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE, wall_clock=TIMEOUT).count()
    else:
        wall_clock = TIMEOUT if how == "suppress" else None
        counts = windows.count().suppress(Suppressed.until_window_closes(wall_clock=wall_clock))
    counts.to_stream(lambda window, count: window.key).map_values(str).to("out", **TEXTS)
    return builder.build()


class Application:
    """One task, at a time that the test sets."""

    def __init__(self, how: str) -> None:
        config = StreamsConfig(CONFIG)
        (topology,) = counted(how).internal_builder.build_subtopologies(config)
        self.plan, self.state, self.offset = TaskPlan(topology, config, {"in": 1, "out": 1}), DictState(), 0

    def micro_batch(self, now_ms: int, *timestamps: int) -> tuple[list[SentRecord], int | None]:
        """Return the records that a micro-batch sends, and when the next one is due."""
        records = [RawRecord("in", 0, self.offset + n, at, b"a", b"x") for n, at in enumerate(timestamps)]
        self.offset += len(records)
        task = SparkTask(self.plan, 0, self.state, lambda: now_ms)
        task.process({"in": records} if records else {})
        task.commit()
        due_ms = task.next_wall_clock_punctuation_ms()
        task.close()
        return task.take_sent(), due_ms


@pytest.mark.parametrize("how", ["source", "suppress", "on close"])
def test_a_window_closes_in_a_micro_batch_without_records(how: str) -> None:
    application = Application(how)
    assert application.micro_batch(1_000, 100_000) == ([], 6_000)
    assert application.micro_batch(2_000, 101_000, 102_000) == ([], 7_000)
    assert application.micro_batch(7_000) == ([], 8_000)
    sent, _ = application.micro_batch(11_000)
    assert [record.value for record in sent] == [b"3"]
    assert application.micro_batch(12_000, 103_000) == ([], 17_000)  # late
    assert application.micro_batch(60_000)[0] == []
