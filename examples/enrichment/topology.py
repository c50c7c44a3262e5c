"""Orders get their price from a service, one call each, and their risk from a model, many at once."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np

from examples.enrichment import model
from penstock import KStream, Retries, Serdes, StreamsBuilder, Topology

if TYPE_CHECKING:
    import pyarrow as pa

ORDERS, SCORED = "orders", "scored-orders"
#: The address of the price service, and the model's file.
PRICES_VARIABLE, MODEL_VARIABLE = "ENRICHMENT_PRICES", "ENRICHMENT_MODEL"
IN_FLIGHT_MAX = 256

Order = dict[str, Any]


@asynccontextmanager
async def prices() -> AsyncIterator[aiohttp.ClientSession]:
    """Open a session with the price service, once for each process."""
    address = os.environ.get(PRICES_VARIABLE, "http://127.0.0.1:8701")
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT_MAX)
    async with aiohttp.ClientSession(address, connector=connector) as session:
        yield session


async def with_price(order: Order, session: aiohttp.ClientSession) -> Order:
    """Add the product's price."""
    async with session.get(f"/prices/{order['product']}") as answer:
        answer.raise_for_status()
        return {**order, "price": (await answer.json())["price"]}


@cache
def risk_model() -> Any:
    """Return the model, loaded once for each process."""
    return model.load(Path(os.environ.get(MODEL_VARIABLE, "risk.onnx")))


def risks(columns: Sequence[Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the risk of each order, from the columns of the model's features."""
    rows = np.column_stack(columns).astype(np.float32)
    found: np.ndarray[Any, np.dtype[np.float32]] = risk_model().run(["risk"], {"orders": rows})[0][:, 0]
    return found


def with_risk(order: Order) -> Order:
    """Add the risk of one order."""
    (risk,) = risks([[order[name]] for name in model.FEATURES])
    return {**order, "risk": round(float(risk), 4)}


def with_risks(orders: list[Order]) -> list[Order]:
    """Add the risk to each of many orders."""
    found = risks([[order[name] for order in orders] for name in model.FEATURES])
    return [{**order, "risk": round(risk, 4)} for order, risk in zip(orders, found.tolist(), strict=True)]


def with_risk_column(orders: pa.RecordBatch) -> pa.RecordBatch:
    """Add the risk to each of many orders, as a column. It is for map_batches(…, as_="arrow"), which needs pyarrow."""
    import pyarrow as pa

    found = risks([orders.column(name).to_numpy(zero_copy_only=False) for name in model.FEATURES])
    return orders.append_column("risk", pa.array(np.round(found.astype(np.float64), 4)))


def build(source: str = ORDERS, sink: str = SCORED) -> Topology:
    """Return the topology. source, sink: its topics."""
    builder = StreamsBuilder()
    orders: KStream[str, Order] = builder.stream(source, key_serde=Serdes.string(), value_serde=Serdes.json())
    priced = orders.map_values_async(
        with_price,
        lifespan=prices,
        max_in_flight=IN_FLIGHT_MAX,
        timeout=timedelta(seconds=2),
        retries=Retries(5, on=(aiohttp.ClientConnectionError, TimeoutError)),
        name="price",
    )
    scored: KStream[str, Order] = priced.map_batches(with_risks, max_records=512, name="risk")
    scored.to(sink, key_serde=Serdes.string(), value_serde=Serdes.json())
    return builder.build()
