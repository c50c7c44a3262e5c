"""Reassembles transactions from the log: the records of each one in each partition, and its decision.

The coordinator's log (``__transaction_state``) has the decision of each transaction, its time, and the partitions that
take part. In each of these the producer's batches end with a marker. A marker belongs to the producer's last
transaction there that was decided before it: the next one begins only when all markers of the last one are written. A
marker may be written twice: by the next coordinator after the first one has failed, or by the same one if the
partition's leader failed before it responded. The second marker ends no batch.

A marker that a broker has dropped (see ``dropped_markers``) is no fault. The transaction's records in that partition
then end with the next transaction of the same producer there, and with its decision, or are still open.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from tests.chaos.checkers.dropped_markers import DroppedMarkers
from tests.chaos.checkers.log_reader import Fields, Log, LogReader, Partition
from tests.chaos.checkers.record_batches import Batch, Record

STATE_TOPIC, OFFSETS_TOPIC = "__transaction_state", "__consumer_offsets"
#: Kafka's TransactionState.
PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = 2, 3, 4, 5
#: Versions of the value of a transaction record: with classic fields, and with compact ones.
PLAIN, FLEXIBLE = 0, 1


@dataclass(frozen=True)
class Decision:
    """A coordinator's decision about a transaction. at: ms since the epoch."""

    producer_id: int
    commit: bool
    partitions: frozenset[Partition]
    transactional_id: str = ""
    at: int = 0


@dataclass(frozen=True)
class Unmarked:
    """The end of a transaction in a partition whose marker was dropped.

    commit: whether the producer's next marker committed it. until: when, in ms since the epoch; None if it is open.
    """

    commit: bool = False
    until: int | None = None


@dataclass
class Transaction:
    """A decided transaction and its records. parts: by partition, without partitions that have no records.

    incomplete: partitions in which some of its records may have been deleted since (DeleteRecords). unmarked:
    partitions in which a broker dropped its marker.
    """

    decision: Decision
    number: int
    parts: dict[Partition, list[Record]] = field(default_factory=dict)
    incomplete: set[Partition] = field(default_factory=set)
    unmarked: dict[Partition, Unmarked] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.decision.transactional_id or self.decision.producer_id}"

    def comes_out(self, partition: Partition) -> bool:
        """Return True if read_committed readers receive its records in this partition."""
        unmarked = self.unmarked.get(partition)
        return self.decision.commit if unmarked is None else unmarked.commit


@dataclass(frozen=True, slots=True)
class Segment:
    """A producer's batches in a partition up to a marker. end: the marker's batch."""

    batches: list[Batch]
    end: Batch

    @property
    def first(self) -> int:
        """The offset of its first record, or of its marker."""
        return (*self.batches, self.end)[0].first

    @property
    def commit(self) -> bool:
        """True if the marker commits it."""
        return self.end.marker is not None and self.end.marker.commit


@dataclass(frozen=True)
class History:
    """All transactional records. faults: violations by the markers alone.

    held: where partitions end for read_committed readers because a broker dropped a marker.
    """

    transactions: list[Transaction]
    faults: list[str]
    held: Mapping[Partition, int] = field(default_factory=dict)

    @classmethod
    def read(cls, reader: LogReader, topics: Iterable[str], dropped: Iterable[DroppedMarkers] = ()) -> History:
        """Read from a cluster at rest. topics: all topics written in transactions; the offsets topic is always
        included.
        """
        states = reader.read_topics(STATE_TOPIC)
        if any(log.start for log in states.values()):
            raise ValueError(f"{STATE_TOPIC} has lost its beginning: the run was too long for its segments")
        return cls.of(decisions(states), reader.read_topics(OFFSETS_TOPIC, *topics), dropped)

    @classmethod
    def of(
        cls, decided: Iterable[Decision], logs: Mapping[Partition, Log], dropped: Iterable[DroppedMarkers] = ()
    ) -> History:
        """Combine decisions and partitions. dropped: the markers that brokers may not have written."""
        transactions = [Transaction(decision, number) for number, decision in enumerate(decided)]
        by_place: defaultdict[tuple[int, Partition], list[Transaction]] = defaultdict(list)
        by_id: defaultdict[str, list[Transaction]] = defaultdict(list)
        for transaction in transactions:
            by_id[transaction.decision.transactional_id].append(transaction)
            for partition in transaction.decision.partitions:
                by_place[transaction.decision.producer_id, partition].append(transaction)
        excused = set()
        for markers in dropped:
            mine = by_id[markers.transactional_id]
            if count := _decided_before(mine, markers.at):
                excused |= {(mine[count - 1].number, partition) for partition in markers.partitions}
        faults: list[str] = []
        held: dict[Partition, int] = {}
        for partition, log in logs.items():
            segments, open_ = _segments(log)
            producers = {*segments, *open_, *(producer for producer, place in by_place if place == partition)}
            for producer in sorted(producers):
                ends = _Ends(partition, log.start, by_place[producer, partition], excused)
                faults += ends.match(producer, segments.get(producer, []), open_.get(producer, []))
                if ends.held is not None:
                    held[partition] = min(ends.held, held.get(partition, ends.held))
        return cls(transactions, faults, held)

    def given(self, transaction: Transaction, partition: Partition) -> list[Record]:
        """Return the records of a transaction that read_committed readers receive in a partition."""
        if not transaction.comes_out(partition):
            return []
        end = self.held.get(partition)
        return [record for record in transaction.parts.get(partition, ()) if end is None or record.offset < end]

    def set_aside(self) -> Iterator[tuple[Transaction, Partition, list[Record]]]:
        """Yield records that readers receive, or miss, contrary to the decision, because a broker dropped markers."""
        for transaction in self.transactions:
            for partition, records in transaction.parts.items():
                given = {record.offset for record in self.given(transaction, partition)}
                commit = transaction.decision.commit
                if len(given) != commit * len(records):
                    yield transaction, partition, [r for r in records if (r.offset in given) != commit]


