"""Recorded cases of ``tests/goldens`` in one application, each with its own topics, stores and operators.

A test driver can predict an outcome only if it does not depend on the interleaving of partitions and topics, nor on the
time of a crash. Therefore:

- no record is late: an operator's stream time restarts with its process, so a late record is accepted after a crash, in
  Kafka Streams too. Timestamps go back by less than the shortest grace period;
- the grace period of the join is longer than a run, because either side may be far ahead of the other;
- of a table's aggregates only sums are compared: a maximum without subtraction depends on the values that the cache
  left out;
- a global table is complete before hosts start, because a process's progress in reading it is unknown.

``Case.why`` gives the remaining reasons.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from penstock import Topology
from tests.chaos import program
from tests.goldens import case as goldens
from tests.goldens.interpreter import Interpreter

FOLDER = Path(goldens.__file__).parent / "cases"
#: How far a timestamp may go back, in ms: less than the shortest grace period, of 5 ms.
DISORDER_MS = 4
#: Longer than a run's event time, in ms; shorter than the hour by which brokers allow timestamps to be ahead.
LONG_GRACE_MS = 1_200_000
#: The key of the last record of each partition, which closes windows. Its outputs are not compared.
CLOSER = "~closer"
#: Names in an operation of a case: all fields except functions, serdes and numbers.
_NAMES = ("id", "from", "with", "store", "name", "uses", "topic")
_SOURCES = ("stream", "table", "global_table")
_LONG = struct.Struct(">q")


class Comparison(Enum):
    """How an output is compared with the test driver's output for the same input."""

    TABLE = "the last value of each key"
    BAG = "the same records, in any order"
    SUM = "values that sum up to how many records a key had"


Values = Callable[[random.Random, int], Any]


@dataclass(frozen=True)
class Case:
    """A recorded case. outputs: the compared ones, and how.

    why: its outcome is deterministic. whole: it combines records of all partitions; otherwise each partition is
    independent. repeatable: a record that is processed twice leaves the same tables, and only duplicates in a bag, so
    that it can be judged with at-least-once. changes: to operations, by their op. inputs: keys and values by topic.
    """

    name: str
    outputs: Mapping[str, Comparison]
    inputs: Mapping[str, tuple[tuple[str, ...], Values]]
    why: str
    whole: bool = False
    repeatable: bool = False
    headers: bool = False
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def topic(self, name: str) -> str:
        """Return the name of one of the case's topics here."""
        return f"{self.name}-{name}"

    def operations(self) -> Iterator[dict[str, Any]]:
        """Yield the case's operations with prefixed names, without outputs that are not compared."""
        for op in goldens.read(FOLDER / f"{self.name}.json")["topology"]:
            if op["op"] == "to" and op["topic"] not in self.outputs:
                continue
            named = {name: self.topic(op[name]) for name in _NAMES if isinstance(op.get(name), str)}
            yield {**op, **named, **self.changes.get(op["op"], {})}

    def sources(self) -> dict[str, dict[str, Any]]:
        """Return the operations that read topics, by the case's own name of the topic."""
        prefix = len(self.topic(""))
        return {op["topic"][prefix:]: op for op in self.operations() if op["op"] in _SOURCES}

    @property
    def global_topics(self) -> set[str]:
        """The topics that are written before hosts start."""
        return {name for name, op in self.sources().items() if op["op"] == "global_table"}

    @property
    def tables(self) -> set[str]:
        """The topics that are read as tables."""
        return {name for name, op in self.sources().items() if op["op"] == "table"}

    def topology(self) -> Topology:
        """Return the topology of this case only."""
        return _build([self])


def topology() -> Topology:
    """Return all cases in one topology; with a planted fault, the windows have another size."""
    changed = replace(CASES[0], changes={"windowed_by": {"window": OTHER_WINDOW}})
    first = changed if program.Fault.WINDOW in program.faults() else CASES[0]
    return _build([first, *CASES[1:]])


def _build(cases: list[Case]) -> Topology:
    interpreter = Interpreter()
    for case in cases:
        for op in case.operations():
            interpreter.apply(op)
    return interpreter.builder.build()


def encode(serde: str, value: Any) -> bytes | None:
    """Return the bytes of a key or value in one of the two serdes of the cases."""
    if value is None:
        return None
    return _LONG.pack(value) if serde == "long" else str(value).encode()


