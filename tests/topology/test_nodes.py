"""The nodes of a topology: compiled ones give the results of Python functions over the stores."""

from __future__ import annotations

import json
import random
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock import (
    BufferConfig,
    CalendarWindows,
    Materialized,
    Processor,
    Record,
    Serde,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    StreamsConfig,
    StreamsError,
    Suppressed,
    TimeWindows,
    agg,
)
from penstock.kernel.record_accumulator import RecordAccumulator
from penstock.kernel.sinks import RecordTaker, RecordWriter
from penstock.testing import TopologyTestDriver
from penstock.testing.driver_task import Clock, DriverOutput, DriverTask
from penstock.topology.context.exception_handlers import ErrorHandlerContext, Response
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.context.task_context import TaskContext
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.records import RawRecord, SentRecord, TaskId
from penstock.topology.run.compiled import compile_topology
from penstock.topology.serdes.serdes import PlainSerde, as_serde
from tests.topology.only_functions import only_functions

CASES = Path(__file__).parents[1] / "goldens" / "cases"
UNCACHED: dict[str, Any] = {"statestore.cache.max.bytes": 0}
TEXT: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


class Reversed:
    """A user's serde."""

    def serialize(self, topic: str, value: str | None) -> bytes | None:
        return None if value is None else value[::-1].encode()

    def deserialize(self, topic: str, data: bytes | None) -> str | None:
        return None if data is None else data.decode()[::-1]