def _segments(log: Log) -> tuple[dict[int, list[Segment]], dict[int, list[Batch]]]:
    """Return each producer's segments of a partition, and its batches without a following marker."""
    ended: defaultdict[int, list[Segment]] = defaultdict(list)
    open_: defaultdict[int, list[Batch]] = defaultdict(list)
    for batch in log.batches:
        if batch.transactional and batch.marker is None:
            open_[batch.producer_id].append(batch)
        elif batch.transactional:
            ended[batch.producer_id].append(Segment(open_.pop(batch.producer_id, []), batch))
    return ended, open_


def _decided_before(transactions: Sequence[Transaction], at: int) -> int:
    """Return how many of a producer's transactions were decided up to a time."""
    return bisect_right(transactions, at, key=lambda transaction: transaction.decision.at)


class _Ends:
    """Assigns a producer's batches in a partition to its transactions there.

    start: the partition's start offset; earlier records may have been deleted. excused: transactions, by number, and
    partitions that may lack markers.
    """

    def __init__(
        self, partition: Partition, start: int, transactions: list[Transaction], excused: set[tuple[int, Partition]]
    ) -> None:
        self._partition, self._start = partition, start
        self._transactions = transactions
        self._excused = excused
        self._name = f"{partition[0]}-{partition[1]}"
        #: The offset from which a transaction is open because a broker dropped its marker.
        self.held: int | None = None

    def match(self, producer: int, segments: list[Segment], open_: list[Batch]) -> Iterator[str]:
        """Assign the batches; yields the violations."""
        done = 0
        for segment in segments:
            until = _decided_before(self._transactions, segment.end.timestamp)
            ended = self._transactions[done:until]
            if self._start and segment is segments[0]:  # markers of earlier ones are deleted, and records may be
                for transaction in ended:
                    transaction.incomplete.add(self._partition)
                ended = ended[-1:]
            yield from self._end(producer, segment, ended, self._transactions[:until])
            done = until
        left = self._transactions[done:]
        if self._start and not segments:
            for transaction in left:
                transaction.incomplete.add(self._partition)
        else:
            yield from self._left_open(producer, left, open_)

    def _end(
        self, producer: int, segment: Segment, ended: list[Transaction], decided: list[Transaction]
    ) -> Iterator[str]:
        """Assign a segment to the transactions that its marker has ended: to the last one, unless markers were dropped.

        decided: all up to the marker, which belongs to the last of them.
        """
        at = f"{self._name} offset {segment.first}"
        if not decided or (not ended and segment.batches):
            yield f"torn: a transaction of producer {producer} at {at} has an end that no coordinator has decided"
            return
        if segment.commit != decided[-1].decision.commit:
            yield f"torn: {decided[-1]} ends at {at} otherwise than its coordinator has decided"
        for transaction in ended[:-1]:
            yield from self._lacks(transaction, Unmarked(segment.commit, segment.end.timestamp))
        self._share(segment.batches, ended)

    def _left_open(self, producer: int, left: list[Transaction], open_: list[Batch]) -> Iterator[str]:
        for transaction in left:
            yield from self._lacks(transaction, Unmarked())
        self._share(open_, left)
        if not open_:
            return
        if left and all(self._partition in transaction.unmarked for transaction in left):
            self.held = open_[0].first
        else:
            yield f"open: a transaction of producer {producer} at {self._name} offset {open_[0].first} has no end"

    def _lacks(self, transaction: Transaction, end: Unmarked) -> Iterator[str]:
        if (transaction.number, self._partition) in self._excused:
            transaction.unmarked[self._partition] = end
        else:
            yield f"torn: {transaction} has no marker in {self._name}"

    def _share(self, batches: list[Batch], transactions: list[Transaction]) -> None:
        """Assign batches to the transactions that wrote them, in order.

        Each has its own epoch (KIP-890); otherwise it wrote them before it was decided.
        """
        if not transactions:
            return
        runs = [list(run) for _, run in groupby(batches, key=lambda batch: batch.epoch)]
        if len(runs) != len(transactions):
            runs = [[] for _ in transactions]
            for batch in batches:
                later = [n for n, t in enumerate(transactions) if batch.timestamp < t.decision.at]
                runs[(*later, len(transactions) - 1)[0]].append(batch)
        for transaction, run in zip(transactions, runs, strict=True):
            records = [record for batch in run for record in batch.records if record.offset >= self._start]
            if records:
                transaction.parts[self._partition] = records


