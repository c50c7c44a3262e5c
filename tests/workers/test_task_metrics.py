"""Metrics of tasks, source nodes and stores, with Kafka Streams' names and tags."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping

import pytest

from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import CommandResult, Measure
from penstock.workers.metrics.sensors import MetricGroup, Sensor
from penstock.workers.metrics.task_metrics import Growth
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, counting, feed
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]


def measured(thread: Thread, group: str, **tags: str) -> Mapping[str, float]:
    """Return the values of the group with these tags (_ for -), requested as by the supervisor.

    Without a process-id among them, not those of the group with the thread's state.
    """
    thread.control.commands.append(Measure(7))
    thread.step()
    answer = next(r for r in reversed(thread.control.reports) if isinstance(r, CommandResult))
    assert (answer.id, answer.error) == (7, None)
    wanted = {name.replace("_", "-"): value for name, value in tags.items()}
    found: list[MetricGroup] = [g for g in answer.value if g.group == group and wanted.items() <= g.tags.items()]
    found = [g for g in found if "process-id" in wanted or "process-id" not in g.tags]
    assert len(found) == 1, f"{group} {wanted}: {found}"
    return found[0].values


def beat(thread: Thread) -> None:
    """Do the work of a heartbeat."""
    thread.thread.status.status(thread.thread.time.now_ms)


@pytest.fixture
def thread(cluster: DirectKafka, application: MakeApplication) -> Thread:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 2)
    return application(counting()).thread().until_running()


def test_a_task_and_its_source_count_what_they_process(thread: Thread, cluster: DirectKafka) -> None:
    feed(cluster, "abcab")
    feed(cluster, "z", partition=1)
    thread.step(3)
    beat(thread)
    task = measured(thread, "stream-task-metrics", task_id="0_0")
    assert (task["process-total"], task["active-buffer-count"], task["dropped-records-total"]) == (5, 0, 0)
    assert measured(thread, "stream-task-metrics", task_id="0_1")["process-total"] == 1
    node = measured(thread, "stream-processor-node-metrics", task_id="0_0")
    assert node["process-total"] == 5
    assert node["process-rate"] > 0
    assert measured(thread, "stream-topic-metrics", task_id="0_0", topic=IN) == {"records-consumed-total": 5}
    thread.commit()
    assert measured(thread, "stream-task-metrics", task_id="0_0")["commit-total"] == 1


def test_latency_is_measured_from_a_records_timestamp_to_its_source(
    thread: Thread, cluster: DirectKafka, clock: ManualClock
) -> None:
    feed(cluster, "a", timestamp=clock.wall_clock_ms() - 700)
    thread.step(2)
    node = measured(thread, "stream-processor-node-metrics", task_id="0_0")
    assert 700 <= node["record-e2e-latency-min"] <= node["record-e2e-latency-max"] < 800


def test_records_behind_a_pause_are_not_counted_as_processed(thread: Thread, cluster: DirectKafka) -> None:
    thread.thread.paused = True
    feed(cluster, "abc")
    thread.step(3)
    beat(thread)
    assert measured(thread, "stream-task-metrics", task_id="0_0")["active-buffer-count"] == 3
    assert measured(thread, "stream-processor-node-metrics", task_id="0_0")["process-total"] == 0
    assert measured(thread, "consumer-fetch-manager-metrics", partition="0")["records-lag"] == 0


def test_a_rocksdb_store_shows_its_properties(thread: Thread, cluster: DirectKafka) -> None:
    feed(cluster, "abc")
    thread.step(3)
    assert measured(thread, "stream-task-metrics", task_id="0_0")["cache-size-bytes-total"] > 0
    thread.commit()
    store = measured(thread, "stream-state-metrics", task_id="0_0", rocksdb_state_id="counts")
    assert (store["num-entries-active-mem-table"], store["estimate-num-keys"]) == (3, 3)
    assert store["block-cache-capacity"] > 0
    assert store["approximate-num-entries"] == 3


def test_a_restore_is_counted_by_task_and_store(cluster: DirectKafka, application: MakeApplication) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(counting())
    thread = app.thread().until_running()
    feed(cluster, "abcd")
    thread.step(3)
    thread.commit()
    thread.close()
    shutil.rmtree(app.stage.state_dir / "app")
    again = app.thread().until_running()
    beat(again)
    assert measured(again, "stream-task-metrics", task_id="0_0")["restore-total"] == 4
    assert measured(again, "stream-state-metrics", task_id="0_0")["restore-total"] == 4
    assert measured(again, "stream-state-updater-metrics")["active-restoring-tasks"] == 0


def test_dropped_records_count_in_their_task(cluster: DirectKafka, application: MakeApplication) -> None:
    cluster.create_topic(IN, 1)
    builder = StreamsBuilder()
    builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.string()).group_by_key().count(store="counts")
    thread = application(builder.build()).thread().until_running()
    cluster.append(IN, 0, None, b"no key", 1000)
    thread.step(3)
    beat(thread)
    assert measured(thread, "stream-task-metrics", task_id="0_0")["dropped-records-total"] == 1
    assert measured(thread, "stream-thread-metrics")["dropped-records-total"] == 1


def test_the_state_of_a_thread_is_a_number(cluster: DirectKafka, application: MakeApplication) -> None:
    cluster.create_topic(IN, 1)
    builder = StreamsBuilder()
    builder.stream(IN).foreach(lambda key, value: None)
    thread = application(builder.build()).thread().until_running()
    process_id = thread.thread._parts.context.spec.process_id
    assert measured(thread, "stream-thread-metrics", process_id=process_id) == {"thread-state": 4.0}  # RUNNING


def test_growth_handles_a_counter_reset() -> None:
    growth = Growth(Sensor())
    for count in (3, 5, 2):
        growth.look(count, 0)
    growth.begin_anew()
    growth.look(4, 0)
    assert growth.sensor.total == 3 + 2 + 2 + 4


def test_rows_kept_in_memory_until_a_checkpoint_are_counted(thread: Thread, cluster: DirectKafka) -> None:
    for keys in ("abc", "de"):
        feed(cluster, keys)
        thread.step(3)
        thread.commit()
    store = measured(thread, "stream-state-metrics", task_id="0_0", rocksdb_state_id="counts")
    assert (store["num-entries-active-mem-table"], store["estimate-num-keys"]) == (3, 5)
