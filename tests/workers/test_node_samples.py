"""Records per second, age and time of inner nodes, measured on the few sampled records."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import CommandResult, Measure
from penstock.workers.metrics.node_samples import EDGE_GROUP, NODE_GROUP, RECORDS
from penstock.workers.metrics.sensors import SamplingBudget
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, counts, feed
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
TEXT = Serdes.string()


class Nanoseconds:
    """A clock that only the slow operator advances."""

    now = 0

    def read(self) -> int:
        return self.now


nanoseconds = Nanoseconds()


def slow(value: str) -> str:
    nanoseconds.now += 1_000_000
    return value


def all_kinds() -> Any:
    """Half of the records pass the filter, each becomes three, and two paths lead to the count."""
    builder = StreamsBuilder()
    stream = builder.stream(IN, key_serde=TEXT, value_serde=TEXT)
    half = stream.filter(lambda key, value: key < "i", name="half").map_values(slow, name="slow")
    three = half.flat_map_values(lambda value: [value] * 3, name="three").map_values(str, name="last")
    counted = three.merge(stream, name="both").group_by_key().count(store="counts", name="count")
    counted.to_stream(name="changes").to(OUT, key_serde=TEXT, value_serde=Serdes.int64())
    return builder.build()


@pytest.fixture
def run(cluster: DirectKafka, clock: ManualClock, application: MakeApplication) -> Callable[..., Thread]:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)

    def start(**config: Any) -> Thread:
        thread = application(all_kinds(), **config).thread().until_running()
        metrics, now_ms = thread.thread.metrics, clock.monotonic_ms()
        if config.get("penstock_metrics_sampling_percent") != 0:
            for budget in (metrics.record_sampling, metrics.flush_sampling):
                budget.spent(now_ms, now_ms + 5)  # no sampling for a second, because it starts with small batches
        feed(cluster, "z" * 1_000)
        thread.until_idle().commit()
        clock.advance(5_000)
        return thread.step()

    return start


def asked(thread: Thread, group: str, value: str) -> dict[Any, float]:
    """Return a value by edge or node."""
    thread.control.commands.append(Measure(7))
    thread.step()
    answer = next(r for r in reversed(thread.control.reports) if isinstance(r, CommandResult))
    found = [measured for measured in answer.value if measured.group == group and value in measured.values]
    ends = ("from", "to") if group == EDGE_GROUP else ("processor-node-id",)
    return {tuple(one.tags[end] for end in ends): one.values[value] for one in found}


def edges(thread: Thread) -> dict[tuple[str, str], float]:
    """Return the number of records on each edge per input record."""
    rates = asked(thread, EDGE_GROUP, "records-rate")
    source = next(start for start, end in rates if end == "half")
    whole = rates[source, "half"]
    return {edge: round(rate / whole, 6) for edge, rate in rates.items() if edge[0] != source or edge[1] == "both"}


@pytest.mark.parametrize("handler", ["log_and_fail", "log_and_continue"])
def test_inner_edges_count_their_records(cluster: DirectKafka, clock: ManualClock, run: Any, handler: str) -> None:
    thread = run(processing_exception_handler=handler)  # with the second one each node has a guard
    feed(cluster, "abcdefghijklmnop")
    assert len("abcdefghijklmnop") == RECORDS
    thread.until_idle()
    found = edges(thread)
    source = next(start for start, end in found if start not in ("half", "slow", "three", "last", "both", "count"))
    inner = {
        ("half", "slow"): 0.5,
        ("slow", "three"): 0.5,
        ("three", "last"): 1.5,
        ("last", "both"): 1.5,
        (source, "both"): 1.0,
    }
    assert {edge: found[edge] for edge in inner} == inner
    assert found["both", "count"] == 2.5


def test_records_that_a_cache_forwards_at_the_commit_are_sampled(
    cluster: DirectKafka, clock: ManualClock, run: Any
) -> None:
    thread = run()
    feed(cluster, "abcabcab")
    thread.until_idle()
    clock.advance(4_000)
    thread.step()
    thread.commit()
    rates = asked(thread, EDGE_GROUP, "records-rate")
    sink = next(end for start, end in rates if start == "changes")
    assert (
        rates["count", "changes"] == rates["changes", sink] == pytest.approx((3 + 1) / 30)
    )  # z, from before, counts too


def test_the_slow_operator_has_the_most_time_and_records_have_an_age(
    cluster: DirectKafka, clock: ManualClock, run: Any
) -> None:
    thread = run()
    (task,) = thread.thread.task_manager.active.all_tasks().values()
    assert task.run is not None
    task.run.samples.clock_ns = nanoseconds.read
    feed(cluster, "abcdefgh" * 2, timestamp=clock.wall_clock_ms() - 5_000)
    thread.until_idle()
    ratios = asked(thread, NODE_GROUP, "time-ratio")
    assert {name for name, ratio in ratios.items() if ratio} == {("slow",)}
    assert ratios["slow",] == pytest.approx(0.001 * 1_016 / 30, rel=0.05)  # 1 ms for each of about 34 records a second
    ages = asked(thread, NODE_GROUP, "record-age-avg")
    assert 4_000 < ages["last",] == ages["both",] <= 6_000


def test_only_the_first_changes_of_a_long_flush_are_sampled(cluster: DirectKafka, clock: ManualClock, run: Any) -> None:
    thread = run()
    keys = [chr(0x4E00 + number) for number in range(60)]
    feed(cluster, "".join(keys))
    thread.until_idle()
    thread.commit()
    rates = asked(thread, EDGE_GROUP, "records-rate")
    assert rates["count", "changes"] == pytest.approx((60 + 1) / 30)
    assert counts(cluster) == dict.fromkeys(keys, 1) | {"z": 1_000}


def test_changes_that_a_full_cache_forwards_are_counted_once(cluster: DirectKafka, run: Any) -> None:
    thread = run(statestore_cache_max_bytes=1)  # each change is forwarded at once
    feed(cluster, "xyz" * 20)
    thread.until_idle()
    rates = asked(thread, EDGE_GROUP, "records-rate")
    assert rates["count", "changes"] == rates["both", "count"] == pytest.approx(1_060 / 30, rel=0.05)


def test_sampled_records_are_processed_like_all_others(cluster: DirectKafka, clock: ManualClock, run: Any) -> None:
    thread = run()
    for _ in range(4):
        feed(cluster, "abz" * 20)
        thread.until_idle()
        clock.advance(2_500)
        thread.commit()
    assert counts(cluster) == {"a": 320, "b": 320, "z": 1_080}


def test_nothing_is_sampled_when_sampling_is_off(cluster: DirectKafka, run: Any) -> None:
    thread = run(penstock_metrics_sampling_percent=0)
    feed(cluster, "abc")
    thread.until_idle()
    assert set(asked(thread, EDGE_GROUP, "records-rate").values()) == {0.0}


def test_a_debugger_keeps_its_trace_function(cluster: DirectKafka, run: Any) -> None:
    thread = run()
    seen: list[Any] = []

    def debugger(frame: Any, event: str, argument: Any) -> None:
        seen.append(event)

    sys.settrace(debugger)
    try:
        feed(cluster, "abc")
        thread.until_idle()
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)
    assert seen
    assert any(asked(thread, EDGE_GROUP, "records-rate").values())


def test_sampling_takes_no_more_than_its_share_of_the_time() -> None:
    budget = SamplingBudget(0.01)
    assert budget.allows(0)
    budget.spent(1_000, 1_020)
    assert not budget.allows(3_019)
    assert budget.allows(3_020)
    budget.spent(5_000, 5_000)  # it took less than the clock's resolution
    assert not budget.allows(5_099)
    assert budget.allows(5_100)
    budget.spent(6_000, 9_000)  # another process had the CPU
    assert budget.allows(11_000)
