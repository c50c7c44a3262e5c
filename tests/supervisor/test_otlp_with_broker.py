"""Spans and metrics of a real application, as a collector receives them: OTLP over HTTP, decoded from protobuf."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from broker_stage import App, last_line, wait_for_line
from confluent_kafka import Producer

from tests.otlp_collector import Collector, values
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.long]
TRACE, SENDER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PROGRAM = """
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)

    topology = StreamsBuilder()
    words = topology.stream({source!r}, key_serde=TEXT, value_serde=TEXT).map_values(str.upper, name="upper")
    words.group_by(lambda key, word: word, name="by", key_serde=TEXT, value_serde=TEXT).count(
        name="count", store="counts"
    ).to_stream(name="stream").to({sink!r}, key_serde=TEXT, value_serde=Serdes.int64())
"""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


@pytest.fixture
def app(tmp_path: Path, bootstrap_servers: str, application_id: str, make_topic: Callable[..., str]) -> Iterator[App]:
    made = App(tmp_path, bootstrap_servers, application_id)
    made.topics = make_topic("words"), make_topic("counts")
    made.module(PROGRAM.format(source=made.topics[0], sink=made.topics[1]))
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def send(app: App, *words: str) -> None:
    producer = Producer({"bootstrap.servers": app.config["bootstrap.servers"]})
    for word in words:
        headers: Any = {"traceparent": f"00-{TRACE}-{SENDER}-01"} if word == "tea" else None
        producer.produce(app.topics[0], word, "k", headers=headers)
    assert producer.flush(PATIENCE_SECONDS) == 0


def stop(process: Any) -> str:
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, last_line(log)
    return str(log)


def test_spans_of_records_batches_commits_restores_and_rebalances(app: App, collector: Collector) -> None:
    """All spans arrive, also the last ones: a stream thread's process ends as Python's processes do."""
    settings = {"penstock_tracing": "true", "processor_wrapper_class": "penstock.tracing:TracingWrapper"}
    settings["session_timeout_ms"] = "6000"  # the second one, on another disk, waits until the first has ended
    send(app, "milk", "tea")
    process = app.start(threads=1, **settings)
    eventually(lambda: bool(collector.named("stream")), lambda: [span.name for _, span in collector.spans])
    stop(process)
    sender = bytes.fromhex(TRACE)
    chain = [span for _, span in collector.spans if span.trace_id == sender]
    chain.sort(key=lambda span: int(span.start_time_unix_nano))
    assert chain[0].name == "upper"
    assert {"by", "count", "stream"} <= {span.name for span in chain}
    assert chain[0].parent_span_id == bytes.fromhex(SENDER)
    (batch,) = [b for b in collector.named(f"process {app.topics[0]}") if b.links]
    assert [(link.trace_id, link.span_id) for link in batch.links] == [(sender, bytes.fromhex(SENDER))]
    commits = [values(span.attributes) for span in collector.named("commit")]
    assert any(commit["kafka.streams.commit.offsets"] for commit in commits)
    rebalances = [values(span.attributes) for span in collector.named("rebalance")]
    assert rebalances[0]["kafka.streams.rebalance.reason"] == "joining"
    assert rebalances[-1]["kafka.streams.rebalance.active"] == "[0_0, 1_0]"
    assert not collector.named("restore")

    process = app.start(threads=1, **settings, state_dir=str(app.folder / "another"))
    wait_for_line(process, "from REBALANCING to RUNNING")
    stop(process)
    (restore,) = collector.named("restore")
    assert values(restore.attributes)["kafka.streams.store"] == "counts"
    assert values(restore.attributes)["kafka.streams.restore.records"] == 2
    assert 0 < restore.start_time_unix_nano <= restore.end_time_unix_nano


def test_metrics_equal_those_of_prometheus(app: App, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    send(app, "milk", "tea")
    process = app.start(threads=1, penstock_http_port="0", penstock_metrics_otlp_interval_ms="300")
    log = wait_for_line(process, "from REBALANCING to RUNNING")
    port = re.findall(r"http://127.0.0.1:(\d+)/", log)[0]

    def processed() -> float:
        name = "kafka_stream_thread_process_total"
        found = [metric for _, metric in collector.metrics if metric.name == name]
        return found[-1].sum.data_points[0].as_double if found else 0.0

    eventually(lambda: processed() == 4, processed)  # two of them from the repartition topic
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        page = answer.read().decode()
    scraped = dict(re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE))
    since = len(collector.metrics)
    eventually(lambda: len(collector.metrics) > since + len(scraped), "they are sent again")
    sent = {metric.name: metric for _, metric in collector.metrics[since:]}
    assert {name: "counter" if metric.HasField("sum") else "gauge" for name, metric in sent.items()} == scraped
    thread = sent["kafka_stream_thread_process_total"]
    assert thread.sum.is_monotonic
    assert thread.sum.aggregation_temporality == 2  # cumulative
    (point,) = thread.sum.data_points
    tags = ",".join(f'{key}="{value}"' for key, value in values(point.attributes).items())
    assert f"kafka_stream_thread_process_total{{{tags}}} 4.0\n" in page
    state = sent["kafka_stream_state"].gauge.data_points[0]
    assert (values(state.attributes)["value"], state.as_double) == ("RUNNING", 1.0)
    resource = collector.metrics[-1][0]
    assert resource["service.name"] == app.config["application.id"]
    assert resource["deployment.environment"] == "test"
    stop(process)


def test_a_refusing_or_silent_collector_affects_nothing(app: App, collector: Collector) -> None:
    collector.refuses = True
    send(app, "milk")
    process = app.start(threads=1, penstock_tracing="true", penstock_metrics_otlp_interval_ms="200")
    wait_for_line(process, "Failed to export metrics batch code: 400")
    collector.close()
    wait_for_line(process, "Connection refused")
    send(app, "tea")
    stop(process)


def test_the_service_name_comes_from_opentelemetrys_variable(
    app: App, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "words")
    process = app.start(threads=1, penstock_metrics_otlp_interval_ms="200")
    eventually(lambda: bool(collector.metrics), "metrics are sent")
    assert collector.metrics[0][0]["service.name"] == "words"
    stop(process)
