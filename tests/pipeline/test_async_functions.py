"""Asynchronous functions and batch functions in a task on Spark. Without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import KStream, Retries, Serdes, StreamsBuilder, StreamsConfig, StreamsError
from penstock.pipeline.tasks.spark_task import SparkTask, TaskPlan
from penstock.topology.records import RawRecord
from tests.pipeline.test_wake_up import DictState

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


def task(build: Any, state: DictState | None = None) -> SparkTask:
    builder = StreamsBuilder()
    build(builder.stream("in", **TEXT))
    config = StreamsConfig({"application.id": "app", "bootstrap.servers": "broker:9092"})
    (built,) = builder.build().internal_builder.build_subtopologies(config, frozenset())
    return SparkTask(TaskPlan(built, config, {"out": 1}), 0, state, lambda: 0)


def process(made: SparkTask, *values: str) -> list[str]:
    """Return the results of a micro-batch."""
    given = [RawRecord("in", 0, n, n, b"k", value.encode(), None) for n, value in enumerate(values)]
    made.process({"in": given})
    made.commit()
    return [(sent.value or b"").decode() for sent in made.take_sent()]


def test_the_calls_of_a_micro_batch_run_concurrently_and_keep_their_order() -> None:
    running, opened = 0, []
    all_run = asyncio.Event()

    @asynccontextmanager
    async def session() -> AsyncIterator[str]:
        opened.append("open")
        yield "!"
        opened.append("close")

    async def ask(value: str, mark: str) -> str:
        nonlocal running
        running += 1
        if running == 8:
            all_run.set()
        await asyncio.wait_for(all_run.wait(), 30)
        return value + mark

    def build(stream: KStream[str, str]) -> None:
        stream.map_values_async(ask, max_in_flight=8, lifespan=session).to("out", **TEXT)

    made = task(build)
    assert process(made, *"abcdefghij") == [f"{value}!" for value in "abcdefghij"]
    assert opened == ["open"]
    made.close()
    assert opened == ["open", "close"]


def test_retries_and_timeouts_work_as_in_the_local_engine() -> None:
    tried: list[str] = []

    async def second_time(value: str) -> str:
        tried.append(value)
        if tried.count(value) == 1:
            await asyncio.Event().wait()
        return value

    async def never(value: str) -> str:
        raise ConnectionError("gone")

    def build(stream: KStream[str, str]) -> None:
        stream.map_values_async(second_time, timeout=20, retries=Retries(1, wait_initial=1, wait_jitter=0)).to(
            "out", **TEXT
        )

    made = task(build)
    assert process(made, "a", "b") == ["a", "b"]
    assert sorted(tried) == ["a", "a", "b", "b"]
    made.close()
    failing = task(lambda stream: stream.map_values_async(never, name="ask").to("out", **TEXT))
    with pytest.raises(StreamsError, match=r"processor=ask, topic=in, partition=0, offset=0, .*ConnectionError: gone"):
        process(failing, "a")
    failing.close()


def test_a_batch_ends_with_its_micro_batch() -> None:
    sizes: list[int] = []

    def whole(values: list[str]) -> list[str]:
        sizes.append(len(values))
        return values

    made = task(lambda stream: stream.map_batches(whole, max_records=4).to("out", **TEXT))
    assert process(made, *"abcdef") == list("abcdef")
    assert process(made, "g") == ["g"]
    assert sizes == [4, 2, 1]
    made.close()


def test_records_that_a_store_forwards_are_awaited_and_counted_once() -> None:
    async def slow(value: int) -> int:
        await asyncio.sleep(0.001)
        return value

    def build(stream: KStream[str, str]) -> None:
        counts: Any = stream.group_by_key().count(store="counts").to_stream().map_values_async(slow)
        counts.map_values(str).to("out", **TEXT)

    state = DictState()
    for expected in ("3", "6"):
        made = task(build, state)
        assert process(made, *"abc")[-1] == expected
        made.close()
