"""A task on Spark has one timer, for its next wall-clock punctuation. Tested over a replacement of Spark's handle."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import Row

from penstock import Processor, ProcessorContext, Punctuation, Record, Serdes, StreamsBuilder, StreamsConfig
from penstock.pipeline.tasks import task_processor
from penstock.pipeline.tasks.record_batches import messages, pack, sent_batch, unpack
from penstock.pipeline.tasks.spark_task import TaskPlan
from penstock.pipeline.tasks.task_processor import TaskProcessor
from penstock.topology.records import SentRecord
from tests.pipeline import state_server

STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


class Handle(state_server.Handle):
    """The part of Spark that a StatefulProcessor sees: one map, and timers."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: set[int] = set()

    def listTimers(self) -> Iterator[int]:  # noqa: N802
        return iter(sorted(self.timers))

    def registerTimer(self, at_ms: int) -> None:  # noqa: N802
        self.timers.add(at_ms)

    def deleteTimer(self, at_ms: int) -> None:  # noqa: N802
        self.timers.remove(at_ms)


class Ticking(Processor[str, str, str, str]):
    """Ticks by the wall clock every 100 ms, until a record says stop."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.slow = context.schedule(timedelta(milliseconds=250), Punctuation.WALL_CLOCK_TIME, lambda now_ms: None)
        self.fast = context.schedule(timedelta(milliseconds=100), Punctuation.WALL_CLOCK_TIME, self.tick)

    def process(self, record: Record[str, str]) -> None:
        if record.value == "stop":
            self.fast.cancel()

    def tick(self, now_ms: int) -> None:
        self.context.forward(Record("tick", str(now_ms), now_ms))


def rows(value: bytes) -> Iterator[Row]:
    """Return one record in Spark's form."""
    batch = sent_batch([SentRecord("in", b"k", value, 1, None, 0)])
    return iter([Row(task=0, topic="in", first_offset=0, records=pack(batch))])


def values(sent: Iterator[Row]) -> list[bytes | None]:
    return [record.value() for row in sent for batch in unpack(row.records) for record in messages(batch)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The wall clock, which the test sets."""
    now_ms = [1_000]
    monkeypatch.setattr(task_processor, "wall_clock_ms", lambda: now_ms[0])
    return now_ms


def ticking(has_alarm: bool) -> tuple[TaskProcessor, Handle]:
    builder = StreamsBuilder()
    builder.stream("in", **STRINGS).process(Ticking).to("out", **STRINGS)
    config = StreamsConfig({"application.id": "a"})
    (topology,) = builder.build().internal_builder.build_subtopologies(config, frozenset())
    plan, handle = TaskPlan(topology, config, {"in": 1, "out": 1}), Handle()
    processor = TaskProcessor(plan, None, has_alarm=has_alarm)
    processor.init(handle)  # type: ignore[arg-type]
    return processor, handle


def test_the_timer_is_set_to_the_next_punctuation_and_advances_after_it(clock: list[int]) -> None:
    processor, handle = ticking(has_alarm=True)
    assert values(processor.handleInputRows((0,), rows(b"v"), None)) == []
    assert handle.timers == {1_100}
    clock[0] = 1_130
    handle.timers.clear()  # Spark removes an expired timer
    assert values(processor.handleExpiredTimer((0,), None, None)) == [b"1130"]
    assert handle.timers == {1_200}


def test_the_timer_is_replaced_when_a_record_arrives_first(clock: list[int]) -> None:
    processor, handle = ticking(has_alarm=True)
    list(processor.handleInputRows((0,), rows(b"v"), None))
    clock[0] = 1_105
    assert values(processor.handleInputRows((0,), rows(b"v"), None)) == [b"1105"]
    assert handle.timers == {1_200}


def test_a_cancelled_punctuation_sets_no_timer(clock: list[int]) -> None:
    processor, handle = ticking(has_alarm=True)
    list(processor.handleInputRows((0,), rows(b"stop"), None))
    assert handle.timers == {1_250}  # the other one's


def test_without_wall_clock_punctuations_no_timer_is_set(clock: list[int]) -> None:
    processor, handle = ticking(has_alarm=False)
    list(processor.handleInputRows((0,), rows(b"v"), None))
    assert handle.timers == set()
