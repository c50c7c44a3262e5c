"""The benchmark's topologies in Penstock; kafka_streams/KafkaStreamsBenchmark.java has them for Kafka Streams."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from typing_extensions import override

from penstock import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    ProcessorContext,
    Punctuation,
    Record,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    ValueAndTimestamp,
    agg,
)

WINDOW = timedelta(seconds=10)
ADVANCE = timedelta(seconds=2)
#: The gap that ends a session, and the maximum between a purchase and a payment that are joined.
GAP = timedelta(milliseconds=500)
#: The grace period of purchases and payments. It is also how long a merged session stays visible in its store: without
#: grace, both systems sometimes send no tombstone for one that has expired before the cache is flushed.
GRACE = timedelta(minutes=1)
#: How long a versioned table keeps old versions.
HISTORY = timedelta(minutes=1)
REPORT_EVERY_MS = 1_000

#: Environment variables from which both systems' programs read the topics of a run.
INPUT_VARIABLE = "BENCHMARK_INPUT"
OUTPUT_VARIABLE = "BENCHMARK_OUTPUT"
TABLE_VARIABLE = "BENCHMARK_TABLE"
PAYMENTS_VARIABLE = "BENCHMARK_PAYMENTS"
#: The bytes beside each count of padded_count.
PADDING_VARIABLE = "BENCHMARK_PADDING"
LATE_VARIABLE = "BENCHMARK_LATE"


class Purchase(msgspec.Struct):
    """An order, as the input topic's JSON has it."""

    user: str
    amount: int
    page: str
    ts: int


class DoubledPurchase(Purchase):
    """The result for an order."""

    x: int


class User(msgspec.Struct):
    """A user, as the table's JSON has it."""

    name: str
    city: str


class LocatedPurchase(Purchase):
    """A purchase with the user's city."""

    city: str


class Payment(msgspec.Struct):
    """How a user has paid, as in the payments' JSON."""

    user: str
    method: str


class PaidPurchase(Purchase):
    """A purchase with how its user has paid."""

    method: str


class Totals(msgspec.Struct):
    """Number and sum of a user's purchases."""

    n: int
    sum: int


class TotalsAndPage(Totals):
    """Totals with the page of the purchase before."""

    previous: str | None


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


def padded_count() -> Topology:
    """As count, with $BENCHMARK_PADDING random bytes beside each count in the store."""
    padding = int(os.environ[PADDING_VARIABLE])

    def add(user: str, _: bytes, row: bytes) -> bytes:
        rest = row[8:] or os.urandom(padding)
        return (int.from_bytes(row[:8]) + 1).to_bytes(8) + rest

    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .group_by_key()
        .aggregate(lambda: bytes(8), add, store="counts", value_serde=Serdes.bytes())
        .map_values(lambda row: row[:8])
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.bytes())
    )
    return builder.build()


def late_count() -> Topology:
    """Count the purchases of each user and window; those that are late by $BENCHMARK_LATE windows still count."""
    grace = int(os.environ[LATE_VARIABLE]) * WINDOW
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.bytes())
        .group_by_key()
        .windowed_by(TimeWindows(WINDOW, grace=grace))
        .count(store="counts")
        .to_stream(lambda window, _: f"{window.key}@{window.start}")
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.long())
    )
    return builder.build()


def punctuated() -> Topology:
    """Wake up every second, with a store, and do nothing."""

    class Idle(Processor[str, bytes, str, bytes]):
        @override
        def init(self, context: ProcessorContext[str, bytes]) -> None:
            context.schedule(timedelta(seconds=1), Punctuation.WALL_CLOCK_TIME, lambda now_ms: None)

        @override
        def process(self, record: Record[str, bytes]) -> None:
            """Records only make the tasks exist."""

    builder = StreamsBuilder()
    supplier = Stores.persistent_key_value_store("idle")
    builder.add_state_store(Stores.key_value_store_builder(supplier, Serdes.string(), Serdes.bytes()))
    source = builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.bytes())
    source.process(Idle, "idle")
    return builder.build()


def keep_first() -> Topology:
    """Keep the first value of each user, and forward it for each purchase."""
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
    return _windowed_count(value_serde=Serdes.bytes())


def event_time() -> Topology:
    """As windowed_count, by the timestamp in the value."""
    return _windowed_count(
        value_serde=Serdes.json(Purchase),
        timestamp_extractor=lambda message, key, purchase, partition_time: purchase.ts,
    )


def _windowed_count(**consumed: Any) -> Topology:
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), **consumed)
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


