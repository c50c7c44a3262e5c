from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from penstock import (
    AggregationWithHeaders,
    InvalidStateStoreError,
    Materialized,
    PenstockError,
    Processor,
    Record,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    Windowed,
)
from penstock.testing import NoSuchElementError, TopologyTestDriver
from penstock.testing.driver_task import RecordQueues
from penstock.topology.records import RawRecord
from penstock.topology.run.compiled import StampedRecord

Options = dict[str, Any]


def echo(text: Options) -> Any:
    return lambda builder: builder.stream("in", **text).to("out", **text)


def test_records_can_be_piped_in_several_ways(start: Any, text: Options) -> None:
    topic = start(echo(text)).driver.create_input_topic(
        "in", start_timestamp=10, auto_advance=timedelta(milliseconds=5)
    )
    topic.pipe_input("only a value")
    topic.pipe_input("k", "v")
    topic.pipe_input("k", "v", 3)
    topic.pipe_input(key="k", value="v", timestamp=4)
    topic.pipe_input("k", None, timestamp=datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    topic.advance_time(100)
    topic.pipe_input(Record("k", "v", 7, [("h", b"1")]))
    topic.pipe_input("last")
    driver = topic._pipe.__self__
    read = driver.create_output_topic("out").read_records_to_list()
    assert [(r.key, r.value, r.timestamp, r.headers) for r in read] == [
        (None, "only a value", 10, None),
        ("k", "v", 15, None),
        ("k", "v", 3, None),
        ("k", "v", 4, None),
        ("k", None, 1000, None),
        ("k", "v", 7, [("h", b"1")]),
        (None, "last", 120, None),
    ]


def test_lists_are_piped_at_consecutive_or_given_times(start: Any, text: Options) -> None:
    driver = start(echo(text)).driver
    topic = driver.create_input_topic("in", start_timestamp=1)
    topic.pipe_value_list(["a", "b"])
    topic.pipe_key_value_list([("k", "c"), ("k", "d")], start_timestamp=10, advance=5)
    topic.pipe_record_list([Record("k", "e", 99)])
    out = driver.create_output_topic("out")
    assert [(r.value, r.timestamp) for r in out.read_records_to_list()] == [
        ("a", 1), ("b", 1), ("c", 10), ("d", 15), ("e", 99),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "keywords", "error"),
    [
        ((), {}, "needs a value"),
        (("k", "v"), {"value": "w"}, "value twice"),
        (("k", "v", 1), {"timestamp": 2}, "timestamp twice"),
        (("k", "v", 1, 2), {}, "4 arguments"),
    ],
)
def test_wrong_arguments_are_refused(start: Any, text: Options, arguments: Any, keywords: Any, error: str) -> None:
    topic = start(echo(text)).driver.create_input_topic("in")
    with pytest.raises(TypeError, match=error):
        topic.pipe_input(*arguments, **keywords)
    with pytest.raises(ValueError, match="time zone"):
        topic.pipe_input("k", "v", datetime(2020, 1, 1))
    with pytest.raises(ValueError, match="cannot go back"):
        topic.advance_time(-1)


def test_each_record_is_read_once(start: Any, text: Options) -> None:
    flow = start(echo(text))
    out = flow.driver.create_output_topic("out")
    with pytest.raises(NoSuchElementError, match="Uninitialized topic: out"):
        out.read_value()
    assert out.is_empty()
    for key, value in (("a", "1"), ("b", "2"), ("a", "3"), ("a", "4"), ("a", "5")):
        flow.pipe("in", key, value)
    assert out.queue_size() == 5
    assert out.read_value() == "1"
    assert out.read_key_value() == ("b", "2")
    assert out.read_record() == Record("a", "3", 0)
    assert out.read_key_values_to_map() == {"a": "5"}
    with pytest.raises(NoSuchElementError, match="Empty topic: out"):
        out.read_record()
    flow.pipe("in", None, "x")
    with pytest.raises(ValueError, match="Null keys"):
        out.read_key_values_to_map()
    flow.pipe("in", "k", "x")
    assert out.read_key_values_to_list() == [("k", "x")]


def test_an_unknown_input_topic_is_refused(start: Any, text: Options) -> None:
    with pytest.raises(TopologyError, match=r"Unknown topic: out\. Source topics are in"):
        start(echo(text)).driver.create_input_topic("out")


