"""``python -m benchmarks.matrix``: microseconds of CPU per record, by operator and serde.

Each stateful operator runs with each serde of keys (values: int64) and of values (keys: text), in one task of this
process: from the bytes of a record to the bytes of its outputs and changelogs, without a client. Only the serde differs
along a row, so a row shows whether a fast path exists for one serde only.
"""

from __future__ import annotations

import json
import platform
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.driver import CACHE_BYTES
from benchmarks.heat_map import Cell, heat_map
from benchmarks.instructions import counted, made_task, process
from benchmarks.report import machine_line
from penstock import (
    BufferConfig,
    JoinWindows,
    KGroupedStream,
    KStream,
    KTable,
    Processor,
    ProcessorContext,
    Record,
    Serde,
    Serdes,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Windowed,
)
from penstock.topology.records import RawRecord
from penstock.workers.thread.garbage_collection import tuned_garbage_collection

INPUT, OTHER, OUTPUT = "in", "other", "out"
KEYS, RECORDS, BATCH = 500, 12_000, 2_000
#: Of event time between two records: a key comes every five seconds.
STEP_MS = 10
WINDOW = TimeWindows.of_size_with_no_grace(timedelta(seconds=10))
HOPPING = WINDOW.advance_by(timedelta(seconds=2))
SLIDING = SlidingWindows.of_time_difference_with_no_grace(timedelta(seconds=10))
SESSION = SessionWindows.of_inactivity_gap_with_no_grace(timedelta(seconds=6))
#: A batch of one side precedes that of the other one.
JOIN = JoinWindows.of_time_difference_and_grace(timedelta(milliseconds=100), timedelta(minutes=1))
#: Cells that are slower than text and int64 in their row by more than this factor are marked.
SLOWER = 4 / 3


class Item(msgspec.Struct, frozen=True):
    """A key or value that is JSON of a type."""

    id: int
    shop: str


AVRO_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "Item",
        "fields": [{"name": "id", "type": "long"}, {"name": "shop", "type": "string"}],
    }
)


@dataclass(frozen=True)
class Kind:
    """A serde, and a function that creates the n-th object for it."""

    name: str
    serde: Serde[Any]
    make: Callable[[int], Any]


_RANDOM = random.Random(1)
#: Sequential numbers must not favor a serde.
_IDS = [_RANDOM.getrandbits(31) for _ in range(100_000)]


def _windowed(n: int) -> Windowed:
    return Windowed(f"k{n:06}", n * 10_000, (n + 1) * 10_000)


TEXT = Kind("text", Serdes.string(), "k{:06}".format)
INT64 = Kind("int64", Serdes.int64(), _IDS.__getitem__)
COMMON = (
    Kind("bytes", Serdes.bytes(), lambda n: b"k%06d" % n),
    Kind("int32", Serdes.int32(), _IDS.__getitem__),
    Kind("float64", Serdes.float64(), lambda n: _IDS[n] / 7),
    Kind("uuid", Serdes.uuid(), lambda n: uuid.UUID(int=_IDS[n])),
    Kind("json", Serdes.json(), lambda n: {"id": n, "shop": "s"}),
    Kind("json type", Serdes.json(Item), lambda n: Item(n, "s")),
)
WINDOWED = Kind("windowed", Serdes.time_windowed(Serdes.string(), timedelta(seconds=10)), _windowed)
#: With a registry in memory: no request is measured.
AVRO = Kind("avro", Serdes.avro(AVRO_SCHEMA, "mock://"), lambda n: {"id": n, "shop": "s"})
KEY_KINDS = (TEXT, INT64, *COMMON, AVRO, WINDOWED)
VALUE_KINDS = (INT64, TEXT, *COMMON, AVRO)
#: The cells of each operator: each serde of keys, then each of values.
KINDS = (*((keys, INT64) for keys in KEY_KINDS), *((TEXT, values) for values in VALUE_KINDS[1:]))
#: By operator and by the names of the serdes of keys and values.
Costs = dict[tuple[str, str, str], float]


def newest(_old: Any, new: Any) -> Any:
    """Return the newest value: the simplest possible reducer."""
    return new


class KeepNewest(Processor[Any, Any, Any, Any]):
    """Reads the row of a key, writes it, and forwards."""

    def init(self, context: ProcessorContext) -> None:
        """Find the store."""
        super().init(context)
        self.rows = context.get_state_store("rows")

    def process(self, record: Record[Any, Any]) -> None:
        """Keep a record's value."""
        self.rows.get(record.key)
        self.rows.put(record.key, record.value)
        self.context.forward(record)


@dataclass(frozen=True)
class Declared:
    """The declarations of operators."""

    builder: StreamsBuilder
    keys: Serde[Any]
    values: Serde[Any]

    def stream(self, topic: str = INPUT) -> KStream[Any, Any]:
        """Return the records as a stream."""
        return self.builder.stream(topic, key_serde=self.keys, value_serde=self.values)

    def grouped(self) -> KGroupedStream[Any, Any]:
        """Return them by key."""
        return self.stream().group_by_key()

    def table(self, topic: str = INPUT) -> KTable[Any, Any]:
        """Return them as a table."""
        return self.builder.table(topic, key_serde=self.keys, value_serde=self.values)


