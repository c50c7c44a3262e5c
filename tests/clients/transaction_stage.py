"""A TransactionalKafkaProducer, its brokers and its coordinators, which support both protocols (KIP-890)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from penstock.clients.cluster.brokers import Leader
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.errors import ErrorCode
from penstock.clients.protocol.offset_commits import GroupMetadata
from penstock.clients.protocol.schema import Request
from penstock.clients.writing.transaction_requests import TRANSACTION_VERSION
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.clients.writing.transactions import TransactionManager
from penstock.testing.broker.classic_group import GroupState, Member
from penstock.testing.wire import Fail, Rule
from penstock.topology.records import TopicPartition
from tests.clients.produce_stage import LOG, OUT_0, OUT_1, ProduceStage, WrittenBrokers
from tests.direct_kafka import GROUP, NEVER_MS, Caller, DirectKafka
from tests.manual_clock import ManualClock

#: The first producer id that the in-memory broker assigns.
TRANSACTIONAL_ID, PRODUCER_ID = "tx", 0
OLD, NEW = 1, 2
MEMBER = GroupMetadata(GROUP, 3, "member", "instance")


class TransactionBrokers(WrittenBrokers):
    """Brokers with the coordinators and logs of the in-memory broker.

    pending: requests that a test answers; answers_at_once: True if requests are answered at once.
    """

    def __init__(self, leaders: Mapping[TopicPartition, Leader], level: int, clock: ManualClock) -> None:
        super().__init__(leaders)
        self.kafka = DirectKafka(clock)
        self.kafka.create_topic(OUT_0.topic, len(leaders))
        self.kafka.create_topic("in")
        self.set_level(level)
        self._join()
        self.writing, self.asking = Caller(self.kafka, "writing"), Caller(self.kafka, "asking")
        self.pending: deque[tuple[Request, Future[Any], Callable[[], None]]] = deque()
        self.answers_at_once = True
        self.questions: list[str] = []
        self.requests: list[Request] = []

    def set_level(self, level: int) -> None:
        """Set the finalized level of transaction.version."""
        self.kafka.features[TRANSACTION_VERSION] = level

    def _join(self) -> None:
        """Make MEMBER a member of its group."""
        group, now_ms = self.kafka.group, self.kafka.clock.wall_clock_ms()
        group.state, group.generation = GroupState.STABLE, MEMBER.generation
        member = Member(MEMBER.member_id, MEMBER.instance_id, "", "", NEVER_MS, NEVER_MS, {}, heard_ms=now_ms)
        group.members[member.id] = member

    def refuse(self, code: ErrorCode, times: int = 1) -> None:
        """Respond to the next requests with an error."""
        self.kafka.set_rules(Rule(Fail(code.name), client="asking", times=times))

    @property
    def visible(self) -> dict[TopicPartition, list[bytes | None]]:
        """The keys of the records that read_committed consumers see."""
        return self.kafka.keys(OUT_0.topic, committed_only=True)

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
        answer = self.asking.ask(request) if is_done else None
        if failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(answer)
        on_done()


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
        return TransactionBrokers(leaders, self.level, self.clock)

    def new_producer(self) -> TransactionalKafkaProducer:
        """Return a producer for these brokers, whose transactions are not initialized yet."""
        made = TransactionalKafkaProducer(self.brokers, self.settings, self.clock, LOG, seed=0)
        made._sender.wait = self.serve  # type: ignore[method-assign,assignment]
        return made

    @property
    def transactions(self) -> TransactionManager:
        return self.producer._transactions

    def lose_connection(self) -> None:
        """Close the connection to broker 1."""
        self.brokers.ends.pop(1).close()

    def has_request(self) -> bool:
        """Return True if broker 1 has a request to answer."""
        return 1 in self.brokers.ends and self.brokers.has_request()

    def serve(self, now: int, until: float) -> None:
        """Advance the clock while brokers respond."""
        self.clock.advance(20)
        for node in self.brokers.ends:
            while self.brokers.has_request(node):
                request = self.brokers.request(node)
                for partition, sent in request.batches.items():
                    assert sent.in_transaction
                    records = request.records[partition]
                    answer = self.brokers.writing.produce(partition, records, request.version, request.transactional_id)
                    assert not answer.error_code
                self.brokers.reply(request, node=node)
