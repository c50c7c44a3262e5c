"""Puts transactions together from the log: which records of which partitions each one holds, and how it was decided.

The coordinator's log (``__transaction_state``) says of each transaction how it was decided and which partitions take
part. In each of these the producer's batches end with a marker. The n-th marker of a producer in a partition belongs
to its n-th transaction there. A marker may be written twice: by the next coordinator when the first one has failed in
between, or by the same one when the partition's leader has failed before it answered. The second one ends no batch.
Where each transaction has its own epoch (KIP-890), it has that of the first one.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.chaos.checkers.log_reader import Fields, Log, LogReader, Partition
from tests.chaos.checkers.record_batches import Marker, Record

STATE_TOPIC, OFFSETS_TOPIC = "__transaction_state", "__consumer_offsets"
#: Kafka's TransactionState.
PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT = 2, 3, 4, 5
#: Versions of the value of a transaction's record: with plain fields, and with compact ones.
PLAIN, FLEXIBLE = 0, 1


@dataclass(frozen=True)
class Decision:
    """What the coordinator has decided about a transaction."""

    producer_id: int
    commit: bool
    partitions: frozenset[Partition]
    transactional_id: str = ""


@dataclass
class Transaction:
    """A decided transaction and its records. parts: by partition; a partition without records is not in it.

    incomplete: partitions whose records of this transaction may have been deleted since (DeleteRecords).
    """

    decision: Decision
    number: int
    parts: dict[Partition, list[Record]] = field(default_factory=dict)
    incomplete: set[Partition] = field(default_factory=set)

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.decision.transactional_id or self.decision.producer_id}"


@dataclass(frozen=True, slots=True)
class Segment:
    """A producer's batches in a partition up to a marker. first: offset of its first record, or of its marker.

    epoch: the producer's, as the marker has it.
    """

    first: int
    records: list[Record]
    marker: Marker
    epoch: int


@dataclass(frozen=True)
class History:
    """Everything that was written in transactions. faults: what is wrong with the markers alone."""

    transactions: list[Transaction]
    faults: list[str]

    @classmethod
    def read(cls, reader: LogReader, topics: Iterable[str]) -> History:
        """Read it from a cluster at rest; topics: all that transactions wrote to, the offsets come of themselves."""
        states = reader.read_topics(STATE_TOPIC)
        if any(log.start for log in states.values()):
            raise ValueError(f"{STATE_TOPIC} has lost its beginning: the run was too long for its segments")
        return cls.of(decisions(states), reader.read_topics(OFFSETS_TOPIC, *topics))

    @classmethod
    def of(cls, decided: Iterable[Decision], logs: Mapping[Partition, Log]) -> History:
        """Put decisions and partitions together."""
        faults: list[str] = []
        transactions = [Transaction(decision, number) for number, decision in enumerate(decided)]
        by_place: defaultdict[tuple[int, Partition], list[Transaction]] = defaultdict(list)
        for transaction in transactions:
            for partition in transaction.decision.partitions:
                by_place[transaction.decision.producer_id, partition].append(transaction)
        for partition, log in logs.items():
            for producer_id, segments in _segments(partition, log, faults).items():
                _assign(partition, log.start, producer_id, segments, by_place[producer_id, partition], faults)
        for (producer_id, partition), waiting in by_place.items():
            if partition in logs and not _ended(logs[partition], producer_id):
                _assign(partition, logs[partition].start, producer_id, [], waiting, faults)
        return cls(transactions, faults)


def _ended(log: Log, producer_id: int) -> bool:
    return any(batch.marker and batch.producer_id == producer_id for batch in log.batches)


def _segments(partition: Partition, log: Log, faults: list[str]) -> dict[int, list[Segment]]:
    """Return each producer's segments of a partition; what has no marker at the end is a fault: it holds readers up."""
    ended: defaultdict[int, list[Segment]] = defaultdict(list)
    open_: defaultdict[int, list[Record]] = defaultdict(list)
    for batch in log.batches:
        if not batch.transactional:
            continue
        records = open_[batch.producer_id]
        if batch.marker is None:
            records += batch.records
        else:
            first = records[0].offset if records else batch.first
            ended[batch.producer_id].append(Segment(first, records, batch.marker, batch.epoch))
            open_[batch.producer_id] = []
    for producer_id, records in open_.items():
        if records:
            at = f"{_name(partition)} offset {records[0].offset}"
            faults.append(f"open: a transaction of producer {producer_id} at {at} has no end")
    return ended


