"""A TransactionalKafkaProducer, the brokers it writes to and its coordinators, which know both protocols (KIP-890)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from penstock.clients.cluster.brokers import Leader
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.errors import ErrorCode
from penstock.clients.protocol.offset_commits import GroupMetadata
from penstock.clients.protocol.schema import Request
from penstock.clients.writing.transaction_requests import TRANSACTION_VERSION
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.clients.writing.transactions import TransactionManager
from penstock.topology.records import TopicPartition
from tests.workers.produce_stage import LOG, OUT_0, OUT_1, ProduceStage, WrittenBrokers

TRANSACTIONAL_ID, PRODUCER_ID = "tx", 5
OLD, NEW = 1, 2
MEMBER = GroupMetadata("group", 3, "member", "instance")


@dataclass
class Coordinator:
    """The coordinator of a transactional id and of a group. level: the finalized one of transaction.version.

    visible: the records that consumers with read_committed see. open: those of the open transaction, by partition.
    """

    level: int = NEW
    epoch: int = -1
    generation: int = MEMBER.generation
    added: set[TopicPartition] = field(default_factory=set)
    group_added: bool = False
    is_open: bool = False
    open: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    pending: dict[TopicPartition, int] = field(default_factory=dict)
    visible: dict[TopicPartition, list[bytes]] = field(default_factory=dict)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    epochs_committed: dict[TopicPartition, int] = field(default_factory=dict)  # leader epochs of offsets
    last_end: tuple[int, bool] | None = None  # epoch and decision of the transaction before

    @property
    def _answers(self) -> dict[str, Callable[[Any, Request], SimpleNamespace]]:
        return {
            "ApiVersions": self._features,
            "InitProducerId": self._initialize,
            "AddPartitionsToTxn": self._add_partitions,
            "AddOffsetsToTxn": self._add_group,
            "TxnOffsetCommit": self._commit_offsets,
            "EndTxn": self._end,
        }

    def answer(self, request: Request) -> SimpleNamespace:
        """Handle a request and return the response."""
        return self._answers[request.api.name](SimpleNamespace(**request.body), request)

    def written(self, partition: TopicPartition, keys: list[bytes]) -> None:
        """Add the records that a partition's leader has written."""
        self.is_open = True
        self.open.setdefault(partition, []).extend(keys)

    def check_produce(self, partition: TopicPartition, epoch: int) -> int:
        """Return the error of a batch of an epoch, 0 if it may be written."""
        if epoch != self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return 0 if self.level == NEW or partition in self.added else ErrorCode.INVALID_TXN_STATE

    def _features(self, body: Any, request: Request) -> SimpleNamespace:
        level = SimpleNamespace(name=TRANSACTION_VERSION, max_version_level=self.level)
        return SimpleNamespace(error_code=0, finalized_features_epoch=1, finalized_features=[level])

    def _initialize(self, body: Any, request: Request) -> SimpleNamespace:
        if body.producer_id >= 0 and (body.producer_id, body.producer_epoch) != (PRODUCER_ID, self.epoch):
            return SimpleNamespace(error_code=ErrorCode.PRODUCER_FENCED, producer_id=-1, producer_epoch=-1)
        self._decide(commit=False)
        self.epoch += 1
        self.last_end = None
        return SimpleNamespace(error_code=0, producer_id=PRODUCER_ID, producer_epoch=self.epoch)

    def _add_partitions(self, body: Any, request: Request) -> SimpleNamespace:
        assert self.level == OLD
        code = self._check(body)
        partitions = [TopicPartition(topic["name"], index) for topic in body.topics for index in topic["partitions"]]
        if not code:
            self.is_open = True
            self.added.update(partitions)
        results = [SimpleNamespace(partition_index=p.partition, partition_error_code=code) for p in partitions]
        return SimpleNamespace(results_by_topic=[SimpleNamespace(name="out", results_by_partition=results)])

    def _add_group(self, body: Any, request: Request) -> SimpleNamespace:
        assert self.level == OLD
        code = self._check(body)
        if not code:
            self.is_open = self.group_added = True
        return SimpleNamespace(error_code=code)

    def _commit_offsets(self, body: Any, request: Request) -> SimpleNamespace:
        code = self._check(body)
        assert self.group_added or self.level == NEW
        assert (request.version_max >= 5) == (self.level == NEW)
        if not code and body.generation_id_or_member_epoch != self.generation:
            code = ErrorCode.ILLEGAL_GENERATION
        answers = []
        for topic in body.topics:
            for given in topic["partitions"]:
                at = TopicPartition(topic["name"], given["partition_index"])
                answers.append(SimpleNamespace(partition_index=at.partition, error_code=code))
                if not code:
                    self.is_open = True
                    self.pending[at] = given["committed_offset"]
                    self.epochs_committed[at] = given["committed_leader_epoch"]
        return SimpleNamespace(topics=[SimpleNamespace(name=body.topics[0]["name"], partitions=answers)])

    def _end(self, body: Any, request: Request) -> SimpleNamespace:
        is_new = request.version_max >= 5
        assert is_new == (self.level == NEW)
        ended = body.producer_epoch, body.committed
        again = self.last_end == ended
        code = 0 if again and not self.is_open else self._check(body)
        if not code and not again:
            if not self.is_open and (body.committed or not is_new):
                code = ErrorCode.INVALID_TXN_STATE
            else:
                self._decide(body.committed)
                self.last_end = ended
                self.epoch += is_new
        elif not code and self.is_open:
            self._decide(body.committed)  # the old protocol cannot distinguish a retry from the next transaction
        now = (PRODUCER_ID, self.epoch) if is_new and not code else (-1, -1)
        return SimpleNamespace(error_code=code, producer_id=now[0], producer_epoch=now[1])

    def _check(self, body: Any) -> int:
        mine = (body.producer_id, body.producer_epoch) == (PRODUCER_ID, self.epoch)
        return 0 if mine else ErrorCode.PRODUCER_FENCED

    def _decide(self, commit: bool) -> None:
        if commit:
            for partition, keys in self.open.items():
                self.visible.setdefault(partition, []).extend(keys)
            self.offsets |= self.pending
        self.open, self.pending, self.added = {}, {}, set()
        self.is_open = self.group_added = False


