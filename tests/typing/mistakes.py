"""Checked by mypy --strict, not run: mistakes that it must find. An ignore that is not needed is an error too."""

from __future__ import annotations

from penstock import FixedKeyProcessor, KStream, Processor, Record, Serdes, StreamsBuilder, TimeWindows
from penstock.testing import TopologyTestDriver

builder = StreamsBuilder()
text = builder.stream("text", key_serde=Serdes.string(), value_serde=Serdes.string())
numbers = builder.stream("numbers", key_serde=Serdes.string(), value_serde=Serdes.int64())
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
text.join(table, lambda left, right: left, nmae="typo")  # type: ignore[call-arg]
text.group_by_key().reduce(lambda one, other: len(one))  # type: ignore[arg-type, return-value]
text.group_by_key().windowed_by(5)  # type: ignore[call-overload]
table.join(text, lambda left, right: left)  # type: ignore[arg-type]
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