def uncached_results(monkeypatch: pytest.MonkeyPatch, **config: Any) -> list[Any]:
    """Run aggregations without a cache over records in any order; return all written and intermediate records."""
    seen: list[Any] = []

    def send(_output: Any, topic: str, key: Any, value: Any, at: int, headers: Any, partition: Any = None) -> None:
        seen.append(("send", topic, key, value, at, headers))

    def log_change(_output: Any, store: str, key: bytes, value: bytes | None, at: int, headers: Any = None) -> None:
        seen.append(("log", store, key, value, at, headers))

    class Look(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            self.context = context

        def process(self, record: Record[Any, Any]) -> None:
            seen.append(("looked", record, self.context.current_stream_time_ms(), self.context.record_metadata()))
            self.context.get_state_store("looks").put(record.key, record.value)  # logged with the record's time

    def latest(key: str, value: str, old: list[str]) -> Any:
        old.append(value)
        return None if value == "3" else old

    monkeypatch.setattr(DriverOutput, "send", send)
    monkeypatch.setattr(DriverOutput, "log_change", log_change)
    builder = StreamsBuilder()
    looks = Stores.persistent_key_value_store("looks")
    builder.add_state_store(Stores.key_value_store_builder(looks, Serdes.string(), Serdes.json()))
    stream = builder.stream("in", **TEXT)
    grouped = stream.group_by_key()
    grouped.count(store="counts").to_stream().to("counts")
    grouped.aggregate(list, latest, store="lists", value_serde=Serdes.json()).to_stream().process(Look, "looks")
    grouped.reduce(max, store="largest").filter(lambda k, v: v != "4").to_stream().to("largest")
    stream.to("same")
    draw = random.Random(7)
    with TopologyTestDriver(builder.build(), {**UNCACHED, **config}) as driver:
        topic = driver.create_input_topic("in", *TEXT.values())
        for number in range(300):
            key = None if number % 50 == 9 else f"k{draw.randrange(9)}"
            topic.pipe_input(key, str(draw.randrange(6)), draw.randrange(100), headers=[("n", b"%d" % number)])
        for name in ("counts", "lists", "largest"):
            seen.extend(driver.get_state_store(name).all())
    return seen


@pytest.mark.parametrize("config", [{}, {"dsl.store.format": "HEADERS"}], ids=["plain", "with headers"])
def test_without_a_cache_nodes_give_the_results_of_functions(monkeypatch: pytest.MonkeyPatch, config: Any) -> None:
    found = uncached_results(monkeypatch, **config)
    only_functions(monkeypatch)
    assert found == uncached_results(monkeypatch, **config)
    assert {row[0] for row in found} >= {"send", "log", "looked"}
    assert any(row[0] == "log" and row[3] is None and row[5] is not None for row in found) == bool(config)


def test_a_versioned_table_is_read_as_of_the_records_time() -> None:
    builder = StreamsBuilder()
    versions = Materialized(Stores.persistent_versioned_key_value_store("versions", timedelta(minutes=1)))
    table = builder.table("table", **TEXT, store=versions)
    builder.stream("in", **TEXT).join(table, str.__add__).to("out", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        stream, rows = [driver.create_input_topic(name, *TEXT.values()) for name in ("in", "table")]
        for time, value in ((1_000, "a"), (2_000, "b"), (4_000, None)):
            rows.pipe_input("k", value, time)
        for time in (500, 1_000, 1_999, 2_000, 4_000):
            stream.pipe_input("k", f"{time}", time)
        joined = driver.create_output_topic("out", *TEXT.values())
        assert joined.read_values_to_list() == ["1000a", "1999a", "2000b"]


def regrouped(monkeypatch: pytest.MonkeyPatch, **config: Any) -> list[Any]:
    """Aggregate random updates of a table by another key; return all written records."""
    seen: list[Any] = []
    send = DriverOutput.send

    def send_and_note(output: DriverOutput, *record: Any) -> None:
        seen.append(record)
        send(output, *record)

    def changed(change: Callable[[list[int], int], None]) -> Callable[[str, int, list[int]], Any]:
        def aggregate(_group: str, number: int, numbers: list[int]) -> Any:
            change(numbers, number)  # in place
            return None if numbers[-1:] == [4] else numbers

        return aggregate

    def group(key: str, value: dict[str, Any]) -> Any:
        return value["group"], value["n"]

    monkeypatch.setattr(DriverOutput, "send", send_and_note)
    builder = StreamsBuilder()
    table = builder.table("in", key_serde=Serdes.string(), value_serde=Serdes.json())
    grouped = table.group_by(group, key_serde=Serdes.string(), value_serde=Serdes.int64(), name="grouped")
    grouped.count(store="counts").to_stream().to("counts")
    grouped.reduce(int.__add__, int.__sub__, store="sums").filter(lambda k, v: v % 2 == 0).to_stream().to("sums")
    lists: Any = {"store": "lists", "value_serde": Serdes.json()}
    grouped.aggregate(list, changed(list.append), changed(remove_one), **lists).to_stream().to("lists")
    draw = random.Random(7)
    with TopologyTestDriver(builder.build(), config) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.json())
        for number in range(400):
            value = {"n": draw.choice([None, *range(1, 6)]), "group": draw.choice([None, "g0", "g1", "g2"])}
            headers = [("n", b"%d" % number)]
            topic.pipe_input(
                f"k{draw.randrange(6)}", draw.choice([value, value, None]), draw.randrange(100), headers=headers
            )
    monkeypatch.setattr(DriverOutput, "send", send)
    return seen


def remove_one(numbers: list[int], number: int) -> None:
    if number in numbers:
        numbers.remove(number)


@pytest.mark.parametrize(
    "config",
    [{}, UNCACHED, {**UNCACHED, "upgrade.from": "3.4"}, {**UNCACHED, "dsl.store.format": "HEADERS"}],
    ids=["cached", "uncached", "two records for an update", "with headers"],
)
def test_regrouped_tables_give_the_results_of_functions(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    found = regrouped(monkeypatch, **config)
    only_functions(monkeypatch)
    assert found == regrouped(monkeypatch, **config)
    values: dict[str, set[Any]] = {}
    for topic, _key, value, *_ in found:
        values.setdefault(topic, set()).add(value)
    assert len(values) == 8, "three outputs, a repartition topic, four changelogs"
    assert None in values["topology-test-driver-lists-changelog"], "a group is deleted"


def foreign_key_join(builder: StreamsBuilder, left_join: bool, values: Serde[Any]) -> None:
    serdes: Any = {"key_serde": Serdes.string(), "value_serde": values}
    left, right = builder.table("in", **serdes), builder.table("right", **serdes)

    def city(person: Any) -> Any:
        return person.get("city")

    def pair(person: Any, place: Any) -> Any:
        return {"person": person, "place": place}

    joined = (left.left_join if left_join else left.join)(right, pair, foreign_key=city, name="by-city")
    joined.to_stream().to("out", **serdes)


def joined_by_foreign_key(monkeypatch: pytest.MonkeyPatch, left_join: bool, values: Serde[Any]) -> list[Any]:
    """Join random updates without a cache; return all written records."""
    seen: list[Any] = []
    send = DriverOutput.send

    def send_and_note(output: DriverOutput, *record: Any) -> None:
        seen.append(record)
        send(output, *record)

    builder = StreamsBuilder()
    foreign_key_join(builder, left_join, values)
    draw = random.Random(7)
    monkeypatch.setattr(DriverOutput, "send", send_and_note)
    with TopologyTestDriver(builder.build(), UNCACHED) as driver:
        topics = [driver.create_input_topic(name, Serdes.string(), values) for name in ("in", "right")]
        for number in range(400):
            of_left = draw.random() < 0.6
            key = f"{'p' if of_left else 'c'}{draw.randrange(6)}" if number % 50 != 9 else None
            value = {"n": draw.randrange(3), "city": draw.choice([None, "c0", "c1", "c2"])}
            headers = [("n", b"%d" % number)]
            topics[not of_left].pipe_input(key, draw.choice([value, value, None]), draw.randrange(100), headers=headers)
    monkeypatch.setattr(DriverOutput, "send", send)
    return seen


class ByTopic:
    """A user's serde whose bytes depend on the topic."""

    def serialize(self, topic: str, value: Any) -> bytes | None:
        return None if value is None else f"{topic}|{json.dumps(value)}".encode()

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        return None if data is None else json.loads(data.partition(b"|")[2])


@pytest.mark.parametrize("left_join", [False, True], ids=["inner", "left"])
@pytest.mark.parametrize("values", [Serdes.json(), as_serde(ByTopic())], ids=["json", "by topic"])
def test_foreign_key_joins_give_the_results_of_functions(
    monkeypatch: pytest.MonkeyPatch, left_join: bool, values: Serde[Any]
) -> None:
    found = joined_by_foreign_key(monkeypatch, left_join, values)
    only_functions(monkeypatch)
    assert found == joined_by_foreign_key(monkeypatch, left_join, values)
    assert len({record[0] for record in found}) == 6, "output, two internal topics, three changelogs"


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20], ids=["no cache", "cache"])
def test_keys_whose_bytes_depend_on_the_topic_are_written_for_each_topic(cache_bytes: int) -> None:
    keys, values = as_serde(ByTopic()), Serdes.string()
    serdes: Any = {"key_serde": keys, "value_serde": values}
    window = TimeWindows.of_size_with_no_grace(timedelta(seconds=10))
    session = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(seconds=10))
    limit = Suppressed.until_time_limit(timedelta(0), BufferConfig.unbounded())
    builder = StreamsBuilder()
    table, other = builder.table("in", **serdes), builder.table("other", **serdes)
    table.to_stream().to("table", **serdes)
    table.join(other, str.__add__).to_stream().to("joined", **serdes)
    table.join(other, str.__add__, foreign_key=lambda _value: "k").to_stream().to("joined by foreign key", **serdes)
    table.suppress(limit).to_stream().to("suppressed", **serdes)
    grouped = builder.stream("stream", **serdes).group_by_key()
    grouped.reduce(max).to_stream().to("reduced", **serdes)
    in_window: Any = {"key_serde": Serdes.time_windowed(keys, timedelta(seconds=10)), "value_serde": values}
    windows = grouped.windowed_by(window).reduce(max)
    windows.to_stream().to("windows", **in_window)
    windows.suppress(limit).to_stream().to("suppressed windows", **in_window)
    in_session: Any = {"key_serde": Serdes.session_windowed(keys), "value_serde": values}
    grouped.windowed_by(session).reduce(max).to_stream().to("sessions", **in_session)
    written = ("table", "joined", "joined by foreign key", "suppressed", "reduced", "windows", "suppressed windows")
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache_bytes}) as driver:
        for name in ("other", "in", "stream"):
            driver.create_input_topic(name, **serdes).pipe_input("k", "v", 100)
        for name in (*written, "sessions"):
            records = driver.create_output_topic(name, Serdes.bytes(), Serdes.bytes()).read_records_to_list()
            assert [record.key[: len(name) + 4] for record in records] == [f'{name}|"k"'.encode()]