def _assign(
    partition: Partition,
    start: int,
    producer_id: int,
    segments: list[Segment],
    transactions: list[Transaction],
    faults: list[str],
) -> None:
    """Give each segment to its transaction, the last to the last: the first ones may have been deleted."""
    if start:
        segments = _without_repeated_commits(segments)
    segments = _without_repetitions(segments, [transaction.decision.commit for transaction in transactions])
    known = transactions[max(len(transactions) - len(segments), 0) :]
    for transaction in transactions[: len(transactions) - len(known)]:
        transaction.incomplete.add(partition)
    if len(segments) > len(transactions) or (len(segments) < len(transactions) and not start):
        faults.append(
            f"torn: {_name(partition)} has {len(segments)} markers of producer {producer_id}, whose coordinator "
            f"has decided {len(transactions)} transactions there"
        )
        return
    for segment, transaction in zip(segments, known, strict=True):
        if segment.marker.commit != transaction.decision.commit:
            at = f"{_name(partition)} offset {segment.first}"
            faults.append(f"torn: {transaction} ends at {at} otherwise than its coordinator has decided")
        if start and segment is segments[0]:  # whole segments of the log are deleted: what came before may be, too
            transaction.incomplete.add(partition)
        if records := [record for record in segment.records if record.offset >= start]:
            transaction.parts[partition] = records


def _without_repeated_commits(segments: list[Segment]) -> list[Segment]:
    """Leave out markers of commits that were written twice where the beginning is gone, so that none can be counted.

    A committed transaction has written to each partition that takes part in it; an aborted one may not have.
    """
    repeated = [after.marker.commit and _repeats(before, after) for before, after in pairwise(segments)]
    return segments[:1] + [segment for segment, leave_out in zip(segments[1:], repeated, strict=True) if not leave_out]


def _without_repetitions(segments: list[Segment], decided: list[bool]) -> list[Segment]:
    """Leave out markers that were written twice: those of an epoch that has ended, else as decisions say.

    decided: of each transaction whether it was committed. Where all transactions of a producer have one epoch, a marker
    without records may be a repetition, or the end of a transaction that wrote nothing here.
    """
    epochs = [segment.epoch for segment in segments if segment.records]
    kept: list[Segment] = []
    if len(set(epochs)) > 1 and all(one != next_ for one, next_ in pairwise(epochs)):
        for segment in segments:
            if not (kept and kept[-1].epoch == segment.epoch and _repeats(kept[-1], segment)):
                kept.append(segment)
        return kept
    surplus = len(segments) - len(decided)
    for segment in segments:
        kept.append(segment)
        at = len(kept) - 1
        if surplus > 0 and (at == len(decided) or segment.marker.commit != decided[at]):
            surplus -= _drop_last_repetition(kept, decided)
    while surplus > 0 and _drop_last_repetition(kept, decided):
        surplus -= 1
    return kept


def _repeats(before: Segment, segment: Segment) -> bool:
    return (
        not segment.records
        and before.marker.commit == segment.marker.commit
        and before.marker.coordinator_epoch <= segment.marker.coordinator_epoch
    )


def _drop_last_repetition(kept: list[Segment], decided: list[bool]) -> bool:
    """Take out the last marker that may be a repetition and without which the ones behind it are as decided."""
    for at in range(len(kept) - 1, 0, -1):
        if _repeats(kept[at - 1], kept[at]):
            del kept[at]
            return True
        if at > len(decided) or kept[at].marker.commit != decided[at - 1]:
            return False  # in the place before its own it would be wrong
    return False


def _name(partition: Partition) -> str:
    return f"{partition[0]}-{partition[1]}"


# -- the coordinators' records


def decisions(states: Mapping[Partition, Log]) -> list[Decision]:
    """Return what coordinators have decided, each producer's transactions in their order."""
    return [decision for log in states.values() for decision in _decisions(log)]


def _decisions(log: Log) -> Iterator[Decision]:
    """Yield them in order: of what was prepared more than once the last, and what is still to be completed.

    The next coordinator may prepare once more what was not complete. And what was prepared may not have reached enough
    replicas: the producer is told so, and the coordinator may decide otherwise, or let the transaction continue.
    """
    prepared: dict[str, Decision] = {}
    for batch in log.batches:
        for record in batch.records:
            if record.value is None:
                continue
            transactional_id, state, decision = _state(record)
            if decision is not None:
                prepared[transactional_id] = decision
            elif (before := prepared.pop(transactional_id, None)) and state in (COMPLETE_COMMIT, COMPLETE_ABORT):
                yield replace(before, commit=state == COMPLETE_COMMIT)
    yield from prepared.values()


def _state(record: Record) -> tuple[str, int, Decision | None]:
    """Return whose state it is, the state, and what is decided by it."""
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
    return transactional_id, state, Decision(producer_id, state == PREPARE_COMMIT, partitions, transactional_id)


def _partitions(fields: Fields, flexible: bool) -> Iterator[Partition]:
    for _ in range(fields.length(flexible)):
        topic = fields.compact_text() if flexible else fields.text()
        for _ in range(fields.length(flexible)):
            yield topic, fields.take("i")
        if flexible:
            fields.skip_tags()


# -- the group's records

_NUMBER = struct.Struct(">hq")
#: Versions of the key of a committed offset; others are of members.
OFFSET_KEYS = (0, 1)


def committed_offset(record: Record, group: str) -> tuple[Partition, int] | None:
    """Return partition and offset that a record of the offsets' topic commits for a group, None for any other."""
    key = Fields(record.key or b"")
    if record.value is None or key.take("h") not in OFFSET_KEYS or key.text() != group:
        return None
    return (key.text(), key.take("i")), _NUMBER.unpack_from(record.value)[1]