def _of_windows(table: KTable[Windowed, Any]) -> KStream[Any, Any]:
    return table.to_stream(lambda windowed, _value: windowed.key)


def _processed(made: Declared) -> KStream[Any, Any]:
    rows = Stores.key_value_store_builder(Stores.persistent_key_value_store("rows"), made.keys, made.values)
    made.builder.add_state_store(rows)
    return made.stream().process(KeepNewest, "rows")


def _suppressed(made: Declared) -> KStream[Any, Any]:
    closed = Suppressed.until_window_closes(BufferConfig.unbounded())
    return _of_windows(made.grouped().windowed_by(WINDOW).reduce(newest).suppress(closed))


def _joined_streams(made: Declared) -> KStream[Any, Any]:
    return made.stream().join(
        made.stream(OTHER),
        newest,
        JOIN,
        key_serde=made.keys,
        value_serde=made.values,
        other_value_serde=made.values,
    )


def _mapped(made: Declared) -> KStream[Any, Any]:
    same = partial(newest, None)
    return made.table().map_values(same, store="rows", key_serde=made.keys, value_serde=made.values).to_stream()


def _regrouped(made: Declared) -> KStream[Any, Any]:
    grouped = made.table().group_by(lambda key, value: (key, value), key_serde=made.keys, value_serde=made.values)
    return grouped.reduce(newest, newest).to_stream()


def _joined_by_foreign_key(made: Declared) -> KStream[Any, Any]:
    joined = made.table().join(made.table(OTHER), newest, foreign_key=lambda key, _value: key, with_key=True)
    return joined.to_stream()


def _versioned(made: Declared) -> KStream[Any, Any]:
    rows = Stores.persistent_versioned_key_value_store("rows", timedelta(minutes=1))
    return made.builder.table(INPUT, key_serde=made.keys, value_serde=made.values, store=rows).to_stream()


#: Each operator, and how many bytes of cache it has.
OPERATORS: Mapping[str, tuple[Callable[[Declared], KStream[Any, Any]], int]] = {
    "reduce": (lambda made: made.grouped().reduce(newest).to_stream(), CACHE_BYTES),
    "reduce, no cache": (lambda made: made.grouped().reduce(newest).to_stream(), 0),
    "tumbling window": (lambda made: _of_windows(made.grouped().windowed_by(WINDOW).reduce(newest)), CACHE_BYTES),
    "hopping window": (lambda made: _of_windows(made.grouped().windowed_by(HOPPING).reduce(newest)), CACHE_BYTES),
    "sliding window": (lambda made: _of_windows(made.grouped().windowed_by(SLIDING).reduce(newest)), CACHE_BYTES),
    "session": (lambda made: _of_windows(made.grouped().windowed_by(SESSION).reduce(newest)), CACHE_BYTES),
    "suppress": (_suppressed, CACHE_BYTES),
    "processor": (_processed, CACHE_BYTES),
    "table": (_mapped, CACHE_BYTES),
    "versioned table": (_versioned, CACHE_BYTES),
    "table regrouped": (_regrouped, CACHE_BYTES),
    "stream-table join": (lambda made: made.stream().join(made.table(OTHER), newest), CACHE_BYTES),
    "foreign-key join": (_joined_by_foreign_key, 0),
    "table-table join": (lambda made: made.table().join(made.table(OTHER), newest).to_stream(), CACHE_BYTES),
    "stream-stream join": (_joined_streams, CACHE_BYTES),
}


class Running:
    """An operator with its serdes in a task, in its own directory."""

    def __init__(self, operator: str, keys: Kind, values: Kind, directory: Path) -> None:
        make, cache_bytes = OPERATORS[operator]
        builder = StreamsBuilder()
        make(Declared(builder, keys.serde, values.serde)).to(OUTPUT, key_serde=keys.serde, value_serde=values.serde)
        self.task = made_task(builder.build(), cache_bytes, directory)
        self._keys = [keys.serde.serialize(INPUT, keys.make(n)) for n in range(KEYS)]
        self._values = [values.serde.serialize(INPUT, values.make(n)) for n in range(KEYS + 1)]
        self._at = 0
        #: The number of output records.
        self.outputs = 0
        self._with_both = operator == "stream-stream join"
        if self.task.compiled.source_of(OTHER) is not None:
            self._process(self._made(OTHER, 0, KEYS))

    def run(self, records: int) -> None:
        """Process this many more records; if two streams are joined, also as many of the other one, with the same
        timestamps.
        """
        for _ in range(0, records, BATCH):
            size = min(BATCH, records)
            if self._with_both:
                self._process(self._made(OTHER, self._at, size))
            self._process(self._made(INPUT, self._at, size))
            self._at += size

    def _made(self, topic: str, first: int, records: int) -> list[RawRecord]:
        keys, values, count = self._keys, self._values, len(self._values)
        return [
            RawRecord(topic, 0, n, n * STEP_MS, keys[n * 7 % KEYS], values[n % count])
            for n in range(first, first + records)
        ]

    def _process(self, messages: Sequence[RawRecord]) -> None:
        self.outputs += sum(sent.topic == OUTPUT for sent in process(self.task, messages))