@pytest.mark.parametrize(("chosen", "partitions"), [(2, [2]), (None, [None]), ({1, 2}, [1, 2]), ((), [])])
def test_a_compiled_sink_sends_to_the_chosen_partitions(chosen: Any, partitions: list[Any]) -> None:
    dropped: list[str] = []

    class Producer:
        transactional = in_transaction = False

    class Task(TaskContext):
        def partition_count(self, topic: str) -> int:
            return 3

        def record_dropped(self, node: str, reason: str) -> None:
            dropped.append(reason)

    output = DriverOutput({})
    writer = RecordWriter(RecordTaker(), output, [], Producer(), {})
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).to("out", **TEXT, partitioner=lambda topic, key, value, count: chosen)
    config = StreamsConfig({"application.id": "sinks", "bootstrap.servers": "localhost:0"})
    topology = build_whole_topology(builder.build().internal_builder, config)
    source = compile_topology(topology, Task(TaskId(0, 0), config, writer)).sources["in"]
    source.process(RawRecord("in", 0, 0, 5, b"k", b"v"))
    assert len(dropped) == (not partitions)
    assert output.take() == [SentRecord("out", b"k", b"v", 5, None, partition) for partition in partitions]


@pytest.mark.parametrize("knows", [True, False], ids=["known", "not known"])
def test_a_sink_of_windowed_keys_asks_for_partitions_that_the_producer_does_not_know(
    knows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Task(DriverTask):
        def partition_count(self, topic: str) -> int:
            asked.append(topic)
            return 5

    class Producer:
        transactional = in_transaction = False

    def full(_: Any) -> None:
        pytest.fail("there is room")

    output, producer = DriverOutput({"counts": "log"}), RecordAccumulator(1_000, 1_000, full, lambda: 0)
    partitions = producer.know("out", 5) if knows else []
    writer = RecordWriter(producer, output, [], Producer(), {"counts": ("log", 0)})
    monkeypatch.setattr("penstock.testing.driver_task.DriverOutput", lambda *_: writer)
    builder = StreamsBuilder()
    windows = builder.stream("in", **TEXT).group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(10))
    windows.count(store="counts").to_stream().to("out")
    config = StreamsConfig({"application.id": "sinks", "bootstrap.servers": "localhost:0"})
    topology = build_whole_topology(builder.build().internal_builder, config)
    with tempfile.TemporaryDirectory() as directory:
        task = Task(topology, config, Clock(0), Path(directory), None)
        for key in (b"a", b"b"):
            task.compiled.sources["in"].process(RawRecord("in", 0, 0, 5, key, b"v"))
    expected = sorted(partition_for_key(key, 5) for key in (b"a", b"b"))
    if knows:
        assert not asked
        assert [each.index for each in partitions for _ in range(each.growing.count if each.growing else 0)] == expected
    else:
        assert asked == ["out"] * 2
        assert sorted(sent.partition or 0 for sent in output.take() if sent.topic == "out") == expected


