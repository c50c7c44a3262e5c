"""Holds each transaction of the numbers program against itself: what it consumed, what it wrote, what it remembers.

Precisely: a committed transaction moves the group's offset of an input partition from a to b. So it has processed the
committed records in [a, b), and everything else in it has to follow from these and from nothing else:

- the copies: these records, one copy each, in their order (or that of their keys, see Places); the repartition topic:
  the same records;
- tallies and their changelog: of each key of these records, the value after its last one, and of no other key;
- behind the repartition topic the same: the offset's move there, against the groups' tallies and their changelog.

A part that was committed in another transaction than its offsets, or in none, or that lacks, is *torn*: some reader
would have seen, or a crash would have left, the one without the other. An output that follows from an aborted record
is an *aborted read*. Beside that each partition's marker has to be what the coordinator decided (``transactions``), and
nothing may be open at the end.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.chaos.checkers.log_reader import Log, LogReader, Partition
from tests.chaos.checkers.record_batches import Record
from tests.chaos.checkers.report import Report
from tests.chaos.checkers.transactions import OFFSETS_TOPIC, History, Transaction, committed_offset

#: A record of the feeder: key and number.
Number = tuple[str, int]


@dataclass(frozen=True)
class Places:
    """Where the program reads and writes. groups: key kN belongs to group gM with M = N modulo groups.

    by_key: copies keep the order of their key, not that of their partition.
    """

    group: str
    numbers: str
    copies: str
    tallies: str
    tally_changelog: str
    repartition: str
    group_tallies: str
    group_changelog: str
    groups: int
    by_key: bool = False

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics with transactions of the program or the feeder."""
        return (self.numbers, *self.outputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """All topics that the program writes to."""
        of_keys = (self.copies, self.tallies, self.tally_changelog, self.repartition)
        return (*of_keys, self.group_tallies, self.group_changelog)

    def group_of(self, key: str) -> str:
        """Return the group of a key."""
        return f"g{int(key[1:]) % self.groups}"


def audit(bootstrap_servers: str, places: Places, seen: Mapping[Partition, Iterable[int]]) -> Report:
    """Read a cluster at rest, and judge. seen: the offsets that a read_committed reader was given, by partition."""
    with LogReader(bootstrap_servers) as reader:
        history = History.read(reader, places.topics)
        logs = reader.read_topics(places.repartition, *{topic for topic, _ in seen})
    judge = Atomicity(places, history, {partition: log.start for partition, log in logs.items()})
    faults = [*history.faults, *judge.faults(), *misread(history, logs, seen)]
    return Report.of("transactions", judge.committed, "committed transactions", faults)


def misread(history: History, logs: Mapping[Partition, Log], seen: Mapping[Partition, Iterable[int]]) -> Iterator[str]:
    """Yield what a read_committed reader was given and should not have been, and the reverse."""
    for partition, offsets in seen.items():
        committed = {
            record.offset
            for transaction in history.transactions
            if transaction.decision.commit
            for record in transaction.parts.get(partition, ())
        }
        committed |= {r.offset for batch in logs[partition].batches if not batch.transactional for r in batch.records}
        given = Counter(offsets)
        name = f"{partition[0]}-{partition[1]}"
        for offset in sorted(given.keys() - committed):
            yield f"aborted read: a read_committed reader was given {name} offset {offset}, which is not committed"
        for offset in sorted(committed - given.keys()):
            yield f"a read_committed reader was not given {name} offset {offset}, which is committed"
        for offset in sorted(offset for offset, times in given.items() if times > 1):
            yield f"a read_committed reader was given {name} offset {offset} more than once"


class Atomicity:
    """Judges transactions by their content. starts: where the repartition partitions begin now."""

    def __init__(self, places: Places, history: History, starts: Mapping[Partition, int]) -> None:
        self._places = places
        self._starts = starts
        self._committed = [t for t in history.transactions if t.decision.commit]
        self._numbers = self._records_of(places.numbers)
        self._repartitioned = self._records_of(places.repartition)
        self._offsets: dict[Partition, int] = {}
        #: What each group has counted of each key, as its changelog had it last.
        self._counted: dict[str, dict[str, int]] = {}
        #: How many transactions of the program were judged.
        self.committed = 0

    def faults(self) -> Iterator[str]:
        """Yield what is wrong."""
        for transaction, moves in self._in_order():
            self.committed += 1
            consumed = {partition: self._move(partition, offset) for partition, offset in moves.items()}
            for partition, (begin, end) in consumed.items():
                if end < begin:
                    yield f"{transaction}: the offset of {partition[0]}-{partition[1]} goes back from {begin} to {end}"
            for what in (*self._of_keys(transaction, consumed), *self._of_groups(transaction, consumed)):
                yield f"{transaction}: {what}"

    def _records_of(self, topic: str) -> dict[Partition, list[Record]]:
        """Return the committed records of a topic in the order of their offsets."""
        found: defaultdict[Partition, list[Record]] = defaultdict(list)
        for transaction in self._committed:
            for partition, records in transaction.parts.items():
                if partition[0] == topic:
                    found[partition] += records
        return {partition: sorted(records, key=lambda r: r.offset) for partition, records in found.items()}

    def _in_order(self) -> list[tuple[Transaction, dict[Partition, int]]]:
        """Return the program's transactions with the offsets they commit, as the group's log has them in order."""
        found = []
        for transaction in self._committed:
            moves: dict[Partition, int] = {}
            at = -1
            for partition, records in transaction.parts.items():
                if partition[0] == OFFSETS_TOPIC:
                    for record in records:
                        if (move := committed_offset(record, self._places.group)) is not None:
                            moves[move[0]] = move[1]
                            at = record.offset
            if moves or any(topic in self._places.outputs for topic, _ in transaction.parts):
                found.append((at, transaction, moves))
        return [(transaction, moves) for _, transaction, moves in sorted(found, key=lambda entry: entry[0])]

    def _move(self, partition: Partition, offset: int) -> tuple[int, int]:
        begin = self._offsets.get(partition, 0)
        self._offsets[partition] = offset
        return begin, offset

    # -- the first half: copies, the tallies of keys, and what continues to the groups

    def _of_keys(self, transaction: Transaction, consumed: Mapping[Partition, tuple[int, int]]) -> Iterator[str]:
        places = self._places
        wanted: list[Number] = []
        for partition in sorted({*consumed, *self._numbers}):
            if partition[0] != places.numbers:
                continue
            begin, end = consumed.get(partition, (0, 0))
            numbers = [_number(record) for record in _between(self._numbers.get(partition, []), begin, end)]
            wanted += numbers
            copies = transaction.parts.get((places.copies, partition[1]), [])
            yield from self._copied(numbers, copies, f"copies of {partition[0]}-{partition[1]}")
        repartitioned = self._parts(transaction, places.repartition)
        yield from self._copied(sorted(wanted), repartitioned, "repartition", transaction)
        last = dict(sorted(wanted))
        for topic in (places.tallies, places.tally_changelog):
            found = _table(self._parts(transaction, topic))
            yield from _differences(topic, {key: _tally(number) for key, number in last.items()}, found)

    def _copied(
        self, wanted: list[Number], records: list[Record], where: str, transaction: Transaction | None = None
    ) -> Iterator[str]:
        """Compare records with what was consumed. transaction: of the repartition topic, whose order between partitions
        means nothing, and which may have been emptied in part.
        """
        found = []
        for record in records:
            if json.loads(record.value or b"null").get("aborted"):
                yield f"aborted read: {where} hold {record.value!r} of an aborted transaction"
            else:
                found.append(_number(record))
        if transaction is None:
            if self._in_their_order(found) != self._in_their_order(wanted):
                yield f"torn: {where} are {_shown(found)}, consumed were {_shown(wanted)}"
            return
        incomplete = any(topic == self._places.repartition for topic, _ in transaction.incomplete)
        surplus, lacking = Counter(found) - Counter(wanted), Counter(wanted) - Counter(found)
        if surplus or (lacking and not incomplete):
            yield f"torn: {where} has {_shown(sorted(surplus))} too many and lacks {_shown(sorted(lacking))}"

    def _in_their_order(self, numbers: list[Number]) -> list[Number]:
        return sorted(numbers, key=lambda number: number[0]) if self._places.by_key else numbers

    def _parts(self, transaction: Transaction, topic: str) -> list[Record]:
        parts = sorted((place, records) for place, records in transaction.parts.items() if place[0] == topic)
        return [record for _, records in parts for record in records]

    # -- the second half: the tallies of groups

    def _of_groups(self, transaction: Transaction, consumed: Mapping[Partition, tuple[int, int]]) -> Iterator[str]:
        places = self._places
        wanted: dict[str, dict[str, int]] = {}
        unknown = False
        for partition, (begin, end) in consumed.items():
            if partition[0] == places.repartition:
                unknown |= begin < self._starts.get(partition, 0)
                for record in _between(self._repartitioned.get(partition, []), begin, end):
                    key, number = _number(record)
                    wanted.setdefault(places.group_of(key), {})[key] = number
        tables = [_table(self._parts(transaction, topic)) for topic in (places.group_tallies, places.group_changelog)]
        for topic, found in zip((places.group_tallies, places.group_changelog), tables, strict=True):
            if not unknown:
                tallies = {group: self._group_tally(group, keys, found.get(group)) for group, keys in wanted.items()}
                yield from _differences(topic, tallies, found)
        self._counted |= {group: dict(tally["last"]) for group, tally in tables[1].items()}

    def _group_tally(self, group: str, keys: Mapping[str, int], found: Any) -> dict[str, Any]:
        """Return what a group's tally has to be. found: what it is; where the beginning is not known, that counts."""
        before = self._counted.get(group)
        if before is None:
            before = found["last"] if found and any(self._starts.values()) else {}
        last: dict[str, int] = {**before, **keys}
        total = sum(number * (number + 1) // 2 for number in last.values())
        return {"records": sum(last.values()), "sum": total, "last": last, "breaks": 0}


def _between(records: list[Record], begin: int, end: int) -> list[Record]:
    """Return those with offsets in [begin, end); records: in the order of their offsets."""
    first, last = (bisect_left(records, offset, key=lambda record: record.offset) for offset in (begin, end))
    return records[first:last]


def _number(record: Record) -> Number:
    value = json.loads(record.value or b"null")
    return value["key"], value["n"]


def _tally(number: int) -> dict[str, int]:
    """Return the tally of a key whose last number is this one."""
    return {"records": number, "sum": number * (number + 1) // 2, "last": number, "breaks": 0}


def _table(records: Iterable[Record]) -> dict[str, Any]:
    """Return the last value of each key."""
    return {(record.key or b"").decode(): json.loads(record.value or b"null") for record in records}


def _differences(topic: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[str]:
    for key in sorted({*wanted, *found}):
        if wanted.get(key) != found.get(key):
            yield f"torn: {topic} has {found.get(key)} of {key}, what was consumed gives {wanted.get(key)}"


def _shown(numbers: Iterable[Number]) -> str:
    names = [f"{key}:{number}" for key, number in numbers]
    return " ".join(names[:8]) + (f" … ({len(names)})" if len(names) > 8 else "") if names else "none"
