"""Past bugs with values in caches, stores and handlers, for any cache size."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from penstock import (
    Processor,
    ProcessorContext,
    Record,
    Serdes,
    SerializationError,
    Stores,
    StreamsBuilder,
    StreamsError,
    Suppressed,
    Topology,
)
from penstock.testing import TopologyTestDriver
from penstock.topology.context.exception_handlers import FailedProcessingError

CACHES = pytest.mark.parametrize("cache", [0, 400, 10_485_760])
SKIPPING = {"processing.exception.handler": "log_and_continue"}
LETTERS = {**SKIPPING, "errors.dead.letter.queue.topic.name": "letters"}


def driver(builder: StreamsBuilder, cache: int = 0, config: Mapping[str, str] | None = None) -> TopologyTestDriver:
    return TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": cache, **(config or {})})


@CACHES
def test_later_changes_of_objects_do_not_change_a_stored_row(cache: int) -> None:
    def numbered(_value: Any) -> Iterator[dict[str, int]]:
        row: dict[str, int] = {}
        for number in range(3):
            row["i"] = number
            yield row

    builder = StreamsBuilder()
    rows = builder.stream("in").flat_map_values(numbered).group_by_key()
    rows.aggregate(list, lambda _key, value, rows: [*rows, value], store="rows")
    last = builder.stream("other")
    last.group_by_key().aggregate(dict, lambda _key, value, _last: {"last": value}, store="last")
    last.foreach(lambda _key, value: value.clear())
    with driver(builder, cache) as tested:
        tested.create_input_topic("in").pipe_input("k", 1)
        tested.create_input_topic("other").pipe_input("k", {"n": 1})
        assert tested.get_key_value_store("rows").get("k") == [{"i": 0}, {"i": 1}, {"i": 2}]
        assert tested.get_key_value_store("last").get("k") == {"last": {"n": 1}}
        text = Serdes.string()
        log = tested.create_output_topic("topology-test-driver-rows-changelog", text, text).read_values_to_list()
        assert log[-1] == '[{"i":0},{"i":1},{"i":2}]'


@CACHES
def test_a_value_that_its_serde_refuses_affects_only_its_own_record(cache: int) -> None:
    builder = StreamsBuilder()
    counted: Callable[[str, str, Any], Any] = lambda _key, value, count: "bad" if value == "x" else count + 1  # noqa: E731
    table = builder.stream("in").group_by_key().aggregate(int, counted, value_serde=Serdes.int64(), store="counts")
    table.to_stream().to("out")
    with driver(builder, cache, SKIPPING) as tested:
        for key, value in (("a", "1"), ("b", "x"), ("a", "2")):
            tested.create_input_topic("in").pipe_input(key, value)
        assert tested.create_output_topic("out").read_key_values_to_list() == [("a", 1), ("a", 2)]


@CACHES
def test_a_value_has_the_type_that_its_serde_reads_back_with_every_cache(cache: int) -> None:
    builder = StreamsBuilder()
    pairs = builder.stream("in").map_values(lambda value: (value, "x")).group_by_key()
    pairs.reduce(lambda one, other: max(one, other), store="largest")  # noqa: PLW0108
    with driver(builder, cache) as tested:
        numbers = tested.create_input_topic("in")
        for number in range(10):
            numbers.pipe_input(f"k{number}", number)
        with pytest.raises(FailedProcessingError, match="'tuple' and 'list'"):
            numbers.pipe_input("k0", 10)


def test_the_letter_of_a_suppressed_record_has_the_input_record() -> None:
    builder = StreamsBuilder()
    late = builder.table("in").suppress(Suppressed.until_time_limit(5))
    late.map_values(lambda value: 1 / value).to_stream().to("out")
    with driver(builder, config=LETTERS) as tested:
        tested.create_input_topic("in").pipe_input("k", 0, 1)
        tested.create_input_topic("in").pipe_input("j", 1, 10)
        letter = tested.create_output_topic("letters").read_record()
    assert (letter.key, letter.value) == (b"k", b"0")
    headers = dict(letter.headers or ())
    assert (headers["__streams.errors.topic"], headers["__streams.errors.offset"]) == (b"in", b"0")


def test_a_refused_record_has_one_letter() -> None:
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda _value: {1, 2}).to("out")
    with driver(builder, config=LETTERS) as tested:
        tested.create_input_topic("in").pipe_input("k", 0, 1)
        assert tested.create_output_topic("letters").read_key_values_to_list() == [(b"k", b"0")]
        assert list(tested.dropped_records().values()) == [1]


def test_an_evicted_row_has_a_tombstone() -> None:
    class Kept(Processor[str, str, str, str]):
        def init(self, context: ProcessorContext) -> None:
            super().init(context)
            self.rows = context.get_state_store("rows")

        def process(self, record: Record[str, str]) -> None:
            if record.value is None:
                self.rows.get(record.key)
            else:
                self.rows.put(record.key, record.value)

    text = Serdes.string()
    topology = Topology()
    topology.add_source("source", "in", key_serde=text, value_serde=text).add_processor("kept", Kept, "source")
    topology.add_state_store(Stores.key_value_store_builder(Stores.lru_map("rows", 3), text, text), "kept")
    with TopologyTestDriver(topology, {"application.id": "app"}) as tested:
        for key, value in (("a", "1"), ("b", "1"), ("c", "1"), ("a", None), ("d", "1")):
            tested.create_input_topic("in").pipe_input(key, value, 5)
        log = tested.create_output_topic("app-rows-changelog", text, text).read_key_values_to_list()
        assert log == [("a", "1"), ("b", "1"), ("c", "1"), ("b", None), ("d", "1")]
        assert [key for key, _ in tested.get_key_value_store("rows").all()] == ["a", "c", "d"]


def test_a_text_of_two_characters_is_no_pair() -> None:
    builder = StreamsBuilder()
    builder.table("in").group_by(lambda _key, value: value["country"]).count().to_stream().to("out")
    said = r"KTABLE-SELECT-0000000003 must return a pair \(key, value\), not a str of length 2"
    with driver(builder) as tested, pytest.raises(StreamsError, match=said):
        tested.create_input_topic("in").pipe_input("k", {"country": "US"})


def test_the_driver_accepts_topics_that_match_a_pattern() -> None:
    builder = StreamsBuilder()
    builder.stream(re.compile("in-.*")).to("out")
    with driver(builder) as tested:
        tested.create_input_topic("in-1").pipe_input("k", 1)
        assert tested.create_output_topic("out").read_key_values_to_list() == [("k", 1)]


def test_large_integers_keep_their_digits_and_nan_is_refused() -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    text, value = Serdes.string(), '{"wei":123456789012345678901234567890}'
    with driver(builder) as tested:
        tested.create_input_topic("in", value_serde=text).pipe_input("k", value)
        assert tested.create_output_topic("out", value_serde=text).read_value() == value
    with pytest.raises(SerializationError, match="JSON has no nan"):
        Serdes.json().serialize("t", {"average": float("nan")})
    with pytest.raises(SerializationError):
        Serdes.uuid().serialize("t", "no uuid")  # type: ignore[arg-type]


def refusing() -> int:
    raise ValueError("boom")


SOURCE = "source KSTREAM-SOURCE-0000000000 for the record of in-0 at offset 0: "


@pytest.mark.parametrize(
    ("extract", "said"),
    [
        (lambda m, *_: m.timestamp(), r" not \(1, 7\) \(tuple\)"),
        (lambda *_: None, r" not None \(NoneType\)"),
        (lambda *_: 12.7, r" not 12\.7 \(float\)"),
        (lambda *_: "12", r" not '12' \(str\)"),
        (lambda *_: True, r" not True \(bool\)"),
        (lambda *_: 2**63, "64 bits"),
        (lambda *_: datetime.datetime(2020, 1, 1), "datetime"),
        (lambda *_: refusing(), "boom"),
        (lambda _message, _time: 5, "positional arguments"),
    ],
)
def test_the_error_names_a_timestamp_extractor_without_a_result(extract: Any, said: str) -> None:
    builder = StreamsBuilder()
    builder.stream("in", timestamp_extractor=extract).to("out")
    with driver(builder) as tested, pytest.raises(StreamsError, match=f"{SOURCE}.*{said}"):
        tested.create_input_topic("in").pipe_input("k", "v", 7)


def test_a_record_with_a_negative_timestamp_is_dropped() -> None:
    builder = StreamsBuilder()
    builder.stream("in", timestamp_extractor=lambda *_: -1).to("out")
    with driver(builder) as tested:
        tested.create_input_topic("in").pipe_input("k", "v", 7)
        assert tested.create_output_topic("out").is_empty()