@pytest.mark.parametrize("compiled", [True, False])
def test_the_first_value_of_a_reduction_is_a_copy_of_the_records_value(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    if not compiled:
        only_functions(monkeypatch)
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json())
    largest = stream.group_by_key().reduce(lambda old, new: new, store="newest").to_stream()
    largest.map_values(lambda value: value.update(seen=True) or value).to("changed")
    stream.to("same")
    with TopologyTestDriver(builder.build(), UNCACHED) as driver:
        for _ in range(2):
            driver.create_input_topic("in", Serdes.string(), Serdes.json()).pipe_input("k", {"n": 1})
        assert driver.create_output_topic("changed").read_values_to_list() == [{"n": 1, "seen": True}] * 2
        assert driver.create_output_topic("same").read_values_to_list() == [{"n": 1}] * 2


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_a_value_is_serialized_once_for_its_row_its_changelog_and_its_sink(cache_bytes: int) -> None:
    written: list[str] = []

    def encode(value: str) -> bytes:
        written.append(value)
        return value.encode()

    serde = PlainSerde[str]("texts", encode, bytes.decode, exact_type=str)
    builder = StreamsBuilder()
    records = builder.stream("in", key_serde=Serdes.string(), value_serde=serde)
    longest = records.group_by_key().reduce(lambda old, new: max(old, new, key=len), store="longest", value_serde=serde)
    longest.to_stream().to("out", key_serde=Serdes.string(), value_serde=serde)
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache_bytes}) as driver:
        source = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        source.pipe_input("a", "long")
        written.clear()  # the cache has written the first value to know its size
        source.pipe_input("a", "longer")
        assert written == ["longer"]
        rows = driver.create_output_topic("out", Serdes.string(), Serdes.string()).read_values_to_list()
        assert (rows, driver.get_key_value_store("longest").get("a")) == (["long", "longer"], "longer")


