"""The brokers of the producers of clients/writing: transaction coordinators, and leaders of partitions.

As in Kafka (TransactionCoordinator, GroupCoordinator, ReplicaManager, ProducerStateManager), with both protocols of
transactions (KIP-890). Requests and answers go through their bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from penstock.clients.errors import BrokerError, ErrorCode
from penstock.clients.protocol.compact import CompactReader
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.protocol.produce_messages import NEW_TRANSACTIONS_VERSION
from penstock.clients.protocol.schema import Request
from penstock.clients.writing.transaction_requests import NEW_PROTOCOL_LEVEL, TRANSACTION_VERSION
from penstock.topology.records import RawRecord, TopicPartition
from tests.produce_bytes import ProduceBytes
from tests.simulation.broker import Broker, Transaction, Writer

#: A header with the group term of the process that produced a record, and the time; it is not stored.
STAMP = "simulation"
#: The first versions of the new protocol.
_NEW_END_TXN = _NEW_TXN_OFFSET_COMMIT = 5
OK = ErrorCode.NONE


class Coordinators:
    """The brokers of a schedule. level: the finalized one of transaction.version."""

    def __init__(self, broker: Broker, level: int) -> None:
        self._broker = broker
        self._level = level
        self._producer_ids = 0
        self._answers: Mapping[str, Callable[[Any, Any], Mapping[str, Any]]] = {
            "ApiVersions": self._features,
            "InitProducerId": self._initialize,
            "AddPartitionsToTxn": self._add_partitions,
            "AddOffsetsToTxn": self._add_group,
            "TxnOffsetCommit": self._commit_offsets,
            "EndTxn": self._end,
        }

    @property
    def is_new(self) -> bool:
        """Whether transactions are those of KIP-890."""
        return self._level >= NEW_PROTOCOL_LEVEL

    def answer(self, request: Request, holder: Any) -> Any:
        """Handle a request and return the response. holder: the requesting producer, with client and timeout."""
        api = request.api
        version = min(api.highest, request.version_max)
        flexible = version >= api.flexible
        asked = api.request.decode(
            CompactReader(api.request.encode(request.body, version, flexible)), version, flexible
        )
        asked.version = version
        said = self._answers[api.name](asked, holder)
        return api.response.decode(CompactReader(api.response.encode(said, version, flexible)), version, flexible)

    def producer_id(self) -> int:
        """Return an id that no other producer has."""
        self._producer_ids += 1
        return self._producer_ids

    def is_held_by(self, holder: object) -> bool:
        """Return whether this process still holds a transactional id, that is, was not fenced."""
        return any(writer.holder is holder for writer in self._broker.writers.values())

    def _features(self, asked: Any, holder: Any) -> Mapping[str, Any]:
        level = {"name": TRANSACTION_VERSION, "max_version_level": self._level, "min_version_level": self._level}
        return {"finalized_features_epoch": 1, "finalized_features": [level]}

    # Transactions

    def _initialize(self, asked: Any, holder: Any) -> Mapping[str, Any]:
        writer = self._broker.writers.setdefault(asked.transactional_id, Writer(producer_id=self.producer_id()))
        is_known = asked.producer_id >= 0
        if is_known and asked.producer_epoch == writer.known_epoch and writer.current is None:
            return self._now(writer)  # again: the answer was lost
        if is_known and (asked.producer_id, asked.producer_epoch) != (writer.producer_id, writer.epoch):
            return {"error_code": ErrorCode.PRODUCER_FENCED}
        if writer.current is not None:
            writer.epoch += 1
            writer.holder = None
            self._broker.decide(writer, commit=False)
        if writer.ending is not None:
            return {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS}
        writer.known_epoch = asked.producer_epoch if is_known else -1
        writer.epoch += 1
        writer.committed, writer.holder = None, holder
        return self._now(writer)

    def _now(self, writer: Writer) -> Mapping[str, Any]:
        return {"error_code": OK, "producer_id": writer.producer_id, "producer_epoch": writer.epoch}

    def _writer(self, asked: Any) -> tuple[ErrorCode, Writer]:
        writer = self._broker.writers[asked.transactional_id]
        if writer.producer_id != asked.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING, writer
        if writer.epoch != asked.producer_epoch:
            self._broker.world.happened("a producer is fenced")
            return ErrorCode.PRODUCER_FENCED, writer
        return (OK if writer.ending is None else ErrorCode.CONCURRENT_TRANSACTIONS), writer

    def _open(self, writer: Writer, transactional_id: str, holder: Any) -> Transaction:
        return self._broker.transaction(transactional_id, writer.epoch, holder.client, holder.transaction_timeout_ms)

    def _add_partitions(self, asked: Any, holder: Any) -> Mapping[str, Any]:
        assert not self.is_new
        code, writer = self._writer(asked)
        partitions = [TopicPartition(topic.name, index) for topic in asked.topics for index in topic.partitions]
        if code is OK:
            self._open(writer, asked.transactional_id, holder).added.update(partitions)
        results = [
            {"name": p.topic, "results_by_partition": [{"partition_index": p.partition, "partition_error_code": code}]}
            for p in partitions
        ]
        return {"results_by_topic": results}

    def _add_group(self, asked: Any, holder: Any) -> Mapping[str, Any]:
        assert not self.is_new
        code, writer = self._writer(asked)
        if code is OK:
            self._open(writer, asked.transactional_id, holder).has_group = True
        return {"error_code": code}

    def _commit_offsets(self, asked: Any, holder: Any) -> Mapping[str, Any]:
        assert (asked.version >= _NEW_TXN_OFFSET_COMMIT) == self.is_new
        code, writer = self._writer(asked)
        offsets = {
            TopicPartition(topic.name, at.partition_index): OffsetAndMetadata(
                at.committed_offset, at.committed_metadata or "", at.committed_leader_epoch
            )
            for topic in asked.topics
            for at in topic.partitions
        }
        if code == ErrorCode.PRODUCER_FENCED:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        elif code is OK and not self.is_new and not (writer.current is not None and writer.current.has_group):
            code = ErrorCode.INVALID_TXN_STATE
        if code is OK:
            code = self._take_offsets(asked, writer, offsets, holder)
        topics = [
            {"name": p.topic, "partitions": [{"partition_index": p.partition, "error_code": code}]} for p in offsets
        ]
        return {"topics": topics}

    def _take_offsets(
        self, asked: Any, writer: Writer, offsets: Mapping[TopicPartition, OffsetAndMetadata], holder: Any
    ) -> ErrorCode:
        member = GroupMetadata(
            asked.group_id, asked.generation_id_or_member_epoch, asked.member_id, asked.group_instance_id
        )
        try:
            self._broker.add_offsets(self._open(writer, asked.transactional_id, holder), offsets, member)
        except BrokerError as error:
            return error.code
        return OK

    def _end(self, asked: Any, holder: Any) -> Mapping[str, Any]:
        assert (asked.version >= _NEW_END_TXN) == self.is_new
        code, writer = self._writer(asked)
        decided_before = asked.producer_epoch + 1 if self.is_new else asked.producer_epoch
        if code == ErrorCode.INVALID_PRODUCER_ID_MAPPING:
            return {"error_code": code}
        if writer.current is None and writer.committed is not None and writer.epoch == decided_before:  # once more
            if writer.committed != asked.committed:
                return {"error_code": ErrorCode.INVALID_TXN_STATE}
            if writer.ending is not None:
                return {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS}
            writer.holder = holder
            return self._ended(writer)
        if code is not OK:
            return {"error_code": code}
        if writer.current is None and (asked.committed or not self.is_new):
            return {"error_code": ErrorCode.INVALID_TXN_STATE}
        if writer.current is not None:
            self._broker.decide(writer, asked.committed)
        writer.committed = asked.committed
        writer.epoch += self.is_new
        return self._ended(writer)

    def _ended(self, writer: Writer) -> Mapping[str, Any]:
        return self._now(writer) if self.is_new else {"error_code": OK}

    # Records

    def produce(self, request: ProduceBytes, holder: Any) -> dict[TopicPartition, int]:
        """Write the batches of a request; return the codes of the errors."""
        return {
            partition: self._write(request, partition, batch, holder)
            for partition, batch in request.record_batches.items()
        }

    def _write(self, request: ProduceBytes, partition: TopicPartition, batch: Any, holder: Any) -> int:
        log = self._broker.logs.get(partition)
        if log is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        transaction: Transaction | None = None
        if request.transactional_id is not None:
            assert batch.is_transactional
            code, found = self._transaction_of(request, partition, batch, holder)
            if found is None:
                return code
            transaction = found
        records = list(batch)
        code = log.producers.append(batch.producer_id, batch.producer_epoch, batch.base_sequence, len(records))
        if code:
            again = code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
            return OK if again else code
        for record in records:
            stamp, headers = stamp_of(record.headers)
            written = RawRecord(*partition, -1, record.timestamp, record.key, record.value, headers)
            self._broker.write(written, transaction, holder.client, stamp.term)
        return OK

    def _transaction_of(
        self, request: ProduceBytes, partition: TopicPartition, batch: Any, holder: Any
    ) -> tuple[int, Transaction | None]:
        assert request.transactional_id is not None
        assert (request.version >= NEW_TRANSACTIONS_VERSION) == self.is_new
        who = SimpleNamespace(
            transactional_id=request.transactional_id,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
        )
        code, writer = self._writer(who)
        if code == ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH, None
        if code is not OK:
            return code, None
        if not self.is_new and (writer.current is None or partition not in writer.current.added):
            return ErrorCode.INVALID_TXN_STATE, None
        return OK, self._open(writer, request.transactional_id, holder)


class Stamp(SimpleNamespace):
    """When a record was produced. term: of its process in the group; served_ms: how long its process had run."""

    term: int
    served_ms: int


def stamped(headers: Any, term: int, served_ms: int) -> list[tuple[str, bytes | None]]:
    """Return a record's headers with a stamp."""
    return [*(headers or ()), (STAMP, b"%d %d" % (term, served_ms))]


def stamp_of(headers: Any) -> tuple[Stamp, list[tuple[str, bytes | None]] | None]:
    """Return a record's stamp, and its headers without it."""
    term, served_ms = next(value for name, value in headers if name == STAMP).split()
    rest = [(name, value) for name, value in headers if name != STAMP]
    return Stamp(term=int(term), served_ms=int(served_ms)), rest or None
