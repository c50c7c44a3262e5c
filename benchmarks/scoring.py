"""``python -m benchmarks.scoring``: orders scored by an ONNX model, one by one, in lists and in Arrow columns.

The model and the functions are those of examples/enrichment. As in benchmarks/driver.py there is no broker, and seconds
are CPU time. A wrong score ends it with exit code 1.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import orjson
from rich.console import Console

from benchmarks.driver import INPUT, OUTPUT, Results, Scenario, rates, table
from benchmarks.measure import BenchmarkError
from examples.enrichment import model, topology
from penstock import KStream, Serdes, StreamsBuilder, Topology
from penstock.topology.records import RawRecord

MAX_RECORDS = 512
#: Digits of the compared scores: a batch may sum in another order.
TOLERANCE = 2e-4

Declare = Callable[[KStream[str, topology.Order]], KStream[str, topology.Order]]


def scored(declare: Declare) -> Callable[[], Topology]:
    """Return a function that declares the topology: orders, the model, scored orders."""

    def build() -> Topology:
        builder = StreamsBuilder()
        orders: Any = builder.stream(INPUT, key_serde=Serdes.string(), value_serde=Serdes.json())
        declare(orders).to(OUTPUT, key_serde=Serdes.string(), value_serde=Serdes.json())
        return builder.build()

    return build


def messages(records: int) -> list[RawRecord]:
    """Return the input: orders with all fields that the model reads."""
    found = []
    for number, row in enumerate(model.made_orders(records).tolist()):
        order = {"number": number, **dict(zip(model.FEATURES, row, strict=True))}
        found.append(RawRecord(INPUT, 0, number, number, b"c%d" % (number % 100), orjson.dumps(order)))
    return found


def check(records: int, results: Results) -> None:
    """Raise BenchmarkError unless all orders exist in their order, each with the model's risk."""
    found = [orjson.loads(value or b"null") for _, value in results]
    if [order["number"] for order in found] != list(range(records)):
        raise BenchmarkError(f"{len(found)} orders came out, or not in their order; expected {records}")
    expected = topology.risks(list(model.made_orders(records).T))
    if np.abs(expected - [order["risk"] for order in found]).max() > TOLERANCE:
        raise BenchmarkError("some orders have another risk than the model gives")


SCENARIOS = (
    Scenario("map_values", scored(lambda orders: orders.map_values(topology.with_risk)), check),
    Scenario(
        "map_batches",
        scored(lambda orders: orders.map_batches(topology.with_risks, max_records=MAX_RECORDS)),
        check,
    ),
    Scenario(
        'map_batches(as_="arrow")',
        scored(lambda orders: orders.map_batches(topology.with_risk_column, max_records=MAX_RECORDS, as_="arrow")),
        check,
    ),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--records", type=click.IntRange(min=100), default=50_000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
def main(records: int, rounds: int) -> None:
    """Print how many orders per second of CPU time a model scores, one by one and many at once."""
    with tempfile.TemporaryDirectory(prefix="penstock-benchmark-") as directory:
        file = Path(directory) / "risk.onnx"
        file.write_bytes(model.build().SerializeToString())
        os.environ[topology.MODEL_VARIABLE] = str(file)
        topology.risk_model.cache_clear()
        given = messages(records)
        try:
            found = [(each.name, "in batches", rates(each, "in batches", given, rounds)) for each in SCENARIOS]
        except BenchmarkError as error:
            raise click.ClickException(str(error)) from error
    Console().print(table(found))


if __name__ == "__main__":
    sys.exit(main())
