"""Checked by mypy --strict and by pyright, not run: mistakes that both must find, each in the line of its comment.

An ignore that mypy does not need is an error too.
"""

from __future__ import annotations

from penstock import (
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    JoinWindows,
    KafkaStreams,
    KStream,
    Processor,
    ProcessorContext,
    Record,
    Serdes,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Windowed,
    agg,
)
from penstock.testing import TopologyTestDriver

builder = StreamsBuilder()
text = builder.stream("text", key_serde=Serdes.string(), value_serde=Serdes.string())
numbers = builder.stream("numbers", key_serde=Serdes.string(), value_serde=Serdes.int64())
counts = builder.table("counts", key_serde=Serdes.string(), value_serde=Serdes.int64())
names = builder.global_table("names", key_serde=Serdes.int64(), value_serde=Serdes.string())
table = builder.table("table", key_serde=Serdes.string(), value_serde=Serdes.string())


def takes_numbers(stream: KStream[str, int]) -> None:
    pass


takes_numbers(text)  # type: ignore[arg-type]
text.map_values(lambda value: value + 1)  # type: ignore[operator]
text.map_values(lambda key, value: value)  # type: ignore[misc, arg-type]
text.map(lambda key, value: value)  # type: ignore[arg-type, return-value]
text.flat_map_values(lambda value: 7)  # type: ignore[arg-type, return-value]
text.merge(numbers)  # type: ignore[arg-type]
text.filter("not a function")  # type: ignore[arg-type]
text.filter(lambda key, value: True, nmae="typo")  # type: ignore[call-arg]
text.join(table, lambda left, right: left, nmae="typo")  # type: ignore[call-overload]
text.group_by_key().reduce(lambda one, other: len(one))  # type: ignore[arg-type, return-value]
text.group_by_key().windowed_by(5)  # type: ignore[call-overload]
text.group_by_key().cogroup(lambda key, value, total: total + 1).aggregate()  # type: ignore[call-arg]
text.group_by_key().cogroup(agg.count())  # type: ignore[call-overload]
table.join(text, lambda left, right: left)  # type: ignore[call-overload]
table.filter(lambda key, value: True, store=5)  # type: ignore[arg-type]
builder.stream("in", offset_reset=5)  # type: ignore[call-overload]
TimeWindows("an hour")  # type: ignore[arg-type]
TopologyTestDriver(builder)  # type: ignore[arg-type]


class OfNumbers(Processor[str, int, str, int]):
    def process(self, record: Record[str, int]) -> None:
        pass


