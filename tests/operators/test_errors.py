from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import pytest

from penstock import ConfigError, Materialized, Processor, Punctuation, Serdes, StreamsError
from penstock.topology.context.exception_handlers import ErrorHandlerContext, ProducerRecord, Response, Result

Options = dict[str, Any]
CONTINUE = {"processing.exception.handler": "continue"}
DEAD = {"errors.dead.letter.queue.topic.name": "dead"}


def fails(value: Any) -> Any:
    raise ValueError(f"bad {value}")


def test_the_error_names_operator_topic_partition_offset_and_key(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        stream = builder.stream("in", **text)
        stream.map_values(str.upper, name="good").to("out", **text)
        stream.map_values(fails, name="bad").to("out2", **text)

    flow = start(declare)
    with pytest.raises(StreamsError) as caught:
        flow.pipe("in", "k", "v")
    for part in ("processor=bad", "topic=in", "partition=0", "offset=0", "key='k'", "ValueError: bad v", "taskId=0_0"):
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, ValueError)


def test_the_error_names_the_deeper_of_two_operators_with_the_same_function(start: Any, text: Options) -> None:
    """Both closures have the same code and the same mapper; they differ in their other cells."""
    calls: list[str] = []

    def second_time(value: str) -> str:
        calls.append(value)
        return fails(value) if len(calls) == 2 else value

    def declare(builder: Any) -> None:
        stream = builder.stream("in", **text)
        for number in range(3):
            stream = stream.map_values(second_time, name=f"step-{number}")
        stream.to("out", **text)

    with pytest.raises(StreamsError, match="processor=step-1,"):
        start(declare).pipe("in", "k", "v")


@pytest.mark.parametrize("cache", [0, 1_000_000])
def test_an_error_behind_a_store_names_the_operator_there(start: Any, text: Options, cache: int) -> None:
    def declare(builder: Any) -> None:
        table = builder.stream("in", **text).group_by_key().count(store="c")
        table.map_values(fails, name="behind").to_stream().to("out", **text)

    with pytest.raises(StreamsError, match=r"processor[= ]behind") as caught:
        start(declare, {"statestore.cache.max.bytes": cache}).pipe("in", "k", "v")
    assert ("Failed to flush cache of store c" in str(caught.value)) == bool(cache)


def test_the_error_names_a_class_based_operator_too(start: Any, numbers: Options) -> None:
    from penstock import SlidingWindows

    def declare(builder: Any) -> None:
        grouped = builder.stream("in", **numbers).group_by_key()
        for name in ("one", "two"):
            windowed = grouped.windowed_by(SlidingWindows(10))
            windowed.aggregate(
                lambda: 0, lambda k, v, a, n=name: fails(v) if n == "two" else a, name=name, store=name, **numbers
            )

    with pytest.raises(StreamsError, match="processor=two"):
        start(declare).pipe("in", "k", 1, 100)


