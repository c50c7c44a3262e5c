"""The named processors of penstock-golden/1, FORMAT.md section 4."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock import FixedKeyProcessor, FixedKeyProcessorContext, Processor, ProcessorContext, Punctuation, Record
from tests.goldens.functions import UnknownFunctionError, split, text


class Base(Processor[Any, Any, Any, Any]):
    """Has an argument, and a store where the case names one."""

    def __init__(self, argument: str, store_name: str | None) -> None:
        self.argument = argument
        self.store_name = store_name
        self.store: Any = None

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        if self.store_name is not None:
            self.store = context.get_state_store(self.store_name)


class Dedup(Base):
    def process(self, record: Record[Any, Any]) -> None:
        if record.key is not None:
            if self.store.get(record.key) == record.value:
                return
            self.store.put(record.key, record.value)
        self.context.forward(record)


class SeenWithin(Base):
    def process(self, record: Record[Any, Any]) -> None:
        if record.key is None:
            return
        since = max(0, record.timestamp - int(self.argument))
        known = any(True for _ in self.store.fetch_range(record.key, since, record.timestamp))
        self.store.put(record.key, record.value, record.timestamp)
        if not known:
            self.context.forward(record)


class Tally(Base):
    punctuation = Punctuation.STREAM_TIME

    def init(self, context: ProcessorContext) -> None:
        super().init(context)
        context.schedule(int(self.argument), self.punctuation, self.punctuate)

    def process(self, record: Record[Any, Any]) -> None:
        if record.key is not None:
            self.store.put(record.key, (self.store.get(record.key) or 0) + 1)

    def punctuate(self, timestamp: int) -> None:
        for key, count in list(self.store.all()):
            self.context.forward(Record(key, count, timestamp))
            self.store.delete(key)


class TallyWallClock(Tally):
    punctuation = Punctuation.WALL_CLOCK_TIME


class Lookup(Base):
    def process(self, record: Record[Any, Any]) -> None:
        row = None if record.key is None else self.store.get(record.key)
        found = "none" if row is None else f"{text(row.value)}@{row.timestamp}"
        self.context.forward(record.with_value(f"{text(record.value)}|{found}"))


class AddHeader(Base):
    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record.with_headers([*(record.headers or ()), (self.argument, b"1")]))


class ShiftTimestamp(Base):
    def process(self, record: Record[Any, Any]) -> None:
        self.context.forward(record.with_timestamp(record.timestamp + int(self.argument)))


class TimeAsValue(Base):
    def process(self, record: Record[Any, Any]) -> None:
        times = f"{self.context.current_stream_time_ms()}/{self.context.current_system_time_ms()}"
        self.context.forward(record.with_value(times))


class MetadataAsValue(Base):
    def process(self, record: Record[Any, Any]) -> None:
        metadata = self.context.record_metadata()
        # In a punctuation Kafka Streams gives empty metadata, contrary to its documentation; Penstock gives None.
        shown = "null/-1/-1" if metadata is None else f"{metadata.topic}/{metadata.partition}/{metadata.offset}"
        self.context.forward(record.with_value(shown))


class Numbering(FixedKeyProcessor[Any, Any, Any]):
    def __init__(self, store_name: str) -> None:
        self.store_name = store_name
        self.store: Any = None

    def init(self, context: FixedKeyProcessorContext) -> None:
        super().init(context)
        self.store = context.get_state_store(self.store_name)

    def process(self, record: Record[Any, Any]) -> None:
        number = 1
        if record.key is not None:
            number = (self.store.get(record.key) or 0) + 1
            self.store.put(record.key, number)
        self.context.forward(record.with_value(f"{number}:{text(record.value)}"))


_PROCESSORS: dict[str, type[Base]] = {
    "dedup": Dedup,
    "seen_within": SeenWithin,
    "tally_stream_time": Tally,
    "tally_wall_clock": TallyWallClock,
    "lookup": Lookup,
    "add_header": AddHeader,
    "shift_timestamp": ShiftTimestamp,
    "time_as_value": TimeAsValue,
    "metadata_as_value": MetadataAsValue,
}


def processor(spec: str, store: str | None) -> Callable[[], Processor[Any, Any, Any, Any]]:
    """Return the supplier of a processor."""
    name, argument = split(spec)
    if name not in _PROCESSORS:
        raise UnknownFunctionError(f"unknown processor {spec}")
    kind = _PROCESSORS[name]
    return lambda: kind(argument, store)


def fixed_key_processor(spec: str, store: str) -> Callable[[], FixedKeyProcessor[Any, Any, Any]]:
    """Return the supplier of a fixed key processor."""
    if spec != "numbering":
        raise UnknownFunctionError(f"unknown processor {spec}")
    return lambda: Numbering(store)
