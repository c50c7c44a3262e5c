"""Dead letters (KIP-1034): one for each failed record, with the key and value of the input record that failed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock import (
    BufferConfig,
    Materialized,
    Processor,
    Punctuation,
    Serdes,
    SerializationError,
    Stores,
    StreamsError,
    Suppressed,
    TimeWindows,
)
from penstock.topology.context.exception_handlers import ProducerRecord, Response

Options = dict[str, Any]
Declare = Callable[[Any, Options], Any]
DEAD = {"errors.dead.letter.queue.topic.name": "dead"}
CONTINUE = {"processing.exception.handler": "log_and_continue", **DEAD}


def not_json(value: Any) -> Any:
    return {1, 2}


def fails(value: Any) -> Any:
    raise ValueError(f"bad {value}")


class Tick(Processor[Any, Any, Any, Any]):
    """Forwards the last record when the clock has advanced."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule(5, Punctuation.STREAM_TIME, lambda now: context.forward(self.record.with_timestamp(now)))

    def process(self, record: Any) -> None:
        self.record = record


def letters(flow: Any) -> list[tuple[Any, Any, str | None, bytes | None]]:
    """Return (key, value, topic, offset) of the dead letters."""
    flow.driver.advance_wall_clock_time(0)  # captures records that were sent before the task failed
    found = []
    for record in flow.driver.create_output_topic("dead").read_records_to_list():
        headers = dict(record.headers)
        topic = headers["__streams.errors.topic"]
        found.append((record.key, record.value, topic and topic.decode(), headers["__streams.errors.offset"]))
    return found


UNSERIALIZABLE: dict[str, Declare] = {
    "map": lambda builder, text: builder.stream("in", **text).map_values(not_json).to("out"),
    "partitioned": lambda builder, text: (
        builder.stream("in", **text).map_values(not_json).to("out", partitioner=lambda topic, key, value, count: 0)
    ),
    "dynamic": lambda builder, text: builder.stream("in", **text).map_values(not_json).to(lambda key, value, at: "out"),
    "nested": lambda builder, text: builder.stream("in", **text).peek(print).map_values(not_json).peek(print).to("out"),
    "repartition": lambda builder, text: (
        builder.stream("in", **text).group_by(lambda key, value: not_json(value), key_serde=Serdes.json()).count()
    ),
    "processor": lambda builder, text: builder.stream("in", **text).process(Tick).map_values(not_json).to("out"),
}


@pytest.mark.parametrize("name", UNSERIALIZABLE)
@pytest.mark.parametrize("production", ["log_and_fail", "log_and_continue"])
@pytest.mark.parametrize("processing", ["log_and_fail", "log_and_continue"])
def test_a_record_that_cannot_be_serialized_has_one_letter(
    start: Any, text: Options, name: str, production: str, processing: str
) -> None:
    config = {"production.exception.handler": production, "processing.exception.handler": processing, **DEAD}
    flow = start(lambda builder: UNSERIALIZABLE[name](builder, text), config)
    if "continue" in production or "continue" in processing:
        flow.pipe("in", "k", "v", 7)
    else:
        with pytest.raises(StreamsError, match="Unable to serialize record"):
            flow.pipe("in", "k", "v", 7)
    place = (None, None, None, b"-1") if name == "processor" else (b"k", b"v", "in", b"0")
    assert letters(flow) == [place]


def test_the_processing_handler_writes_the_letter_if_the_production_handler_writes_none(
    start: Any, text: Options
) -> None:
    config = {**CONTINUE, "production.exception.handler": lambda *_: "fail"}
    flow = start(lambda builder: UNSERIALIZABLE["map"](builder, text), config).pipe("in", "k", "v", 7)
    assert letters(flow) == [(b"k", b"v", "in", b"0")]


def test_the_letter_of_a_custom_production_handler_is_the_only_one(start: Any, text: Options) -> None:
    def handler(context: Any, record: Any, exception: Exception) -> Response:
        assert isinstance(exception, SerializationError)
        assert isinstance(exception.__cause__, TypeError)
        return Response.fail([ProducerRecord("dead", b"mine", context.source_raw_value, 1, _place(context))])

    config = {**CONTINUE, "production.exception.handler": handler}
    flow = start(lambda builder: UNSERIALIZABLE["map"](builder, text), config).pipe("in", "k", "v", 7)
    assert letters(flow) == [(b"mine", b"v", "in", b"0")]


def _place(context: Any) -> list[tuple[str, bytes]]:
    place = {"topic": context.topic, "offset": str(context.offset)}
    return [(f"__streams.errors.{name}", value.encode()) for name, value in place.items()]


