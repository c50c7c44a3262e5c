"""Metrics over OTLP: their content, and the effect of a failing collector."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from penstock import ConfigError
from penstock.supervisor.http.otlp import OtlpMetrics
from penstock.supervisor.http.prometheus import exposition
from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.metrics.sensors import Metric
from tests.otlp_collector import Collector, values
from tests.waiting import eventually

CLIENT = "app-0a0b0c0d-1111-2222-3333-444444444444"
METRICS = [
    Metric("state", "stream-metrics", {"client-id": CLIENT}, "RUNNING"),
    Metric("process-total", "stream-thread-metrics", {"thread-id": f"{CLIENT}-StreamThread-1"}, 7.0),
    Metric("process-total", "stream-thread-metrics", {"thread-id": f"{CLIENT}-StreamThread-2"}, 8.0),
    Metric("rss-bytes", "penstock-process-metrics", {"pid": "1"}, 5e6),
    Metric("cache-size-bytes-total", "stream-task-metrics", {"task-id": "0_0"}, 9.0),
]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


def sender(interval_ms: int = 50) -> OtlpMetrics:
    config = {"application.id": "app", "penstock.metrics.otlp.interval.ms": interval_ms}
    return OtlpMetrics(lambda: METRICS, CLIENT, StreamsConfig(config))


def test_it_sends_the_metrics_of_the_prometheus_endpoint(collector: Collector) -> None:
    sending = sender()
    sending.start()
    eventually(lambda: len(collector.metrics) >= 4, "they are sent")
    sending.stop()
    lines = []
    for _, metric in collector.metrics[:4]:
        kind, data = ("counter", metric.sum) if metric.HasField("sum") else ("gauge", metric.gauge)
        lines += [f"# HELP {metric.name} {metric.description}", f"# TYPE {metric.name} {kind}"]
        for point in data.data_points:
            labels = ",".join(f'{key}="{value}"' for key, value in values(point.attributes).items())
            lines.append(f"{metric.name}{{{labels}}} {point.as_double}")
    assert lines == exposition(METRICS, CLIENT).splitlines()


def test_totals_only_grow(collector: Collector) -> None:
    sending = sender()
    sending.start()
    eventually(lambda: len(collector.metrics) >= 4, "they are sent")
    sending.stop()
    (total,) = (metric for _, metric in collector.metrics[:4] if metric.name == "kafka_stream_thread_process_total")
    assert total.sum.is_monotonic
    assert total.sum.aggregation_temporality == 2  # cumulative
    assert [point.start_time_unix_nano for point in total.sum.data_points] == [0, 0]
    assert all(point.time_unix_nano for point in total.sum.data_points)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, {"service.name": "app", "service.instance.id": CLIENT}),
        ({"OTEL_SERVICE_NAME": "words"}, {"service.name": "words", "service.instance.id": CLIENT}),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=x,a=b"}, {"service.name": "x", "a": "b"}),
    ],
)
def test_opentelemetrys_environment_variables_name_the_service(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    sending = sender()
    sending.start()
    eventually(lambda: bool(collector.metrics), "they are sent")
    sending.stop()
    assert expected.items() <= collector.metrics[0][0].items()


def test_later_metrics_are_sent_after_a_refusal(collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    collector.refuses = True
    sending = sender()
    sending.start()
    eventually(lambda: "code: 400" in caplog.text, "the refusal is logged")
    collector.refuses = False
    eventually(lambda: bool(collector.metrics), "they are sent")
    sending.stop()


def test_shutdown_does_not_wait_for_an_unreachable_collector(collector: Collector) -> None:
    collector.close()
    sending = sender(10)
    sending.start()
    sending.stop()


def test_without_an_interval_nothing_is_sent(collector: Collector) -> None:
    sending = sender(0)
    sending.start()
    sending.stop()
    assert not collector.metrics


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock-streams\[otel\]'"):
        sender()
