"""penstock.tracing: the spans of a stream thread, read from OpenTelemetry's own SDK."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.clients.group.membership import RetriableCommitError
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import ConfigError, StreamsError
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.metrics.spans import LINKS_MAX
from tests import collected_spans
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import CHANGELOG, IN, OUT, counting, counts, feed
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
#: No record of a batch is processed separately as a sample for the metrics.
WHOLE = {"penstock_metrics_sampling_percent": 0}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return collected_spans.exporter()


@pytest.fixture
def topics(cluster: DirectKafka) -> None:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 1)


def traceparent(number: int, flags: str = "01") -> list[tuple[str, bytes]]:
    return [("traceparent", f"00-{number:032x}-{number:016x}-{flags}".encode())]


def send(cluster: DirectKafka, key: str, headers: Any = None) -> None:
    cluster.append(IN, 0, key.encode(), b"value", 1_000, headers)


def warm(thread: Thread, cluster: DirectKafka) -> Thread:
    """Process some records first, because batches start small."""
    feed(cluster, "z" * 1_000)
    return thread.until_idle()


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.usefixtures("topics")
def test_a_batch_has_links_to_the_senders_of_its_sampled_records(
    cluster: DirectKafka, application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    thread = warm(application(counting(), penstock_tracing=True, **WHOLE).thread(), cluster)
    send(cluster, "a", traceparent(1))
    send(cluster, "b")
    send(cluster, "c", traceparent(2))
    send(cluster, "d", traceparent(3, "00"))
    send(cluster, "e", traceparent(2))
    thread.until_idle().commit()
    (batch,) = named(exporter, f"process {IN}")
    assert [link.context.trace_id for link in batch.links] == [1, 2]
    assert batch.parent is None
    assert batch.kind is trace.SpanKind.CONSUMER
    assert attributes(batch) == {
        "kafka.streams.thread": thread.name,
        "kafka.streams.task_id": "0_0",
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.destination.name": IN,
        "messaging.destination.partition.id": "0",
        "messaging.kafka.offset": 1_000,
        "messaging.batch.message_count": 5,
    }
    assert counts(cluster) == dict.fromkeys("abcde", 1) | {"z": 1_000}
    # What follows from a record belongs to its sender's trace.
    headers = {record.key(): record.headers() for record in cluster.records(OUT)}
    assert headers[b"a"] == traceparent(1)
    assert headers[b"b"] is None


@pytest.mark.usefixtures("topics")
def test_a_batch_without_sampled_records_has_no_span(
    cluster: DirectKafka, application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    thread = application(counting(), penstock_tracing=True).thread().until_running()
    feed(cluster, "abc")
    thread.until_idle().commit()
    assert counts(cluster) == {"a": 1, "b": 1, "c": 1}
    assert not named(exporter, f"process {IN}")


@pytest.mark.usefixtures("topics")
def test_a_batch_keeps_as_many_links_as_the_sdk(
    cluster: DirectKafka, application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    thread = warm(application(counting(), penstock_tracing=True, **WHOLE).thread(), cluster)
    for number in range(LINKS_MAX + 10):
        send(cluster, "a", traceparent(number + 1))
    thread.until_idle()
    assert len(named(exporter, f"process {IN}")[0].links) == LINKS_MAX


def test_records_with_extracted_timestamps_have_spans_too(
    cluster: DirectKafka, application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    """With two partitions and an extractor, each record is processed alone."""

    def value_time(message: Any, key: Any, value: str, partition_time: int) -> int:
        return int(value)

    builder = StreamsBuilder()
    left = builder.stream(IN, timestamp_extractor=value_time, **TEXT)
    left.merge(builder.stream("other", timestamp_extractor=value_time, **TEXT)).to(OUT, **TEXT)
    for topic in (IN, "other", OUT):
        cluster.create_topic(topic, 1)
    thread = application(builder.build(), penstock_tracing=True, max_task_idle_ms=-1).thread().until_running()
    for topic, number in ((IN, 1), ("other", 2), (IN, 3)):
        cluster.append(topic, 0, b"k", str(number).encode(), 0, traceparent(number))
    thread.until_idle()
    assert [record.value() for record in cluster.records(OUT)] == [b"1", b"2", b"3"]
    spans = [span for span in exporter.get_finished_spans() if span.name.startswith("process ")]
    assert [(span.name, span.links[0].context.trace_id) for span in spans] == [
        (f"process {IN}", 1),
        ("process other", 2),
        (f"process {IN}", 3),
    ]


@pytest.mark.usefixtures("topics")
def test_a_users_own_spans_are_children_of_the_batch(
    cluster: DirectKafka, application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    def look_up(value: str) -> str:
        with trace.get_tracer("mine").start_as_current_span("look up"):
            return value

    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).map_values(look_up).to(OUT, **TEXT)
    thread = application(builder.build(), penstock_tracing=True).thread().until_running()
    send(cluster, "a", traceparent(1))
    thread.until_idle()
    (batch,), (own,) = named(exporter, f"process {IN}"), named(exporter, "look up")
    assert own.parent is not None
    assert own.parent.span_id == batch.context.span_id


@pytest.mark.usefixtures("topics")
def test_the_span_of_a_failed_batch_has_the_exception(
    cluster: DirectKafka, application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).map_values(int, name="number").to(OUT)
    thread = application(builder.build(), penstock_tracing=True).thread().until_running()
    send(cluster, "a", traceparent(1))
    with pytest.raises(StreamsError, match="processor=number"):
        thread.step(3)
    (batch,) = named(exporter, f"process {IN}")
    assert not batch.status.is_ok
    assert batch.events[0].name == "exception"


@pytest.mark.usefixtures("topics")
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_a_commit_has_a_span_unless_there_is_nothing_to_commit(
    cluster: DirectKafka,
    clock: ManualClock,
    application: MakeApplication,
    exporter: InMemorySpanExporter,
    guarantee: str,
) -> None:
    config = {"processing_guarantee": guarantee, "commit_interval_ms": 100}
    thread = application(counting(), penstock_tracing=True, **config).thread().until_running()
    feed(cluster, "ab")
    thread.until_idle().commit()
    thread.commit()
    (commit,) = named(exporter, "commit")
    assert attributes(commit) == {
        "kafka.streams.thread": thread.name,
        "kafka.streams.commit.tasks": "0_0",
        "kafka.streams.commit.offsets": 1,
    }
    assert commit.status.is_ok
    assert commit.start_time is not None
    assert commit.end_time is not None
    assert commit.start_time <= commit.end_time


@pytest.mark.usefixtures("topics")
def test_the_span_of_a_commit_ends_with_the_groups_response(
    cluster: DirectKafka, clock: ManualClock, application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    thread = application(counting(), penstock_tracing=True, commit_interval_ms=3_000).thread()
    feed(cluster, "a")
    thread.until_idle().commit()
    exporter.clear()
    thread.member.holds_commits = True
    feed(cluster, "b")
    thread.step(2)
    clock.advance(3_001)
    thread.step()
    assert len(thread.member.asked) == 1
    assert not named(exporter, "commit")
    thread.member.answer_commits()
    thread.step()
    assert len(named(exporter, "commit")) == 1


@pytest.mark.usefixtures("topics")
def test_the_span_of_a_failed_commit_has_the_exception(
    cluster: DirectKafka, application: MakeApplication, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = application(counting(), penstock_tracing=True).thread().until_running()
    feed(cluster, "a")
    thread.until_idle()

    def refuse(*arguments: Any) -> None:
        raise RetriableCommitError("not now")

    with monkeypatch.context() as context:
        context.setattr(thread.member, "commit", refuse)
        thread.commit()
    (failed,) = named(exporter, "commit")
    assert not failed.status.is_ok
    thread.commit()
    assert [span.status.is_ok for span in named(exporter, "commit")] == [False, True]


@pytest.mark.usefixtures("topics")
def test_a_restore_has_a_span_unless_the_store_is_up_to_date(
    cluster: DirectKafka, application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    for number in range(7):
        cluster.append(CHANGELOG, 0, b"k%d" % number, b"\0\0\0\0\0\0\0\1", 1)
    app = application(counting(), penstock_tracing=True)
    thread = app.thread().until_running()
    (restore,) = named(exporter, "restore")
    assert attributes(restore) == {
        "kafka.streams.thread": thread.name,
        "messaging.destination.name": CHANGELOG,
        "messaging.destination.partition.id": "0",
        "kafka.streams.store": "counts",
        "kafka.streams.restore.records": 7,
        "kafka.streams.restore.suspended": False,
    }
    thread.close()
    exporter.clear()
    app.thread().until_running()
    assert not named(exporter, "restore")


@pytest.mark.usefixtures("topics")
def test_the_span_of_a_rebalance_lasts_from_the_request_until_tasks_are_assigned(
    application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    thread = application(counting(), penstock_tracing=True).thread().until_running()
    (rebalance,) = named(exporter, "rebalance")
    assert attributes(rebalance) == {
        "kafka.streams.thread": thread.name,
        "kafka.streams.rebalance.reason": "joining",
        "kafka.streams.rebalance.active": "[0_0]",
        "kafka.streams.rebalance.standby": "[]",
    }


@pytest.mark.usefixtures("topics")
def test_there_are_no_spans_by_default(
    cluster: DirectKafka, application: MakeApplication, exporter: InMemorySpanExporter
) -> None:
    thread = application(counting()).thread().until_running()
    send(cluster, "a", traceparent(1))
    thread.until_idle().commit()
    assert not exporter.get_finished_spans()


@pytest.mark.usefixtures("topics")
def test_without_the_extra_the_error_says_how_to_install_it(
    application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'penstock-streams\[otel\]'"):
        application(counting(), penstock_tracing=True).thread()
