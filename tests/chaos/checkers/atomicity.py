"""Checks that each transaction of the numbers program is consistent: its consumed records, its outputs, and its state.

Precisely: a committed transaction moves the group's offset of an input partition from a to b. So it has processed the
committed records in [a, b). Everything else in it must follow from these records alone:

- the copies: these records, one copy each, in their order (or in the order of their keys, see Places); the repartition
  topic: the same records;
- tallies and their changelog: for each key of these records, the value after its last record, and no other keys;
- behind the repartition topic the same: the move of the offset there, compared with the groups' tallies and their
  changelog.

A part that is missing, or was committed in another transaction than its offsets or in none, is *torn*: some reader
would have seen one without the other, or a crash would have left them so. An output that follows from an aborted record
is an *aborted read*. In addition, each partition's marker must agree with the coordinator's decision
(``transactions``), and no transaction may be open at the end.

Where a broker dropped a marker, the application is judged by its own actions and its input: its transaction must be
consistent, and its consumers process what readers get, not what was decided. Damage that no process can repair later is
excused: the numbers of these records, and from then on the tallies of their keys and groups.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checkers.dropped_markers import DroppedMarkers
from tests.chaos.checkers.excuse import Excuse, Number, Stall
from tests.chaos.checkers.log_reader import Log, LogReader, Partition
from tests.chaos.checkers.record_batches import Record
from tests.chaos.checkers.report import Report
from tests.chaos.checkers.transactions import OFFSETS_TOPIC, History, Transaction, committed_offset


@dataclass(frozen=True)
class Places:
    """The topics that the program reads and writes. groups: key kN belongs to group gM with M = N modulo groups.

    by_key: copies keep the order of their key, but not that of their partition.
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

    def stopped_by(self, partition: Partition) -> list[str]:
        """Return the outputs that may stop while read_committed readers are blocked in a partition; none: all
        outputs.
        """
        topic, number = partition
        if topic == OFFSETS_TOPIC:  # no task can start
            return []
        of_keys = topic in (self.numbers, self.copies, self.tallies, self.tally_changelog)
        return [f"{self.copies if of_keys else self.group_tallies}-{number}"]

    def group_of(self, key: str) -> str:
        """Return the group of a key."""
        return f"g{int(key[1:]) % self.groups}"


def audit(
    bootstrap_servers: str,
    places: Places,
    seen: Mapping[Partition, Iterable[int]],
    dropped: Iterable[DroppedMarkers] = (),
) -> tuple[Report, Excuse]:
    """Judge a cluster at rest. seen: the offsets that a read_committed reader received, by partition."""
    with LogReader(bootstrap_servers) as reader:
        history = History.read(reader, places.topics, dropped)
        logs = reader.read_topics(places.repartition, *{topic for topic, _ in seen})
    judge = Atomicity(places, history, {partition: log.start for partition, log in logs.items()})
    faults = [*history.faults, *judge.faults(), *misread(history, logs, seen)]
    return Report.of("transactions", judge.committed, "committed transactions", faults), judge.excuse


def misread(history: History, logs: Mapping[Partition, Log], seen: Mapping[Partition, Iterable[int]]) -> Iterator[str]:
    """Yield the records that a read_committed reader received but should not have, and the reverse."""
    for partition, offsets in seen.items():
        committed = {
            record.offset for transaction in history.transactions for record in history.given(transaction, partition)
        }
        end = history.held.get(partition, logs[partition].end)
        committed |= {
            record.offset
            for batch in logs[partition].batches
            if not batch.transactional
            for record in batch.records
            if record.offset < end
        }
        given = Counter(offsets)
        name = f"{partition[0]}-{partition[1]}"
        for offset in sorted(given.keys() - committed):
            yield f"aborted read: a read_committed reader was given {name} offset {offset}, which is not committed"
        for offset in sorted(committed - given.keys()):
            yield f"a read_committed reader was not given {name} offset {offset}, which is committed"
        for offset in sorted(offset for offset, times in given.items() if times > 1):
            yield f"a read_committed reader was given {name} offset {offset} more than once"


@dataclass
class _Moves:
    """The offsets of a producer's transactions until a marker ends them. before: the offsets before."""

    before: dict[Partition, int] = field(default_factory=dict)
    moves: dict[Partition, int] = field(default_factory=dict)
    since: int = 0


