"""penstock.tracing: the spans of traced records, read from OpenTelemetry's own SDK."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock import ConfigError, Record, Serdes, StreamsBuilder, StreamsError
from penstock.testing import TopologyTestDriver
from tests import collected_spans

TRACE, SENDER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = {"traceparent": f"00-{TRACE}-{SENDER}-01", "other": "kept"}
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
CONFIG = {"processor.wrapper.class": "penstock.tracing:TracingWrapper"}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return collected_spans.exporter()


@pytest.fixture
def driver(exporter: InMemorySpanExporter) -> Iterator[TopologyTestDriver]:
    builder = StreamsBuilder()
    words = builder.stream("words", **TEXT).map_values(lambda word: word[0].upper(), name="upper")
    by_word = words.group_by(lambda key, word: word, name="by", **TEXT)
    by_word.count(name="count", store="counts").to_stream(name="stream").to("out", key_serde=Serdes.string())
    with TopologyTestDriver(builder.build(), CONFIG) as driver:
        yield driver


def send(driver: TopologyTestDriver, value: str, headers: Any) -> None:
    driver.create_input_topic("words", Serdes.string(), Serdes.string()).pipe_input(Record("k", value, 0, headers))


def parent(span: ReadableSpan) -> str:
    assert span.parent is not None
    return f"{span.parent.span_id:016x}"


def test_each_operator_has_a_span_that_is_a_child_of_the_previous_one(
    driver: TopologyTestDriver, exporter: InMemorySpanExporter
) -> None:
    """Also across a repartition topic."""
    send(driver, "tea", SAMPLED)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    assert parent(spans["upper"]) == SENDER
    chain = sorted(spans.values(), key=lambda span: span.start_time or 0)
    for above, below in itertools.pairwise(chain):
        assert parent(below) == f"{above.context.span_id:016x}", below.name
    assert (chain[0].name, chain[-1].name) == ("upper", "stream")
    assert dict(spans["upper"].attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.destination.name": "words",
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 0,
        "kafka.streams.task_id": "0_0",
    }
    written = driver.create_output_topic("out", Serdes.string(), Serdes.int64()).read_record()
    last = f"00-{TRACE}-{spans['stream'].context.span_id:016x}-01".encode()
    assert sorted(written.headers or ()) == [("other", b"kept"), ("traceparent", last)]


@pytest.mark.parametrize(
    "headers",
    [None, {"other": "x"}, {"traceparent": f"00-{TRACE}-{SENDER}-00"}, {"traceparent": None}, {"traceparent": "none"}],
)
def test_unsampled_records_have_no_span(
    driver: TopologyTestDriver, exporter: InMemorySpanExporter, headers: Any
) -> None:
    send(driver, "tea", headers)
    assert not exporter.get_finished_spans()
    written = driver.create_output_topic("out", Serdes.string(), Serdes.int64()).read_record()
    assert written.headers == Record("k", 1, 0, headers).headers


def test_the_span_of_a_failed_operator_has_its_exception(
    driver: TopologyTestDriver, exporter: InMemorySpanExporter
) -> None:
    with pytest.raises(StreamsError, match=r"processor=upper.*IndexError"):
        send(driver, "", SAMPLED)
    (span,) = exporter.get_finished_spans()
    assert not span.status.is_ok
    assert (span.events[0].attributes or {})["exception.type"] == "IndexError"


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "penstock.tracing", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    with pytest.raises(ConfigError, match=r"pip install 'penstock-streams\[otel\]'"):
        TopologyTestDriver(builder.build(), CONFIG)


def tables(**config: Any) -> TopologyTestDriver:
    """orders joined with the table prices, and a table joined with it."""
    builder = StreamsBuilder()
    prices = builder.table("prices", name="prices", store="prices", **TEXT)
    names = builder.table("names", name="names", store="names", **TEXT)
    orders = builder.stream("orders", **TEXT)
    orders.join(prices, str.__add__, name="join").to("out")
    prices.join(names, str.__add__, name="both", store="both").to_stream(name="changes").to("joined")
    return TopologyTestDriver(builder.build(), {"dsl.store.format": "HEADERS", **CONFIG, **config})


def other_trace(number: int) -> dict[str, str]:
    return {"traceparent": f"00-{number:032x}-{number:016x}-01"}


def write(driver: TopologyTestDriver, topic: str, value: str | None, headers: Any = None) -> None:
    driver.create_input_topic(topic, Serdes.string(), Serdes.string()).pipe_input(Record("k", value, 0, headers))


def linked(exporter: InMemorySpanExporter, name: str) -> list[int]:
    """Return the traces that an operator's spans link to."""
    return [link.context.trace_id for span in exporter.get_finished_spans() if span.name == name for link in span.links]


