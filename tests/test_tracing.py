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
    found = collected_spans.exporter()
    found.clear()
    return found


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


def test_each_operator_has_a_span_below_the_one_before(
    driver: TopologyTestDriver, exporter: InMemorySpanExporter
) -> None:
    """Through a repartition topic, too."""
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
def test_records_that_are_not_sampled_have_no_span(
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
