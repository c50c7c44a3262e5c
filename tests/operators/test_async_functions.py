"""Asynchronous functions in the driver: order, failures, operators behind them, and refused options."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from penstock import (
    Processor,
    Punctuation,
    Retries,
    Serdes,
    StreamsBuilder,
    StreamsError,
    TimeWindows,
    TopologyError,
)
from penstock.topology.errors import EventLoopError
from tests.operators.conftest import Start

INTS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.int64()}


async def doubled(value: int) -> int:
    await asyncio.sleep(0.02)
    return 2 * value


def declare(operation: Callable[[Any], Any]) -> Callable[[StreamsBuilder], None]:
    def build(builder: StreamsBuilder) -> None:
        operation(builder.stream("in", **INTS)).to("out", **INTS)

    return build


def test_a_value_is_replaced_by_the_awaited_result(start: Start) -> None:
    flow = start(declare(lambda stream: stream.map_values_async(doubled)))
    assert flow.read_after("in", "a", 4, 7) == [("a", 8, 7)]


def test_with_key_the_function_gets_the_key_too(start: Start) -> None:
    async def joined(key: str, value: int) -> int:
        return value + len(key)

    flow = start(declare(lambda stream: stream.map_values_async(joined, with_key=True)))
    assert flow.read_after("in", "abc", 4) == [("abc", 7, 0)]


def test_an_async_filter_keeps_and_drops(start: Start) -> None:
    async def is_even(key: str, value: int) -> bool:
        await asyncio.sleep(0)
        return value % 2 == 0

    flow = start(declare(lambda stream: stream.filter_async(is_even)))
    for value in (1, 2, 3, 4):
        flow.pipe("in", "a", value)
    assert [value for _, value, _ in flow.read()] == [2, 4]


def test_an_async_flat_map_gives_any_number(start: Start) -> None:
    async def up_to(value: int) -> list[int]:
        return list(range(value))

    flow = start(declare(lambda stream: stream.flat_map_values_async(up_to)))
    flow.pipe("in", "a", 0)
    assert [value for _, value, _ in flow.read_after("in", "a", 3)] == [0, 1, 2]


def test_an_async_action_ends_the_stream(start: Start) -> None:
    seen: list[tuple[str, int]] = []

    async def note(key: str, value: int) -> None:
        seen.append((key, value))

    def build(builder: StreamsBuilder) -> None:
        builder.stream("in", **INTS).foreach_async(note)

    start(build).pipe("in", "a", 1)
    assert seen == [("a", 1)]


# One input record gives several records, so that many calls are in flight at once.
def fan(stream: Any) -> Any:
    return stream.flat_map(lambda key, value: [(f"{key}{number % 2}", number) for number in range(value)])


async def first_is_slow(value: int) -> int:
    await asyncio.sleep(0.5 if value == 0 else 0.01)
    return value


def test_ordered_by_partition_results_have_the_order_of_the_records(start: Start) -> None:
    flow = start(declare(lambda stream: fan(stream).map_values_async(first_is_slow)))
    assert [value for _, value, _ in flow.read_after("in", "k", 6)] == [0, 1, 2, 3, 4, 5]


def test_ordered_by_key_only_records_of_one_key_wait_for_each_other(start: Start) -> None:
    flow = start(declare(lambda stream: fan(stream).map_values_async(first_is_slow, ordered_by="key")))
    results = flow.read_after("in", "k", 6)
    assert [value for key, value, _ in results if key == "k1"] == [1, 3, 5]
    assert [value for key, value, _ in results if key == "k0"] == [0, 2, 4]
    assert next(value for _, value, _ in results) == 1, "the slow one holds up no other key"


def test_records_with_keys_that_cannot_be_compared_keep_their_order(start: Start) -> None:
    def build(builder: StreamsBuilder) -> None:
        keyed = fan(builder.stream("in", **INTS)).select_key(lambda key, value: {"key": key})
        keyed.map_values_async(first_is_slow, ordered_by="key").map(lambda key, value: (key["key"], value)).to(
            "out", **INTS
        )

    assert [value for _, value, _ in start(build).read_after("in", "k", 6)] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("ordered_by", ["partition", "key"])
def test_no_more_calls_run_than_max_in_flight(start: Start, ordered_by: Any) -> None:
    running, most = 0, 0

    async def count(value: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return value

    flow = start(declare(lambda stream: fan(stream).map_values_async(count, max_in_flight=3, ordered_by=ordered_by)))
    assert len(flow.read_after("in", "k", 20)) == 20
    assert most == (3 if ordered_by == "partition" else 2), "two keys"


def test_sleeping_takes_the_driver_no_time(start: Start) -> None:
    async def sleepy(value: int) -> int:
        await asyncio.sleep(3600)
        return value

    flow = start(declare(lambda stream: stream.map_values_async(sleepy, timeout=None)))
    began = time.monotonic()
    assert flow.read_after("in", "a", 1) == [("a", 1, 0)]
    assert time.monotonic() - began < 60


def test_waiting_for_a_thread_takes_its_real_time(start: Start) -> None:
    async def blocking(value: int) -> int:
        await asyncio.to_thread(time.sleep, 0.2)
        return value

    flow = start(declare(lambda stream: stream.map_values_async(blocking, timeout=timedelta(seconds=30))))
    assert flow.read_after("in", "a", 1) == [("a", 1, 0)], "the deadline of 30 s did not come first"


def test_operators_behind_see_timestamp_headers_and_stream_time_of_the_record(start: Start) -> None:
    def build(builder: StreamsBuilder) -> None:
        stream = builder.stream("in", **INTS).map_values_async(doubled)
        counted = stream.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(milliseconds=10)))
        counted.count().to_stream().map(lambda window, number: (window.key, number)).to("out", **INTS)

    flow = start(build)
    for timestamp in (5, 15, 6):
        flow.pipe("in", "a", 1, timestamp)
    assert [timestamp for _, _, timestamp in flow.read()] == [5, 15], "the record of 6 is late, as behind map_values"


def test_the_exception_names_operator_topic_offset_and_key(start: Start) -> None:
    async def fails(value: int) -> int:
        raise ValueError("no price")

    flow = start(declare(lambda stream: stream.map_values_async(fails, name="price")))
    with pytest.raises(
        StreamsError, match=r"processor=price, topic=in, partition=0, offset=0, key='a': ValueError: no price"
    ):
        flow.pipe("in", "a", 1)


def test_a_timeout_raises_timeout_error(start: Start) -> None:
    async def hangs(value: int) -> int:
        await asyncio.Event().wait()
        return value

    flow = start(declare(lambda stream: stream.map_values_async(hangs, timeout=2_000)))
    with pytest.raises(StreamsError, match="TimeoutError"):
        flow.pipe("in", "a", 1)


def test_with_log_and_continue_a_failed_record_is_dropped_and_the_others_arrive(start: Start) -> None:
    async def picky(value: int) -> int:
        if value == 2:
            raise ValueError(value)
        return value

    flow = start(
        declare(lambda stream: fan(stream).map_values_async(picky)),
        {"processing.exception.handler": "log_and_continue"},
    )
    assert [value for _, value, _ in flow.read_after("in", "k", 4)] == [0, 1, 3]
    assert flow.driver.dropped_records() == {("KSTREAM-MAPVALUES-0000000002", "processing error"): 1}


def test_a_call_is_retried_as_often_as_configured(
    start: Start, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    attempts: list[int] = []

    async def second_time(value: int) -> int:
        attempts.append(value)
        if len(attempts) < 3:
            raise ConnectionError
        return value

    retries = Retries(3, on=ConnectionError)
    flow = start(declare(lambda stream: stream.map_values_async(second_time, retries=retries)))
    assert flow.read_after("in", "a", 1) == [("a", 1, 0)]
    assert len(attempts) == 3
    assert (caplog.messages, capsys.readouterr().out) == ([], ""), "a line for each would be a flood"


def test_the_handler_is_called_after_the_last_retry(start: Start) -> None:
    attempts: list[int] = []

    async def never(value: int) -> int:
        attempts.append(value)
        raise ConnectionError("gone")

    flow = start(declare(lambda stream: stream.map_values_async(never, retries=Retries(2))))
    with pytest.raises(StreamsError, match="ConnectionError: gone"):
        flow.pipe("in", "a", 1)
    assert len(attempts) == 3


def test_a_lifespan_is_opened_once_and_closed_with_the_driver(start: Start) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def session() -> AsyncIterator[dict[str, int]]:
        events.append("open")
        yield {"factor": 3}
        events.append("close")

    async def priced(value: int, opened: dict[str, int]) -> int:
        return value * opened["factor"]

    flow = start(declare(lambda stream: fan(stream).map_values_async(priced, lifespan=session)))
    assert [value for _, value, _ in flow.read_after("in", "k", 3)] == [0, 3, 6]
    assert events == ["open"]
    flow.driver.close()
    assert events == ["open", "close"]


def test_sys_exit_in_a_function_does_not_count_as_a_failed_record(start: Start) -> None:
    async def leaves(value: int) -> int:
        raise SystemExit(3)

    flow = start(
        declare(lambda stream: stream.map_values_async(leaves)), {"processing.exception.handler": "log_and_continue"}
    )
    with pytest.raises(SystemExit) as raised:
        flow.pipe("in", "a", 1)
    assert "offset=0" in "".join(raised.value.__notes__)


def test_records_that_a_cache_forwards_are_awaited_too(start: Start) -> None:
    def build(builder: StreamsBuilder) -> None:
        counted = builder.stream("in", **INTS).group_by_key().count().to_stream().map_values_async(doubled)
        counted.group_by_key(**INTS).count().to_stream().to("out", **INTS)

    flow = start(build, {"statestore.cache.max.bytes": 1_000_000})
    assert flow.read_after("in", "a", 1) == [("a", 1, 0)]
    assert flow.read_after("in", "a", 1) == [("a", 2, 0)]


@asynccontextmanager
async def ends_at_once() -> AsyncIterator[None]:
    """Its background task fails, and it handles that itself."""

    async def fails() -> None:
        raise ConnectionError("the service is gone")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            yield
    except* ConnectionError:
        pass


@asynccontextmanager
async def hangs() -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


class Doubles(Processor[Any, Any, Any, Any]):
    """Forwards the last record twice when time has advanced."""

    def init(self, context: Any) -> None:
        super().init(context)
        context.schedule(5, Punctuation.STREAM_TIME, self.forward)

    def process(self, record: Any) -> None:
        self.record = record

    def forward(self, now: int) -> None:
        for _ in range(2):
            self.context.forward(self.record.with_timestamp(now))


BEFORE: dict[str, Callable[[Any], Any]] = {
    "the source": lambda stream: stream,
    "a flat map": fan,
    "a cache": lambda stream: fan(stream).group_by_key(**INTS).count(store="counts").to_stream(),
    "a punctuation": lambda stream: stream.process(Doubles),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("lifespan", [ends_at_once, hangs], ids=["ends", "hangs"])
def test_a_lifespan_that_is_lost_is_no_failure_of_a_record(start: Start, before: str, lifespan: Any) -> None:
    """No handler may drop the records that wait for it: the process is replaced, and reads them again."""

    async def use(value: int, session: None) -> int:
        await asyncio.sleep(3600)
        return value

    config = {"processing.exception.handler": "log_and_continue", "statestore.cache.max.bytes": 1_000_000}
    options: dict[str, Any] = {"max_in_flight": 1, "timeout": None, "lifespan": lifespan}
    flow = start(declare(lambda stream: BEFORE[before](stream).map_values_async(use, **options)), config)
    with pytest.raises(EventLoopError):
        flow.pipe("in", "a", 4, 0).pipe("in", "b", 4, 10)
    assert flow.driver.dropped_records() == {}
    with pytest.raises(EventLoopError):
        flow.driver.close()


async def numbers(*_: Any) -> AsyncIterator[int]:
    yield 1


class Numbers:
    """A callable object."""

    async def __call__(self, *_: Any) -> AsyncIterator[int]:
        yield 1


class Doubled:
    """An async callable object."""

    async def __call__(self, *_: Any) -> int:
        return 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_in_flight": 0}, "max_in_flight must be 1 or more"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"ordered_by": "value"}, "ordered_by must be"),
        ({"retries": 3}, "retries must be Retries"),
        ({"lifespan": 3}, "lifespan must be a function"),
        *(
            ({"lifespan": lifespan}, "decorate a function that yields with @contextlib.asynccontextmanager")
            for lifespan in (numbers, partial(numbers), Numbers(), Numbers().__call__, doubled, Doubled())
        ),
        ({"lifespan_timeout": 0}, "lifespan_timeout must be positive"),
    ],
)
def test_wrong_options_are_refused_at_declaration(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        StreamsBuilder().stream("in", **INTS).map_values_async(doubled, **options)


@pytest.mark.parametrize("function", [numbers, partial(numbers), Numbers()], ids=["function", "partial", "object"])
def test_an_async_generator_is_refused(function: Any) -> None:
    """Its results would never be awaited, and each record would fail."""
    stream = StreamsBuilder().stream("in", **INTS)
    for declare_one in (stream.map_values_async, stream.filter_async, stream.flat_map_values_async):
        with pytest.raises(TopologyError, match="it is an async generator function"):
            declare_one(function)


def test_a_plain_function_is_refused() -> None:
    with pytest.raises(TopologyError, match="must be an async function"):
        StreamsBuilder().stream("in", **INTS).map_values_async(lambda value: value)
