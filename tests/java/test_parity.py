"""What Kafka Streams 4.4 has since 4.3, on Java's TopologyTestDriver and on Penstock's: the same results and failures.

Joins with a global table whose joiner gets both keys (KIP-1340), partitioners that see headers, multicast and drop
(KIP-837, KIP-1321), and failures in the processors of global stores (KIP-1270).
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import KeyValueStore, Processor, Serdes, Stores, StreamPartitioner, StreamsBuilder, StreamsError
from penstock.testing import TopologyTestDriver
from tests.java.conftest import driver_program
from tests.java.handover import ROOT
from tests.java.versions import is_since

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_since((4, 4)), reason="this version of Kafka Streams has none of this"),
]
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


def joins(config: dict[str, Any]) -> Iterator[str]:
    def selected(key: str | None, value: str) -> str | None:
        return None if value == "none" else value[0]

    def joined(stream_key: str | None, mapped_key: str | None, left: str, right: str | None) -> str:
        return "/".join("null" if part is None else part for part in (stream_key, mapped_key, left, right))

    builder = StreamsBuilder()
    table = builder.global_table("table", **TEXT)
    stream = builder.stream("in", **TEXT)
    stream.join(table, selected, joined, with_mapped_key=True).to("inner", **TEXT)
    stream.left_join(table, joined, key_selector=selected, with_mapped_key=True, name="both-keys").to("left", **TEXT)
    yield from str(builder.build().describe()).splitlines()
    with TopologyTestDriver(builder.build(), config) as driver:
        pipe(driver, "table", "a", "A")
        for value in ("a1", "b1", "none"):
            pipe(driver, "in", "k", value)
        pipe(driver, "in", None, "a2")
        yield from read(driver, "inner")
        yield from read(driver, "left")


class ByHeader(StreamPartitioner[str, str]):
    """The partitions that a record's header names."""

    def partitions(self, topic: str, key: str, value: str, headers: Any, partition_count: int) -> set[int] | None:
        to = dict(headers or ()).get("to")
        return None if to is None else {int(number) for number in to.decode().split(",") if number}


def partitioners(config: dict[str, Any]) -> Iterator[str]:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    stream.to("out", partitioner=ByHeader(), **TEXT)
    stream.repartition(name="again", partitioner=ByHeader(), **TEXT).to("repartitioned", **TEXT)
    with TopologyTestDriver(builder.build(), config) as driver:
        for to in (None, "0", "0,0", "", "0,1,2"):
            pipe(driver, "in", "k", f"to {'null' if to is None else to}", to)
        yield from read(driver, "out")
        yield from read(driver, "repartitioned")
        yield f"dropped {sum(driver.dropped_records().values())}"


class Numbers(Processor[str, str, None, None]):
    def process(self, record: Any) -> None:
        store: KeyValueStore[str, str] = self.context.get_state_store("numbers")
        store.put(record.key, str(int(record.value) + 1))


def global_processor(config: dict[str, Any]) -> Iterator[str]:
    builder = StreamsBuilder()
    store = Stores.key_value_store_builder(
        Stores.in_memory_key_value_store("numbers"), Serdes.string(), Serdes.string()
    )
    builder.add_global_store(store.with_logging_disabled(), "table", Numbers, **TEXT)
    builder.stream("in", **TEXT).to("out", **TEXT)
    with TopologyTestDriver(builder.build(), config) as driver:
        for value in ("1", "one", "2"):
            result = "done"
            try:
                pipe(driver, "table", value, value)
            except StreamsError:
                result = "failed"
            yield f"global {value} {result}"
        rows = ", ".join(f"{key}={value}" for key, value in driver.get_key_value_store("numbers").all())
        yield f"rows [{rows}] topics [{', '.join(driver.produced_topic_names())}]"


def pipe(driver: TopologyTestDriver, topic: str, key: str | None, value: str, to: str | None = None) -> None:
    headers = None if to is None else [("to", to.encode())]
    driver.create_input_topic(topic).pipe_input(key, value, 5, headers=headers)


def read(driver: TopologyTestDriver, topic: str) -> Iterator[str]:
    for record in driver.create_output_topic(topic).read_records_to_list():
        yield f"{topic} {'null' if record.key is None else record.key}={record.value}@{record.timestamp}"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the program, and return its command; skips the test where there is no JDK."""
    return driver_program(Path(__file__).with_name("ParityProgram.java"), tmp_path_factory.mktemp("classes"))


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_results_and_failures_are_those_of_java(program: list[str], enabled: str) -> None:
    config = {
        "application.id": "app",
        "processing.exception.handler.global.enabled": enabled,
        "processing.exception.handler": "log_and_continue",
        "errors.dead.letter.queue.topic.name": "dead",
    }
    run = subprocess.run([*program, enabled], capture_output=True, check=True, cwd=ROOT)
    assert [*joins(config), *partitioners(config), *global_processor(config)] == run.stdout.decode().splitlines()
