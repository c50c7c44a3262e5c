"""Topologies in a driver, for tests of operators; results are (key, value, timestamp)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import Serdes, StreamsBuilder
from penstock.testing import TopologyTestDriver

UNCACHED = {"statestore.cache.max.bytes": 0}


class Flow:
    """A running topology: pipe records in, read results out."""

    def __init__(
        self, declare: Callable[[StreamsBuilder], Any], config: dict[str, Any], wall_clock_ms: int = 0
    ) -> None:
        builder = StreamsBuilder(config)
        declare(builder)
        self.driver = TopologyTestDriver(builder.build(), config, wall_clock_ms)

    def pipe(self, topic: str, key: Any, value: Any, timestamp: int = 0, headers: Any = None) -> Flow:
        self.driver.create_input_topic(topic).pipe_input(key, value, timestamp, headers=headers)
        return self

    def read(self, topic: str = "out") -> list[tuple[Any, Any, int]]:
        records = self.driver.create_output_topic(topic).read_records_to_list()
        return [(record.key, record.value, record.timestamp) for record in records]

    def read_after(self, topic: str, key: Any, value: Any, timestamp: int = 0) -> list[tuple[Any, Any, int]]:
        return self.pipe(topic, key, value, timestamp).read()


Start = Callable[..., Flow]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(declare, config=…) runs what declare(builder) declares, without a record cache unless config says so."""
    flows: list[Flow] = []

    def start_flow(declare: Callable[[StreamsBuilder], Any], config: dict[str, Any] | None = None, **more: Any) -> Flow:
        flows.append(Flow(declare, {**UNCACHED, **(config or {})}, **more))
        return flows[-1]

    yield start_flow
    for flow in flows:
        flow.driver.close()


@pytest.fixture
def compiled(start: Start) -> Callable[..., Any]:
    """compiled(declare, config=…) returns the driver's task: a real TaskContext with the compiled topology."""

    def task(declare: Callable[[StreamsBuilder], Any], config: dict[str, Any] | None = None) -> Any:
        return start(declare, config).driver.task

    return task


@pytest.fixture
def text() -> dict[str, Any]:
    """Options for keys and values of text."""
    return {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


@pytest.fixture
def numbers() -> dict[str, Any]:
    """Options for text keys and long values."""
    return {"key_serde": Serdes.string(), "value_serde": Serdes.int64()}


@pytest.fixture
def documents() -> dict[str, Any]:
    """Options for text keys and JSON values."""
    return {"key_serde": Serdes.string(), "value_serde": Serdes.json()}