# -- the coordinators' records


def decisions(states: Mapping[Partition, Log]) -> list[Decision]:
    """Return the coordinators' decisions, each producer's transactions in order."""
    return [decision for log in states.values() for decision in _decisions(log)]


def _decisions(log: Log) -> Iterator[Decision]:
    """Yield the decisions in order: the last of several that were prepared, and those still to be completed.

    The next coordinator may prepare an incomplete decision again. A prepared decision may also not have reached enough
    replicas: then the producer gets an error, and the coordinator may decide otherwise, or let the transaction
    continue. The time of the decision is that of the first preparation: no marker was written before.
    """
    prepared: dict[str, Decision] = {}
    for batch in log.batches:
        for record in batch.records:
            if record.value is None:
                continue
            transactional_id, state, decision = _state(record)
            if decision is not None:
                first = prepared.get(transactional_id, decision)
                prepared[transactional_id] = replace(decision, at=first.at)
            elif (before := prepared.pop(transactional_id, None)) and state in (COMPLETE_COMMIT, COMPLETE_ABORT):
                yield replace(before, commit=state == COMPLETE_COMMIT)
    yield from prepared.values()


def _state(record: Record) -> tuple[str, int, Decision | None]:
    """Return the transactional id, its state, and the decision."""
    key, value = Fields(record.key or b""), record.value or b""
    key.take("h")  # version
    transactional_id = key.text()
    fields = Fields(value)
    version = fields.take("h")
    if version not in (PLAIN, FLEXIBLE):
        raise ValueError(f"{STATE_TOPIC} has a record of version {version}, which is not known here")
    producer_id = fields.take("q")
    fields.take("h")  # epoch
    fields.take("i")  # timeout
    state = fields.take("b")
    if state not in (PREPARE_COMMIT, PREPARE_ABORT):
        return transactional_id, state, None
    partitions = frozenset(_partitions(fields, flexible=version == FLEXIBLE))
    at = fields.take("q")
    return transactional_id, state, Decision(producer_id, state == PREPARE_COMMIT, partitions, transactional_id, at)


def _partitions(fields: Fields, flexible: bool) -> Iterator[Partition]:
    for _ in range(fields.length(flexible)):
        topic = fields.compact_text() if flexible else fields.text()
        for _ in range(fields.length(flexible)):
            yield topic, fields.take("i")
        if flexible:
            fields.skip_tags()


# -- the group's records

_NUMBER = struct.Struct(">hq")
#: Versions of the key of a committed offset; other versions are for members.
OFFSET_KEYS = (0, 1)


def committed_offset(record: Record, group: str) -> tuple[Partition, int] | None:
    """Return partition and offset that a record of the offsets topic commits for a group, None for other records."""
    key = Fields(record.key or b"")
    if record.value is None or key.take("h") not in OFFSET_KEYS or key.text() != group:
        return None
    return (key.text(), key.take("i")), _NUMBER.unpack_from(record.value)[1]
