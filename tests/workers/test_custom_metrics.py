"""Metrics that processors add, and the directory of their task, over an in-memory Kafka cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import ConfigError, FixedKeyProcessor, Processor, Serdes, Stores, StreamsBuilder
from penstock.supervisor.http.prometheus import exposition
from penstock.workers.control.messages import CommandResult, Measure
from penstock.workers.metrics.custom_metrics import CustomMetrics
from penstock.workers.metrics.sensors import Metric, Sensor
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, feed
from tests.workers.thread_stage import Application, Thread

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
PRICES = "prices"


class Clock:
    now_ms = 1_000


@pytest.fixture
def metrics() -> CustomMetrics:
    return CustomMetrics({"thread-id": "t"}, lambda: Sensor(window_ms=10_000, samples=2), lambda: Clock.now_ms)


def values(metrics: CustomMetrics) -> dict[str, float | str]:
    return {metric.name: metric.value for metric in metrics.metrics()}


def test_a_sensor_of_an_operation_has_the_names_and_tags_of_kafka_streams(metrics: CustomMetrics) -> None:
    calls = metrics.add_latency_rate_total_sensor("geo", "lookup", "call", {"region": "eu"})
    for latency_ms in (10, 30):
        calls.record(latency_ms)
    assert values(metrics) == {"call-rate": 0.2, "call-total": 2.0, "call-latency-avg": 20.0, "call-latency-max": 30.0}
    tags = {"thread-id": "t", "geo-id": "lookup", "region": "eu"}
    assert {(metric.group, *metric.tags.items()) for metric in metrics.metrics()} == {
        ("stream-geo-metrics", *tags.items())
    }
    assert 'kafka_stream_geo_call_total{thread_id="t",geo_id="lookup",region="eu"} 2.0\n' in exposition(
        metrics.metrics()
    )


def test_all_tasks_of_a_thread_share_a_sensor(metrics: CustomMetrics) -> None:
    for _ in range(2):
        metrics.add_rate_total_sensor("geo", "lookup", "miss").record()
    metrics.add_rate_total_sensor("geo", "other", "miss").record()
    assert [metric.value for metric in metrics.metrics() if metric.name == "miss-total"] == [2.0, 1.0]


def test_a_sensor_shows_the_recorded_values(metrics: CustomMetrics) -> None:
    everything = metrics.add_sensor("all queues")
    queue = metrics.add_sensor("queue", everything)
    everything.add("all", "total", "app")
    for statistic in ("avg", "max", "min", "total", "sum", "value"):
        queue.add(statistic, statistic, "app", {"queue": "a"})
        queue.add(statistic, statistic, "app", {"queue": "a"})  # adding it twice does not create another metric
    for value in (4, 2.5):
        queue.record(value)
    assert values(metrics) == {"all": 2, "avg": 3.25, "max": 4, "min": 2.5, "total": 2, "sum": 6.5, "value": 2.5}
    with pytest.raises(ValueError, match="There is a metric avg already in the group app"):
        everything.add("avg", "avg", "app", {"queue": "a"})
    with pytest.raises(ValueError, match="'median' is no statistic of a sensor: use one of avg, max"):
        queue.add("median", "median", "app")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="could not convert"):
        queue.record("much")  # type: ignore[arg-type]
    metrics.remove_sensor(queue)
    assert values(metrics) == {"all": 2}


class Lookup(FixedKeyProcessor[Any, Any, Any]):
    """Counts its records, and keeps its own file."""

    directories: ClassVar[set[Path]] = set()

    def init(self, context: Any) -> None:
        super().init(context)
        self.seen = context.metrics.add_rate_total_sensor("app", "lookup", "record")
        self.directories.add(context.state_dir)
        (context.state_dir / "notes").write_text("mine")

    def process(self, record: Any) -> None:
        self.seen.record()


class Price(Processor[Any, Any, Any, Any]):
    """Keeps a global store up to date."""

    def init(self, context: Any) -> None:
        super().init(context)
        (context.state_dir / "notes").write_text("mine")

    def process(self, record: Any) -> None:
        self.context.metrics.add_rate_total_sensor("app", "price", "record").record()


@pytest.mark.parametrize("stateful", [False, True])
def test_processors_of_a_thread_add_metrics_and_keep_files(
    cluster: DirectKafka, application: Callable[..., Application], stateful: bool
) -> None:
    Lookup.directories.clear()
    cluster.create_topic(IN, 2)
    cluster.create_topic(PRICES, 1)
    cluster.append(PRICES, 0, b"a", b"1", 1)
    builder = StreamsBuilder()
    prices = Stores.key_value_store_builder(Stores.persistent_key_value_store("prices"), Serdes.string())
    builder.add_global_store(prices.with_logging_disabled(), PRICES, Price)
    if stateful:
        rows = Stores.key_value_store_builder(Stores.persistent_key_value_store("rows"), Serdes.string())
        builder.add_state_store(rows)
    builder.stream(IN, **TEXT).process_values(Lookup, *(["rows"] if stateful else []))
    app = application(builder.build())
    thread = app.thread().until_running()
    feed(cluster, "abc", partition=0)
    feed(cluster, "de", partition=1)
    thread.step(3).commit()
    found = {metric.tags["app-id"]: metric for metric in measured(thread) if metric.name == "record-total"}
    assert {name: metric.value for name, metric in found.items()} == {"lookup": 5.0, "price": 1.0}
    assert found["lookup"].tags["thread-id"] == thread.thread.name
    assert {path.name for path in Lookup.directories} == {"1_0", "1_1"}  # 0 is the partition of the global store
    thread.close()
    app.thread().until_idle().close()  # files of processors beside the stores disturb nothing
    assert [path.joinpath("notes").read_text() for path in Lookup.directories] == ["mine"] * 2


def measured(thread: Thread) -> list[Metric]:
    """Return all metrics of a thread, requested as by KafkaStreams.metrics()."""
    thread.control.commands.append(Measure(7))
    thread.step()
    answer = next(report for report in reversed(thread.control.reports) if isinstance(report, CommandResult))
    return [
        Metric(name, group.group, group.tags, value) for group in answer.value for name, value in group.values.items()
    ]


def test_the_default_serdes_come_from_the_configuration(
    cluster: DirectKafka, application: Callable[..., Application]
) -> None:
    found: list[Any] = []

    class Asks(FixedKeyProcessor[Any, Any, Any]):
        def init(self, context: Any) -> None:
            found.append(context.key_serde.serialize("", "k"))
            with pytest.raises(ConfigError, match="No value serde for ask"):
                context.value_serde  # noqa: B018

        def process(self, record: Any) -> None: ...

    cluster.create_topic(IN, 1)
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).process_values(Asks, name="ask")
    application(builder.build(), default_key_serde=Serdes.string(), default_value_serde=None).thread().until_running()
    assert found == [b"k"]
