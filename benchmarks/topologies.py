"""The benchmark's topologies in Penstock, as kafka_streams/KafkaStreamsBenchmark.java has them in Kafka Streams."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import msgspec

from penstock import Serdes, StreamsBuilder, TimeWindows, Topology

WINDOW = timedelta(seconds=10)

#: Both systems' programs learn from their environment which topics a run uses.
INPUT_VARIABLE = "BENCHMARK_INPUT"
OUTPUT_VARIABLE = "BENCHMARK_OUTPUT"
TABLE_VARIABLE = "BENCHMARK_TABLE"


class Purchase(msgspec.Struct):
    """An order, as the input topic's JSON has it."""

    user: str
    amount: int
    page: str
    ts: int


class DoubledPurchase(Purchase):
    """What becomes of it."""

    x: int


class User(msgspec.Struct):
    """A user, as the table's JSON has it."""

    name: str
    city: str


class LocatedPurchase(Purchase):
    """A purchase with the user's city."""

    city: str


def count() -> Topology:
    """Count the purchases of each user."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .group_by_key()
        .count(store="counts")
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.long())
    )
    return builder.build()


def windowed_count() -> Topology:
    """Count the purchases of each user in each ten seconds."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .group_by_key()
        .windowed_by(TimeWindows.of_size_with_no_grace(WINDOW))
        .count(store="counts")
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], value_serde=Serdes.long())
    )
    return builder.build()


def aggregate() -> Topology:
    """Number and sum of the purchases of each user, in a dict."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .group_by_key()
        .aggregate(lambda: {"n": 0, "sum": 0}, add_purchase, store="totals", value_serde=Serdes.json())
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json())
    )
    return builder.build()


def map_filter() -> Topology:
    """Keep the purchases of an odd amount and add its double."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .filter(lambda key, purchase: purchase.amount % 2 != 0)
        .map_values(lambda p: DoubledPurchase(p.user, p.amount, p.page, p.ts, p.amount * 2))
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(DoubledPurchase))
    )
    return builder.build()


def map_filter_dicts() -> Topology:
    """Do the same with values that are dicts."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json())
        .filter(lambda key, purchase: purchase["amount"] % 2 != 0)
        .map_values(with_double)
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json())
    )
    return builder.build()


def table_join() -> Topology:
    """Add to each purchase the city of its user."""
    builder = StreamsBuilder()
    users = builder.table(os.environ[TABLE_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(User))
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .join(users, lambda p, user: LocatedPurchase(p.user, p.amount, p.page, p.ts, user.city))
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(LocatedPurchase))
    )
    return builder.build()


def table_join_dicts() -> Topology:
    """Do the same with values that are dicts."""
    builder = StreamsBuilder()
    users = builder.table(os.environ[TABLE_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json())
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json())
        .join(users, with_city)
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json())
    )
    return builder.build()


def add_purchase(_key: str, purchase: Purchase, totals: dict[str, int]) -> dict[str, int]:
    """Add a purchase to its user's totals."""
    totals["n"] += 1
    totals["sum"] += purchase.amount
    return totals


def with_city(purchase: dict[str, Any], user: dict[str, Any]) -> dict[str, Any]:
    """Add the user's city."""
    return {**purchase, "city": user["city"]}


def with_double(purchase: dict[str, Any]) -> dict[str, Any]:
    """Add twice the amount as ``x``."""
    return {**purchase, "x": purchase["amount"] * 2}