def aggregates() -> Topology:
    """Number and sum of the purchases of each user, without functions."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .group_by_key()
        .aggregate({"n": agg.count(), "sum": agg.sum("amount")}, store="totals", value_serde=Serdes.json())
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


class AddUpAndCompare(Processor[str, Purchase, str, TotalsAndPage]):
    """Keeps each user's totals in one store and the page of the last purchase in another, and forwards both."""

    def init(self, context: ProcessorContext) -> None:
        """Find the stores."""
        super().init(context)
        self.totals = context.get_state_store("totals")
        self.pages = context.get_state_store("pages")

    def process(self, record: Record[str, Purchase]) -> None:
        """Add a purchase to its user's totals, and keep its page."""
        user, purchase = record.key, record.value
        before = self.totals.get(user) or Totals(0, 0)
        previous = self.pages.get(user)
        totals = Totals(before.n + 1, before.sum + purchase.amount)
        self.totals.put(user, totals)
        self.pages.put(user, purchase.page)
        self.context.forward(record.with_value(TotalsAndPage(totals.n, totals.sum, previous)))


def two_stores() -> Topology:
    """Number and sum of the purchases of each user and the page before, by a processor with two stores."""
    builder = StreamsBuilder()
    totals, pages = (Stores.persistent_key_value_store(name) for name in ("totals", "pages"))
    builder.add_state_store(Stores.key_value_store_builder(totals, Serdes.string(), Serdes.json(Totals)))
    builder.add_state_store(Stores.key_value_store_builder(pages, Serdes.string(), Serdes.string()))
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .process(AddUpAndCompare, "totals", "pages")
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(TotalsAndPage))
    )
    return builder.build()


class AddUpAgain(Processor[str, Purchase, str, Totals]):
    """Keeps all purchases, and with each one adds up all of its user's."""

    def init(self, context: ProcessorContext) -> None:
        """Find the store."""
        super().init(context)
        self.purchases = context.get_state_store("purchases")

    def process(self, record: Record[str, Purchase]) -> None:
        """Keep a purchase, and forward number and sum of its user's."""
        user, purchase = record.key, record.value
        self.purchases.put(f"{user}/{purchase.ts}", ValueAndTimestamp(purchase, record.timestamp))
        number = amount = 0
        with self.rows_of(user) as rows:
            for _, row in rows:
                number += 1
                amount += row.value.amount
        self.context.forward(record.with_value(Totals(number, amount)))

    def rows_of(self, user: str) -> Any:
        """Return the purchases of a user, by the prefix of their keys."""
        return self.purchases.prefix_scan(f"{user}/")


class AddUpRange(AddUpAgain):
    """Does the same with a range of keys."""

    def rows_of(self, user: str) -> Any:
        """Return the purchases of a user, by a range of keys."""
        return self.purchases.range(f"{user}/", f"{user}/~")


class Report(Processor[str, Purchase, str, Totals]):
    """Keeps all purchases, and sums up all of them repeatedly."""

    def init(self, context: ProcessorContext) -> None:
        """Find the store and schedule the reports."""
        super().init(context)
        self.purchases = context.get_state_store("purchases")
        context.schedule(timedelta(milliseconds=REPORT_EVERY_MS), Punctuation.STREAM_TIME, self.report)

    def process(self, record: Record[str, Purchase]) -> None:
        """Keep a purchase."""
        key = f"{record.key}/{record.value.ts}"
        self.purchases.put(key, ValueAndTimestamp(record.value, record.timestamp))

    def report(self, now: int) -> None:
        """Forward number and sum of the purchases before the last report time, by this time and task."""
        due = now - now % REPORT_EVERY_MS
        number = amount = 0
        with self.purchases.all() as rows:
            for _, row in rows:
                if row.timestamp < due:
                    number += 1
                    amount += row.value.amount
        if number:
            self.context.forward(Record(f"{due}-{self.context.task_id}", Totals(number, amount), now))


def _all_kept(processor: type[Processor[str, Purchase, str, Totals]]) -> Topology:
    builder = StreamsBuilder()
    purchases = Stores.persistent_timestamped_key_value_store("purchases")
    builder.add_state_store(
        Stores.timestamped_key_value_store_builder(purchases, Serdes.string(), Serdes.json(Purchase))
    )
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .process(processor, "purchases")
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Totals))
    )
    return builder.build()


def prefix_scan() -> Topology:
    """Number and sum of the purchases of each user, by prefix scans over all of them."""
    return _all_kept(AddUpAgain)


