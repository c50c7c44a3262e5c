"""The topologies of benchmarks/waiting.py: each purchase gets as ``x`` a service's result for its amount."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import cache
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson

from benchmarks.topologies import INPUT_VARIABLE, OUTPUT_VARIABLE
from penstock import KStream, Retries, Serdes, StreamsBuilder, Topology
from penstock.topology.context.async_calls import OrderedBy

SERVICE_VARIABLE = "BENCHMARK_SERVICE"
IN_FLIGHT_MAX = 256
#: For a service that is down for seconds.
RETRIES = Retries(50, wait_max=timedelta(seconds=1), on=(aiohttp.ClientError, TimeoutError))

Purchase = dict[str, Any]


@cache
def connection() -> HTTPConnection:
    """Return the one connection of a process with sequential calls."""
    address = urlsplit(os.environ[SERVICE_VARIABLE])
    return HTTPConnection(address.hostname or "", address.port)


def ask(purchase: Purchase) -> Purchase:
    """Call the service, and wait."""
    connection().request("GET", f"/{purchase['amount']}")
    answer = orjson.loads(connection().getresponse().read())
    return {**purchase, "x": answer["double"]}


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """Open the client session of a process. It leaves timeouts to Penstock, and has no cookies."""
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT_MAX)
    no_timeout, no_cookies = aiohttp.ClientTimeout(total=None), aiohttp.DummyCookieJar()
    address = os.environ[SERVICE_VARIABLE]
    async with aiohttp.ClientSession(address, connector=connector, timeout=no_timeout, cookie_jar=no_cookies) as opened:
        yield opened


async def ask_async(purchase: Purchase, client: aiohttp.ClientSession) -> Purchase:
    """Call the service concurrently with other calls."""
    async with client.get(f"/{purchase['amount']}", raise_for_status=True) as response:
        return {**purchase, "x": orjson.loads(await response.read())["double"]}


def plain() -> Topology:
    """Call the service by a plain function: a process handles one record after the other."""
    builder = StreamsBuilder()
    return _written(builder, _purchases(builder).map_values(ask))


def waiting(ordered_by: OrderedBy = "partition") -> Topology:
    """Call the service by an async function, for 256 records of a process at once."""
    builder = StreamsBuilder()
    asked = _purchases(builder).map_values_async(
        ask_async, lifespan=session, max_in_flight=IN_FLIGHT_MAX, retries=RETRIES, ordered_by=ordered_by
    )
    return _written(builder, asked)


def waiting_by_key() -> Topology:
    """Do the same, ordered by key."""
    return waiting("key")


def _purchases(builder: StreamsBuilder) -> KStream[str, Purchase]:
    return builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json())


def _written(builder: StreamsBuilder, asked: KStream[str, Purchase]) -> Topology:
    asked.to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json())
    return builder.build()