def test_two_failing_operators_have_a_letter_each(start: Any, text: Options) -> None:
    def declare(builder: Any) -> None:
        stream = builder.stream("in", **text)
        stream.map_values(fails).to("out")
        stream.map_values(not_json).to("out")

    assert letters(start(declare, CONTINUE).pipe("in", "k", "v")) == [(b"k", b"v", "in", b"0")] * 2


def suppressed(builder: Any, text: Options) -> Any:
    return builder.table("in", **text).suppress(Suppressed.until_time_limit(5)).to_stream()


def suppressed_until_full(builder: Any, text: Options) -> Any:
    limit = Suppressed.until_time_limit(100, BufferConfig.max_records(1).emit_early_when_full())
    return builder.table("in", **text).suppress(limit).to_stream()


def suppressed_windows(builder: Any, text: Options) -> Any:
    windows = builder.stream("in", **text).group_by_key().windowed_by(TimeWindows(5, grace=0))
    return windows.count().suppress(Suppressed.until_window_closes()).to_stream()


def joined_with_grace(builder: Any, text: Options) -> Any:
    versions = Materialized(Stores.persistent_versioned_key_value_store("versions", 100), **text)
    table = builder.table("table", store=versions, **text)
    return builder.stream("in", **text).left_join(table, lambda left, right: left, grace=5, **text)


def counted(builder: Any, text: Options) -> Any:
    return builder.stream("in", **text).group_by_key().count(store="counts").to_stream()


def windowed(builder: Any, text: Options) -> Any:
    return builder.stream("in", **text).group_by_key().windowed_by(TimeWindows(5, grace=0)).count().to_stream()


@pytest.mark.parametrize("cache", [0, 1_000_000])
@pytest.mark.parametrize(
    "held", [suppressed, suppressed_until_full, suppressed_windows, joined_with_grace, counted, windowed]
)
def test_the_dead_letter_of_a_buffered_record_has_the_key_and_value_of_that_record(
    start: Any, text: Options, held: Callable[[Any, Options], Any], cache: int
) -> None:
    config = {**CONTINUE, "statestore.cache.max.bytes": cache}
    flow = start(lambda builder: held(builder, text).map_values(fails).to("out"), config)
    flow.pipe("in", "k", "v", 0, headers=[("h", b"1")]).pipe("in", "j", "w", 10)
    assert letters(flow)[0] == (b"k", b"v", "in", b"0")


@pytest.mark.parametrize("held", [suppressed, joined_with_grace])
def test_the_error_for_a_held_record_names_that_record(
    start: Any, text: Options, held: Callable[[Any, Options], Any]
) -> None:
    flow = start(lambda builder: held(builder, text).map_values(fails).to("out"), DEAD)
    flow.pipe("in", "k", "v", 0)
    with pytest.raises(StreamsError, match=r"topic=in, partition=0, offset=0, .*bad v"):
        flow.pipe("in", "j", "w", 10)
    assert letters(flow) == [(b"k", b"v", "in", b"0")]


def test_a_held_record_whose_sink_fails_affects_no_other_record(start: Any, text: Options) -> None:
    """The sink is the join's own child: no operator between them could distinguish the two records."""

    def partitioner(topic: str, key: Any, value: Any, count: int) -> int:
        return fails(value) if value == "v" else 0

    flow = start(lambda builder: joined_with_grace(builder, text).to("out", partitioner=partitioner, **text), CONTINUE)
    flow.pipe("in", "k", "v", 0).pipe("in", "j", "w", 10).pipe("in", "i", "x", 20)
    assert letters(flow) == [(b"k", b"v", "in", b"0")]
    assert flow.read() == [("j", "w", 10)]


@pytest.mark.parametrize("handler", ["log_and_fail", "log_and_continue"])
@pytest.mark.parametrize("cache_bytes", [0, 10_485_760])
def test_a_failure_behind_a_table_has_the_letter_of_the_put_record(
    start: Any, text: Options, handler: str, cache_bytes: int
) -> None:
    def declare(builder: Any) -> None:
        builder.table("in", store="rows", **text).map_values(fails).to_stream().to("out")

    config = {**DEAD, "processing.exception.handler": handler, "statestore.cache.max.bytes": cache_bytes}
    flow = start(declare, config)
    if handler == "log_and_fail":
        with pytest.raises(StreamsError, match=r"topic=in, partition=0, offset=0.*ValueError: bad v"):
            flow.pipe("in", "k", "v")
    else:
        flow.pipe("in", "k", "v")
    assert letters(flow) == [(b"k", b"v", "in", b"0")]


