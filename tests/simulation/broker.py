"""The brokers: logs, transactions with their coordinator, and the application's group (Kafka: Partition,
TransactionCoordinator, ProducerStateManager).

A transaction is decided at one moment and its markers reach each partition, and the committed offsets, later and not
all at once. Until then readers with read_committed stop before its first record (the last stable offset).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from penstock.clients.errors import ErrorCode, broker_error
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.topology.records import RawRecord, TopicPartition
from tests.produce_bytes import KnownProducers
from tests.simulation.group import Group, Offsets
from tests.simulation.world import Due, World

#: How long after the decision a marker is written, at most, in ms; now and then it takes long.
MARKER_DELAY_MS = 5
MARKER_DELAY_LONG_MS = 1_500
MARKER_LONG_SHARE = 0.1


@dataclass(eq=False)
class Transaction:
    """One transaction. committed: None until it is decided. markers_due: partitions, and offsets, without a marker yet.

    added: what a producer of the old protocol has said that it will write; has_group: and that offsets will come.
    """

    transactional_id: str
    epoch: int
    client: str
    timeout: Due | None = None
    partitions: dict[TopicPartition, None] = field(default_factory=dict)
    offsets: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    committed: bool | None = None
    markers_due: int = 0
    added: set[TopicPartition] = field(default_factory=set)
    has_group: bool = False


@dataclass(eq=False)
class Writer:
    """A transactional id at its coordinator.

    known_epoch: the epoch of the request that led to the current one. committed: the last decision, None if the current
    producer has none yet. holder: the process that holds the epoch, None if it was fenced.
    """

    epoch: int = -1
    producer_id: int = -1
    known_epoch: int = -1
    committed: bool | None = None
    holder: object = None
    current: Transaction | None = None
    ending: Transaction | None = None


@dataclass
class Log:
    """One partition. records: by offset, None for a marker or what was compacted away; owners: their transactions.

    producers: those that write batches with numbers.
    """

    records: list[RawRecord | None] = field(default_factory=list)
    owners: list[Transaction | None] = field(default_factory=list)
    start: int = 0
    undecided: dict[Transaction, int] = field(default_factory=dict)
    producers: KnownProducers = field(default_factory=KnownProducers)

    @property
    def end(self) -> int:
        return len(self.records)

    def readable_end(self, committed_only: bool) -> int:
        """Return the high watermark, or the last stable offset."""
        return min(self.undecided.values()) if committed_only and self.undecided else self.end

    def read(self, position: int, committed_only: bool) -> RawRecord | None:
        """Return what a consumer gets to see at an offset."""
        owner = self.owners[position]
        return None if committed_only and owner is not None and not owner.committed else self.records[position]

    def append(self, record: RawRecord | None, owner: Transaction | None) -> None:
        self.records.append(record)
        self.owners.append(owner)


class Broker:
    """Topics, transactions, the group. on_commit: see Group; stale_writes: from processes the group had given up;
    late_records: those of them that were also produced after that."""

    def __init__(self, world: World, on_commit: Any) -> None:
        self.world = world
        self.logs: dict[TopicPartition, Log] = {}
        self.offsets = Offsets()
        self.group = Group(world, self.offsets, on_commit)
        self.writers: dict[str, Writer] = {}
        self.stale_writes = self.late_records = 0
        self._on_commit = on_commit
        self.cleanup_policies: dict[str, str] = {}

    # Topics; the names are those that tests.workers.memory_kafka.MemoryAdmin calls

    @property
    def deleted_before(self) -> dict[TopicPartition, int]:
        return {}

    @property
    def committed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        return self.offsets.committed

    def create_topic(self, topic: str, partitions: int) -> None:
        for number in range(partitions):
            self.logs.setdefault(TopicPartition(topic, number), Log())

    def partitions(self, topic: str) -> list[TopicPartition]:
        return sorted(partition for partition in self.logs if partition.topic == topic)

    def append(self, record: RawRecord, owner: Transaction | None = None) -> None:
        """Write a record at the end of its partition; its offset is set here."""
        log = self.logs[TopicPartition(record.topic(), record.partition())]
        placed = RawRecord(
            record.topic(),
            record.partition(),
            log.end,
            record.timestamp()[1],
            record.key(),
            record.value(),
            record.headers(),
        )
        log.append(placed, owner)

    def visible(self, topic: str, committed_only: bool = True) -> list[RawRecord]:
        """Return what a consumer reads of a topic, partition by partition."""
        found = []
        for partition in self.partitions(topic):
            log = self.logs[partition]
            read = (log.read(offset, committed_only) for offset in range(log.readable_end(committed_only)))
            found += [record for record in read if record is not None]
        return found

    def compact(self, topic: str, trimmed: bool) -> None:
        """Remove records that have a later record of the same key below the last stable offset.

        trimmed: also move the partitions' start after the removed records (segments of "compact,delete").
        """
        for partition in self.partitions(topic):
            log = self.logs[partition]
            stable = log.readable_end(committed_only=True)
            last = {r.key(): o for o in range(stable) if (r := log.read(o, committed_only=True)) is not None}
            keep = set(last.values())
            for offset in range(stable):
                if offset not in keep:
                    log.records[offset] = None
            if trimmed:
                log.start = max(log.start, min(keep, default=stable))

    # Transactions

    def init_transactions(self, transactional_id: str) -> int:
        """Fence the previous producer with this id and return the new epoch. The caller waits until is_free."""
        writer = self.writers.setdefault(transactional_id, Writer())
        if writer.current is not None:
            self._decide(writer, writer.current, commit=False)
        writer.epoch += 1
        return writer.epoch

    def is_free(self, transactional_id: str) -> bool:
        """Return whether the markers of the last transaction have been written."""
        return self.writers[transactional_id].ending is None

    def check_epoch(self, transactional_id: str, epoch: int) -> Writer:
        """Return the writer; raises the error of a fenced producer."""
        writer = self.writers[transactional_id]
        if writer.epoch != epoch:
            self.world.happened("a producer is fenced")
            raise broker_error(ErrorCode.PRODUCER_FENCED, "the producer has been fenced")
        return writer

    def transaction(self, transactional_id: str, epoch: int, client: str, timeout_ms: int) -> Transaction:
        """Return the open transaction, a new one if there is none."""
        writer = self.check_epoch(transactional_id, epoch)
        if writer.current is None:
            opened = writer.current = Transaction(transactional_id, epoch, client)
            opened.timeout = self.world.after(timeout_ms, lambda: self._time_out(writer, opened))
        return writer.current

    def write(self, record: RawRecord, transaction: Transaction | None, client: str, term: int) -> None:
        """Append a producer's record. term: the group term of the process when it produced the record."""
        partition = TopicPartition(record.topic(), record.partition())
        if transaction is None:
            is_late = term == self.group.term(client) and not self.group.is_current(client)
            self.stale_writes += is_late or term != self.group.term(client)
            self.late_records += is_late
        else:
            transaction.partitions[partition] = None
            log = self.logs[partition]
            log.undecided.setdefault(transaction, log.end)
        self.append(record, transaction)

    def add_offsets(
        self, transaction: Transaction, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: GroupMetadata
    ) -> None:
        """Add consumed offsets to a transaction; raises the error of a member that the group has removed."""
        is_member = member.generation >= 0 or bool(member.member_id)  # without a member id there is no check
        code = self.group.check(member.member_id, member.instance_id, member.generation) if is_member else 0
        if code:
            self.world.happened("offsets of a former member are refused in a transaction")
            raise broker_error(code, "the group has continued without this member")
        self._on_commit(transaction.client, offsets)
        transaction.offsets |= offsets
        for partition in offsets:
            self.offsets.pending[partition] = transaction

    def end_transaction(self, transactional_id: str, epoch: int, commit: bool) -> None:
        """Decide the open transaction; without one nothing happens."""
        writer = self.check_epoch(transactional_id, epoch)
        if writer.current is not None:
            self._decide(writer, writer.current, commit)

    def decide(self, writer: Writer, commit: bool) -> None:
        """Decide the open transaction of a producer."""
        assert writer.current is not None
        self._decide(writer, writer.current, commit)

    def _time_out(self, writer: Writer, transaction: Transaction) -> None:
        if writer.current is transaction:
            self.world.note("broker", f"the transaction of {transaction.client} has timed out")
            self.world.happened("a transaction times out")
            writer.epoch += 1
            writer.holder = None
            self._decide(writer, transaction, commit=False)

    def _decide(self, writer: Writer, transaction: Transaction, commit: bool) -> None:
        transaction.committed = writer.committed = commit
        if transaction.timeout is not None:
            self.world.cancel(transaction.timeout)
        writer.current, writer.ending = None, transaction
        transaction.markers_due = 1 + len(transaction.partitions)
        chance = self.world.chance
        for partition in [*transaction.partitions, None]:
            slow = chance.random() < MARKER_LONG_SHARE
            delay_ms = chance.randint(0, MARKER_DELAY_LONG_MS if slow else MARKER_DELAY_MS)
            self.world.after(delay_ms, partial(self._mark, writer, transaction, partition))

    def _mark(self, writer: Writer, transaction: Transaction, partition: TopicPartition | None) -> None:
        if partition is not None:
            log = self.logs[partition]
            log.append(None, None)
            del log.undecided[transaction]
        else:
            for held, holder in list(self.offsets.pending.items()):
                if holder is transaction:
                    del self.offsets.pending[held]
            if transaction.committed:
                self.offsets.committed |= transaction.offsets
        transaction.markers_due -= 1
        if transaction.markers_due == 0 and writer.ending is transaction:
            writer.ending = None