def test_internal_topics_are_looped_back_and_can_be_piped_into(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        builder.stream("in", **text).select_key(lambda key, value: value).repartition(name="mid", **text).to(
            "out", **text
        )

    flow = start(declare, {"application.id": "app"}).pipe("in", "k", "v", 3)
    assert flow.read() == [("v", "v", 3)]
    assert flow.driver.produced_topic_names() == {"app-mid-repartition", "out"}
    assert flow.pipe("app-mid-repartition", "x", "y", 4).read() == [("x", "y", 4)]


def test_topics_that_match_a_pattern_are_read() -> None:
    builder = StreamsBuilder()
    numbers = builder.stream(re.compile("in-.*"), value_serde="long")
    numbers.group_by_key().count(store="counts").to_stream().to("out", value_serde="long")
    builder.stream("raw", value_serde="long").to(lambda key, value, metadata: f"in-{key}", value_serde="long")
    with TopologyTestDriver(builder.build()) as driver:
        with pytest.raises(TopologyError, match=r"Unknown topic: out-1. Source topics are raw, in-\.\*"):
            driver.create_input_topic("out-1")
        for topic, key in (("in-1", "a"), ("in-2", "a"), ("in-1", "b")):
            driver.create_input_topic(topic).pipe_input(key, 1)
        driver.create_input_topic("raw").pipe_input("a", 1)
        assert driver.create_output_topic("out").read_key_values_to_list() == [("a", 1), ("a", 2), ("b", 1), ("a", 3)]
        assert driver.get_key_value_store("counts").get("a") == 3


def test_a_topic_that_is_written_and_read_is_looped_back(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        builder.stream("in", **text).to("through", **text)
        builder.stream("through", **text).map_values(str.upper).to("out", **text)

    assert start(declare).read_after("in", "k", "v", 3) == [("k", "V", 3)]


def test_stores_are_found_by_kind(start: Any, text: Options, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        grouped = builder.stream("in", **text).group_by_key()
        grouped.count(store="counts")
        grouped.windowed_by(TimeWindows(10)).count(store="windows")
        grouped.windowed_by(SessionWindows(10)).count(store="sessions")
        plain = Stores.key_value_store_builder(Stores.in_memory_key_value_store("plain"), **text)
        builder.add_state_store(plain)
        builder.global_table("global", store="all", **text)
        builder.stream("other", **text).process(_Nothing, "plain")

    flow = start(declare).pipe("in", "k", "v", 12).pipe("global", "g", "w")
    driver = flow.driver
    assert sorted(driver.get_all_state_stores()) == ["all", "counts", "plain", "sessions", "windows"]
    assert driver.get_key_value_store("counts").get("k") == 1
    assert driver.get_timestamped_key_value_store("counts").get("k").timestamp == 12
    assert driver.get_key_value_store("all").get("g") == "w"
    assert driver.get_window_store("windows").fetch("k", 10) == 1
    assert driver.get_timestamped_window_store("windows").fetch("k", 10).value == 1
    assert [value for _, value in driver.get_session_store("sessions").fetch("k")] == [1]
    assert driver.get_key_value_store("plain").get("k") is None
    for missing in (
        driver.get_key_value_store("windows"),
        driver.get_timestamped_key_value_store("plain"),
        driver.get_window_store("counts"),
        driver.get_timestamped_window_store("sessions"),
        driver.get_session_store("windows"),
        driver.get_versioned_key_value_store("counts"),
        driver.get_state_store("nothing"),
    ):
        assert missing is None


class _Nothing:
    def init(self, context: Any) -> None: ...

    def process(self, record: Any) -> None: ...


def test_stores_with_headers_have_three_views(start: Any, text: Options) -> None:
    serdes = Serdes.string(), Serdes.string()

    def declare(builder: Any) -> None:
        rows = Stores.timestamped_key_value_store_with_headers_builder(Stores.lru_map("rows", 5), *serdes)
        windows = Stores.timestamped_window_store_with_headers_builder(
            Stores.in_memory_window_store("windows", 100, 10), *serdes
        )
        sessions = Stores.session_store_with_headers_builder(Stores.in_memory_session_store("sessions", 100), *serdes)
        for store in (rows, windows, sessions):
            builder.add_state_store(store)
        builder.stream("in", **text).process(_Nothing, "rows", "windows", "sessions")

    driver = start(declare).driver
    rows = driver.get_timestamped_key_value_store_with_headers("rows")
    rows.put("a", ValueTimestampHeaders("v", 7, {"h": "x"}))
    assert list(rows.all()) == [("a", ("v", 7, [("h", b"x")]))]
    timestamped = driver.get_timestamped_key_value_store("rows")
    assert timestamped.get("a") == ValueAndTimestamp("v", 7)
    timestamped.put("b", ValueAndTimestamp("w", 8))
    driver.get_key_value_store("rows").put("c", "x")
    assert list(driver.get_key_value_store("rows").all()) == [("a", "v"), ("b", "w"), ("c", "x")]
    assert [rows.get(key)[1:] for key in "bc"] == [(8, None), (-1, None)]
    windows = driver.get_timestamped_window_store_with_headers("windows")
    windows.put("a", ValueTimestampHeaders("v", 7, {"h": "x"}), 5)
    assert windows.fetch("a", 5).headers == [("h", b"x")]
    assert driver.get_timestamped_window_store("windows").fetch("a", 5) == ValueAndTimestamp("v", 7)
    assert driver.get_window_store("windows").fetch("a", 5) == "v"
    sessions = driver.get_session_store_with_headers("sessions")
    sessions.put(Windowed("a", 1, 2), AggregationWithHeaders("v", {"h": "x"}))
    driver.get_session_store("sessions").put(Windowed("b", 1, 2), "w")
    assert sessions.fetch_session("a", 1, 2).headers == [("h", b"x")]
    assert sessions.fetch_session("b", 1, 2) == AggregationWithHeaders("w")
    assert [value for _, value in driver.get_session_store("sessions").fetch("a")] == ["v"]


@pytest.mark.parametrize("store_format", ["DEFAULT", "HEADERS"])
def test_stores_of_operators_have_no_headers(start: Any, numbers: Options, store_format: str) -> None:
    def declare(builder: Any) -> None:
        grouped = builder.stream("in", **numbers).group_by_key()
        grouped.windowed_by(TimeWindows(10)).count(store="windows")
        grouped.windowed_by(SessionWindows(10)).count(store="sessions")
        supplied = Stores.persistent_timestamped_key_value_store_with_headers("supplied")
        grouped.count(store=Materialized(supplied, key_serde=Serdes.string(), value_serde=Serdes.int64()))
        grouped.count(store="rows")

    flow = start(declare, {"dsl.store.format": store_format}).pipe("in", "k", 1, 12)
    driver = flow.driver
    assert driver.get_timestamped_key_value_store_with_headers("supplied").get("k") == ValueTimestampHeaders(1, 12)
    rows = driver.get_timestamped_key_value_store_with_headers("rows")
    windows = driver.get_timestamped_window_store_with_headers("windows")
    sessions = driver.get_session_store_with_headers("sessions")
    if store_format == "DEFAULT":
        assert (rows, windows, sessions) == (None, None, None)
        return
    assert rows.get("k") == ValueTimestampHeaders(1, 12)
    assert [value for _, value in windows.all()] == [ValueTimestampHeaders(1, 12)]
    assert [value for _, value in sessions.fetch("k")] == [AggregationWithHeaders(1)]


def test_a_plain_view_of_a_timestamped_store_reads_and_writes_values(start: Any, numbers: Options) -> None:
    def declare(builder: Any) -> None:
        builder.stream("in", **numbers).group_by_key().windowed_by(TimeWindows(10)).count(store="windows")
        builder.table("table", store="rows", **numbers)

    driver = start(declare).driver
    rows = driver.get_key_value_store("rows")
    rows.put("a", 1)
    rows.put_all([("b", 2), ("c", 3)])
    assert (rows.put_if_absent("a", 9), rows.put_if_absent("d", 4)) == (1, None)
    assert list(rows.all()) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert list(rows.reverse_all()) == [("d", 4), ("c", 3), ("b", 2), ("a", 1)]
    assert list(rows.range("b", "c")) == [("b", 2), ("c", 3)]
    assert list(rows.reverse_range("b", "c")) == [("c", 3), ("b", 2)]
    assert list(rows.prefix_scan("d")) == [("d", 4)]
    assert (rows.delete("d"), rows.get("d"), rows.name) == (4, None, "rows")
    windows = driver.get_window_store("windows")
    for begin in (0, 5):
        windows.put("k", begin + 1, begin)
    assert windows.fetch("k", 5) == 6
    assert list(windows.fetch_range("k", 0, 9)) == [(0, 1), (5, 6)]
    assert list(windows.backward_fetch_range("k", 0, 9)) == [(5, 6), (0, 1)]
    for rows_of in ("fetch_keys", "fetch_all", "all"):
        arguments = {"fetch_keys": ("k", "k", 0, 9), "fetch_all": (0, 9), "all": ()}[rows_of]
        forward = [(key.start, value) for key, value in getattr(windows, rows_of)(*arguments)]
        backward = [(key.start, value) for key, value in getattr(windows, "backward_" + rows_of)(*arguments)]
        assert forward == [(0, 1), (5, 6)]
        assert sorted(backward) == forward


def test_close_removes_the_state_and_leaves_the_outputs(text: Options) -> None:
    builder = StreamsBuilder()
    builder.table("in", store="t", **text).to_stream().to("out", **text)
    with TopologyTestDriver(builder.build()) as driver:
        folder = Path(driver._directory.name)
        driver.create_input_topic("in").pipe_input("k", "v")
        assert (folder / "0_0" / "stores" / "t").is_dir(), "stores are on disk"
        topic = driver.create_input_topic("in")
    assert not folder.exists()
    assert driver.create_output_topic("out").read_value() == "v"
    driver.close()
    with pytest.raises(PenstockError, match="closed"):
        topic.pipe_input("k", "v")


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_a_store_is_not_read_after_the_driver_is_closed(text: Options, cache_bytes: int) -> None:
    class Last(Processor[Any, Any, Any, Any]):
        seen: ClassVar[list[Any]] = []

        def process(self, record: Any) -> None:
            self.context.get_state_store("rows").put(record.key, record.value)

        def close(self) -> None:
            self.seen.extend(self.context.get_state_store("rows").all())

    builder = StreamsBuilder()
    rows = Stores.key_value_store_builder(Stores.in_memory_key_value_store("rows"), **text)
    builder.add_state_store(rows.with_caching_enabled())
    stream = builder.stream("in", **text)
    stream.process(Last, "rows")
    stream.group_by_key().count(store="counts")
    stream.group_by_key().windowed_by(TimeWindows(10)).count(store="windows")
    builder.global_table("prices", store="prices", **text)
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache_bytes}) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", 0)
        driver.create_input_topic("prices").pipe_input("k", "v", 0)
        stores = [driver.get_key_value_store(name) for name in ("rows", "counts", "prices")]
        assert [store.get("k") for store in stores] == ["v", 1, "v"]
        windows = driver.get_window_store("windows")
    assert Last.seen == [("k", "v")]
    reads = [read for store in stores for read in (partial(store.get, "k"), store.all)]
    for read in (*reads, windows.all, partial(windows.fetch, "k", 0), driver.get_state_store("counts").all):
        with pytest.raises(InvalidStateStoreError, match="is closed"):
            list(read())


def test_a_topology_that_cannot_start_leaves_no_files(
    text: Options, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    builder = StreamsBuilder()
    builder.stream("in", **text).map_values(len).to("out")
    with pytest.raises(PenstockError):
        TopologyTestDriver(builder.build(), {"default.value.serde": None})
    assert list(tmp_path.iterdir()) == []


def test_queued_records_are_dropped_when_a_record_fails(start: Any, text: Options) -> None:
    """The second of two repartitioned records fails; the third must not appear with the next input."""
    seen: list[str] = []

    def see(value: str) -> str:
        seen.append(value)
        if value == "2":
            raise ValueError(value)
        return value

    def declare(builder: Any) -> None:
        many = builder.stream("in", **text).flat_map_values(str.split)
        many.repartition(name="mid", **text).map_values(see).to("out", **text)

    flow = start(declare)
    with pytest.raises(PenstockError):
        flow.pipe("in", "k", "1 2 3")
    flow.pipe("in", "k", "4")
    assert seen == ["1", "2", "4"]


class _Source:
    """The part of a CompiledSource that the queues need."""

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def stamp(self, message: Any) -> StampedRecord | None:
        return StampedRecord(message, message.timestamp()[1], None, None)


#: Additions (topic and timestamp) and removals (-) in a java.util.PriorityQueue, and the removed elements.
OPERATIONS = (
    "f2 - d3 - e1 a1 f0 - a2 - - e2 - c2 - - b2 - g2 h1 e2 h2 f0 - g3 - d1 - a2 h0 e3 - g0 - e1 c1 - d1 g0 h1 - b2 d3 "
    "d2 g3 c1 f1 g1 - - g3 - c0 g3 c2 d2 h1 h3 - - - - - - - - - - - - - - - - - - - -"
)
TAKEN = (
    "f2 d3 f0 e1 a1 a2 e2 c2 b2 f0 h1 d1 g2 a2 c1 d1 c1 f1 h2 h0 c0 h1 h1 e2 b2 c2 d3 d2 d2 g3 g0 g0 e3 e1 g3 g1 h3 "
    "g3 g3"
)


def test_equal_timestamps_have_the_order_of_javas_priority_queue() -> None:
    queues = RecordQueues()
    sources: dict[str, Any] = {}
    taken = []
    for operation in OPERATIONS.split():
        if operation == "-":
            source, record = next(queues.drain())
            taken.append(f"{source.topic}{record.timestamp}")
            continue
        source = sources.setdefault(operation[0], _Source(operation[0]))
        offset = queues.next_offset(source)
        queues.add(source, RawRecord(source.topic, 0, offset, int(operation[1:]), None, None))
    assert " ".join(taken) == TAKEN