class KeepsKeys(FixedKeyProcessor[str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        pass


text.process(OfNumbers)  # type: ignore[arg-type]
text.process(KeepsKeys)  # type: ignore[arg-type]
text.process_values(OfNumbers)  # type: ignore[arg-type]

# Joiners
hour = JoinWindows(3_600_000)


def add(left: str, right: int) -> int:
    return len(left) + right


def add_with_key(key: str, left: str, right: int) -> int:
    return len(key + left) + right


text.join(table, add)  # type: ignore[arg-type]
text.join(counts, add_with_key)  # type: ignore[arg-type]
text.join(counts, add, with_key=True)  # type: ignore[call-overload]
text.left_join(counts, add)  # type: ignore[arg-type]
text.join(table, lambda left, right: left + right.real)  # type: ignore[attr-defined]
text.left_join(counts, lambda left, right: right + 1)  # type: ignore[operator]
text.join(numbers, add)  # type: ignore[call-overload]
text.left_join(numbers, add, hour)  # type: ignore[arg-type]
text.outer_join(numbers, lambda left, right: len(left), hour)  # type: ignore[arg-type]
text.outer_join(numbers, add, hour, grace=5)  # type: ignore[call-overload]
text.join(names, lambda left, right: left + right)  # type: ignore[call-overload]
text.join(names, lambda left, right: left, key_selector=lambda key, value: value)  # type: ignore[arg-type, return-value]
text.join(names, lambda key, value: value, lambda left, right: left)  # type: ignore[arg-type, return-value]
text.map(lambda key, value: (1, value)).join(counts, add)  # type: ignore[arg-type]
table.join(table, add)  # type: ignore[arg-type]
table.left_join(counts, add)  # type: ignore[arg-type]
table.outer_join(counts, lambda left, right: len(left))  # type: ignore[arg-type]
table.join(counts, add, foreign_key=len)  # type: ignore[arg-type]
table.join(counts, add, foreign_key=lambda key, value: value)  # type: ignore[misc, arg-type]

# Batches and async functions


async def length(value: str) -> int:
    return len(value)


text.map_batches(lambda values: 7)  # type: ignore[arg-type, return-value]
text.map_batches(set)  # type: ignore[arg-type]
text.map_batches(lambda values: [value + 1 for value in values])  # type: ignore[operator]
text.map_batches(lambda values: values, as_="records")  # type: ignore[call-overload]
text.map_batches(lambda values: values, schema=None)  # type: ignore[call-overload]
takes_numbers(text.map_batches(lambda values: values))  # type: ignore[arg-type, return-value]
numbers.map_values_async(length)  # type: ignore[arg-type]
text.map_values_async(length, with_key=True)  # type: ignore[call-overload]
text.map_values_async(len)  # type: ignore[arg-type]
text.filter_async(length)  # type: ignore[arg-type]

# Contexts and stores
sizes = Stores.key_value_store_builder(Stores.lru_map("sizes", 9), Serdes.string(), Serdes.int64())
hours = Stores.window_store_builder(Stores.in_memory_window_store("hours", 9, 9), Serdes.string(), Serdes.int64())


class WrongContext(Processor[str, str, str, int]):
    def init(self, context: ProcessorContext[int, str]) -> None:  # type: ignore[override]
        super().init(context)  # type: ignore[arg-type]

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)  # type: ignore[arg-type]
        self.context.forward(record.with_key(1).with_value(1))  # type: ignore[arg-type]
        self.context.forward(record.key, 1)  # type: ignore[arg-type]
        sizes_of_it = self.context.get_state_store(sizes)
        sizes_of_it.put(1, 1)  # type: ignore[arg-type]
        sizes_of_it.put("a", "b")  # type: ignore[arg-type]
        print(sizes_of_it.get("a") + 1)  # type: ignore[operator]
        sizes_of_it.fetch("a", 1)  # type: ignore[attr-defined]
        self.context.get_state_store(hours).put("a", 1)  # type: ignore[call-arg]
        self.context.get_state_store(5)  # type: ignore[call-overload]


class WrongFixedKey(FixedKeyProcessor[str, str, int]):
    def init(self, context: FixedKeyProcessorContext[str, str]) -> None:  # type: ignore[override]
        super().init(context)  # type: ignore[arg-type]

    def process(self, record: Record[str, str]) -> None:
        self.context.forward(record)  # type: ignore[arg-type]
        self.context.forward(record.with_key(1).with_value(1))  # type: ignore[arg-type]


def reads(streams: KafkaStreams, driver: TopologyTestDriver, windowed: Windowed[str]) -> None:
    streams.store("counts").gett("a")  # type: ignore[attr-defined]
    driver.get_key_value_store("counts").fetch("a", 1)  # type: ignore[union-attr]
    driver.get_window_store("hours").fetch("a")  # type: ignore[call-arg]
    driver.create_output_topic("out", Serdes.string(), Serdes.int64()).read_value().upper()  # type: ignore[attr-defined]
    print(windowed.key + 1)  # type: ignore[operator]


# Options that Python's help() shows too
text.group_by_key().aggregate(int, lambda key, value, total: total, stroe="typo")  # type: ignore[call-overload]
text.group_by_key().count(store=5)  # type: ignore[arg-type]
table.map_values(len, key_serd=Serdes.string())  # type: ignore[call-overload]
