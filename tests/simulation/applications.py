"""The simulated applications. Each effect of an input record appears as the record's number in an output.

Values are lists of record numbers, as text: the result of several records lists their numbers. So an output alone shows
what is lost, duplicated or out of order.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.topology.context.async_calls import OrderedBy, Retries
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.declare.suppressed import Suppressed
from penstock.topology.processor_api import Processor, Punctuation
from penstock.topology.records import RawRecord, Record
from penstock.topology.serdes.serdes import Serdes
from penstock.topology.stores.materialized import Materialized
from penstock.topology.stores.stores import Stores
from penstock.topology.stores.windows import TimeWindows

IN, TABLE, OUT, COUNTS = "in", "table", "out", "out-counts"
WINDOW_MS = 10_000
#: Long enough that no row of a schedule expires.
RETENTION_MS = 86_400_000
GROUPS = 3


class Seen(Protocol):
    """Called for every record that a processor sees. again: after the repartition topic."""

    def __call__(self, number: str, again: bool = False) -> None: ...


#: From an output's key and value to (expected key, numbers of the records in it).
Decode = Callable[[str, bytes], tuple[str, list[str]]]
_LONG = struct.Struct(">q")


@dataclass(frozen=True)
class InputRecord:
    """What was written to an input topic."""

    number: str
    topic: str
    partition: int
    key: str
    timestamp: int


@dataclass(frozen=True, repr=False)
class Application:
    """build(seen, config): its topology. group_of: the output key of a record.

    inputs: its topics. counts: whether there is a second output, of how many records each key has. repartitioned:
    records of several input partitions meet, in any order between them. finals: one output per key. each: one output
    per record. ticks: outputs follow from the wall clock. asks: functions wait for a service. global_table: TABLE is
    one. store: the one whose rows are lists of record numbers.
    """

    name: str
    build: Callable[[Seen, Mapping[str, Any]], Any]
    inputs: tuple[str, ...] = (IN,)
    group_of: Callable[[InputRecord], str] = lambda record: record.key
    store: str | None = "history"
    counts: bool = False
    windowed: bool = False
    repartitioned: bool = False
    finals: bool = False
    each: bool = False
    ticks: bool = False
    asks: bool = False
    global_table: bool = False

    def __repr__(self) -> str:
        return self.name

    def expected(self, records: list[InputRecord]) -> dict[str, list[str]]:
        """Return which records each key of the output has to hold, in the order of the input topic's partitions."""
        found: dict[str, list[str]] = {}
        for record in records:
            if record.topic == IN and (self.repartitioned or record.key != CLOSER):
                found.setdefault(self.group_of(record), []).append(record.number)
        return found


#: How often the wall clock ticks for one of the applications, in ms; and what marks the rows that hold what was sent.
TICK_MS = 700
SENT = "sent-"
#: Response times of a service, in ms, by the record's number; the records that it does not answer the first time, and
#: those that it refuses; the timeout in ms, and the maximum number of records that wait at once.
ANSWERS_MS = (0, 3, 20, 700, 0, 60, 2_500)
UNANSWERED, REFUSED = 17, 11
PATIENCE_MS = 4_000
IN_FLIGHT_MAX = 4
#: Backoff after a refusal by the service, in ms (Retries).
BACKOFF_MS = 100
#: The key of records that only advance stream time, so that windows close.
CLOSER = "closer"


def numbers(value: bytes | None) -> list[str]:
    """Return the record numbers in a value."""
    return (value or b"").decode().split()


def service_ms(asked: Iterable[str]) -> int:
    """Return how long the service takes for these records, one after the other."""
    return sum(
        ANSWERS_MS[number % len(ANSWERS_MS)]
        + (number % UNANSWERED == 0) * (PATIENCE_MS + BACKOFF_MS)
        + (number % REFUSED == 0) * BACKOFF_MS
        for number in map(int, asked)
    )


def decode_count(value: bytes | None) -> int:
    """Return the count in a value of the second output."""
    return int(_LONG.unpack(value or bytes(8))[0])


def changelog_key(application: Application, record: RawRecord) -> str:
    """Return the expected key of a record in the history's changelog."""
    key = record.key() or b""
    if not application.windowed:
        return key.decode()
    return f"{key[:-12].decode()}@{_LONG.unpack(key[-12:-4])[0]}"


def _in(builder: StreamsBuilder, seen: Seen) -> Any:
    stream = builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.string())
    return stream.peek(lambda key, value: seen(value))


def _append(key: Any, value: str, history: str) -> str:
    return f"{history} {value}"


def _counted(seen: Seen, config: Mapping[str, Any]) -> Any:
    builder = StreamsBuilder(config)
    return _histories(builder, _in(builder, seen))


