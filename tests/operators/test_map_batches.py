"""map_batches in the driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from penstock import Serdes, StreamsBuilder, StreamsError, TopologyError
from tests.operators.conftest import Start

INTS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.int64()}


def declare(operation: Callable[[Any], Any]) -> Callable[[StreamsBuilder], None]:
    def build(builder: StreamsBuilder) -> None:
        fanned = builder.stream("in", **INTS).flat_map(lambda key, value: [(key, number) for number in range(value)])
        operation(fanned).to("out", **INTS)

    return build


def test_a_function_gets_as_many_values_as_it_takes(start: Start) -> None:
    sizes: list[int] = []

    def squared(values: list[int]) -> list[int]:
        sizes.append(len(values))
        return [value**2 for value in values]

    flow = start(declare(lambda stream: stream.map_batches(squared, max_records=4)))
    assert [value for _, value, _ in flow.read_after("in", "k", 10)] == [number**2 for number in range(10)]
    assert sizes == [4, 4, 2]


def test_what_it_raises_is_each_records_failure(start: Start) -> None:
    def picky(values: list[int]) -> list[int]:
        if 5 in values:
            raise ValueError("five")
        return values

    flow = start(
        declare(lambda stream: stream.map_batches(picky, max_records=4)),
        {"processing.exception.handler": "log_and_continue"},
    )
    assert [value for _, value, _ in flow.read_after("in", "k", 10)] == [0, 1, 2, 3, 8, 9]
    assert flow.driver.dropped_records() == {("KSTREAM-MAPVALUES-0000000002", "processing error"): 4}


@pytest.mark.parametrize("wrong", [[1], "text", 7])
def test_it_must_return_one_result_for_each(start: Start, wrong: Any) -> None:
    flow = start(declare(lambda stream: stream.map_batches(lambda values: wrong)))
    with pytest.raises(StreamsError, match="must return"):
        flow.pipe("in", "k", 4)


@dataclass
class Order:
    price: float
    pieces: int


def test_arrow_columns_in_and_an_array_out(start: Start) -> None:
    compute = pytest.importorskip("pyarrow.compute")

    def total(batch: Any) -> Any:
        return compute.multiply(batch["price"], batch["pieces"])

    def build(builder: StreamsBuilder) -> None:
        orders = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json(Order))
        orders.map_batches(total, as_="arrow").to("out", key_serde=Serdes.string(), value_serde=Serdes.float64())

    flow = start(build)
    assert flow.read_after("in", "k", Order(2.5, 4)) == [("k", 10.0, 0)]


def test_arrow_columns_in_and_out(start: Start) -> None:
    pytest.importorskip("pyarrow")

    def build(builder: StreamsBuilder) -> None:
        orders = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.json())
        orders.map_batches(lambda batch: batch.select(["n"]), as_="arrow").to(
            "out", key_serde=Serdes.string(), value_serde=Serdes.json()
        )

    assert start(build).read_after("in", "k", {"n": 1, "m": 2}) == [("k", {"n": 1}, 0)]


@pytest.mark.parametrize("options", [{"max_records": 0}, {"max_wait": -1}, {"as_": "pandas"}])
def test_wrong_arguments_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(TopologyError):
        StreamsBuilder().stream("in", **INTS).map_batches(lambda values: values, **options)
