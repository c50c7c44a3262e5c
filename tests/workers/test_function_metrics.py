"""Measurements of asynchronous functions and of batch functions: in metrics, status and description."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import Retries, StreamsBuilder
from penstock.supervisor.control.description import waiting
from penstock.supervisor.http.view import figures
from penstock.topology.context.function_times import SAMPLES, FunctionTimes
from penstock.workers.control.messages import Status, TaskStatus
from penstock.workers.metrics.function_metrics import FUNCTION_GROUP, percentile
from penstock.workers.metrics.sensors import Metric
from tests.direct_kafka import DirectKafka
from tests.workers.counting import CHANGELOG, IN, OUT, feed
from tests.workers.test_async_functions import TEXT, Service, asking, until_out
from tests.workers.test_task_metrics import beat, measured
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]


@pytest.fixture(autouse=True)
def topics(cluster: DirectKafka) -> None:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 1)


def status_of(thread: Thread) -> TaskStatus:
    """Return the status of the thread's only task in the next beat."""
    found: Status = thread.thread.status.status(thread.thread.time.now_ms)
    (task,) = found.tasks
    return task


def test_pending_records_and_calls_in_flight_are_shown(application: MakeApplication, cluster: DirectKafka) -> None:
    service = Service("b")
    thread = application(asking(service, name="ask")).thread().until_running()
    feed(cluster, "abc")
    until_out(thread, cluster, "a")
    service.wait_for(lambda: service.begun["c"] == 1)
    (task,) = thread.task_manager.active.running.values()
    assert task.run is not None
    while task.run.functions[0]._records.in_flight() != 1:  # c ends on the event loop's thread
        thread.step()
    found = measured(thread, FUNCTION_GROUP, task_id="0_0", processor_node_id="ask")
    assert (found["records-waiting"], found["calls-in-flight"]) == (2, 1), "c is answered, and waits for b"
    status = status_of(thread)
    assert status.waiting == 2
    assert waiting(status) == " 2 records wait for functions"
    assert "ask: 2 records wait, 1 calls in flight" in thread.describe()
    service.let("b")
    until_out(thread, cluster, "abc")
    beat(thread)
    found = measured(thread, FUNCTION_GROUP, task_id="0_0", processor_node_id="ask")
    assert (found["records-waiting"], found["calls-in-flight"]) == (0, 0)
    assert (found["call-total"], found["retry-total"]) == (3, 0)
    assert found["call-rate"] > 0
    assert waiting(status_of(thread)) == ""


def test_retries_and_the_time_of_each_attempt_are_counted(application: MakeApplication, cluster: DirectKafka) -> None:
    attempts: list[str] = []

    async def third_time(value: str) -> str:
        attempts.append(value)
        await asyncio.sleep(0.05)
        if len(attempts) < 3:
            raise ConnectionError
        return value

    builder = StreamsBuilder()
    retries = Retries(2, wait_initial=1, wait_jitter=0)
    builder.stream(IN, **TEXT).map_values_async(third_time, retries=retries, name="ask").to(OUT, **TEXT)
    thread = application(builder.build()).thread().until_running()
    feed(cluster, "a")
    until_out(thread, cluster, "a")
    beat(thread)
    found = measured(thread, FUNCTION_GROUP, processor_node_id="ask")
    assert (found["call-total"], found["retry-total"]) == (1, 2)
    assert 50 <= found["call-latency-p50"] <= found["call-latency-p99"] <= found["call-latency-max"] < 10_000
    assert found["call-latency-avg"] >= 50


def test_a_batch_is_one_call(application: MakeApplication, cluster: DirectKafka) -> None:
    def whole(values: list[str]) -> list[str]:
        return values

    builder = StreamsBuilder()
    mapped: Any = builder.stream(IN, **TEXT).map_batches(whole, max_records=3, max_wait=timedelta(hours=1), name="all")
    mapped.to(OUT, **TEXT)
    thread = application(builder.build()).thread().until_running()
    feed(cluster, "abcde")
    until_out(thread, cluster, "abc")
    beat(thread)
    found = measured(thread, FUNCTION_GROUP, processor_node_id="all")
    assert (found["call-total"], found["records-waiting"], found["calls-in-flight"]) == (1, 2, 0)


def test_percentiles_cover_the_last_attempts() -> None:
    times = FunctionTimes()
    for _ in range(SAMPLES):
        times.note(5.0)
    for number in range(100):
        times.note(number / 1000)
    recent = times.recent_ms()
    assert len(recent) == SAMPLES
    assert recent[:100] == pytest.approx(range(100))
    for number in range(SAMPLES):
        times.note((number % 100) / 1000)
    recent = times.recent_ms()
    assert percentile(recent, 0.5) == pytest.approx(50, abs=2)
    assert percentile(recent, 0.99) == pytest.approx(99, abs=1)
    assert percentile([], 0.5) == 0
    assert percentile([7.0], 0.99) == 7


def test_the_dashboard_adds_tasks_up() -> None:
    values = {"call-rate": 10.0, "calls-in-flight": 2.0, "records-waiting": 3.0, "retry-total": 1.0}
    tasks = [
        {**values, "call-latency-p50": 20.0, "call-latency-p99": 30.0},
        {**values, "call-rate": 30.0, "call-latency-p50": 40.0, "call-latency-p99": 90.0},
    ]
    found = [
        Metric(name, FUNCTION_GROUP, {"task-id": f"0_{number}", "processor-node-id": "ask"}, value)
        for number, task in enumerate(tasks)
        for name, value in task.items()
    ]
    assert figures(found)["functions"] == {
        "ask": {"rate": 40.0, "in_flight": 4.0, "waiting": 6.0, "p50": 35.0, "p99": 90.0, "retries": 2.0}
    }
