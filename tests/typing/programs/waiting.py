"""Asynchronous functions, batch functions, handlers of errors, and an application with listeners."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from penstock import (
    ApplicationState,
    KafkaStreams,
    KStream,
    ReadOnlySessionStore,
    ReadOnlyWindowStore,
    Retries,
    Serdes,
    StreamsBuilder,
    StreamsUncaughtExceptionHandlerResponse,
    StreamThreadError,
    Topology,
    Windowed,
)
from penstock.testing import TopologyTestDriver
from penstock.topology.context.exception_handlers import ErrorHandlerContext, ProducerRecord, Response


@dataclass
class Order:
    pieces: int
    price: float = 0


class Prices:
    async def look_up(self, key: str) -> float:
        return 1.5


@asynccontextmanager
async def prices() -> AsyncGenerator[Prices, None]:
    yield Prices()


async def price(order: Order) -> Order:
    return Order(order.pieces, 7.0)


async def price_with_session(order: Order, session: Prices) -> Order:
    return Order(order.pieces, await session.look_up("apple"))


async def price_with_key(key: str, order: Order, session: Prices) -> float:
    return await session.look_up(key)


async def is_large(key: str, order: Order) -> bool:
    return order.pieces > 1


async def halves(order: Order) -> list[int]:
    return [order.pieces // 2, order.pieces - order.pieces // 2]


def score(orders: list[Order]) -> list[float]:
    return [order.pieces * order.price for order in orders]


def score_columns(batch: Any) -> Any:
    return batch.column("pieces")


def score_rows(batch: Any) -> list[float]:
    return [1.5 * row["pieces"] for row in batch.to_pylist()]


class Series:
    """Like an array of NumPy or a Series of pandas, which not every user has."""

    def tolist(self) -> list[Any]:
        return []


def series(orders: list[Order]) -> Series:
    return Series()


def topology() -> Topology:
    builder = StreamsBuilder()
    orders = builder.stream("orders", key_serde=Serdes.string(), value_serde=Serdes.json(Order))
    priced = orders.map_values_async(price, max_in_flight=10, timeout=timedelta(seconds=2), retries=Retries(3))
    assert_type(priced, KStream[str, Order])
    assert_type(orders.map_values_async(price_with_session, lifespan=prices), KStream[str, Order])
    assert_type(orders.map_values_async(price_with_key, lifespan=prices, with_key=True), KStream[str, float])
    assert_type(orders.filter_async(is_large, ordered_by="key"), KStream[str, Order])
    assert_type(orders.flat_map_values_async(halves), KStream[str, int])
    orders.foreach_async(is_large)

    assert_type(priced.map_batches(score, max_records=100, on_error="split"), KStream[str, float])
    assert_type(priced.map_batches(lambda orders: [order.pieces for order in orders]), KStream[str, int])
    assert_type(priced.map_batches(series), KStream[str, Any])
    assert_type(priced.map_batches(score_columns, as_="arrow", schema=None), KStream[str, Any])
    assert_type(priced.map_batches(score_rows, as_="arrow"), KStream[str, float])
    priced.map_batches(score).to("scores", value_serde=Serdes.float64())
    return builder.build()


def skip(context: ErrorHandlerContext, record: Any, exception: Exception) -> Response:
    letter = ProducerRecord("dead", context.source_raw_key, context.source_raw_value)
    return Response.resume([letter])


def try_it() -> None:
    with TopologyTestDriver(topology(), {"processing.exception.handler": skip}) as driver:
        driver.create_input_topic("orders").pipe_input("a", Order(2))
        assert driver.create_output_topic("scores").read_value() == 14.0


def replace(error: StreamThreadError) -> StreamsUncaughtExceptionHandlerResponse:
    return StreamsUncaughtExceptionHandlerResponse.REPLACE_THREAD


def show(new: ApplicationState, old: ApplicationState) -> None:
    print(f"{old.name} -> {new.name}")


def main() -> int:
    config = {"application.id": "orders", "bootstrap.servers": "127.0.0.1:9092"}
    streams = KafkaStreams("programs.waiting:topology", config)
    streams.set_uncaught_exception_handler(replace)
    streams.set_state_listener(show)
    streams.start()
    windows: ReadOnlyWindowStore[str, int] = streams.store("windows")
    assert_type(windows.fetch("a", 0), int | None)
    assert_type([key for key, _ in windows.fetch_all(0, 10)], list[Windowed[str]])
    sessions: ReadOnlySessionStore[str, int] = streams.store("sessions")
    assert_type([count for _, count in sessions.fetch("a")], list[int])
    print(streams.store("other").approximate_num_entries() + 1, [status.lag for status in streams.status()])
    return streams.run()