def range_scan() -> Topology:
    """Number and sum of the purchases of each user, by range scans over all of them."""
    return _all_kept(AddUpRange)


def punctuator() -> Topology:
    """Number and sum of all purchases, by a punctuator that reads all of them."""
    return _all_kept(Report)


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


def sliding() -> Topology:
    """Count the purchases of each user that are at most half a second apart."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .group_by_key()
        .windowed_by(SlidingWindows.of_time_difference_and_grace(GAP, GRACE))
        .count(store="counts")
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], value_serde=Serdes.long())
    )
    return builder.build()


def final_windows() -> Topology:
    """Count the purchases of each user in ten seconds; only the final counts are written."""
    builder = StreamsBuilder()
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .group_by_key()
        .windowed_by(TimeWindows.of_size_with_no_grace(WINDOW))
        .emit_strategy(EmitStrategy.ON_WINDOW_CLOSE)
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
    return _with_payments(KStream.join, with_payment)


def left_stream_join() -> Topology:
    """The same with purchases that have no payment, once their window has closed."""
    return _with_payments(KStream.left_join, with_any_payment)


def _with_payments(join: Callable[..., KStream[Any, Any]], joiner: Callable[[Any, Any], PaidPurchase]) -> Topology:
    builder = StreamsBuilder()
    payments = builder.stream(
        os.environ[PAYMENTS_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Payment)
    )
    purchases = builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
    join(
        purchases,
        payments,
        joiner,
        JoinWindows.of_time_difference_and_grace(GAP, GRACE),
        key_serde=Serdes.string(),
        value_serde=Serdes.json(Purchase),
        other_value_serde=Serdes.json(Payment),
    ).to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(PaidPurchase))
    return builder.build()


def with_payment(p: Purchase, payment: Payment) -> PaidPurchase:
    """Add how its user has paid."""
    return PaidPurchase(p.user, p.amount, p.page, p.ts, payment.method)


def with_any_payment(p: Purchase, payment: Payment | None) -> PaidPurchase:
    """Add how its user has paid, if at all."""
    return PaidPurchase(p.user, p.amount, p.page, p.ts, "none" if payment is None else payment.method)


def self_join() -> Topology:
    """Join each purchase with its user's other purchases that are near to it in time, in one store."""
    config = {"topology.optimization": "single.store.self.join"}
    builder = StreamsBuilder()
    purchases = builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
    (
        purchases.join(
            purchases,
            first_page,
            JoinWindows.of_time_difference_and_grace(GAP, GRACE),
            key_serde=Serdes.string(),
            value_serde=Serdes.json(Purchase),
            other_value_serde=Serdes.json(Purchase),
        ).to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.string())
    )
    return builder.build(config)


def first_page(one: Purchase, _other: Purchase) -> str:
    """Return the page of the first of two purchases."""
    return one.page


def table_table_join() -> Topology:
    """Join each user's last purchase with the last payment."""
    builder = StreamsBuilder()
    payments = builder.table(os.environ[PAYMENTS_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Payment))
    (
        builder.table(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .join(payments, with_payment)
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(PaidPurchase))
    )
    return builder.build()


def foreign_key_join() -> Topology:
    """Add to each user's last purchase the city of the user that it names."""
    builder = StreamsBuilder()
    users = builder.table(os.environ[TABLE_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(User))
    (
        builder.table(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .join(
            users,
            lambda p, user: LocatedPurchase(p.user, p.amount, p.page, p.ts, user.city),
            foreign_key=lambda purchase: f"k{purchase.user[1:]}",
            name="city",
        )
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(LocatedPurchase))
    )
    return builder.build()


def retraction() -> Topology:
    """Sum of users' last purchases by page."""
    builder = StreamsBuilder()
    (
        builder.table(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .group_by(
            lambda user, p: (p.page, p.amount), name="by-page", key_serde=Serdes.string(), value_serde=Serdes.long()
        )
        .reduce(lambda total, amount: total + amount, lambda total, amount: total - amount)
        .to_stream()
        .to(os.environ[OUTPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.long())
    )
    return builder.build()


def versioned() -> Topology:
    """Join each purchase with its user's last payment before it, from a versioned table."""
    builder = StreamsBuilder()
    store = Materialized(Stores.persistent_versioned_key_value_store("payments", HISTORY))
    payments = builder.table(
        os.environ[PAYMENTS_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Payment), store=store
    )
    (
        builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
        .join(payments, with_payment)
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