def test_with_log_and_continue_only_the_failing_branch_loses_the_record(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        stream = builder.stream("in", **text)
        stream.map_values(lambda value: fails(value) if value == "v" else value, name="bad").to("out", **text)
        stream.to("all", **text)

    flow = start(declare, CONTINUE).pipe("in", "k", "v").pipe("in", "k", "w")
    assert [value for _, value, _ in flow.read()] == ["w"]
    assert [value for _, value, _ in flow.read("all")] == ["v", "w"]
    assert flow.driver.dropped_records() == {("bad", "processing error"): 1}


@pytest.mark.parametrize("handler", ["fail", "continue"])
def test_a_dead_letter_has_the_input_record_and_kafka_streams_headers(start: Any, text: Options, handler: str) -> None:
    def declare(builder: Any) -> None:
        builder.stream("in", **text).map_values(str.upper).map_values(fails, name="bad").to("out", **text)

    flow = start(declare, {**DEAD, "processing.exception.handler": handler})
    if handler == "fail":
        with pytest.raises(StreamsError):
            flow.pipe("in", "k", "v", 7, headers=[("mine", b"1")])
        flow.driver.advance_wall_clock_time(0)  # captures records that the failed record caused
    else:
        flow.pipe("in", "k", "v", 7, headers=[("mine", b"1")])
    [record] = flow.driver.create_output_topic("dead").read_records_to_list()
    headers = dict(record.headers)
    assert (record.key, record.value, record.timestamp, headers.pop("mine")) == (b"k", b"v", 7, b"1")
    assert headers.pop("__streams.errors.stacktrace").startswith(b"Traceback")
    assert headers == {
        "__streams.errors.exception": b"builtins.ValueError",
        "__streams.errors.message": b"bad V",
        "__streams.errors.topic": b"in",
        "__streams.errors.partition": b"0",
        "__streams.errors.offset": b"0",
    }


class Recording:
    """A user's handler, for each of the three keys."""

    seen: ClassVar[list[tuple[str, str | None, int, str]]] = []
    result: ClassVar[Any] = "continue"

    def configure(self, config: Any) -> None:
        assert config["application.id"]

    def handle_error(self, context: ErrorHandlerContext, record: Any, exception: Exception) -> Any:
        self.seen.append((context.processor_node_id, context.topic, context.offset, type(record).__name__))
        return self.result


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> type[Recording]:
    monkeypatch.setattr(Recording, "seen", [])
    return Recording


@pytest.mark.parametrize("result", ["continue", Result.RESUME, Response.resume()])
def test_a_custom_handler_decides(
    start: Any, text: Options, recording: type[Recording], monkeypatch: pytest.MonkeyPatch, result: Any
) -> None:
    monkeypatch.setattr(recording, "result", result)
    flow = start(
        lambda builder: builder.stream("in", **text).map_values(fails, name="bad").to("out", **text),
        {"processing.exception.handler": recording},
    )
    flow.pipe("in", "k", "v")
    assert recording.seen == [("bad", "in", 0, "Record")]


def test_a_handlers_failure_response_fails_with_the_operators_name(start: Any, text: Options) -> None:
    sent = ProducerRecord("mine", b"k", b"v", 1)

    def handler(context: Any, record: Any, exception: Exception) -> Response:
        return Response.fail([sent])

    flow = start(
        lambda builder: builder.stream("in", **text).map_values(fails, name="bad").peek(print).to("out", **text),
        {"processing.exception.handler": handler},
    )
    with pytest.raises(StreamsError, match="processor=bad"):
        flow.pipe("in", "k", "v")


@pytest.mark.parametrize(
    ("handler", "message"), [(lambda *_: 1 / 0, "Fatal user code error"), (lambda *_: "what", "'what'")]
)
def test_a_failing_handler_is_fatal(start: Any, text: Options, handler: Any, message: str) -> None:
    flow = start(
        lambda builder: builder.stream("in", **text).map_values(fails).to("out", **text),
        {"processing.exception.handler": handler},
    )
    with pytest.raises(StreamsError, match=message):
        flow.pipe("in", "k", "v")


def test_a_handler_must_be_callable(start: Any, text: Options) -> None:
    with pytest.raises(ConfigError, match=r"processing\.exception\.handler"):
        start(lambda builder: builder.stream("in", **text).to("out", **text), {"processing.exception.handler": 7})


def bytes_in(flow: Any, key: bytes | None, value: bytes | None) -> None:
    flow.driver.create_input_topic("in", Serdes.bytes(), Serdes.bytes()).pipe_input(key, value, 5)


def test_an_unreadable_record_fails_with_its_position(start: Any, numbers: Options) -> None:
    flow = start(lambda builder: builder.stream("in", **numbers).to("out", **numbers))
    bytes_in(flow, b"k", b"12345678")
    with pytest.raises(StreamsError, match=r"Deserialization error in in-0 at offset 1 .*log_and_continue"):
        bytes_in(flow, b"k", b"short")


def test_an_unreadable_record_may_be_skipped(start: Any, numbers: Options, recording: type[Recording]) -> None:
    for handler in ("continue", recording):
        flow = start(
            lambda builder: builder.stream("in", **numbers).to("out", **numbers),
            {"deserialization.exception.handler": handler, **DEAD},
        )
        for value in (b"12345678", b"short", b"87654321"):
            bytes_in(flow, b"k", value)
        assert len(flow.read()) == 2
        assert sum(flow.driver.dropped_records().values()) == 1
        assert ("dead" in flow.driver.produced_topic_names()) == (handler == "continue")
    assert recording.seen == [("KSTREAM-SOURCE-0000000000", "in", 1, "RawRecord")]


def test_the_error_for_a_wrong_type_names_sink_and_topic(start: Any, text: Options) -> None:
    flow = start(lambda builder: builder.stream("in", **text).map_values(len).to("out", name="sink", **text))
    with pytest.raises(StreamsError, match="processor=sink") as caught:
        flow.pipe("in", "k", "v")
    assert "Unable to serialize record for topic out" in str(caught.value)


def test_an_unserializable_record_may_be_skipped(start: Any, text: Options, recording: type[Recording]) -> None:
    flow = start(
        lambda builder: builder.stream("in", **text).map_values(lambda v: len(v) if v == "v" else v).to("out", **text),
        {"production.exception.handler": recording},
    )
    flow.pipe("in", "k", "v").pipe("in", "k", "ok")
    assert [value for _, value, _ in flow.read()] == ["ok"]
    assert recording.seen == [("KSTREAM-SINK-0000000002", "in", 0, "ProducerRecord")]


@pytest.mark.parametrize("handler", ["fail", "continue"])
def test_the_error_of_a_punctuation_names_its_processor(start: Any, text: Options, handler: str) -> None:
    class Tick(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            context.schedule(5, Punctuation.WALL_CLOCK_TIME, fails)

        def process(self, record: Any) -> None: ...

    flow = start(
        lambda builder: builder.stream("in", **text).process(Tick, name="tick"),
        {"processing.exception.handler": handler},
    )
    if handler == "fail":
        with pytest.raises(StreamsError, match="while punctuating processor 'tick': ValueError: bad 5"):
            flow.driver.advance_wall_clock_time(5)
    else:
        flow.driver.advance_wall_clock_time(5)
        assert flow.driver.dropped_records() == {("tick", "punctuation error"): 1}


def test_the_error_names_a_processor_that_cannot_be_initialized(start: Any, text: Options) -> None:
    class Broken(Processor[Any, Any, Any, Any]):
        def init(self, context: Any) -> None:
            fails("init")

        def process(self, record: Any) -> None: ...

    with pytest.raises(StreamsError, match="failed to initialize processor broken: bad init"):
        start(lambda builder: builder.stream("in", **text).process(Broken, name="broken"))


def test_a_missing_serde_is_detected_at_the_start(start: Any, text: Options) -> None:
    with pytest.raises(StreamsError, match="No value serde for sink lost"):
        start(
            lambda builder: builder.stream("in", **text).map_values(len).to("out", name="lost"),
            {"default.value.serde": None},
        )


def test_the_store_of_a_table_must_fit(start: Any, text: Options) -> None:
    """Kafka Streams cannot read a windowed aggregation of cogrouped streams as a table either."""
    from penstock import TimeWindows

    def declare(builder: Any) -> None:
        cogrouped = builder.stream("in", **text).group_by_key().cogroup(lambda k, v, a: a + v)
        table = cogrouped.windowed_by(TimeWindows(10)).aggregate(str, store=Materialized("w", **text))
        table.join(table, lambda one, other: one)

    with pytest.raises(StreamsError, match="timestamped or versioned key-value store"):
        start(declare)


# -- exceptions that are not passed to handlers


class Exits:
    """Exits that user code may cause in each place: sys.exit(), or Ctrl-C in a debugger."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind = kind

    def function(self, value: Any) -> Any:
        raise self.kind(value)

    def extractor(self, *_: Any) -> int:
        raise self.kind("extractor")

    def serialize(self, topic: str, data: Any) -> bytes:
        raise self.kind(topic)

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        raise self.kind(topic)


class ExitingProcessor(Processor[Any, Any, Any, Any]):
    def __init__(self, exits: Exits, place: str) -> None:
        self.exits, self.place = exits, place

    def init(self, context: Any) -> None:
        if self.place == "init":
            self.exits.function("init")
        context.schedule(10, Punctuation.WALL_CLOCK_TIME, self.exits.function)

    def process(self, record: Any) -> None:
        if self.place == "process":
            self.exits.function(record.value)


EXITING: dict[str, tuple[Any, str]] = {
    "mapper": (
        lambda stream, exits, text: stream.map_values(exits.function, name="bad").to("out", **text),
        "taskId=0_0, processor=bad, topic=in, partition=0, offset=1, key='k'",
    ),
    "process": (
        lambda stream, exits, text: stream.process(lambda: ExitingProcessor(exits, "process"), name="bad"),
        "taskId=0_0, processor=bad, topic=in, partition=0, offset=1, key='k'",
    ),
    "sink": (
        lambda stream, exits, text: stream.to("out", key_serde=Serdes.string(), value_serde=exits, name="bad"),
        "taskId=0_0, processor=bad, topic=in, partition=0, offset=1, key='k'",
    ),
    "cache": (
        lambda stream, exits, text: (
            stream.group_by_key().count(store="c").map_values(exits.function, name="bad").to_stream().foreach(print)
        ),
        "Failed to flush cache of store c, in processor bad",
    ),
    "punctuation": (
        lambda stream, exits, text: stream.process(lambda: ExitingProcessor(exits, "punctuation"), name="bad"),
        "while punctuating processor 'bad'",
    ),
}


@pytest.mark.parametrize("config", [{}, CONTINUE, {"statestore.cache.max.bytes": 1_000_000}], ids=str)
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("place", EXITING)
def test_an_exit_in_a_function_is_raised_unchanged_with_its_place(
    start: Any, text: Options, place: str, kind: type[BaseException], config: Options
) -> None:
    declare, where = EXITING[place]
    quiet = True

    class Later(Exits):  # the first record passes
        def function(self, value: Any) -> Any:
            return value if quiet else super().function(value)

        def serialize(self, topic: str, data: Any) -> bytes:
            return b"" if quiet else super().serialize(topic, data)

    flow = start(lambda builder: declare(builder.stream("in", **text), Later(kind), text), config)
    flow.pipe("in", "k", "v")
    quiet = False
    if place == "cache" and "statestore.cache.max.bytes" not in config:
        where = "taskId=0_0, processor=bad, topic=in, partition=0, offset=1, key='k'"
    fail = (
        partial(flow.driver.advance_wall_clock_time, 10)
        if place == "punctuation"
        else partial(flow.pipe, "in", "k", "v")
    )
    with pytest.raises(kind) as caught:
        fail()
    assert where in "".join(caught.value.__notes__)
    quiet = True


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_before_the_operators_has_its_place(start: Any, text: Options, kind: type[BaseException]) -> None:
    exits = Exits(kind)
    sources: list[tuple[Any, str]] = [
        ({"key_serde": Serdes.string(), "value_serde": exits}, "error in in-0 at offset 0 (source src)"),
        ({**text, "timestamp_extractor": exits.extractor}, "callback of source src for the record of in-0 at offset 0"),
    ]
    for options, where in sources:
        flow = start(lambda builder, options=options: builder.stream("in", name="src", **options).to("out", **text))
        with pytest.raises(kind) as caught:
            flow.driver.create_input_topic("in", Serdes.string(), Serdes.string()).pipe_input("k", "v")
        assert where in "".join(caught.value.__notes__)
    with pytest.raises(kind) as caught:
        start(lambda builder: builder.stream("in", **text).process(lambda: ExitingProcessor(exits, "init"), name="bad"))
    assert caught.value.__notes__ == ["failed to initialize processor bad"]
