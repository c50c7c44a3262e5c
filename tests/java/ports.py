"""The ports of PortsProgram's seven programs, written from docs/coming-from-java.md."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from zlib import crc32

from penstock import (
    BufferConfig,
    Materialized,
    Processor,
    Punctuation,
    Record,
    Serde,
    Serdes,
    StateStore,
    StateStoreContext,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    ValueTimestampHeaders,
)
from penstock.clients.writing.writer import Writer
from penstock.workers.thread.client_supplier import KafkaClientSupplier

TEXT, LONG = Serdes.string(), Serdes.int64()
TEXTS: dict[str, Any] = {"key_serde": TEXT, "value_serde": TEXT}
COUNTS: dict[str, Any] = {"key_serde": TEXT, "value_serde": LONG}


class Sketch(StateStore):
    """A count-min sketch; its changelog has one record, with all of it."""

    reads = ("count",)

    def init(self, context: StateStoreContext, root: StateStore) -> None:
        self.context = context
        self.cells = [0] * (3 * 16)
        self.is_changed = False
        context.register(root, self.restore)

    def restore(self, records: Sequence[Record[bytes, bytes | None]]) -> None:
        self.cells = list(struct.unpack(f">{len(self.cells)}q", records[-1].value or b""))

    def count(self, word: str) -> int:
        places = [row * 16 + crc32(f"{row}{word}".encode()) % 16 for row in range(3)]
        for place in places:
            self.cells[place] += 1
        self.is_changed = True
        return min(self.cells[place] for place in places)

    def flush(self) -> None:
        if self.is_changed:
            self.is_changed = False
            self.context.log_change(self.name.encode(), struct.pack(f">{len(self.cells)}q", *self.cells))


class Estimate(Processor[str, str, str, int]):
    def process(self, record: Record[str, str]) -> None:
        sketch = self.context.get_state_store("sketch")
        self.context.forward(record.with_key(record.value).with_value(sketch.count(record.value)))


def probabilistic_counting() -> Topology:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.custom_store_builder("sketch", Sketch))
    words = builder.stream("in", **TEXTS).flat_map_values(lambda text: text.lower().split(" "))
    words.process(Estimate, "sketch").to("out", **COUNTS)
    return builder.build()


class TopFive:
    """The five songs with most plays."""

    def __init__(self) -> None:
        self.plays: dict[str, int] = {}

    def add(self, song: str, count: int) -> TopFive:
        self.plays[song] = count
        if len(self.plays) > 5:
            del self.plays[self.ordered()[-1]]
        return self

    def remove(self, song: str) -> TopFive:
        self.plays.pop(song, None)
        return self

    def ordered(self) -> list[str]:
        return sorted(self.plays, key=lambda song: (-self.plays[song], song))

    def write(self) -> bytes:
        written = ((song.encode(), self.plays[song]) for song in self.ordered())
        return b"".join(struct.pack(">H", len(song)) + song + struct.pack(">q", plays) for song, plays in written)

    @classmethod
    def read(cls, data: bytes) -> TopFive:
        top, at = cls(), 0
        while at < len(data):
            (size,) = struct.unpack_from(">H", data, at)
            song = data[at + 2 : at + 2 + size].decode()
            (top.plays[song],) = struct.unpack_from(">q", data, at + 2 + size)
            at += 10 + size
        return top


class TopFiveSerde(Serde[TopFive]):
    def serialize(self, topic: str, value: TopFive | None) -> bytes | None:
        return None if value is None else value.write()

    def deserialize(self, topic: str, data: bytes | None) -> TopFive | None:
        return None if data is None else TopFive.read(data)


def play_of(place: int | None, song: str, plays: int) -> tuple[str, str]:
    return "all" if place is None else song.split("/")[place], f"{song}={plays}"


def kafka_music() -> Topology:
    top_five = TopFiveSerde()
    builder = StreamsBuilder()
    songs = builder.table("songs", **TEXTS, store="all-songs")
    counts = (
        builder.stream("plays", **TEXTS)
        .filter(lambda region, play: int(play.split("/")[1]) >= 30_000)
        .map(lambda region, play: (play.split("/")[0], play))
        .left_join(songs, lambda play, song: song, **TEXTS)
        .group_by(lambda id_, song: song, **TEXTS)
        .count(store=Materialized("song-play-count", key_serde=TEXT, value_serde=LONG))
    )
    for store, place in (("top-five-songs-by-genre", 1), ("top-five-songs", None)):
        counts.group_by(partial(play_of, place), **TEXTS).aggregate(
            TopFive,
            lambda key, play, top: top.add(play.split("=")[0], int(play.split("=")[1])),
            lambda key, play, top: top.remove(play.split("=")[0]),
            store=Materialized(store, key_serde=TEXT, value_serde=top_five),
        )
    return builder.build()


class JoinWithin(Processor[str, float, str, str]):
    def process(self, record: Record[str, float]) -> None:
        row = self.context.get_state_store("table-store").get(record.key)
        is_close = row is not None and row.timestamp - record.timestamp <= 1_000
        self.context.forward(record.with_value(f"{record.value}/{row.value if is_close else 'null'}"))


def custom_join() -> Topology:
    builder = StreamsBuilder()
    builder.table("table", **COUNTS, store="table-store")
    stream = builder.stream("stream", key_serde=TEXT, value_serde=Serdes.float64())
    stream.process(JoinWithin, "table-store").to("out", **TEXTS)
    return builder.build()


class Hourly(Processor[str, str, str, str]):
    def init(self, context: Any) -> None:
        super().init(context)
        self.counts = context.get_state_store("counts")
        hour = timedelta(hours=1)
        context.schedule(hour, Punctuation.WALL_CLOCK_TIME, lambda now: self.report("wall", now), start_time=0)
        context.schedule(hour, Punctuation.STREAM_TIME, lambda now: self.report("stream", now), start_time=1_800_000)

    def report(self, clock: str, now: int) -> None:
        for word, count in self.counts.all():
            self.context.forward(Record(word, f"{clock}@{now}={count}", now))

    def process(self, record: Record[str, str]) -> None:
        for word in record.value.split(" "):
            self.counts.put(word, (self.counts.get(word) or 0) + 1)


def hourly_reports() -> Topology:
    topology = Topology()
    topology.add_source("source", "in", **TEXTS)
    topology.add_processor("hourly", Hourly, "source")
    counts = Stores.key_value_store_builder(Stores.in_memory_key_value_store("counts"), TEXT, LONG)
    topology.add_state_store(counts, "hourly")
    topology.add_sink("sink", "out", "hourly", **TEXTS)
    return topology


def final_results() -> Topology:
    builder = StreamsBuilder()
    grouped = builder.stream("in", **TEXTS).group_by_key(**TEXTS)
    (
        grouped.windowed_by(TimeWindows(10, grace=5))
        .count(store="windows")
        .suppress(Suppressed.until_window_closes().with_name("closed"))
        .to_stream(lambda window, count: f"{window.key}@{window.start}")
        .to("final", **COUNTS)
    )
    limit = Suppressed.until_time_limit(8, BufferConfig.max_records(3).emit_early_when_full()).with_name("limited")
    grouped.reduce(lambda one, other: one + other, store="rows").suppress(limit).to_stream().to("limited", **TEXTS)
    return builder.build()


class Audit(Processor[str, str, str, str]):
    def process(self, record: Record[str, str]) -> None:
        seen, now = self.context.get_state_store("event-ids"), record.timestamp
        event = f"{record.key}/{record.value}"
        is_new = not list(seen.fetch_range(event, now - 50, now + 50))
        seen.put(event, now, now)
        if not is_new:
            return
        last = self.context.get_state_store("last")
        before = last.get(record.key)
        last.put(record.key, ValueTimestampHeaders(record.value, now, record.headers))
        if before is not None:
            was = [(f"was-{name}", value) for name, value in before.headers or ()]
            record = record.with_value(f"{before.value}>{record.value}").with_headers([*(record.headers or ()), *was])
        self.context.forward(record)


def audit() -> Topology:
    builder = StreamsBuilder()
    seen = Stores.persistent_window_store("event-ids", timedelta(minutes=5), timedelta(milliseconds=100))
    builder.add_state_store(Stores.window_store_builder(seen, TEXT, LONG))
    last = Stores.persistent_timestamped_key_value_store_with_headers("last")
    builder.add_state_store(Stores.timestamped_key_value_store_with_headers_builder(last, TEXT, TEXT))
    builder.stream("in", **TEXTS).process(Audit, "event-ids", "last").to("out", **TEXTS)
    return builder.build()


def to_all(topic: str, key: str, value: str, count: int) -> Any:
    if value.startswith("alert"):
        return set(range(count))
    return set() if value.startswith("drop") else None


def broadcast(source: str, sink: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream(source, **TEXTS).map_values(str.strip).to(sink, partitioner=to_all, **TEXTS)
    return builder.build()


class MarkingWriter:
    """A Writer that adds a header to each record."""

    records = None

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def produce(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes | str | None,
        partition: int,
        timestamp: int | None,
        headers: list[tuple[str, bytes | None]] | None = None,
        source: Any = None,
    ) -> None:
        marked = [*(headers or ()), ("traced", b"yes")]
        self._writer.produce(topic, key, value, partition, timestamp, marked, source)


class MarkingClients(KafkaClientSupplier):
    """PortsProgram's client supplier."""

    def get_producer(self, client_id: str, transactional_id: str | None = None) -> Any:
        return MarkingWriter(super().get_producer(client_id, transactional_id))  # type: ignore[arg-type]


#: The setting dsl.store.format of these is HEADERS.
WITH_HEADERS = ("final_results", "audit")
#: The programs that run in a test driver, by name.
PROGRAMS: Mapping[str, Callable[[], Topology]] = {
    made.__name__: made
    for made in (probabilistic_counting, kafka_music, custom_join, hourly_reports, final_results, audit)
}
