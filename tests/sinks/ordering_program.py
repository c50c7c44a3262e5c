"""The program of test_with_broker, for `penstock run`: orders are appended to a table, and counted in another one."""

from __future__ import annotations

import os
from dataclasses import dataclass

from penstock import KStream, Serdes, StreamsBuilder, Topology
from penstock.sinks import PostgresSink

#: Environment variables of the program: the topic of the orders, and the database.
TOPIC_VARIABLE, DSN_VARIABLE = "ORDERS_TOPIC", "ORDERS_DSN"
#: Records of one transaction.
MAX_RECORDS = 100


@dataclass
class Order:
    """A row; number is different in each record."""

    number: int
    item: str


def appending() -> Topology:
    """Return a topology that appends. The sink reads the topic itself, and no task has state."""
    builder = StreamsBuilder()
    _appended(builder)
    return builder.build()


def counting() -> Topology:
    """Return a topology that counts the orders of each item, too."""
    builder = StreamsBuilder()
    counts = _appended(builder).group_by_key().count(store="counts").to_stream()
    counts.to_sink(_sink("counts", "upsert", key="item"), name="counts-sink", max_records=MAX_RECORDS)
    return builder.build()


def _appended(builder: StreamsBuilder) -> KStream[str, Order]:
    topic = os.environ[TOPIC_VARIABLE]
    orders = builder.stream(topic, key_serde=Serdes.string(), value_serde=Serdes.json(Order))
    orders.to_sink(_sink("orders"), name="orders-sink", max_records=MAX_RECORDS)
    return orders


def _sink(*arguments: str, **options: str) -> PostgresSink:
    return PostgresSink(os.environ[DSN_VARIABLE], *arguments, **options)  # type: ignore[arg-type]