SHARED = ValueError("one exception for all records")


def raises_the_same(value: Any) -> Any:
    raise SHARED


def failed_future(value: Any) -> Any:
    return FUTURE.result()


FUTURE: Future[Any] = Future()
FUTURE.set_exception(ValueError("one failure for all who ask"))


def wrapped(value: Any) -> Any:
    try:
        return FUTURE.result()
    except ValueError as error:
        raise RuntimeError("the lookup has failed") from error


def wrapped_implicitly(value: Any) -> Any:
    try:
        return FUTURE.result()
    except ValueError:
        raise RuntimeError("the lookup has failed")  # noqa: B904 - its context is the point


def wrapped_twice(value: Any) -> Any:
    try:
        return wrapped(value)
    except RuntimeError as error:
        raise KeyError(value) from error


def grouped(value: Any) -> Any:
    try:
        return FUTURE.result()
    except ValueError as error:
        raise ExceptionGroup("failed lookups", [KeyError(value), ExceptionGroup("of futures", [error])])  # noqa: B904


CYCLE = ValueError("one"), ValueError("the other")


def caused_in_a_circle(value: Any) -> Any:
    for error in CYCLE:
        try:
            raise error
        except ValueError:
            pass
    CYCLE[0].__cause__, CYCLE[1].__cause__ = CYCLE[1], CYCLE[0]
    raise CYCLE[0]


async def wrapped_async(value: Any) -> Any:
    return wrapped(value)


def fails_whole(values: list[Any]) -> list[Any]:
    raise ValueError("a batch")


def wrapped_whole(values: list[Any]) -> list[Any]:
    return [wrapped(value) for value in values]


async def unreachable(value: Any, session: Any) -> Any:
    return value


@asynccontextmanager
async def closed_service() -> AsyncIterator[None]:
    raise ConnectionError("no session for any record")
    yield


@asynccontextmanager
async def closed_service_wrapped() -> AsyncIterator[None]:
    wrapped(None)
    yield


class RaisesTheSame(Processor[Any, Any, Any, Any]):
    def process(self, record: Any) -> None:
        raise SHARED


class UnwritableSerde:
    def serialize(self, topic: str, value: Any) -> bytes | None:
        raise SHARED

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        raise SHARED


class WrappingSerde:
    def serialize(self, topic: str, value: Any) -> bytes | None:
        return wrapped(value)  # type: ignore[no-any-return]

    def deserialize(self, topic: str, data: bytes | None) -> Any:
        return wrapped(data)


class WrapsAtPunctuation(Processor[Any, Any, Any, Any]):
    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule(5, Punctuation.STREAM_TIME, wrapped)

    def process(self, record: Any) -> None:
        pass


