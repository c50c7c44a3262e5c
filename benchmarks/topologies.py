"""The benchmark's topologies in Penstock, as kafka_streams/KafkaStreamsBenchmark.java has them in Kafka Streams."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import msgspec

from penstock import (
    BufferConfig,
    JoinWindows,
    Processor,
    ProcessorContext,
    Record,
    Serdes,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
)

WINDOW = timedelta(seconds=10)
ADVANCE = timedelta(seconds=2)
#: That ends a session, and the most between a purchase and a payment that are joined.
GAP = timedelta(milliseconds=500)
#: How late a purchase or payment may come. It is also how long a session that was merged is still seen in its store:
#: without grace, both systems sometimes send no tombstone for one that has expired before the cache is flushed.
GRACE = timedelta(minutes=1)

#: Both systems' programs learn from their environment which topics a run uses.
INPUT_VARIABLE = "BENCHMARK_INPUT"
OUTPUT_VARIABLE = "BENCHMARK_OUTPUT"
TABLE_VARIABLE = "BENCHMARK_TABLE"
PAYMENTS_VARIABLE = "BENCHMARK_PAYMENTS"


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


class Payment(msgspec.Struct):
    """How a user has paid, as the payments' JSON has it."""

    user: str
    method: str


class PaidPurchase(Purchase):
    """A purchase with how its user has paid."""

    method: str


class Totals(msgspec.Struct):
    """Number and sum of a user's purchases."""

    n: int
    sum: int


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


def keep_first() -> Topology:
    """Keep the first value of each user, and answer each purchase with it."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .group_by_key()
        .reduce(lambda first, later: first, store="first")
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.bytes())
    )
    return builder.build()


def windowed_count() -> Topology:
    """Count the purchases of each user in every ten seconds."""
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


def repartition() -> Topology:
    """Count the purchases by a field of their values."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .select_key(lambda key, purchase: purchase.user)
        .group_by_key(name="by-user", key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .count(store="counts")
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.long())
    )
    return builder.build()


class AddUp(Processor[str, Purchase, str, Totals]):
    """Keeps number and sum of each user's purchases, and forwards them."""

    def init(self, context: ProcessorContext) -> None:
        """Find the store."""
        super().init(context)
        self.totals = context.get_state_store("totals")

    def process(self, record: Record[str, Purchase]) -> None:
        """Add a purchase to its user's totals."""
        before = self.totals.get(record.key)
        if before is None:
            totals = Totals(1, record.value.amount)
        else:
            totals = Totals(before.n + 1, before.sum + record.value.amount)
        self.totals.put(record.key, totals)
        self.context.forward(record.with_value(totals))


def processor() -> Topology:
    """Number and sum of the purchases of each user, by a processor with a store."""
    builder = StreamsBuilder()
    totals = Stores.persistent_key_value_store("totals")
    builder.add_state_store(Stores.key_value_store_builder(totals, Serdes.string(), Serdes.json(Totals)))
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .process(AddUp, "totals")
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Totals))
    )
    return builder.build()


def window_suppress() -> Topology:
    """Count the purchases of each user in every ten seconds, and send only the final counts."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .group_by_key()
        .windowed_by(TimeWindows.of_size_with_no_grace(WINDOW))
        .count(store="counts")
        .suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], value_serde=Serdes.long())
    )
    return builder.build()


def hopping() -> Topology:
    """Count the purchases of each user in ten seconds, every two seconds."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .group_by_key()
        .windowed_by(TimeWindows.of_size_with_no_grace(WINDOW).advance_by(ADVANCE))
        .count(store="counts")
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], value_serde=Serdes.long())
    )
    return builder.build()


def session() -> Topology:
    """Count the purchases of each user's sessions."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .group_by_key()
        .windowed_by(SessionWindows.of_inactivity_gap_and_grace(GAP, GRACE))
        .count(store="counts")
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], value_serde=Serdes.long())
    )
    return builder.build()


def stream_join() -> Topology:
    """Join each purchase with its user's payments that are near to it in time."""
    builder = StreamsBuilder()
    payments = builder.stream(
        os.environ[PAYMENTS_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Payment)
    )
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .join(
            payments,
            lambda p, payment: PaidPurchase(p.user, p.amount, p.page, p.ts, payment.method),
            JoinWindows.of_time_difference_and_grace(GAP, GRACE),
            key_serde=Serdes.string(),
            value_serde=Serdes.json(Purchase),
            other_value_serde=Serdes.json(Payment),
        )
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(PaidPurchase))
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