def _histories(builder: StreamsBuilder, stream: Any, partitioner: Any = None) -> Any:
    """Two stores in one task: the history of each key, and its length."""
    grouped = stream.group_by_key(key_serde=Serdes.string(), value_serde=Serdes.string())
    history = grouped.aggregate(str, _append, store="history", value_serde=Serdes.string())
    history.to_stream().to(OUT, key_serde=Serdes.string(), value_serde=Serdes.string(), partitioner=partitioner)
    counts = grouped.count(store="counts")
    counts.to_stream().to(COUNTS, key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


def _chosen(seen: Seen, config: Mapping[str, Any]) -> Any:
    """It chooses partitions itself, so that it requests their number in the middle of a record."""
    builder = StreamsBuilder(config)
    return _histories(builder, _in(builder, seen), lambda topic, key, value, partitions: partitions - 1)


def _repartitioned(seen: Seen, config: Mapping[str, Any]) -> Any:
    """Two sub-topologies with a repartition topic between them."""
    builder = StreamsBuilder(config)
    regrouped = _in(builder, seen).select_key(lambda key, value: _group(value)).repartition(name="by-group")
    grouped = regrouped.peek(lambda key, value: seen(value, again=True)).group_by_key()
    history = grouped.reduce(lambda left, right: f"{left} {right}", store="history", value_serde=Serdes.string())
    history.to_stream().to(OUT, key_serde=Serdes.string(), value_serde=Serdes.string())
    return builder.build()


def _windowed(seen: Seen, config: Mapping[str, Any], suppressed: bool = False) -> Any:
    builder = StreamsBuilder(config)
    windows = _in(builder, seen).group_by_key().windowed_by(TimeWindows(WINDOW_MS))
    kept = Materialized("history", retention=RETENTION_MS)
    table = windows.aggregate(str, _append, store=kept, value_serde=Serdes.string())
    if suppressed:
        table = table.suppress(Suppressed.until_window_closes(name="until-closed"))
    stream = table.to_stream(lambda key, value: f"{key.key}@{key.start}")
    stream.to(OUT, key_serde=Serdes.string(), value_serde=Serdes.string())
    return builder.build()


def _suppressed(seen: Seen, config: Mapping[str, Any]) -> Any:
    return _windowed(seen, config, suppressed=True)


class Ticker(Processor[str, str, str, str]):
    """Keeps histories, and sends those that have grown on each tick of the wall clock: work without any input."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_state_store("history")
        context.schedule(TICK_MS, Punctuation.WALL_CLOCK_TIME, self.tick)

    def process(self, record: Record[str, str]) -> None:
        if record.key != CLOSER:
            self.store.put(record.key, f"{self.store.get(record.key) or ''} {record.value}")

    def tick(self, timestamp: int) -> None:
        """Forward histories that have grown. Rows whose name begins with "sent" hold the forwarded history of a key."""
        for key, history in list(self.store.all()):
            if not key.startswith(SENT) and self.store.get(SENT + key) != history:
                # In this order: with at-least-once, the mark could survive a crash that the forwarded record does not.
                self.context.forward(Record(key, history, timestamp))
                self.store.put(SENT + key, history)


def _ticking(seen: Seen, config: Mapping[str, Any]) -> Any:
    builder = StreamsBuilder(config)
    supplier = Stores.persistent_key_value_store("history")
    builder.add_state_store(Stores.key_value_store_builder(supplier, Serdes.string(), Serdes.string()))
    ticks = _in(builder, seen).process(Ticker, "history")
    ticks.to(OUT, key_serde=Serdes.string(), value_serde=Serdes.string())
    return builder.build()


def _joined(seen: Seen, config: Mapping[str, Any]) -> Any:
    builder = StreamsBuilder(config)
    table = builder.table(TABLE, key_serde=Serdes.string(), value_serde=Serdes.string(), store="versions")
    joined = _in(builder, seen).left_join(table, lambda number, version: f"{number}:{version}")
    joined.to(OUT, key_serde=Serdes.string(), value_serde=Serdes.string())
    return builder.build()


def _looked_up(seen: Seen, config: Mapping[str, Any]) -> Any:
    """The table is a global one: each process has all of it, in memory, and reads it by itself."""
    builder = StreamsBuilder(config)
    kept = Materialized("versions", store_type="in_memory")
    table = builder.global_table(TABLE, key_serde=Serdes.string(), value_serde=Serdes.string(), store=kept)
    joined = _in(builder, seen).left_join(
        table, lambda number, version: f"{number}:{version}", key_selector=lambda key, number: key
    )
    joined.to(OUT, key_serde=Serdes.string(), value_serde=Serdes.string())
    return builder.build()


def _asked(seen: Seen, config: Mapping[str, Any], ordered_by: OrderedBy = "partition") -> Any:
    """Calls a service for each record, which responds late, and for some records only to a retry."""
    tried: set[str] = set()

    async def ask(number: str) -> str:
        await asyncio.sleep(ANSWERS_MS[int(number) % len(ANSWERS_MS)] / 1000)
        if int(number) % UNANSWERED == 0 and number not in tried:
            tried.add(number)
            await asyncio.Event().wait()
        if int(number) % REFUSED == 0 and number not in tried:
            tried.add(number)
            raise ConnectionError(number)
        return number

    builder = StreamsBuilder(config)
    retries = Retries(2, wait_jitter=0)
    answered = builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.string()).map_values_async(
        ask, ordered_by=ordered_by, max_in_flight=IN_FLIGHT_MAX, timeout=PATIENCE_MS, retries=retries
    )
    return _histories(builder, answered.peek(lambda key, number: seen(number)))


def _asked_by_key(seen: Seen, config: Mapping[str, Any]) -> Any:
    return _asked(seen, config, "key")


def _group(number: str) -> str:
    return f"group-{int(number) % GROUPS}"


def _window(record: InputRecord) -> str:
    return f"{record.key}@{record.timestamp - record.timestamp % WINDOW_MS}"


APPLICATIONS = (
    Application("counted", _counted, counts=True),
    Application("repartitioned", _repartitioned, group_of=lambda r: _group(r.number), repartitioned=True),
    Application("windowed", _windowed, group_of=_window, windowed=True),
    Application("suppressed", _suppressed, group_of=_window, windowed=True, finals=True),
    Application("ticking", _ticking, ticks=True),
    Application("joined", _joined, (IN, TABLE), store=None, each=True),
    Application("looked up", _looked_up, (IN, TABLE), store=None, each=True, global_table=True),
)
#: The one whose requests fail while brokers are away.
CHOOSING = Application("chosen", _chosen, counts=True)
#: The applications of schedules with async functions.
ASKING = (
    Application("asked", _asked, counts=True, asks=True),
    Application("asked by key", _asked_by_key, counts=True, asks=True),
)