def decode_long(data: bytes | None) -> int:
    """Return the number in a value."""
    return int(_LONG.unpack(data or bytes(8))[0])


def _numbers(rng: random.Random, _number: int) -> int:
    return rng.randint(1, 9)


def _numbers_or_none(rng: random.Random, number: int) -> int | None:
    return None if rng.random() < TOMBSTONES else _numbers(rng, number)


def _texts(rng: random.Random, number: int) -> str:
    return f"{rng.choice('xyz')}{number}"


def _texts_or_none(rng: random.Random, number: int) -> str | None:
    return None if rng.random() < TOMBSTONES else _texts(rng, number)


def _orders(rng: random.Random, number: int) -> str | None:
    return None if rng.random() < TOMBSTONES else f"{rng.choice('pqrs')}:{number}"


#: The share of tombstones among a table's records.
TOMBSTONES = 0.2
#: Minimum number of a table's rows for a burst of tombstones.
ROWS = tuple(f"{letter}{number}" for letter in "abcd" for number in range(50))
KEYS = ("a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2")
PEOPLE = ("p", "q", "r", "s")
ORDERED = "a partition's records keep their order, none is late, and nothing else is read"
LAST = "what counts is the last record of each side, whichever comes first"
OTHER_WINDOW = {"type": "tumbling", "size_ms": 9, "grace_ms": 5}
TABLE, BAG, SUM = Comparison.TABLE, Comparison.BAG, Comparison.SUM

CASES = [
    Case("tumbling_count_grace", {"out": TABLE}, {"in": (KEYS, _numbers)}, ORDERED),
    Case("sliding_cached", {"out": TABLE}, {"in": (KEYS, _numbers)}, ORDERED),
    Case("session_reduce_0", {"out": TABLE}, {"in": (KEYS, _numbers)}, ORDERED),
    Case("suppress_until_close_tumbling", {"out": BAG}, {"in": (KEYS, _numbers)}, ORDERED),
    Case("suppress_until_close_session", {"out": BAG}, {"in": (KEYS, _numbers)}, ORDERED),
    Case("process_dedup", {"out": BAG}, {"in": (KEYS, _numbers)}, ORDERED),
    Case("versioned_table", {"out": TABLE, "filtered": TABLE}, {"table": (ROWS, _texts_or_none)}, ORDERED),
    Case(
        "peek_keeps_headers",
        {"out": BAG},
        {"in": (KEYS, _numbers_or_none)},
        "each record by itself",
        repeatable=True,
        headers=True,
    ),
    Case(
        "stream_global_left",
        {"out": BAG},
        {"global": (("x", "y"), _texts), "clicks": (KEYS, _texts)},
        "the global table does not change any more",
        whole=True,
        repeatable=True,
    ),
    Case(
        "stream_stream_inner",
        {"out": BAG},
        {"left": (KEYS, _texts), "right": (KEYS, _texts)},
        "all pairs within the window, whichever comes first; none is ever late",
        whole=True,
        repeatable=True,
        changes={"stream_stream_join": {"grace_ms": LONG_GRACE_MS}},
    ),
    Case(
        "table_table_outer",
        {"out": TABLE},
        {"left": (ROWS, _texts_or_none), "right": (ROWS, _numbers_or_none)},
        LAST,
        whole=True,
        repeatable=True,
    ),
    Case(
        "foreign_key_left",
        {"out": TABLE},
        {"orders": (ROWS, _orders), "people": (PEOPLE, _texts_or_none)},
        LAST + "; an answer to an outdated question is recognized by the hash of what was asked",
        whole=True,
        repeatable=True,
    ),
    Case(
        "ktable_group_by_aggregate_numbers",
        {"lengths-out": TABLE, "sums-out": TABLE},
        {"table": (ROWS, _texts_or_none), "numbers": (ROWS, _numbers_or_none)},
        "sums do not mind the order of additions and subtractions",
        whole=True,
    ),
    Case(
        "punctuate_stream_time",
        {"out": SUM},
        {"in": (KEYS, _numbers)},
        "each record is counted in one punctuation, whenever that is",
    ),
    Case(
        "punctuate_wall_clock",
        {"out": SUM},
        {"in": (KEYS, _numbers)},
        "each record is counted in one punctuation, whenever that is",
    ),
]