def instructions(operator: str, keys: Kind, values: Kind, records: int = 100) -> float:
    """Return the bytecode instructions per record, once caches are warm; see benchmarks/instructions.py.

    The second of two equal runs counts, because a process caches the partitions of keys.
    """
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="penstock-matrix-") as directory:
            running = Running(operator, keys, values, Path(directory))
            running.run(records)
            number = counted(partial(running.run, records))
            running.task.close()
    return number / records


def measured(operator: str, records: int, rounds: int, done: Callable[[int], None]) -> Costs:
    """Return the row of an operator: microseconds of CPU time per record, the minimum of some rounds.

    In each round all cells run in turn, so that other load on the machine affects all of them. done: called with 1
    after each round. Raises ClickException if a cell had no output.
    """
    with ExitStack() as stack:
        running: dict[tuple[str, str, str], Running] = {}
        for keys, values in KINDS:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-matrix-"))
            made = Running(operator, keys, values, Path(directory))
            stack.callback(made.task.close)
            made.run(records)
            running[operator, keys.name, values.name] = made
        stack.enter_context(tuned_garbage_collection())  # as a stream thread has it
        least: Costs = {}
        for _ in range(rounds):
            for cell, made in running.items():
                began = time.process_time()
                made.run(records)
                took = (time.process_time() - began) / records * 1e6
                least[cell] = min(took, least.get(cell, took))
            done(1)
        for (_, keys_name, values_name), made in running.items():
            if not made.outputs:
                raise click.ClickException(f"{operator} with {keys_name} and {values_name}: nothing has come out")
    return least


def slower(costs: Costs, operator: str, keys: Kind, values: Kind) -> float:
    """Return a cell's cost relative to text and int64 in its row."""
    return costs[operator, keys.name, values.name] / costs[operator, TEXT.name, INT64.name]


def as_heat_map(costs: Costs, names: Sequence[str], note: str) -> str:
    """Return the whole matrix as SVG."""

    def row(name: str, kinds: Sequence[tuple[Kind, Kind]]) -> list[Cell]:
        return [(costs[name, k.name, v.name], slower(costs, name, k, v)) for k, v in kinds]

    by_key, by_value = [(kind, INT64) for kind in KEY_KINDS], [(TEXT, kind) for kind in VALUE_KINDS[1:]]
    rows = [(name, (row(name, by_key), row(name, by_value))) for name in names]
    return heat_map(rows, ([kind.name for kind in KEY_KINDS], [kind.name for kind in VALUE_KINDS[1:]]), note)


def as_table(costs: Costs, names: Sequence[str], kinds: Sequence[Kind], of_keys: bool) -> Table:
    """Return half of the matrix: operators by serdes of keys, or of values."""
    table = Table(title=f"µs of CPU a record, by the serde of {'keys' if of_keys else 'values'}")
    table.add_column("operator")
    for kind in kinds:
        table.add_column(kind.name, justify="right")
    for name in names:
        row = []
        for kind in kinds:
            keys, values = (kind, INT64) if of_keys else (TEXT, kind)
            cost, times = costs[name, keys.name, values.name], slower(costs, name, keys, values)
            row.append(f"[bold]{cost:.1f}[/] x{times:.1f}" if times > SLOWER else f"{cost:.1f}")
        table.add_row(name, *row)
    return table


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", metavar="NAMES", help=f"Some of: {'; '.join(OPERATORS)} (with semicolons).")
@click.option("--records", type=click.IntRange(min=BATCH), default=RECORDS, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=15, show_default=True)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="Draw it as a heat map (SVG).")
def main(only: str | None, records: int, rounds: int, plot: Path | None) -> None:
    """Print what a record costs in each stateful operator with each serde: where it is bold, a third more than text."""
    names = [name.strip() for name in only.split(";")] if only else list(OPERATORS)
    for unknown in sorted(set(names) - set(OPERATORS)):
        raise click.UsageError(f"There is no operator {unknown!r}: {'; '.join(OPERATORS)}")
    costs: Costs = {}
    with click.progressbar(length=len(names) * rounds, label="measuring", show_pos=True) as shown:
        for name in names:
            costs |= measured(name, records, rounds, shown.update)
    console = Console()
    console.print(as_table(costs, names, KEY_KINDS, of_keys=True))
    console.print(as_table(costs, names, VALUE_KINDS, of_keys=False))
    if plot is not None:
        note = f"{datetime.now(UTC):%Y-%m-%d}; {machine_line()}; Python {platform.python_version()}"
        plot.write_text(as_heat_map(costs, names, note), "utf-8")


if __name__ == "__main__":
    main()
