"""Processors with contexts and stores, declared once and fetched with their types."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from penstock import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    KeyValueStore,
    KStream,
    Processor,
    ProcessorContext,
    Punctuation,
    Record,
    Serdes,
    SessionStore,
    SessionStoreWithHeaders,
    Stores,
    StreamsBuilder,
    TimestampedKeyValueStore,
    TimestampedKeyValueStoreWithHeaders,
    Topology,
    ValueAndTimestamp,
    ValueTransformerWithKey,
    VersionedKeyValueStore,
    VersionedRecord,
    Windowed,
    WindowStore,
)
from penstock.testing import MockProcessorContext, TopologyTestDriver

TEXT, NUMBER = Serdes.string(), Serdes.int64()
TOTALS = Stores.key_value_store_builder(Stores.persistent_key_value_store("totals"), TEXT, NUMBER)
LATEST = Stores.timestamped_key_value_store_builder(
    Stores.persistent_timestamped_key_value_store("latest"), TEXT, NUMBER
)
NEWEST = Stores.timestamped_key_value_store_with_headers_builder(
    Stores.persistent_timestamped_key_value_store_with_headers("newest"), TEXT, NUMBER
)
STAYS = Stores.session_store_with_headers_builder(Stores.in_memory_session_store("stays", 1000), TEXT, NUMBER)
PRICES = Stores.versioned_key_value_store_builder(
    Stores.persistent_versioned_key_value_store("prices", timedelta(days=1)), TEXT, NUMBER
)
HOURS = Stores.window_store_builder(
    Stores.in_memory_window_store("hours", timedelta(hours=2), timedelta(hours=1)), TEXT, NUMBER
).with_caching_enabled()
VISITS = Stores.session_store_builder(Stores.in_memory_session_store("visits", timedelta(hours=2)), TEXT, NUMBER)


class Totals(Processor[str, int, str, str]):
    """Sends the totals every minute, as text."""

    stores = (TOTALS,)

    def init(self, context: ProcessorContext[str, str]) -> None:
        super().init(context)
        self.totals = context.get_state_store(TOTALS)
        context.schedule(timedelta(minutes=1), Punctuation.STREAM_TIME, self.send)

    def process(self, record: Record[str, int]) -> None:
        assert_type(self.totals, KeyValueStore[str, int])
        self.totals.put(record.key, (self.totals.get(record.key) or 0) + record.value)

    def send(self, timestamp: int) -> None:
        with self.totals.all() as rows:
            for key, total in rows:
                self.context.forward(Record(key, f"{total} in total", timestamp))


class Everything(FixedKeyProcessor[str, int, int]):
    """Uses a store of each other kind."""

    stores = (LATEST, PRICES, HOURS, VISITS)

    def init(self, context: FixedKeyProcessorContext[str, int]) -> None:
        super().init(context)
        self.latest = context.get_state_store(LATEST)
        self.prices = context.get_state_store(PRICES)
        self.hours = context.get_state_store(HOURS)
        self.visits = context.get_state_store(VISITS)

    def process(self, record: Record[str, int]) -> None:
        key, value, time = record.key, record.value, record.timestamp
        assert_type(self.latest, TimestampedKeyValueStore[str, int])
        assert_type(self.prices, VersionedKeyValueStore[str, int])
        assert_type(self.hours, WindowStore[str, int])
        assert_type(self.visits, SessionStore[str, int])
        self.latest.put(key, ValueAndTimestamp(value, time))
        self.prices.put(key, value, time)
        self.hours.put(key, value, 0)
        self.visits.put(Windowed(key, time, time + 5), value)
        assert_type(self.latest.get(key), ValueAndTimestamp[int] | None)
        assert_type(self.prices.get(key, as_of=time), VersionedRecord[int] | None)
        assert_type(self.hours.fetch(key, 0), int | None)
        earlier = [number for _, number in self.hours.fetch_range(key, 0, time)]
        sessions = {windowed.key: number for windowed, number in self.visits.fetch(key)}
        assert_type(sessions, dict[str, int])
        self.context.forward(record.with_value(sum(earlier) + len(sessions)))


class WithoutParameters(Processor[str, int, str, int]):
    """Contexts and stores with the annotations from before they had parameters."""

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        self.totals: KeyValueStore[str, int] = context.get_state_store("totals")

    def process(self, record: Record[str, int]) -> None:
        assert_type(self.totals.delete(record.key), int | None)
        self.context.forward(record, child=None)


class AtLeast(Processor[str, int, None, int]):
    """A processor with an argument, which changes the type of the key."""

    def __init__(self, lowest: int) -> None:
        self.lowest = lowest

    def process(self, record: Record[str, int]) -> None:
        if record.value >= self.lowest:
            self.context.forward(record.with_key(None))


class Lengths(ValueTransformerWithKey[str, int, str]):
    def transform(self, key: str, value: int | None) -> str | None:
        return None if value is None else key * value


def topology() -> Topology:
    builder = StreamsBuilder()
    numbers = builder.stream("numbers", key_serde=TEXT, value_serde=NUMBER)
    assert_type(numbers.process(Totals), KStream[str, str])
    assert_type(numbers.process_values(Everything), KStream[str, int])
    assert_type(numbers.process(WithoutParameters, TOTALS.name), KStream[str, int])
    assert_type(numbers.process(lambda: AtLeast(10)), KStream[None, int])
    numbers.process_values(Everything).to("out")
    numbers.to_table().transform_values(Lengths).to_stream().to("texts")
    return builder.build()


def try_it() -> None:
    with TopologyTestDriver(topology()) as driver:
        driver.create_input_topic("numbers").pipe_input("a", 5, 7)
        totals = driver.get_state_store(TOTALS)
        assert_type(totals, KeyValueStore[str, int])
        latest: TimestampedKeyValueStore[str, int] = driver.get_timestamped_key_value_store("latest")
        assert latest.get("a") == ValueAndTimestamp(5, 7)
    context = MockProcessorContext()
    context.add_state_store("totals", {})
    assert_type(context.get_state_store(TOTALS), KeyValueStore[str, int])
    context.add_state_store("newest", {})
    assert_type(context.get_state_store(NEWEST), TimestampedKeyValueStoreWithHeaders[str, int])
    context.add_state_store("stays", {})
    assert_type(context.get_state_store(STAYS), SessionStoreWithHeaders[str, int])