REPEATED: dict[str, Declare] = {
    "one object": lambda builder, text: builder.stream("in", **text).map_values(raises_the_same).to("out"),
    "one object in a loop": lambda builder, text: (
        builder.stream("in", **text).flat_map_values(list).peek(lambda key, value: raises_the_same(value))
    ),
    "one object in a processor": lambda builder, text: builder.stream("in", **text).process(RaisesTheSame),
    "a future": lambda builder, text: builder.stream("in", **text).map_values(failed_future).to("out"),
    "a batch": lambda builder, text: builder.stream("in", **text).map_batches(fails_whole).to("out"),
    "a lifespan": lambda builder, text: builder.stream("in", **text).map_values_async(
        unreachable, lifespan=closed_service
    ),
    "a serializer": lambda builder, text: builder.stream("in", **text).to("out", value_serde=UnwritableSerde()),
    "a deserializer": lambda builder, text: builder.stream("in", value_serde=UnwritableSerde()).to("out"),
    "a cause": lambda builder, text: builder.stream("in", **text).map_values(wrapped).to("out"),
    "the cause of a cause": lambda builder, text: builder.stream("in", **text).map_values(wrapped_twice).to("out"),
    "a context": lambda builder, text: builder.stream("in", **text).map_values(wrapped_implicitly).to("out"),
    "a member of a group": lambda builder, text: builder.stream("in", **text).map_values(grouped).to("out"),
    "a circle of causes": lambda builder, text: builder.stream("in", **text).map_values(caused_in_a_circle).to("out"),
    "a cause in an async function": lambda builder, text: (
        builder.stream("in", **text).map_values_async(wrapped_async).to("out")
    ),
    "a cause in a batch": lambda builder, text: (
        builder.stream("in", **text).map_batches(wrapped_whole, max_records=4).to("out")
    ),
    "a cause in a split batch": lambda builder, text: (
        builder.stream("in", **text).map_batches(wrapped_whole, max_records=4, on_error="split").to("out")
    ),
    "a cause in a lifespan": lambda builder, text: builder.stream("in", **text).map_values_async(
        unreachable, lifespan=closed_service_wrapped
    ),
    "a cause in a serializer": lambda builder, text: builder.stream("in", **text).to(
        "out", value_serde=WrappingSerde()
    ),
    "a cause in a deserializer": lambda builder, text: builder.stream("in", value_serde=WrappingSerde()).to("out"),
    "a cause in a punctuation": lambda builder, text: builder.stream("in", **text).process(WrapsAtPunctuation),
    "an aggregator": lambda builder, text: (
        builder.stream("in", **text).group_by_key().reduce(lambda old, new: raises_the_same(new))
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_tracebacks_do_not_grow_from_record_to_record(start: Any, text: Options, name: str) -> None:
    """An exception object that is raised for many records would collect the frames of all of them."""
    for error in (SHARED, FUTURE.exception(), *CYCLE):
        assert error is not None
        error.__traceback__ = None  # of the previous test
    handlers = ("deserialization", "processing", "production")
    config = {**DEAD, **{f"{handler}.exception.handler": "log_and_continue" for handler in handlers}}
    flow = start(lambda builder: REPEATED[name](builder, text), config)
    flow.driver.create_input_topic("in", **text).pipe_key_value_list([("k", "v")] * 20, 0, 10)
    traces = stack_traces(flow)
    assert len(traces) >= 19  # the first value of a key is not aggregated
    sizes = {trace.count(b"\n") for trace in traces[1:]}
    assert len(sizes) == 1
    assert traces[1].count(b"\n") <= traces[0].count(b"\n")


@pytest.mark.parametrize("name", ["a lifespan", "a cause in a lifespan", "a batch", "a cause in a batch"])
def test_each_record_of_one_failure_has_its_whole_traceback(start: Any, text: Options, name: str) -> None:
    flow = start(lambda builder: REPEATED[name](builder, text), CONTINUE)
    flow.driver.create_input_topic("in", **text).pipe_key_value_list([("k", "v")] * 3)
    assert len(set(stack_traces(flow))) == 1


def stack_traces(flow: Any) -> list[bytes]:
    """Return the stack traces of the dead letters."""
    records = flow.driver.create_output_topic("dead").read_records_to_list()
    return [dict(record.headers)["__streams.errors.stacktrace"] for record in records]


def fails_deep(value: str, depth: int = 150) -> Any:
    """Raise with a long traceback without repeated lines."""
    if depth <= 0:
        raise ValueError("ä" * 30_000)
    if depth % 2:
        return fails_deep(value, depth - 1)
    return fails_deep(value, depth - 3)


@pytest.mark.parametrize("limit", [None, 0, 1, 200, 5_000, 1_000_000])
def test_a_stack_trace_is_cut_in_the_middle(start: Any, text: Options, limit: int | None) -> None:
    config = CONTINUE if limit is None else {**CONTINUE, "penstock.dead.letter.stacktrace.max.bytes": limit}
    flow = start(lambda builder: builder.stream("in", **text).map_values(fails_deep).to("out"), config)
    flow.pipe("in", "k", "v")
    (letter,) = flow.driver.create_output_topic("dead").read_records_to_list()
    headers = dict(letter.headers)
    trace, message = headers["__streams.errors.stacktrace"].decode(), headers["__streams.errors.message"].decode()
    allowed = 16_384 if limit is None else limit
    assert len(trace.encode()) <= allowed
    assert len(message.encode()) <= 16_384
    if allowed >= 200:
        assert trace.startswith("Traceback")
        assert trace.endswith("ä\n")
        assert ("bytes left out" in trace) == (allowed < 60_000)


def test_a_message_that_is_not_unicode_has_a_letter(
    start: Any, text: Options, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "penstock")  # the captured log could not be sent between pytest's processes

    def fails_with_surrogate(value: str) -> Any:
        raise ValueError("file \udcff")

    flow = start(lambda builder: builder.stream("in", **text).map_values(fails_with_surrogate).to("out"), CONTINUE)
    flow.pipe("in", "k", "v")
    (letter,) = flow.driver.create_output_topic("dead").read_records_to_list()
    assert dict(letter.headers)["__streams.errors.message"] == b"file \\udcff"