@pytest.mark.parametrize("merged", [False, True], ids=["of the source", "behind a merge"])
def test_what_follows_a_table_does_not_change_the_value_of_its_siblings(merged: bool) -> None:
    """A table may pass on the object that its serde has read, without a copy, only if no other node has it, too."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json())
    if merged:
        stream = stream.merge(builder.stream("other", key_serde=Serdes.string(), value_serde=Serdes.json()))
    rows = stream.to_table(store="rows").to_stream()
    rows.map_values(lambda value: value.update(seen=True) or value).to("changed")
    stream.to("same")
    with TopologyTestDriver(builder.build(), UNCACHED) as driver:
        driver.create_input_topic("in", Serdes.string(), Serdes.json()).pipe_input("k", {"n": 1})
        assert driver.create_output_topic("changed").read_values_to_list() == [{"n": 1, "seen": True}]
        assert driver.create_output_topic("same").read_values_to_list() == [{"n": 1}]


def test_operators_behind_a_late_update_see_its_own_timestamp() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    counts = stream.group_by_key().count(store="counts").to_stream()
    counts.to("counts")
    counts.filter(lambda key, count: 1 // (3 - count) >= 0).to("checked")
    stream.to("same")
    with TopologyTestDriver(builder.build(), UNCACHED) as driver:
        topic = driver.create_input_topic("in", *TEXT.values())
        topic.pipe_input("k", "v", 20)
        topic.pipe_input("k", "v", 10)
        found = {
            name: [row.timestamp for row in driver.create_output_topic(name).read_records_to_list()]
            for name in ("counts", "checked", "same")
        }
        assert found == {"counts": [20, 20], "checked": [20, 20], "same": [20, 10]}
        with pytest.raises(StreamsError):
            topic.pipe_input("k", "v", 15)
        assert driver.task.timestamp == 15, "the record that failed"


@pytest.mark.parametrize("compiled", [True, False])
def test_an_error_behind_a_late_update_has_the_records_timestamp(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    seen: list[tuple[int, int]] = []

    def recording(context: ErrorHandlerContext, record: Any, error: Exception) -> Response:
        seen.append((context.timestamp, record.timestamp))
        return Response.resume()

    if not compiled:
        only_functions(monkeypatch)
    builder = StreamsBuilder()
    counts = builder.stream("in", **TEXT).group_by_key().count(store="counts").to_stream()
    counts.map_values(lambda count: {count}).to("out", value_serde=Serdes.json())
    with TopologyTestDriver(builder.build(), {**UNCACHED, "production.exception.handler": recording}) as driver:
        topic = driver.create_input_topic("in", *TEXT.values())
        topic.pipe_input("k", "v", 20)
        topic.pipe_input("k", "v", 10)
    assert seen == [(20, 20), (10, 20)], "the record that is processed, and what it came to"


def test_siblings_do_not_see_each_others_changes_of_the_record() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    stream.map_values(str.upper).map(lambda key, value: (value, key)).to("upper")
    stream.select_key(lambda key, value: value).to("selected")
    stream.to("same")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", 1)
        found = {
            topic: [(r.key, r.value) for r in driver.create_output_topic(topic).read_records_to_list()]
            for topic in ("upper", "selected", "same")
        }
    assert found == {"upper": [("V", "k")], "selected": [("v", "v")], "same": [("k", "v")]}


def test_an_error_names_the_operator_that_failed() -> None:
    builder = StreamsBuilder()
    (
        builder.stream("in", **TEXT)
        .map_values(str.strip)
        .map_values(lambda text: text[5], name="sixth")
        .map_values(str.upper)
        .to("out")
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in")
        topic.pipe_input("k", "long enough", 1)
        with pytest.raises(StreamsError, match=r"processor=sixth, topic=in, partition=0, offset=1, key='k'") as caught:
            topic.pipe_input("k", "short", 2)
    assert "text[5]" in "".join(traceback.format_exception(caught.value.__cause__))


def test_a_null_record_is_dropped_with_its_reason() -> None:
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).group_by_key().count(store="counts")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", Serdes.bytes(), Serdes.bytes())
        topic.pipe_input(None, b"v", 1)
        topic.pipe_input(b"k", None, 1)
        assert sum(driver.task.dropped.values()) == 2


def test_cached_windows_are_read_as_rows_with_a_timestamp() -> None:
    builder = StreamsBuilder()
    windows = TimeWindows.of_size_with_no_grace(10)
    builder.stream("in", **TEXT).group_by_key().windowed_by(windows).count(store="windows")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", *TEXT.values()).pipe_input("k", "v", 3)
        store = driver.get_timestamped_window_store("windows")
        ((start, row),) = store.fetch_range("k", 0, 10)
        assert (start, row.value, row.timestamp) == (0, 1, 3)


def windowed_counts(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, bytes, int | None]]:
    """Count in windows; return the written records, with the partitions that the sinks chose among seven."""
    written: list[tuple[str, int, bytes, int | None]] = []

    def send(_output: Any, topic: str, key: bytes, value: bytes, at: int, headers: Any, partition: Any = None) -> None:
        written.append((topic, at, key, partition))

    monkeypatch.setattr(DriverOutput, "send", send)
    monkeypatch.setattr(DriverTask, "partition_count", lambda _task, _topic: 7)
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT).group_by_key()
    stream.windowed_by(TimeWindows.of_size_with_no_grace(10)).count(store="windows").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", *TEXT.values())
        for number in range(40):
            topic.pipe_input(f"key-{number % 13}", "v", number)
    return [row for row in written if row[0] == "out"]


def test_windowed_results_use_the_partitioner(monkeypatch: pytest.MonkeyPatch) -> None:
    written = windowed_counts(monkeypatch)
    assert {partition for *_, partition in written} == {partition_for_key(b"key-%d" % n, 7) for n in range(13)}
    assert all(partition == partition_for_key(key[:-8], 7) for _, _, key, partition in written)
    only_functions(monkeypatch)
    assert windowed_counts(monkeypatch) == written


def test_a_long_chain_runs() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    for _ in range(150):
        stream = stream.filter(lambda key, value: value != "x").map_values(lambda value: f"{value}{len(value) % 10}")
    stream.to("out", **TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in").pipe_input("k", "v", 1)
        driver.create_input_topic("in").pipe_input("k", "x", 1)
        output = driver.create_output_topic("out", Serdes.string(), Serdes.string())
        assert output.read_values_to_list() == ["v" + "1234567890" * 15]


def test_a_tiny_cache_loses_no_update() -> None:
    """The cell of an update must survive the eviction that its own growth causes."""
    builder = StreamsBuilder()
    builder.stream("in", **TEXT).group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(10)).count(
        store="windows"
    )
    builder.stream("in2", **TEXT).group_by_key().aggregate(list, lambda k, v, seen: [*seen, v], store="lists")
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": 150}) as driver:
        windows, lists = driver.create_input_topic("in"), driver.create_input_topic("in2")
        for number in range(60):
            windows.pipe_input(f"k{number % 7}", "v", 5)
            lists.pipe_input(f"k{number % 7}", str(number), 5)
        counted = {row.key: value[0] for row, value in driver.get_state_store("windows").all()}
        assert counted == {f"k{n}": 9 if n < 4 else 8 for n in range(7)}
        assert driver.get_state_store("lists").get("k3")[0] == [str(n) for n in range(60) if n % 7 == 3]


#: A serde, and two forms of bytes that it reads as one key; it writes the first of them.
FORMS = {
    "string": (Serdes.string(), [b"a", "\ufffd".encode(), b"\xff"]),
    "int64": (Serdes.long(), [b"\0" * 8, b"\1" * 8]),
    "float64": (
        Serdes.float64(),
        [bytes(8), b"\x80" + bytes(7), b"\x7f\xf8" + bytes(6), b"\x7f\xf8" + bytes(5) + b"\1"],
    ),
    "float32": (Serdes.float32(), [bytes(4), b"\x7f\xe0\0\0", b"\x7f\xa0\0\0"]),
    "uuid": (Serdes.uuid(), [str(UUID(int=10)).encode(), str(UUID(int=10)).upper().encode(), b"a" * 32]),
    "json": (Serdes.json(), [b'{"a":1,"b":2}', b'{ "a":1, "b":2}', b'{"b":2,"a":1}', b"null"]),
    "json of a type": (Serdes.json(dict[str, int]), [b'{"a":1}', b'{ "a":1}']),
    "windowed": (
        Serdes.time_windowed(Serdes.string(), 10),
        [b"a" + bytes(8), "\ufffd".encode() + bytes(8), b"\xff" + bytes(8)],
    ),
    "a user's": (Reversed(), [b"ab", b"ba"]),
}


DAYS = CalendarWindows("day", tz="Europe/Paris")
HOPPING = TimeWindows.of_size_with_no_grace(10).advance_by(5)
SESSIONS = SessionWindows.of_inactivity_gap_with_no_grace(3)


def reduced_after_a_look(stream: Any, serde: Any) -> Any:
    looked_at = stream.filter(lambda key, value: repr(key) != "b")
    return looked_at.group_by_key().reduce(lambda old, new: old + new).to_stream()


def joined(stream: Any, serde: Any) -> Any:
    table = stream.map_values(lambda value: value * 2).to_table(store=Materialized("table", key_serde=serde))
    return stream.join(table, lambda left, right: left + right)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "count": lambda stream, serde: stream.group_by_key().count().to_stream(),
    "reduce": reduced_after_a_look,
    "aggregates": lambda stream, serde: stream.group_by_key().aggregate({"n": agg.count()}).to_stream(),
    "days": lambda stream, serde: stream.group_by_key().windowed_by(DAYS).aggregate(agg.last()).to_stream(),
    "windows": lambda stream, serde: stream.group_by_key().windowed_by(HOPPING).count().to_stream(),
    "sessions": lambda stream, serde: stream.group_by_key().windowed_by(SESSIONS).count().to_stream(),
    "join": joined,
    "values": lambda stream, serde: stream.map_values(str.upper),
}


@pytest.mark.parametrize("config", [{}, UNCACHED], ids=["cache", "no cache"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("serde", "keys"), FORMS.values(), ids=FORMS.keys())
def test_rows_and_outputs_have_the_serdes_own_bytes(
    monkeypatch: pytest.MonkeyPatch, serde: Any, keys: list[bytes], way: str, config: dict[str, Any]
) -> None:
    """A node that leaves a key unread must not reuse the record's bytes if the serde writes others."""

    nulls = [] if way == "values" else [None]  # a sink of windowed keys refuses them

    def outputs(compiled: bool) -> Any:
        if not compiled:
            only_functions(monkeypatch)
        builder = StreamsBuilder()
        WAYS[way](builder.stream("in", key_serde=serde, value_serde=Serdes.string()), serde).to("out")
        with TopologyTestDriver(builder.build(), config) as driver:
            topic = driver.create_input_topic("in", Serdes.bytes(), Serdes.string())
            for at, key in enumerate([*keys, *keys, *nulls]):
                topic.pipe_input(key, "v", at)
            read = {
                name: driver.create_output_topic(name, Serdes.bytes(), Serdes.bytes()).read_records_to_list()
                for name in sorted(driver.produced_topic_names())
            }
        return {name: [(record.key, record.value, record.timestamp) for record in read[name]] for name in read}

    expected = outputs(compiled=False)
    assert expected["out"]
    assert outputs(compiled=True) == expected


@pytest.mark.parametrize(
    ("serde", "good", "bad"),
    [
        (Serdes.long(), bytes(8), b"\1\2\3"),
        (Serdes.uuid(), str(UUID(int=10)).encode(), b"g" * 36),
        (Serdes.json(), b"1", b"{"),
        (Serdes.time_windowed(Serdes.long(), 10), bytes(16), b"\1" * 11),
    ],
    ids=repr,
)
def test_an_unreadable_key_goes_to_the_handler_even_if_it_is_not_used(serde: Any, good: bytes, bad: bytes) -> None:
    builder = StreamsBuilder()
    builder.stream("in", key_serde=serde, value_serde=Serdes.string()).group_by_key().count().to_stream().to("out")
    skipping = {"deserialization.exception.handler": "log_and_continue"}
    with TopologyTestDriver(builder.build(), skipping) as driver:
        topic = driver.create_input_topic("in", Serdes.bytes(), Serdes.string())
        for key in (good, bad, good):
            topic.pipe_input(key, "v", 1)
        written = driver.create_output_topic("out", Serdes.bytes(), Serdes.long()).read_key_values_to_list()
    assert written == [(good, 1), (good, 2)]