@pytest.mark.parametrize("cache_bytes", [0, 10_000_000])
def test_a_join_links_to_the_trace_that_wrote_the_row(exporter: InMemorySpanExporter, cache_bytes: int) -> None:
    with tables(**{"statestore.cache.max.bytes": cache_bytes}) as driver:
        write(driver, "prices", "1", other_trace(7))
        write(driver, "orders", "a", SAMPLED)
        (source,) = [span for span in exporter.get_finished_spans() if span.name == "prices"]
        (join,) = [span for span in exporter.get_finished_spans() if span.name == "join"]
        assert [(link.context.trace_id, link.context.span_id) for link in join.links] == [(7, source.context.span_id)]
        assert f"{join.context.trace_id:032x}" == TRACE

        exporter.clear()
        write(driver, "prices", "2")  # without a trace: the row has no context any more
        write(driver, "orders", "a", SAMPLED)
        assert linked(exporter, "join") == []

        write(driver, "prices", "3", other_trace(8))
        write(driver, "orders", "a")  # not sampled: no span
        write(driver, "orders", "a", SAMPLED)
        assert linked(exporter, "join") == [8]

        exporter.clear()
        write(driver, "prices", None, other_trace(9))
        write(driver, "orders", "a", SAMPLED)
        assert linked(exporter, "join") == []


@pytest.mark.parametrize("cache_bytes", [0, 10_000_000])
def test_a_table_join_links_to_the_trace_that_wrote_the_other_row(
    exporter: InMemorySpanExporter, cache_bytes: int
) -> None:
    with tables(**{"statestore.cache.max.bytes": cache_bytes}) as driver:
        write(driver, "names", "x", other_trace(5))
        write(driver, "prices", "1", SAMPLED)
        joins = [span for span in exporter.get_finished_spans() if 5 in [link.context.trace_id for link in span.links]]
        assert [f"{join.context.trace_id:032x}" for join in joins] == [TRACE]


def test_an_aggregation_links_to_the_trace_of_its_last_result(exporter: InMemorySpanExporter) -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).group_by_key().count(name="count", store="counts")
    config = {"dsl.store.format": "HEADERS", "statestore.cache.max.bytes": 0, **CONFIG}
    with TopologyTestDriver(builder.build(), config) as driver:
        for number in (1, 2, 3):
            write(driver, "in", "x", other_trace(number))
        assert linked(exporter, "count") == [1, 2]


def test_rows_have_no_context_unless_the_format_has_headers(exporter: InMemorySpanExporter) -> None:
    with tables(**{"dsl.store.format": "DEFAULT"}) as driver:
        write(driver, "prices", "1", other_trace(7))
        write(driver, "orders", "a", SAMPLED)
        assert [span.name for span in exporter.get_finished_spans()][-1] == "join"
        assert linked(exporter, "join") == []


@pytest.mark.parametrize("traced", [True, False])
def test_a_changelog_has_the_context_of_sampled_records_as_headers(traced: bool) -> None:
    """Kafka Streams' stores of this format read them. Other headers are not kept, as in its operators."""
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).group_by_key().count(store="counts")
    config = {"application.id": "app", "dsl.store.format": "HEADERS", "statestore.cache.max.bytes": 0}
    with TopologyTestDriver(builder.build(), config | (CONFIG if traced else {})) as driver:
        write(driver, "in", "x", {**other_trace(1), "tracestate": "a=b", "other": "x"})
        write(driver, "in", "x", {"traceparent": other_trace(1)["traceparent"][:-1] + "0"})
        write(driver, "in", "x")
        written = driver.create_output_topic("app-counts-changelog").read_records_to_list()
        names = [[name for name, _ in record.headers or ()] for record in written]
        assert names == [["traceparent", "tracestate"] if traced else [], [], []]
