"""KStream.deduplicate_by_key and deduplicate_by_key_value (KIP-655, as proposed)."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import Processor, Punctuation, Record, Serdes, StreamsBuilder, StreamsConfig, Topology, TopologyError
from penstock.pipeline.tasks.spark_task import SparkTask, TaskPlan
from penstock.testing import TopologyTestDriver
from penstock.topology.graph.topology_facts import facts_of
from penstock.topology.graph.topology_plan import Verdict, compare
from penstock.topology.operators.deduplicate import TimestampAndOffset, TimestampAndOffsetSerde
from penstock.topology.records import RawRecord
from tests.goldens.crash import Committed, CrashingDriver
from tests.pipeline.test_wake_up import DictState

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
INTERVAL_MS = 100
DUPLICATE = ("KSTREAM-DEDUPLICATE-0000000001", "duplicate")


def by_key(builder: StreamsBuilder, **options: Any) -> None:
    builder.stream("in", **TEXT).deduplicate_by_key(INTERVAL_MS, **options).to("out", **TEXT)


def by_value(builder: StreamsBuilder, **options: Any) -> None:
    stream = builder.stream("in", **TEXT)
    unique = stream.deduplicate_by_key_value(
        lambda key, value: value or None, INTERVAL_MS, id_serde="string", **options
    )
    unique.to("out", **TEXT)


def built(declare: Callable[..., None], **options: Any) -> Topology:
    builder = StreamsBuilder()
    declare(builder, **options)
    return builder.build()


def values(topology: Topology, *records: tuple[str | None, str | None, int]) -> list[str | None]:
    """Return the values that are forwarded."""
    with TopologyTestDriver(topology) as driver:
        for key, value, timestamp in records:
            driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input(key, value, timestamp)
        found: list[str | None] = driver.create_output_topic("out").read_values_to_list()
        return found


#: Those of Apache Kafka's draft of KStreamDeduplicateTest: records, and the forwarded values.
CASES: dict[str, tuple[list[tuple[str | None, str, int]], list[str]]] = {
    "within the interval": ([("k", "a", 0), ("k", "b", 50)], ["a"]),
    "at its end": ([("k", "a", 0), ("k", "b", 100)], ["a"]),
    "behind it": ([("k", "a", 0), ("k", "b", 101)], ["a", "b"]),
    "no key": ([(None, "a", 0), (None, "b", 50)], ["a", "b"]),
    "out of order": ([("k", "a", 50), ("k", "b", 30)], ["a"]),
    "older than the interval": ([("k", "a", 200), ("k", "b", 50)], ["a", "b"]),
    "late, with a row": ([("k", "a", 150), ("x", "x", 200), ("k", "b", 60)], ["a", "x"]),
    "late, without a row": ([("x", "x", 200), ("k", "a", 50), ("k", "b", 10)], ["x", "a", "b"]),
    "other keys": ([("k", "a", 0), ("l", "b", 0), ("k", "c", 50), ("l", "d", 50)], ["a", "b"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_cases_of_the_proposal_by_key(case: str) -> None:
    records, forwarded = CASES[case]
    assert values(built(by_key), *records) == forwarded


@pytest.mark.parametrize("case", CASES)
def test_the_cases_of_the_proposal_by_id(case: str) -> None:
    records, forwarded = CASES[case]

    def declare(builder: StreamsBuilder) -> None:
        unique = builder.stream("in", **TEXT).deduplicate_by_key_value(lambda key, _: key, 100, id_serde="string")
        unique.to("out", **TEXT)

    assert values(built(declare), *records) == forwarded


def test_an_id_is_unique_with_its_key() -> None:
    records = [("k", "1", 0), ("l", "1", 1), ("k", "1", 2), ("k", "2", 3), ("k", "", 4), ("k", "", 5), (None, "1", 6)]
    assert values(built(by_value), *records) == ["1", "1", "2", "", "", "1"]


def test_null_values_are_records_as_any_others() -> None:
    assert values(built(by_key), ("k", None, 0), ("k", "b", 1), ("l", "c", 2), ("l", None, 3)) == [None, "c"]


def test_timestamps_and_headers_stay() -> None:
    with TopologyTestDriver(built(by_key)) as driver:
        driver.create_input_topic("in").pipe_input("k", "a", 7, headers=[("h", b"1")])
        driver.create_input_topic("in").pipe_input("k", "b", 8)
        (record,) = driver.create_output_topic("out").read_records_to_list()
        assert (record.timestamp, record.headers) == (7, [("h", b"1")])
        assert driver.dropped_records() == {DUPLICATE: 1}


def test_state_and_changelogs_are_those_of_the_proposal() -> None:
    application = "topology-test-driver"
    with TopologyTestDriver(built(by_key, name="once")) as driver:
        topic = driver.create_input_topic("in")
        for key, value, timestamp in (("k", "a", 5), ("k", "b", 6), ("l", "c", 7), ("m", "d", 107)):
            topic.pipe_input(key, value, timestamp)
        rows = dict(driver.get_key_value_store("once").all())
        assert rows == {b"l": TimestampAndOffset(7, 2), b"m": TimestampAndOffset(107, 3)}
        assert driver.get_state_store("once-time-index").num_records() == 2
        log = driver._outputs[f"{application}-once-changelog"]
        assert [
            (change.key, change.value and struct.unpack(">q?q", change.value), change.timestamp) for change in log
        ] == [
            (b"k", (5, True, 0), 5),
            (b"l", (7, True, 2), 7),
            (b"k", None, 107),
            (b"m", (107, True, 3), 107),
        ]
        index = driver._outputs[f"{application}-once-time-index-changelog"]
        keys = [
            b"\0" + struct.pack(">q", at) + key + struct.pack(">i", n)
            for n, (key, at) in enumerate(((b"k", 5), (b"l", 7), (b"m", 107)), 1)
        ]
        assert [(change.key, change.value is None) for change in index] == [
            (keys[0], False),
            (keys[1], False),
            (keys[0], True),
            (keys[2], False),
        ]


def test_rows_that_have_expired_hold_back_nothing_before_they_are_deleted() -> None:
    """They are deleted every tenth of the interval, and a later row of the key stays."""
    records = [("k", "a", 0), ("x", "x", 95), ("k", "b", 101), ("y", "y", 106), ("k", "c", 107), ("k", "d", 201)]
    assert values(built(by_key), *records) == ["a", "x", "b", "y"]


class Postpones(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record.with_timestamp(record.timestamp + 50).with_headers([("h", b"1")]))


def test_later_operators_do_not_change_the_times_of_the_changelog() -> None:
    def declare(builder: StreamsBuilder) -> None:
        builder.stream("in", **TEXT).deduplicate_by_key(100, name="once").process(Postpones).to("out", **TEXT)

    with TopologyTestDriver(built(declare)) as driver:
        driver.create_input_topic("in").pipe_input("k", "a", 5)
        assert driver.create_output_topic("out").read_record().timestamp == 55
        (change,) = driver._outputs["topology-test-driver-once-changelog"]
        assert (change.timestamp, change.headers) == (5, None)


def test_rows_expire_without_records_if_stream_time_advances() -> None:
    def declare(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", idle_timeout=1_000, **TEXT)
        stream.deduplicate_by_key(100, name="once").to("out", **TEXT)

    with TopologyTestDriver(built(declare)) as driver:
        driver.create_input_topic("in").pipe_input("k", "a", 5)
        store = driver.get_key_value_store("once")
        driver.advance_wall_clock_time(950)
        assert len(list(store.all())) == 1
        driver.advance_wall_clock_time(1_050)
        assert list(store.all()) == []
        assert driver.get_state_store("once-time-index").num_records() == 0


def test_ids_follow_their_sized_key() -> None:
    with TopologyTestDriver(built(by_value, store="ids")) as driver:
        driver.create_input_topic("in").pipe_input("key", "id", 5)
        assert list(driver.get_key_value_store("ids").all()) == [(b"\0\0\0\3keyid", TimestampAndOffset(5, 0))]


@pytest.mark.parametrize("row", [TimestampAndOffset(5, 7), TimestampAndOffset(5, 0), TimestampAndOffset(-1, None)])
def test_rows_have_17_bytes(row: TimestampAndOffset) -> None:
    serde = TimestampAndOffsetSerde()
    data = serde.serialize("", row)
    assert data is not None
    assert len(data) == 17
    assert serde.deserialize("", data) == row
    assert TimestampAndOffsetSerde().serialize("", None) is None


def test_a_changed_key_is_repartitioned_and_records_without_one_too() -> None:
    def declare(builder: StreamsBuilder) -> None:
        rekeyed = builder.stream("in", **TEXT).select_key(lambda key, value: None if value == "none" else value[0])
        rekeyed.deduplicate_by_key(100, name="once", **TEXT).to("out", **TEXT)

    topology = built(declare)
    assert "Source: once-repartition-source (topics: [once-repartition])" in str(topology.describe())
    records = [("k", "a1", 0), ("l", "a2", 1), ("k", "none", 2), ("l", "none", 3), ("k", "b", 4)]
    assert values(topology, *records) == ["a1", "none", "none", "b"]


def test_the_result_needs_no_repartition_topic() -> None:
    def declare(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", **TEXT).select_key(lambda key, value: value)
        stream.deduplicate_by_key(100, **TEXT).group_by_key().count(store="counts")

    assert str(built(declare).describe()).count("-repartition]") == 1


def test_records_of_one_input_record_are_duplicates() -> None:
    """They have the same offset, as a record that is processed again after a crash."""

    def declare(builder: StreamsBuilder) -> None:
        words = builder.stream("in", **TEXT).flat_map_values(lambda value: value.split())
        words.deduplicate_by_key_value(lambda key, word: word, 100, id_serde="string").to("out", **TEXT)

    assert values(built(declare), ("k", "to be or not to be", 0), ("k", "not to", 1)) == ["to", "be", "or", "not"]


def test_records_of_two_topics_with_one_offset_are_duplicates() -> None:
    def declare(builder: StreamsBuilder) -> None:
        builder.stream(["in", "other"], **TEXT).deduplicate_by_key(100).to("out", **TEXT)

    with TopologyTestDriver(built(declare)) as driver:
        for topic in ("in", "other"):
            driver.create_input_topic(topic).pipe_input("k", topic, 5)
        assert driver.create_output_topic("out").read_values_to_list() == ["in"]


def test_records_of_punctuations_are_duplicates() -> None:
    class Repeats(Processor[str, str, str, str]):
        def init(self, context: Any) -> None:
            super().init(context)
            context.schedule(10, Punctuation.WALL_CLOCK_TIME, self.repeat)

        def process(self, record: Record[str, str]) -> None:
            self.context.forward(record)

        def repeat(self, timestamp: int) -> None:
            self.context.forward(Record("k", f"at {timestamp}", timestamp))

    def direct(builder: StreamsBuilder) -> None:
        words = builder.stream("in", **TEXT)
        kept = words.process(Repeats)
        kept.repartition_required = False  # keys stay as they are
        kept.deduplicate_by_key(100, **TEXT).to("out", **TEXT)

    with TopologyTestDriver(built(direct)) as driver:
        for _ in range(12):
            driver.advance_wall_clock_time(10)
        assert driver.create_output_topic("out").read_values_to_list() == ["at 10", "at 120"]


def test_stream_time_survives_a_restart() -> None:
    """A record that was too late before is too late afterwards: it starts no interval."""
    with tempfile.TemporaryDirectory() as folder:
        driver = CrashingDriver(built(by_key), {}, Path(folder, "0"))
        driver.create_input_topic("in").pipe_input(None, "x", 500)
        committed = driver.commit()
        driver.crash()
        for directory in ("0", "1"):  # with the stores on disk, and without them
            again = CrashingDriver(built(by_key), {}, Path(folder, directory), committed)
            for value in ("a", "b"):
                again.create_input_topic("in").pipe_input("k", value, 10)
            assert again.create_output_topic("out").read_values_to_list() == ["x", "a", "b"]
            again.crash()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.deduplicate_by_key(-1), "The interval of KSTREAM-DEDUPLICATE-0000000001 must not be negative"),
        (lambda s: s.deduplicate_by_key_value(3, 5, id_serde="string"), "id_selector must be a function, got 3"),
        (lambda s: s.deduplicate_by_key_value(len, 5, id_serde=None), "needs the id_serde of what id_selector returns"),
        (lambda s: s.deduplicate_by_key(5, store="a b"), "a b"),
    ],
)
def test_impossible_declarations_are_refused(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        call(StreamsBuilder().stream("in", **TEXT))


class Model:
    """Rows by identity, and the forwarded records."""

    def __init__(self, interval_ms: int, with_ids: bool) -> None:
        self.interval_ms = interval_ms
        self.with_ids = with_ids
        self.now = -1
        self.rows: dict[tuple[str | None, str | None], int] = {}
        self.out: list[tuple[str | None, str | None, int]] = []

    def copy(self) -> Model:
        copied = Model(self.interval_ms, self.with_ids)
        copied.now, copied.rows, copied.out = self.now, dict(self.rows), list(self.out)
        return copied

    def record(self, key: str | None, value: str | None, timestamp: int) -> None:
        self.now = max(self.now, timestamp)
        identity = (key, value if self.with_ids else None)
        at = self.rows.get(identity)
        if key is None or (self.with_ids and not value):
            self.out.append((key, value, timestamp))
        elif at is None or self.now - at > self.interval_ms or at - timestamp > self.interval_ms:
            self.out.append((key, value, timestamp))
            if self.now - timestamp <= self.interval_ms:
                self.rows[identity] = timestamp

    def alive(self, slack_ms: int = 0) -> set[int]:
        return {at for at in self.rows.values() if self.now - at <= self.interval_ms + slack_ms}


RECORDS = st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from(["x", "y", "", None]), st.integers(0, 120))
STEPS = st.one_of(RECORDS, RECORDS, RECORDS, st.sampled_from(["commit", "crash", "crash and wipe"]))


def declared(interval_ms: int, with_ids: bool) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", **TEXT)
    if with_ids:
        unique = stream.deduplicate_by_key_value(
            lambda key, value: value or None, interval_ms, id_serde="string", name="once"
        )
    else:
        unique = stream.deduplicate_by_key(interval_ms, name="once")
    unique.to("out", **TEXT)
    return builder.build()


@given(st.lists(STEPS, max_size=40), st.integers(0, 60), st.booleans(), st.booleans())
def test_results_and_rows_are_those_of_the_model(
    steps: list[Any], interval_ms: int, with_ids: bool, compacts: bool
) -> None:
    make = partial(declared, interval_ms, with_ids)
    with tempfile.TemporaryDirectory() as folder:
        number, model, committed = 0, Model(interval_ms, with_ids), Committed()
        at_commit = model.copy()
        driver = CrashingDriver(make(), {}, Path(folder, "0"), committed, compacts)
        for step in [*steps, "commit"]:
            if isinstance(step, tuple):
                driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input(*step)
                model.record(*step)
            elif step == "commit":
                committed, at_commit = driver.commit(), model.copy()
            else:
                number += "wipe" in step
                driver.crash()
                driver = CrashingDriver(make(), {}, Path(folder, str(number)), committed, compacts)
                model = at_commit.copy()
            rows = {row.timestamp for _, row in driver.get_key_value_store("once").all()}
            assert model.alive() <= rows <= model.alive(max(interval_ms // 10, 1))
            assert driver.get_state_store("once-time-index").num_records() <= len(model.out)
        records = committed.produced.get("out", [])
        assert [
            (one.key and one.key.decode(), None if one.value is None else one.value.decode(), one.timestamp)
            for one in records
        ] == model.out
        driver.crash()


@given(st.lists(RECORDS, max_size=30), st.integers(0, 60), st.booleans())
def test_micro_batches_of_one_record_have_the_same_results(
    records: list[Any], interval_ms: int, with_ids: bool
) -> None:
    config = StreamsConfig({"application.id": "app"})
    (topology,) = declared(interval_ms, with_ids).internal_builder.build_subtopologies(config)
    plan, state = TaskPlan(topology, config, {"in": 1, "out": 1}), DictState()
    model, sent = Model(interval_ms, with_ids), []
    for offset, (key, value, timestamp) in enumerate(records):
        model.record(key, value, timestamp)
        task = SparkTask(plan, 0, state, lambda: 0)
        encoded = [None if part is None else part.encode() for part in (key, value)]
        task.process({"in": [RawRecord("in", 0, offset, timestamp, *encoded)]})
        task.commit()
        task.close()
        sent += [record for record in task.take_sent() if record.topic == "out"]
    assert [
        (one.key and one.key.decode(), None if one.value is None else one.value.decode(), one.timestamp) for one in sent
    ] == model.out


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({}, Verdict.SAFE),
        ({"interval": 7}, Verdict.SAFE),
        ({"key_serde": "int64"}, Verdict.REFUSE),
        ({"id_serde": "int64"}, Verdict.REFUSE),
        ({"store": "other"}, Verdict.REFUSE),
    ],
)
def test_a_plan_compares_the_serdes_of_keys_and_ids(changed: dict[str, Any], verdict: Verdict) -> None:
    def facts(interval: int = 5, id_serde: str = "string", **options: Any) -> Any:
        builder = StreamsBuilder()
        stream = builder.stream("in", value_serde="string")
        options = {"name": "once", "key_serde": "string", "value_serde": "string", **options}
        stream.deduplicate_by_key_value(lambda key, value: value, interval, id_serde=id_serde, **options).to("out")
        return facts_of(builder.build(), StreamsConfig({"application.id": "app", "bootstrap.servers": "host:1"}))

    assert compare(facts(), facts(**changed)).verdict is verdict
