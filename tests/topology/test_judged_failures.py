"""With a processing handler that may continue, compiled nodes and functions drop the same records.

They also pass the same to the handler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import JoinWindows, Processor, Serdes, StreamsBuilder, TimeWindows
from penstock.testing import TopologyTestDriver
from penstock.topology.context.exception_handlers import ErrorHandlerContext, ProducerRecord, Response
from tests.examples import examples
from tests.topology.only_functions import only_functions

pytestmark = pytest.mark.medium

TEXT: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
WINDOWS = TimeWindows.of_size_with_no_grace(10).advance_by(4)


def fails(step: str) -> Callable[[str], str]:
    """Return a function that appends the step to a value, and fails for values that name it."""

    def function(value: str) -> str:
        if step in value:
            raise ValueError(f"{step} fails at {value}")
        return value + step.upper()

    return function


class Twice(Processor[Any, Any, Any, Any]):
    """Forwards a record twice; the first time may fail."""

    def process(self, record: Any) -> None:
        for value in (fails("p")(record.value), record.value):
            self.context.forward(record.with_value(value))


def chain(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", **TEXT).map_values(fails("a")).filter(lambda key, value: bool(fails("b")(value)))
    stream.map(lambda key, value: (f"{key}{len(value)}", fails("c")(value))).to("out", **TEXT)


def siblings(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", **TEXT).map_values(fails("a"))
    stream.map_values(fails("b")).to("one", **TEXT)
    stream.peek(lambda key, value: fails("c")(value) and None).map_values(fails("d")).to("two", **TEXT)


def several_values(builder: StreamsBuilder) -> None:
    stream = builder.stream("in", **TEXT).flat_map_values(lambda value: [value, f"{value}b", value])
    stream.map_values(fails("b")).process(Twice).map_values(fails("c")).to("out", **TEXT)


def sink(builder: StreamsBuilder) -> None:
    """Its partitioner fails."""
    stream = builder.stream("in", **TEXT).map_values(fails("a"))
    stream.to("out", **TEXT, partitioner=lambda topic, key, value, count: len(fails("b")(value)) % count)


def table(builder: StreamsBuilder) -> None:
    read = builder.table("in", **TEXT, store="read").map_values(fails("a")).filter(lambda key, value: "b" not in value)
    read.to_stream().map_values(lambda value: value and fails("c")(value)).to("out", **TEXT)


def aggregate(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in", **TEXT).map_values(fails("a")).group_by_key()
    totals = grouped.aggregate(str, lambda key, value, old: fails("b")(old + value)[-9:], store="totals", **TEXT)
    totals.to_stream().map_values(fails("c")).to("out", **TEXT)


def windows(builder: StreamsBuilder) -> None:
    grouped = builder.stream("in", **TEXT).group_by_key().windowed_by(WINDOWS)
    largest = grouped.reduce(lambda old, new: fails("b")(max(old, new)), store="largest").to_stream()
    largest.map(lambda key, value: (str(key), fails("c")(value))).to("out", **TEXT)


def joins(builder: StreamsBuilder) -> None:
    table = builder.table("other", **TEXT, store="table")
    stream = builder.stream("in", timestamp_extractor=lambda message, *_: message.timestamp()[1] + 3, **TEXT)
    joined = stream.left_join(table, lambda left, right: fails("a")(f"{left}{right}"))
    near = JoinWindows.of_time_difference_with_no_grace(5)
    joined.join(stream, lambda left, right: fails("b")(left + right), near).to("out", **TEXT)


DECLARED = {f.__name__: f for f in (chain, siblings, several_values, sink, table, aggregate, windows, joins)}
RECORDS = st.lists(
    st.tuples(
        st.sampled_from(("in", "in", "other")),
        st.sampled_from(("k", "l", None)),
        st.text("abcdpx", max_size=2),
        st.integers(0, 60),
    ),
    max_size=12,
)


def results(declare: Callable[[StreamsBuilder], None], records: list[Any], cache_bytes: int, compiled: bool) -> Any:
    """Return the written and dropped records, and those passed to the handler."""
    judged: list[Any] = []

    def judge(context: ErrorHandlerContext, record: Any, error: Exception) -> Response:
        shown = None if record is None else (repr(record.key), repr(record.value), record.timestamp, record.headers)
        judged.append((context, shown, repr(error)))
        dead = [ProducerRecord("dead", context.source_raw_key, context.source_raw_value)]
        return Response.fail(dead) if "x" in str(error) else Response.resume(dead)

    builder = StreamsBuilder()
    declare(builder)
    config = {"processing.exception.handler": judge, "statestore.cache.max.bytes": cache_bytes}
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            only_functions(patch)
        with TopologyTestDriver(builder.build(), config) as driver:
            sources = driver.task.compiled.sources
            failed = []
            for topic, key, value, at in records:
                if topic in sources:
                    try:
                        headers = [("at", str(at).encode())]
                        driver.create_input_topic(topic, *TEXT.values()).pipe_input(key, value, at, headers=headers)
                    except Exception as error:  # noqa: BLE001 - the same one is expected of the other path
                        failed.append(str(error))
            written = {
                name: driver.create_output_topic(name, Serdes.bytes(), Serdes.bytes()).read_records_to_list()
                for name in sorted(driver.produced_topic_names())
            }
            dropped = sorted(driver.task.dropped.items())
            return written, dropped, judged, failed


@pytest.mark.parametrize("cache_bytes", [0, 100_000], ids=["no cache", "cache"])
@pytest.mark.parametrize("declare", DECLARED.values(), ids=DECLARED)
@settings(max_examples=examples(30), deadline=None)
@given(records=RECORDS)
def test_nodes_and_functions_drop_and_report_the_same(
    declare: Callable[[StreamsBuilder], None], cache_bytes: int, records: list[Any]
) -> None:
    expected = results(declare, records, cache_bytes, compiled=False)
    assert results(declare, records, cache_bytes, compiled=True) == expected
