"""Sensors, and the batch size of one iteration."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.workers.metrics.sensors import Sensor, ThreadMetrics
from penstock.workers.thread.batch_sizer import RECORDS_MAX, TARGET_MS, BatchSizer
from penstock.workers.thread.garbage_collection import COLLECTION_THRESHOLDS, tuned_garbage_collection

pytestmark = pytest.mark.medium

WINDOW_MS = 1_000


def test_a_sensor_averages_over_its_windows() -> None:
    sensor = Sensor(WINDOW_MS, samples=2)
    sensor.record(4.0, 0)
    sensor.record(1.0, 500, count=3)
    assert (sensor.average(600), sensor.highest(600), sensor.total) == (1.75, 4.0, 4)
    sensor.record(10.0, 1_500)
    assert sensor.average(1_600) == 3.4  # both windows
    assert sensor.average(3_000) == 10.0  # the first window is over
    assert sensor.average(9_000) == 0.0
    assert sensor.highest(9_000) == 0.0
    assert sensor.total == 5


def test_a_rate_counts_events_per_second() -> None:
    sensor = Sensor(WINDOW_MS, samples=2)
    for second in range(4):
        sensor.record(1.0, second * WINDOW_MS, count=50)
    assert sensor.rate(4 * WINDOW_MS) == 50.0
    assert Sensor(WINDOW_MS).rate(0) == 0.0


def test_one_early_event_gives_no_high_rate() -> None:
    sensor = Sensor(WINDOW_MS, samples=2)
    sensor.record(1.0, 0, count=10)
    assert sensor.rate(1) == 10.0  # divided by at least one window


def test_the_names_are_those_of_kafka_streams() -> None:
    """ThreadMetrics: the stream-thread-metrics group."""
    names = ThreadMetrics().snapshot(0).keys()
    for operation in ("commit", "poll", "process", "punctuate"):
        for measure in ("latency-avg", "latency-max", "rate", "total", "ratio"):
            assert f"{operation}-{measure}" in names
    assert {
        "poll-records-avg",
        "poll-records-max",
        "process-records-avg",
        "process-records-max",
        "task-created-rate",
        "task-created-total",
        "task-closed-rate",
        "task-closed-total",
        "thread-start-time",
        "blocked-time-ns-total",
    } <= names


def test_ratios_are_shares_of_the_loops_time() -> None:
    metrics = ThreadMetrics()
    metrics.record_ratios(0, 100, process=60, poll=30)
    metrics.record_ratios(0, 0, process=60, poll=30)  # nothing to divide by
    snapshot = metrics.snapshot(0)
    assert (snapshot["process-ratio"], snapshot["poll-ratio"], snapshot["commit-ratio"]) == (0.6, 0.3, 0.0)


def run(sizer: BatchSizer, ms_per_record: float, calls: int) -> list[tuple[int, float]]:
    """Let an endless source be processed; return records and ms of each call."""
    done = []
    for iterations in range(1, calls + 1):
        records = sizer.max_records(iterations)
        done.append((records, records * ms_per_record))
        sizer.record(iterations, records, int(records * ms_per_record))
    return done


@given(st.floats(0.0001, 0.5))
def test_fast_records_are_processed_in_batches_of_about_the_target_time(ms_per_record: float) -> None:
    records, ms = run(BatchSizer(), ms_per_record, 200)[-1]
    assert ms <= 3 * TARGET_MS
    assert ms >= TARGET_MS / 8 or records == RECORDS_MAX


def test_slow_records_are_processed_one_by_one() -> None:
    assert run(BatchSizer(), ms_per_record=1_000, calls=100)[-1][0] == 1


def test_batches_grow_quickly_after_a_long_slow_phase() -> None:
    """With many tasks, or on a busy machine, a single record per task takes long."""
    sizer = BatchSizer()
    for iterations in range(1, 1_000):
        sizer.record(iterations, processed=500, latency_ms=2 * TARGET_MS)
    assert run(sizer, ms_per_record=0.01, calls=20)[-1][0] > 500


def test_the_first_batch_is_one_record() -> None:
    assert BatchSizer().max_records(1) == 1


def test_the_garbage_collector_is_restored_afterwards() -> None:
    gc.unfreeze()  # disabled by tests/conftest.py
    before = gc.get_threshold(), 0

    @tuned_garbage_collection()
    def fail() -> None:
        assert gc.get_threshold() == COLLECTION_THRESHOLDS
        assert gc.get_freeze_count() > 0
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        fail()
    assert (gc.get_threshold(), gc.get_freeze_count()) == before
    gc.freeze()
