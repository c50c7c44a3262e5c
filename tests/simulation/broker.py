"""The brokers: those of penstock.testing.broker, which the schedule's clock and randomness drive.

Logs, transactions, epochs, committed offsets and the group's coordinator are theirs. This module adds the times at
which markers are written, outages, and the auditor's information: which process commits, and which one writes although
the group has removed it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias, TypeVar

from penstock.clients.cluster.brokers import ProducerId
from penstock.clients.cluster.cluster import error_codes
from penstock.clients.errors import ErrorCode, UnreachableError, broker_error, raise_for_code
from penstock.clients.protocol.messages import OFFSET_COMMIT, OFFSET_FETCH, TXN_OFFSET_COMMIT
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.protocol.schema import Request, SchemaApi
from penstock.clients.writing.transaction_requests import (
    NEW_PROTOCOL_LEVEL,
    TRANSACTION_VERSION,
    committed_offsets,
    txn_offset_commit,
)
from penstock.testing.broker.cluster import Cluster, Connection
from penstock.testing.broker.errors import ApiError
from penstock.testing.broker.group_coordinator import CommittedOffset
from penstock.testing.broker.partition_log import PartitionLog
from penstock.testing.broker.record_batches import NO_ORIGIN, NewRecord, Origin, StoredRecord, batch_of
from penstock.testing.broker.transaction_coordinator import TransactionState
from penstock.topology.records import RawRecord, TopicPartition
from tests.simulation.group import Group
from tests.simulation.stamps import without_stamp
from tests.simulation.world import Due, World

T = TypeVar("T")
GROUP = "app"
NODES = 2
#: How long after the decision a marker is written, at most, in ms; now and then it takes long.
MARKER_DELAY_MS = 5
MARKER_DELAY_LONG_MS = 1_500
MARKER_LONG_SHARE = 0.1
#: Wall clocks of the schedule are set forward by hours, which is no reason to refuse a record here.
TOPIC_CONFIG = {"message.timestamp.after.max.ms": str(2**62)}
Reply: TypeAlias = Callable[[Any], None]
_COMMITS = (OFFSET_COMMIT, TXN_OFFSET_COMMIT)
_FORMER_MEMBER = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.ILLEGAL_GENERATION}


@dataclass(frozen=True)
class _Asked:
    """A request without a response so far."""

    connection: Connection
    api: SchemaApi
    version: int
    reply: Reply


class Broker:
    """Topics, transactions, the group. on_commit: see Auditor; level: the finalized one of transaction.version.

    stale_writes: written by processes after the group has removed them; late_records: the stale writes of records that
    were also produced after the removal.
    """

    def __init__(self, world: World, on_commit: Any, level: int = NEW_PROTOCOL_LEVEL) -> None:
        self.world = world
        self.level = level
        chance, features = Random(f"broker {world.seed}"), {TRANSACTION_VERSION: level}
        self.cluster = Cluster(NODES, random=chance, features=features, send_marker=self._send_marker)
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.group = Group(world, self.cluster.groups.classic_to_join(GROUP, "consumer"))
        self._stored = self.cluster.groups.group(GROUP)
        self.stale_writes = self.late_records = 0
        self.cleanup_policies: dict[str, str] = {}
        self._on_commit = on_commit
        self._asked: list[_Asked] = []
        self._deadline_ms: float | None = None
        self._timer: Due | None = None

    @property
    def is_new(self) -> bool:
        """True if transactions are those of KIP-890."""
        return self.level >= NEW_PROTOCOL_LEVEL

    # The clock

    def do(self, change: Callable[[Cluster], T]) -> T:
        """Call change(cluster) now, and return its result; raises BrokerError if the cluster refuses it."""
        self._advance()
        try:
            return change(self.cluster)
        except ApiError as error:
            if error.code is ErrorCode.PRODUCER_FENCED:
                self.world.happened("a producer is fenced")
            raise broker_error(error.code, error.message) from error
        finally:
            self._set_timer()

    def _advance(self) -> None:
        self.follow_outage()
        if not self.world.brokers_away:
            self._note_timeouts()
        self.cluster.advance(self.world.now_ms)
        self._answer()

    def follow_outage(self) -> None:
        """Take all nodes down if brokers are away, and bring them back if they are not."""
        self.cluster.now_ms = self.world.now_ms
        for node in self.cluster.nodes.values():
            if node.up and self.world.brokers_away:
                self.cluster.stop_node(node.id)
            elif not node.up and not self.world.brokers_away:
                self.cluster.start_node(node.id)
        self._set_timer()

    def _note_timeouts(self) -> None:
        self.group.expiring()
        for transactional_id, found in self.cluster.transactions.transactions.items():
            if found.has_timed_out(self.world.now_ms):
                self.world.note("broker", f"the transaction of {transactional_id} has timed out")
                self.world.happened("a transaction times out")

    def _set_timer(self) -> None:
        deadline_ms = self.world.away_until_ms if self.world.brokers_away else self.cluster.deadline_ms()
        if deadline_ms == self._deadline_ms:
            return
        self._deadline_ms = deadline_ms
        if self._timer is not None:
            self.world.cancel(self._timer)
        self._timer = None
        if deadline_ms is not None and deadline_ms != math.inf:
            self._timer = self.world.after(int(deadline_ms) - self.world.now_ms, self._advance)

    def _send_marker(self, write: Callable[[], None]) -> None:
        chance = self.world.chance
        slow = chance.random() < MARKER_LONG_SHARE
        delay_ms = chance.randint(0, MARKER_DELAY_LONG_MS if slow else MARKER_DELAY_MS)
        self.world.after(delay_ms, lambda: self.do(lambda _: write()))

    # Requests

    def handle(self, client: str, request: Request, reply: Reply) -> None:
        """Handle a request, through its bytes; reply is called with the response, at once or later.

        It is called with None if the connection ends before.
        """
        if self.world.brokers_away:
            reply(None)
            return
        api = request.api
        version = min(api.highest, request.version_max)
        if api in _COMMITS:
            reply = self._watched(client, request, reply)
        self._advance()
        connection = self.cluster.connect(1)
        self._asked.append(_Asked(connection, api, version, reply))
        self.cluster.receive(connection, request.encode(version, 0, client), self.world.now_ms)
        self._answer()

    def exchange(self, request: Request, client: str) -> Any:
        """Handle a request that is answered at once, and return the response. Raises UnreachableError."""
        found: list[Any] = []
        self.handle(client, request, found.append)
        if found[0] is None:
            raise UnreachableError("the brokers are away")
        return found[0]

    def receive(self, node: int, data: bytes) -> bytes:
        """Handle the bytes of a request at a node, and return those of the response."""
        connection = self.cluster.connect(node)
        self.cluster.receive(connection, data, self.world.now_ms)
        self.cluster.disconnect(connection)
        self._set_timer()
        return connection.outbox.popleft()

    def _answer(self) -> None:
        self.group.observe()
        asked, self._asked = self._asked, []
        for one in asked:
            if one.connection.closed:
                one.reply(None)
                continue
            if not one.connection.outbox:
                self._asked.append(one)
                continue
            self.cluster.disconnect(one.connection)
            response = one.api.decode(one.connection.outbox.popleft(), one.version)
            if one.api is OFFSET_FETCH and ErrorCode.UNSTABLE_OFFSET_COMMIT in error_codes(response):
                self.world.happened("committed offsets are not decided yet")
            one.reply(response)
        self._set_timer()

    def _watched(self, client: str, request: Request, reply: Reply) -> Reply:
        """Let the auditor check what a process commits."""
        before = dict(self.committed)

        def said(response: Any) -> None:
            codes = set(error_codes(response))
            if not any(codes):
                self._on_commit(client, _offsets(request.body["topics"]), before)
            elif request.api is TXN_OFFSET_COMMIT and codes & _FORMER_MEMBER:
                self.world.happened("offsets of a former member are refused in a transaction")
            reply(response)

        return said

    # Topics

    @property
    def committed(self) -> Mapping[Any, CommittedOffset]:
        """The group's committed offsets by partition."""
        return self._stored.offsets

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic, unless it exists."""
        if topic in self.cluster.topics:
            return
        leaders = {number: [1 + number % NODES] for number in range(partitions)}
        created = self.do(lambda cluster: cluster.create_topic(topic, config=TOPIC_CONFIG, assignments=leaders))
        for number, partition in enumerate(created.partitions):
            self.logs[TopicPartition(topic, number)] = partition.log

    def partitions(self, topic: str) -> list[TopicPartition]:
        return sorted(partition for partition in self.logs if partition.topic == topic)

    def append(self, record: RawRecord, origin: Origin = NO_ORIGIN) -> None:
        """Write a record at the end of its partition. origin: its producer."""
        new = NewRecord(record.timestamp()[1], record.key(), record.value(), record.headers() or ())
        batch = batch_of([new], origin)
        self.cluster.topic(record.topic()).accept(record.partition(), batch, self.world.now_ms)

    def read(self, partition: TopicPartition, offset: int, committed_only: bool) -> Iterator[RawRecord]:
        """Yield the records that a consumer reads from an offset on."""
        return (_seen(partition, record) for record in self.logs[partition].visible(offset, committed_only))

    def visible(self, topic: str, committed_only: bool = True) -> list[RawRecord]:
        """Return the records that a consumer reads from a topic, partition by partition."""
        return [record for partition in self.partitions(topic) for record in self.read(partition, 0, committed_only)]

    def compact(self, topic: str, trimmed: bool) -> None:
        """Remove records that have a later record of the same key below the last stable offset.

        trimmed: also move the partitions' start after the removed records (segments of "compact,delete").
        """
        for partition in self.partitions(topic):
            log = self.logs[partition]
            log.compact()
            if trimmed:
                kept = log.visible(log.start, committed_only=True)
                log.delete_before(next((record.offset for record in kept), log.last_stable))

    # Producers

    def init_transactions(self, transactional_id: str, timeout_ms: int) -> ProducerId:
        """Fence the previous producer with this id and return the new one. Raises BrokerError."""
        return ProducerId(*self.do(lambda cluster: cluster.transactions.init(transactional_id, timeout_ms, -1, -1)))

    def is_free(self, transactional_id: str) -> bool:
        """Return whether the markers of the last transaction have been written."""
        return not self.cluster.transactions.transactions[transactional_id].is_ending

    def add(self, transactional_id: str, producer: ProducerId, partitions: Collection[TopicPartition]) -> None:
        """Let partitions take part in the open transaction, a new one if there is none. Raises BrokerError."""

        def add(cluster: Cluster) -> None:
            found = cluster.transactions.of(transactional_id, producer.id, producer.epoch)
            cluster.transactions.add(found, partitions)

        self.do(add)

    def write(self, record: RawRecord, client: str, term: int, origin: Origin = NO_ORIGIN) -> None:
        """Append a producer's record. term: the group term of the process when it produced the record."""
        if not origin.transactional:
            self.note_write(client, term)
        self.append(record, origin)

    def note_write(self, client: str, term: int) -> None:
        """Note that a process has written a record without a transaction."""
        is_late = term == self.group.term(client) and not self.group.is_current(client)
        self.stale_writes += is_late or term != self.group.term(client)
        self.late_records += is_late

    def add_offsets(
        self,
        transactional_id: str,
        producer: ProducerId,
        client: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        member: GroupMetadata,
    ) -> None:
        """Add consumed offsets to a transaction; raises BrokerError if the group has removed the member."""
        request = txn_offset_commit(transactional_id, producer, member, offsets, self.is_new)
        for code in committed_offsets(self.exchange(request, client)).values():
            raise_for_code(code, "offsets are refused in a transaction")

    def end_transaction(self, transactional_id: str, producer: ProducerId, commit: bool) -> None:
        """Decide the open transaction; without one nothing happens. Raises BrokerError."""

        def end(cluster: Cluster) -> None:
            found = cluster.transactions.of(transactional_id, producer.id, producer.epoch)
            if found.state is TransactionState.ONGOING:
                cluster.transactions.end(transactional_id, producer.id, producer.epoch, commit, new=False)

        self.do(end)


def _offsets(topics: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic["name"], one["partition_index"]): one["committed_offset"]
        for topic in topics
        for one in topic["partitions"]
    }


def _seen(partition: TopicPartition, record: StoredRecord) -> RawRecord:
    headers = without_stamp(record.headers)
    return RawRecord(*partition, record.offset, record.timestamp, record.key, record.value, headers)