class TransactionBrokers(WrittenBrokers):
    """Brokers with a coordinator. pending: requests that a test answers; answers_at_once: whether there are none."""

    def __init__(self, leaders: Mapping[TopicPartition, Leader], level: int) -> None:
        super().__init__(leaders)
        self.coordinator = Coordinator(level)
        self.pending: deque[tuple[Request, Future[Any], Callable[[], None]]] = deque()
        self.answers_at_once = True
        self.questions: list[str] = []
        self.requests: list[Request] = []
        self.codes: list[int] = []  # of the next answers, in place of what they were

    def ask_coordinator(
        self, kind: CoordinatorKind, key: str, request: Any, on_done: Callable[[], None]
    ) -> Future[Any]:
        assert (kind, key) == (
            (CoordinatorKind.GROUP, MEMBER.group_id)
            if request.api.name == "TxnOffsetCommit"
            else (CoordinatorKind.TRANSACTION, TRANSACTIONAL_ID)
        )
        self.questions.append(request.api.name)
        self.requests.append(request)
        future: Future[Any] = Future()
        self.pending.append((request, future, on_done))
        if self.answers_at_once:
            self.answer_question()
        return future

    def answer_question(self, failure: Exception | None = None, is_done: bool = True) -> None:
        """Answer the next request. failure: raised instead of a response. is_done: whether the request is executed."""
        request, future, on_done = self.pending.popleft()
        answer = self.coordinator.answer(request) if is_done and not self.codes else None
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(answer or refused(request, self.codes.pop(0)))
        on_done()


def refused(request: Request, code: int) -> SimpleNamespace:
    """Return a response with an error only."""
    body = request.body
    if request.api.name == "AddPartitionsToTxn":
        results = [
            SimpleNamespace(
                name=topic["name"],
                results_by_partition=[
                    SimpleNamespace(partition_index=index, partition_error_code=code) for index in topic["partitions"]
                ],
            )
            for topic in body["topics"]
        ]
        return SimpleNamespace(results_by_topic=results)
    if request.api.name == "TxnOffsetCommit":
        topics = [
            SimpleNamespace(
                name=topic["name"],
                partitions=[
                    SimpleNamespace(partition_index=each["partition_index"], error_code=code)
                    for each in topic["partitions"]
                ],
            )
            for topic in body["topics"]
        ]
        return SimpleNamespace(topics=topics)
    return SimpleNamespace(error_code=code, producer_id=-1, producer_epoch=-1)


class TransactionStage(ProduceStage):
    """A TransactionalKafkaProducer whose brokers and coordinator answer while it waits."""

    producer: TransactionalKafkaProducer
    brokers: TransactionBrokers

    def __init__(self, level: int = NEW, leaders: Mapping[TopicPartition, Leader] | None = None, **settings: Any):
        self.level = level
        self._leaders = leaders or {OUT_0: Leader(1, 5), OUT_1: Leader(1, 6)}
        settings = {"transactional_id": TRANSACTIONAL_ID, "transaction_timeout_ms": 60_000, **settings}
        super().__init__(self._leaders, **settings)

    def new_brokers(self, leaders: Mapping[TopicPartition, Leader]) -> TransactionBrokers:
        return TransactionBrokers(leaders, self.level)

    def new_producer(self) -> TransactionalKafkaProducer:
        """Return a producer for these brokers, whose transactions are not initialized yet."""
        made = TransactionalKafkaProducer(self.brokers, self.settings, self.clock, LOG, seed=0)
        made._sender.wait = self.serve  # type: ignore[method-assign,assignment]
        return made

    @property
    def transactions(self) -> TransactionManager:
        return self.producer._transactions

    def lose_connection(self) -> None:
        """End the connection to broker 1."""
        self.brokers.ends.pop(1).close()

    def has_request(self) -> bool:
        """Return whether broker 1 has a request to answer."""
        return 1 in self.brokers.ends and self.brokers.has_request()

    def serve(self, now: int, until: float) -> None:
        """Let time pass in which brokers answer."""
        self.clock.advance(20)
        for node in self.brokers.ends:
            while self.brokers.has_request(node):
                request = self.brokers.request(node)
                for partition, sent in request.batches.items():
                    assert sent.in_transaction
                    assert not self.brokers.coordinator.check_produce(partition, sent.epoch)
                    self.brokers.coordinator.written(partition, list(sent.keys))
                self.brokers.reply(request, node=node)