class Atomicity:
    """Judges transactions by their content. starts: the current start offsets of the repartition partitions."""

    def __init__(self, places: Places, history: History, starts: Mapping[Partition, int]) -> None:
        self._places = places
        self._history = history
        self._starts = starts
        self._numbers = self._records_of(places.numbers)
        self._repartitioned = self._records_of(places.repartition)
        self._offsets: dict[Partition, int] = {}
        #: By producer: the transactions that the next marker ends.
        self._moves: defaultdict[int, _Moves] = defaultdict(_Moves)
        #: The last count of each group by key, from its changelog.
        self._counted: dict[str, dict[str, int]] = {}
        #: Number of the program's transactions that were judged.
        self.committed = 0
        #: Consequences of markers that brokers dropped; complete when all transactions are judged.
        self.excuse = self._excuse()

    def faults(self) -> Iterator[str]:
        """Yield the violations."""
        for transaction, moves in self._in_order():
            if transaction.decision.commit:
                self.committed += 1
                consumed = {p: (self._offsets.get(p, 0), offset) for p, offset in moves.items()}
                for (topic, number), (begin, end) in consumed.items():
                    if end < begin:
                        yield f"{transaction}: the offset of {topic}-{number} goes back from {begin} to {end}"
                for what in (*self._of_keys(transaction, consumed), *self._of_groups(transaction, consumed)):
                    yield f"{transaction}: {what}"
            self._move(transaction, moves)
        for unended in self._moves.values():
            self._settle(unended, commit=False)
        self._excuse_tasks_that_cannot_start()

    def _records_of(self, topic: str) -> dict[Partition, list[Record]]:
        """Return the records of a topic that readers receive, in the order of their offsets."""
        found: defaultdict[Partition, list[Record]] = defaultdict(list)
        for transaction in self._history.transactions:
            for partition in transaction.parts:
                if partition[0] == topic:
                    found[partition] += self._history.given(transaction, partition)
        return {partition: sorted(records, key=lambda r: r.offset) for partition, records in found.items()}

    def _in_order(self) -> list[tuple[Transaction, dict[Partition, int]]]:
        """Return the program's transactions with their committed offsets, in the order of their decisions."""
        found, waiting = [], set()
        for transaction in self._history.transactions:
            moves: dict[Partition, int] = {}
            for partition, records in transaction.parts.items():
                if partition[0] == OFFSETS_TOPIC:
                    moves |= filter(None, (committed_offset(record, self._places.group) for record in records))
            producer_id = transaction.decision.producer_id
            if moves or producer_id in waiting or any(topic in self._places.outputs for topic, _ in transaction.parts):
                found.append((transaction, moves))
            waiting.discard(producer_id)
            if any(topic == OFFSETS_TOPIC for topic, _ in transaction.unmarked):
                waiting.add(producer_id)  # the next marker commits its offsets
        return sorted(found, key=lambda entry: entry[0].decision.at)

    # -- offsets

    def _move(self, transaction: Transaction, moves: Mapping[Partition, int]) -> None:
        """Advance offsets. A worker that has committed continues from there, regardless of its marker."""
        open_ = self._moves[transaction.decision.producer_id]
        for partition, offset in moves.items():
            open_.before.setdefault(partition, self._offsets.get(partition, 0))
            open_.moves[partition] = offset
        if transaction.decision.commit:
            self._offsets |= moves
        if not any(topic == OFFSETS_TOPIC for topic, _ in transaction.unmarked):
            self._settle(open_, transaction.decision.commit)
            del self._moves[transaction.decision.producer_id]
        elif not open_.since:
            open_.since = transaction.decision.at

    def _settle(self, ended: _Moves, commit: bool) -> None:
        """Advance offsets as decided by the marker that ended one or more transactions.

        If a worker has continued elsewhere, the records in between are skipped, or processed again.
        """
        for partition, before in ended.before.items():
            after = ended.moves[partition] if commit else before
            between = sorted((self._offsets.get(partition, 0), after))
            self._offsets[partition] = after
            self._excuse_input(partition, between[0], between[1], ended.since)

    # -- the excuse

    def _excuse(self) -> Excuse:
        """Return the consequences of dropped markers, except for those of offsets."""
        excuse, places = Excuse(), self._places
        for transaction in self._history.transactions:
            since = transaction.decision.at
            for partition, end in transaction.unmarked.items():
                excuse.markers[str(transaction)] = excuse.markers.get(str(transaction), 0) + 1
                excuse.stalls.append(Stall(places.stopped_by(partition), since, end.until))
        for transaction, (topic, _), records in self._history.set_aside():
            since = transaction.decision.at
            if topic in (places.numbers, places.copies):
                excuse.numbers |= {_number(record) for record in records}
            names = [(record.key or b"").decode() for record in records if topic != OFFSETS_TOPIC]
            if topic in (places.numbers, places.tallies, places.tally_changelog):
                excuse.add(since, keys=names)
            if topic in (places.numbers, places.repartition):
                excuse.add(since, groups=[places.group_of(_number(record)[0]) for record in records])
            if topic in (places.group_tallies, places.group_changelog):
                excuse.add(since, groups=names)
        return excuse

    def _excuse_input(self, partition: Partition, begin: int, end: int, since: int) -> None:
        """Excuse the consequences of input records that are skipped or processed again."""
        places, excuse = self._places, self.excuse
        records = (self._numbers if partition[0] == places.numbers else self._repartitioned).get(partition, [])
        numbers = [_number(record) for record in _between(records, begin, end)]
        excuse.add(since, groups=[places.group_of(key) for key, _ in numbers])
        if partition[0] == places.numbers:
            excuse.numbers |= set(numbers)
            excuse.add(since, keys=[key for key, _ in numbers])

    def _excuse_tasks_that_cannot_start(self) -> None:
        """Excuse input that was not processed because a task waits for its changelog, or for its offsets."""
        places = self._places
        for held in self._history.held:
            since = max(t.decision.at for t in self._history.transactions if held in t.unmarked)
            for partition, records in (self._numbers | self._repartitioned).items():
                changelog = places.tally_changelog if partition[0] == places.numbers else places.group_changelog
                if held == (changelog, partition[1]) or held[0] == OFFSETS_TOPIC:
                    end = records[-1].offset + 1 if records else 0
                    self._excuse_input(partition, self._offsets.get(partition, 0), end, since)

    # -- the first half: copies, the tallies of keys, and the records of the repartition topic

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
        excuse, at = self.excuse, transaction.decision.at
        for topic in (places.tallies, places.tally_changelog):
            tables = {key: _tally(number) for key, number in last.items()}, _table(self._parts(transaction, topic))
            yield from _differences(topic, *(excuse.without(table, excuse.keys, at) for table in tables))

    def _copied(
        self, wanted: list[Number], records: list[Record], where: str, transaction: Transaction | None = None
    ) -> Iterator[str]:
        """Compare records with the consumed ones. transaction: of the repartition topic, whose order between partitions
        has no meaning, and which may be partly deleted.
        """
        found = []
        for record in records:
            if json.loads(record.value or b"null").get("aborted") and _number(record) not in self.excuse.numbers:
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
        places, excuse, at = self._places, self.excuse, transaction.decision.at
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
                judged = (excuse.without(table, excuse.groups, at) for table in (tallies, found))
                yield from _differences(topic, *judged)
        self._counted |= {group: dict(tally["last"]) for group, tally in tables[1].items()}

    def _group_tally(self, group: str, keys: Mapping[str, int], found: Any) -> dict[str, Any]:
        """Return the expected tally of a group. found: the actual one; it is accepted if the beginning is not known."""
        before = self._counted.get(group)
        if before is None:
            before = found["last"] if found and any(self._starts.values()) else {}
        last: dict[str, int] = {**before, **keys}
        total = sum(number * (number + 1) // 2 for number in last.values())
        return {"records": sum(last.values()), "sum": total, "last": last, "breaks": 0}


def _between(records: list[Record], begin: int, end: int) -> list[Record]:
    """Return the records with offsets in [begin, end); records: in the order of their offsets."""
    first, last = (bisect_left(records, offset, key=lambda record: record.offset) for offset in (begin, end))
    return records[first:last]


def _number(record: Record) -> Number:
    value = json.loads(record.value or b"null")
    return value["key"], value["n"]


def _tally(number: int) -> dict[str, int]:
    """Return the tally of a key with this last number."""
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
