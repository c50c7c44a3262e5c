"""The metrics of metrics.recording.level DEBUG and TRACE: lateness, calls of stores, buffers, caches, emissions."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from penstock import (
    EmitStrategy,
    Processor,
    Record,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    agg,
)
from penstock.supervisor.http.view import figures
from penstock.workers.control.messages import CommandResult, Measure
from penstock.workers.metrics.sensors import Metric, MetricGroup
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, counting, feed
from tests.workers.thread_stage import Application, Thread

MakeApplication = Callable[..., Application]
TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
#: A rate covers at least the first of two samples.
SAMPLE_SECONDS = 30
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def topics(cluster: DirectKafka) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)


@pytest.fixture
def run(application: MakeApplication) -> Callable[..., Thread]:
    def start(topology: Any, level: str = "DEBUG", **config: Any) -> Thread:
        return application(topology, metrics_recording_level=level, **config).thread().until_running()

    return start


def groups(thread: Thread) -> tuple[MetricGroup, ...]:
    """Return all metrics of a thread after a beat."""
    thread.thread.status.status(thread.thread.time.now_ms)
    thread.control.commands.append(Measure(7))
    thread.step()
    answer = next(r for r in reversed(thread.control.reports) if isinstance(r, CommandResult))
    found: tuple[MetricGroup, ...] = answer.value
    return found


def measured(thread: Thread, group: str, **tags: str) -> dict[str, float]:
    """Return the values of a group with these tags (_ for -)."""
    wanted = {name.replace("_", "-"): value for name, value in tags.items()}.items()
    return {
        name: value
        for each in groups(thread)
        if each.group == group and wanted <= each.tags.items()
        for name, value in each.values.items()
    }


def calls(values: dict[str, float]) -> dict[str, int]:
    """Return the number of calls in the first sample by their name, without those that were not made."""
    counted = {name.removesuffix("-rate"): round(rate * SAMPLE_SECONDS) for name, rate in values.items()}
    return {name: count for name, count in counted.items() if f"{name}-rate" in values and count}


def test_lateness_is_how_far_a_record_is_behind_stream_time(cluster: DirectKafka, run: Callable[..., Thread]) -> None:
    thread = run(counting())
    for timestamp in (1000, 1500, 1200, 1500, 2000):
        feed(cluster, "a", timestamp=timestamp)
    thread.step(3)
    task = measured(thread, "stream-task-metrics", task_id="0_0")
    assert (task["record-lateness-avg"], task["record-lateness-max"]) == (60, 300)
    assert task["process-total"] == 5


def test_dropped_records_have_no_lateness(cluster: DirectKafka, run: Callable[..., Thread]) -> None:
    builder = StreamsBuilder()
    builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.int32()).filter(lambda key, value: value > 0)
    thread = run(builder.build(), deserialization_exception_handler="continue")
    cluster.append(IN, 0, b"a", b"\0\0\0\1", 1500)
    cluster.append(IN, 0, b"b", b"no number", 100)
    thread.step(3)
    assert measured(thread, "stream-task-metrics", task_id="0_0")["record-lateness-max"] == 0


def test_at_level_info_nothing_of_it_is_measured(cluster: DirectKafka, run: Callable[..., Thread]) -> None:
    thread = run(counting(), "INFO")
    feed(cluster, "aab")
    thread.step(3)
    names = {name for group in groups(thread) for name in group.values}
    assert not [name for name in names if name.startswith(("record-lateness", "get-", "put-", "num-open", "hit-"))]
    (task,) = thread.thread.task_manager.all_tasks().values()
    assert task.tallies is None
    # no method of the store is replaced, so operators use the compiled rows
    store = task.state_manager.stores["counts"]
    assert not vars(store).keys() & {"get", "put", "put_held", "flush", "commit"}


@pytest.mark.parametrize("cache", [0, 1 << 20])
def test_calls_of_a_tables_store_are_counted_and_timed(
    cluster: DirectKafka, run: Callable[..., Thread], cache: int
) -> None:
    thread = run(counting(), statestore_cache_max_bytes=cache)
    feed(cluster, "abcab")
    thread.step(3)
    thread.commit()
    store = measured(thread, "stream-state-metrics", rocksdb_state_id="counts")
    found = calls(store)
    assert {name: found[name] for name in ("get", "put", "restore")} == {"get": 5, "put": 5, "restore": 1}
    assert found["flush"] >= 1
    assert found["commit"] == 1
    for call in ("get", "put", "flush", "commit", "restore"):
        assert 0 < store[f"{call}-latency-avg"] <= store[f"{call}-latency-max"]
        assert store[f"{call}-latency-max"] > 100  # ns, not ms
    hits = measured(thread, "stream-record-cache-metrics", record_cache_id="counts")
    if not cache:
        assert hits == {}
        return
    # the first three reads find nothing: 1 of 4, then 2 of 5
    assert {name: round(value, 3) for name, value in hits.items()} == {
        "hit-ratio-avg": round((1 / 4 + 2 / 5) / 2, 3),
        "hit-ratio-min": 0.25,
        "hit-ratio-max": 0.4,
    }


class Calls(Processor[str, str, str, str]):
    """Runs the function given as a class attribute with its store."""

    action: Callable[[Any], None]

    def process(self, record: Record[str, str]) -> None:
        type(self).action(self.context.get_state_store("rows"))


def with_store(action: Callable[[Any], None], store: Any = None) -> Any:
    builder = StreamsBuilder()
    supplier = store or Stores.persistent_key_value_store("rows")
    builder.add_state_store(Stores.key_value_store_builder(supplier, Serdes.string(), Serdes.string()))
    calling = type("Calling", (Calls,), {"action": staticmethod(action)})
    builder.stream(IN, **TEXT).process(calling, stores=["rows"])
    return builder.build()


def all_calls(store: Any) -> None:
    store.put("a", "1")
    store.put("b", "2")
    store.put_if_absent("c", "3")
    store.put_all([("d", "4"), ("e", "5")])
    assert store.delete("a") == "1"
    assert store.get("b") == "2"
    assert [key for key, _ in store.range("b", "d")] == ["b", "c", "d"]
    with store.all() as rows:
        next(rows)
    assert list(store.prefix_scan(b"e")) == [("e", "5")]


@pytest.mark.parametrize("supplier", [Stores.persistent_key_value_store, Stores.in_memory_key_value_store])
def test_each_call_of_a_processor_counts_once(
    cluster: DirectKafka, run: Callable[..., Thread], supplier: Callable[[str], Any]
) -> None:
    """A put_if_absent is no get and no put, although it needs both."""
    thread = run(with_store(all_calls, supplier("rows")))
    feed(cluster, "x")
    thread.step(3)
    kind = "rocksdb" if supplier is Stores.persistent_key_value_store else "in_memory"
    values = measured(thread, "stream-state-metrics", **{f"{kind}_state_id": "rows"})
    found = calls(values)
    assert {name: found.get(name) for name in ("put", "put-if-absent", "put-all", "delete", "get")} == {
        "put": 2,
        "put-if-absent": 1,
        "put-all": 1,
        "delete": 1,
        "get": 1,
    }
    assert (found["range"], found["all"], found["prefix-scan"]) == (1, 1, 1)
    assert values["iterator-duration-max"] > 0
    assert values["num-open-iterators"] == 0


def test_a_failed_call_counts_and_the_next_one_is_measured_again(
    cluster: DirectKafka, run: Callable[..., Thread]
) -> None:
    def failing(store: Any) -> None:
        with pytest.raises(Exception, match="None"):
            store.get(None)
        store.get("a")

    thread = run(with_store(failing))
    feed(cluster, "x")
    thread.step(3)
    assert calls(measured(thread, "stream-state-metrics", rocksdb_state_id="rows"))["get"] == 2


def test_open_iterators_are_shown_until_they_are_closed_exhausted_or_dropped(
    cluster: DirectKafka, run: Callable[..., Thread], clock: ManualClock
) -> None:
    held: list[Iterator[Any]] = []
    opened_ms: list[int] = []

    def opening(store: Any) -> None:
        store.put("a", "1")
        for _ in range(3):
            held.append(store.all())
        opened_ms.append(clock.wall_clock_ms())

    thread = run(with_store(opening))
    feed(cluster, "x")
    thread.step(3)

    def shown() -> tuple[float, float]:
        values = measured(thread, "stream-state-metrics", rocksdb_state_id="rows")
        return values["num-open-iterators"], values["oldest-iterator-open-since-ms"]

    count, since = shown()
    assert count == 3
    assert 0 <= opened_ms[0] - since < 1000
    exhausted = held.pop()
    assert list(exhausted) == [("a", "1")]
    assert shown()[0] == 2
    closable: Any = held.pop()
    closable.close()
    closable.close()
    assert shown()[0] == 1
    held.clear()
    gc.collect()
    assert shown() == (0, 0)
    assert calls(measured(thread, "stream-state-metrics", rocksdb_state_id="rows"))["all"] == 3


def test_rows_that_are_shown_otherwise_are_measured_too(cluster: DirectKafka, run: Callable[..., Thread]) -> None:
    """Processors see the results of aggregates, by a facade that maps the rows."""
    found: list[Any] = []

    class Reading(Processor[str, str, str, str]):
        def process(self, record: Record[str, str]) -> None:
            store = self.context.get_state_store("rows")
            found.extend(store.all())
            store.all().close()

    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).group_by_key(**TEXT).aggregate({"n": agg.count()}, store="rows")
    builder.stream(OUT, **TEXT).process(Reading, "rows")
    thread = run(builder.build(), statestore_cache_max_bytes=0)
    feed(cluster, "a")
    thread.step(3)
    cluster.append(OUT, 0, b"x", b"y", 1000)
    thread.step(3)
    assert [key for key, _ in found] == ["a"]
    values = measured(thread, "stream-state-metrics", rocksdb_state_id="rows")
    assert (calls(values)["all"], values["num-open-iterators"]) == (2, 0)


def test_windows_sessions_and_versions_are_measured_under_their_names(
    cluster: DirectKafka, run: Callable[..., Thread]
) -> None:
    builder = StreamsBuilder()
    grouped = builder.stream(IN, **TEXT).group_by_key(**TEXT)
    grouped.windowed_by(TimeWindows(10 * SECOND, grace=SECOND)).count(store="windows")
    grouped.windowed_by(SessionWindows(10 * SECOND, grace=SECOND)).count(store="sessions")
    versioned = Stores.persistent_versioned_key_value_store("versions", 60 * SECOND)
    grouped.reduce(lambda one, other: other, store=versioned)
    thread = run(builder.build(), statestore_cache_max_bytes=0)
    feed(cluster, "aa")
    thread.step(3)
    windows = calls(measured(thread, "stream-state-metrics", rocksdb_window_state_id="windows"))
    assert (windows["fetch"], windows["put"]) == (2, 2)
    sessions = calls(measured(thread, "stream-state-metrics", rocksdb_session_state_id="sessions"))
    assert (sessions["fetch"], sessions["put"], sessions["remove"]) == (2, 2, 1)
    versions = calls(measured(thread, "stream-state-metrics", rocksdb_state_id="versions"))
    assert (versions["get"], versions["put"]) == (2, 2)


def test_the_age_of_rows_is_measured_at_level_trace_only(
    cluster: DirectKafka, run: Callable[..., Thread], clock: ManualClock
) -> None:
    thread = run(counting(), "TRACE")
    feed(cluster, "a", timestamp=clock.wall_clock_ms() - 700)
    thread.step(3)
    store = measured(thread, "stream-state-metrics", rocksdb_state_id="counts")
    assert 700 <= store["record-e2e-latency-min"] <= store["record-e2e-latency-max"] < 800
    thread.close()
    again = run(counting(), "DEBUG")
    assert not [name for name in measured(again, "stream-state-metrics") if name.startswith("record-e2e")]


def test_rates_of_rocksdb_are_the_growth_of_its_totals(
    cluster: DirectKafka, run: Callable[..., Thread], clock: ManualClock
) -> None:
    thread = run(counting())
    rate = "bytes-written-rate"

    def written() -> dict[str, float]:
        return measured(thread, "stream-state-metrics", rocksdb_state_id="counts")

    before = written()
    feed(cluster, "abcdefgh")
    thread.step(3)
    thread.commit()
    clock.advance(10_000)
    thread.step()
    after = written()
    assert after["bytes-written-total"] > before["bytes-written-total"]
    assert round(after[rate] * SAMPLE_SECONDS) == after["bytes-written-total"]
    for name in ("bytes-read-rate", "bytes-read-compaction-rate", "bytes-written-compaction-rate"):
        assert after[name] == 0
    assert after["write-stall-duration-avg"] == 0
    clock.advance(120_000)
    thread.step()
    assert written()[rate] == 0


def suppressed() -> Any:
    builder = StreamsBuilder()
    windows = builder.stream(IN, **TEXT).group_by_key(**TEXT).windowed_by(TimeWindows(10 * SECOND, grace=0 * SECOND))
    counted = windows.count(store="windows")
    closed = counted.suppress(Suppressed.until_window_closes().with_name("buffer"))
    closed.to_stream(lambda key, value: key.key).to(OUT, key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


def test_suppress_counts_what_it_emits_and_what_it_holds(cluster: DirectKafka, run: Callable[..., Thread]) -> None:
    thread = run(suppressed(), statestore_cache_max_bytes=0)
    feed(cluster, "abc", timestamp=1000)
    thread.step(3)
    feed(cluster, "d", timestamp=11_000)
    thread.step(3)
    node = measured(thread, "stream-processor-node-metrics", processor_node_id="buffer")
    assert (node["suppression-emit-total"], round(node["suppression-emit-rate"] * SAMPLE_SECONDS)) == (3, 3)
    buffer = measured(thread, "stream-state-metrics", in_memory_suppression_state_id="buffer-store")
    # 1, 2, 3 and 4 keys after a put each, 1 after the window has closed
    assert (buffer["suppression-buffer-count-avg"], buffer["suppression-buffer-count-max"]) == (
        (1 + 2 + 3 + 4 + 1) / 5,
        4,
    )
    assert buffer["suppression-buffer-count-current"] == 1
    assert buffer["suppression-buffer-size-current"] < buffer["suppression-buffer-size-avg"]
    assert buffer["suppression-buffer-size-max"] == 4 * buffer["suppression-buffer-size-current"]


def test_final_results_of_windows_are_counted_and_timed(
    cluster: DirectKafka, run: Callable[..., Thread], clock: ManualClock
) -> None:
    builder = StreamsBuilder()
    windows = builder.stream(IN, **TEXT).group_by_key(**TEXT).windowed_by(TimeWindows(10 * SECOND, grace=0 * SECOND))
    windows.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE).count(store="windows", name="final")
    thread = run(builder.build())
    feed(cluster, "abc", timestamp=1000)
    thread.step(3)
    clock.advance(2000)
    feed(cluster, "d", timestamp=11_000)
    thread.step(3)
    node = measured(thread, "stream-processor-node-metrics", processor_node_id="final")
    assert (node["window-aggregate-final-emit-total"], round(node["window-aggregate-final-emit-rate"] * 30)) == (3, 3)
    assert 0 < node["window-aggregate-final-emit-latency-avg"] <= node["window-aggregate-final-emit-latency-max"] < 1000


def test_the_dashboard_shows_sources_only_although_operators_have_metrics_of_their_group(
    cluster: DirectKafka, run: Callable[..., Thread]
) -> None:
    thread = run(suppressed())
    feed(cluster, "abc")
    thread.step(3)
    found = [Metric(n, g.group, g.tags, v) for g in groups(thread) for n, v in g.values.items()]
    sources: Any = figures(found)["sources"]
    assert [values["total"] for values in sources.values()] == [3]
