"""processor.wrapper.class (KIP-1112): user code around every operator."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    ConfigError,
    FixedKeyProcessor,
    JoinWindows,
    ProcessorWrapper,
    Record,
    Serdes,
    StreamsBuilder,
    StreamsError,
    Suppressed,
    TimeWindows,
    Topology,
    WrappedProcessor,
)
from penstock.testing import TopologyTestDriver

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
SECONDS = timedelta(seconds=10)


class Upper(FixedKeyProcessor[Any, Any, Any]):
    def process(self, record: Any) -> None:
        self.context.forward(record.with_value(record.value.upper()))


def everything() -> Topology:
    """Operators of all kinds: stateless ones, tables, windows, joins, suppress, a user's processor."""
    builder = StreamsBuilder()
    words = builder.stream("words", **TEXT)
    upper = words.filter(lambda key, value: value != "").process_values(Upper, name="upper")
    parts = upper.split({"short": lambda key, value: len(value) < 3}, default=True)
    table = builder.table("table", **TEXT, store="table")
    short, long = parts.values()
    short.join(table, lambda left, right: left + right).to("joined", **TEXT)
    long.join(words, lambda left, right: left + right, JoinWindows(SECONDS, grace=SECONDS), **TEXT).to("pairs", **TEXT)
    counts = words.group_by(lambda key, value: value, **TEXT).windowed_by(TimeWindows(SECONDS, grace=0))
    closed = counts.count(store="counts").suppress(Suppressed.until_window_closes())
    closed.to_stream(lambda window, count: window.key).to("counted", key_serde=Serdes.string())
    table.filter(lambda key, value: value != "x").map_values(str.upper).to_stream().to("rows", **TEXT)
    return builder.build()


def results(topology: Topology, config: dict[str, Any]) -> dict[str, Any]:
    with TopologyTestDriver(topology, config) as driver:
        table = driver.create_input_topic("table", Serdes.string(), Serdes.string())
        words = driver.create_input_topic("words", Serdes.string(), Serdes.string())
        for key, value in (("a", "1"), ("b", "x"), ("a", None), ("b", "2")):
            table.pipe_input(key, value, 0)
        for time, (key, value) in enumerate([("b", "to"), ("a", "many"), ("b", ""), ("b", "more"), ("b", "to")]):
            words.pipe_input(key, value, time * 4_000)
        outputs = ("joined", "pairs", "counted", "rows")
        return {
            name: driver.create_output_topic(name, Serdes.string(), Serdes.bytes()).read_records_to_list()
            for name in outputs
        }


class Calls(ProcessorWrapper):
    """Records the processors, and how many records each of them received."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.config: dict[str, Any] = {}

    def configure(self, config: Any) -> None:
        self.config = dict(config)

    def wrap(self, processor: WrappedProcessor) -> Callable[[Record[Any, Any]], None]:
        self.calls[processor.name] = 0

        def process(record: Record[Any, Any]) -> None:
            self.calls[processor.name] += 1
            processor.process(record)

        return process


@pytest.mark.parametrize("handler", ["log_and_fail", "log_and_continue"])
def test_every_processor_is_wrapped_and_nothing_else_changes(handler: str) -> None:
    wrapper, topology = Calls(), everything()
    config = {"processing.exception.handler": handler}
    wrapped = results(topology, config | {"processor.wrapper.class": wrapper})
    assert wrapped == results(topology, config)
    assert all(wrapped.values())
    shown = str(topology.describe())
    assert wrapper.calls.keys() == set(re.findall(r"Processor: (\S+)", shown))
    assert wrapper.calls["upper"] == 4
    assert wrapper.config["application.id"] == "test-driver" or wrapper.config["processing.exception.handler"]


class AddHeader(ProcessorWrapper):
    """Adds a header with the name of each processor and the position of the input record."""

    def wrap(self, processor: WrappedProcessor) -> Callable[[Record[Any, Any]], None]:
        def process(record: Record[Any, Any]) -> None:
            origin = processor.record_metadata()
            assert origin is not None
            said = f"{processor.task_id} {origin.topic}-{origin.partition}@{origin.offset}"
            processor.process(record.with_headers([*(record.headers or ()), (processor.name, said.encode())]))

        return process


def test_headers_added_by_a_wrapper_are_forwarded() -> None:
    builder = StreamsBuilder()
    words = builder.stream("words", **TEXT).map_values(str.upper, name="upper")
    words.group_by_key(**TEXT).count(name="count", store="counts").to_stream(name="stream").to("out")
    with TopologyTestDriver(builder.build(), {"processor.wrapper.class": AddHeader}) as driver:
        topic = driver.create_input_topic("words", Serdes.string(), Serdes.string())
        out = driver.create_output_topic("out", Serdes.string(), Serdes.int64())
        for offset in range(2):
            topic.pipe_input("a", "x")
            said = f"0_0 words-0@{offset}".encode()
            assert out.read_record().headers == [("upper", said), ("count", said), ("stream", said)]


class Refusing(ProcessorWrapper):
    """Fails at records with the value "bad", before the operator processes them."""

    def wrap(self, processor: WrappedProcessor) -> Callable[[Record[Any, Any]], None]:
        def process(record: Record[Any, Any]) -> None:
            if processor.name == "second" and record.value == "BAD":
                raise ValueError("refused")
            processor.process(record)

        return process


def failing(handler: str) -> tuple[Topology, dict[str, Any]]:
    builder = StreamsBuilder()
    first = builder.stream("in", **TEXT).map_values(str.upper, name="first")
    first.map_values(str.lower, name="second").to("out", **TEXT)
    return builder.build(), {"processor.wrapper.class": Refusing, "processing.exception.handler": handler}


def test_a_failure_of_the_wrapper_is_that_of_its_processor() -> None:
    with (
        TopologyTestDriver(*failing("log_and_fail")) as driver,
        pytest.raises(StreamsError, match=r"processor=second.*refused"),
    ):
        driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("a", "bad")


def test_the_processing_handler_may_continue_after_it() -> None:
    with TopologyTestDriver(*failing("log_and_continue")) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        topic.pipe_value_list(["bad", "good"])
        assert driver.create_output_topic("out", Serdes.string(), Serdes.string()).read_values_to_list() == ["good"]


def test_a_reference_names_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "user_wrapper.py").write_text(
        "from penstock import ProcessorWrapper\n"
        "class Skip(ProcessorWrapper):\n"
        "    def wrap(self, processor):\n"
        "        return lambda record: None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    topology, config = failing("log_and_fail")
    config["processor.wrapper.class"] = "user_wrapper:Skip"
    with TopologyTestDriver(topology, config) as driver:
        driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("a", "good")
        assert driver.create_output_topic("out", Serdes.string(), Serdes.string()).is_empty()
    sys.modules.pop("user_wrapper")


class NotAFunction(ProcessorWrapper):
    def wrap(self, processor: WrappedProcessor) -> Any:
        return None


@pytest.mark.parametrize(
    ("wrapper", "said"), [(object(), "has no method wrap"), (NotAFunction, "NotAFunction must return a function")]
)
def test_an_invalid_wrapper_is_refused(wrapper: Any, said: str) -> None:
    topology, config = failing("log_and_fail")
    config["processor.wrapper.class"] = wrapper
    with pytest.raises((ConfigError, StreamsError), match=said):
        TopologyTestDriver(topology, config)
