"""With any faults of brokers, coordinators and connections, a transaction is visible completely and in order, or not at
all.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock.clients.cluster.brokers import ProducerId
from penstock.clients.errors import ErrorCode, TransactionError, UnreachableError
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.clients.writing import transaction_requests
from penstock.clients.writing.sender import Sender
from penstock.clients.writing.transactions import TransactionManager
from penstock.topology.records import TopicPartition
from tests.clients.test_sender_faults import PARTITIONS, FaultyBrokers
from tests.clients.transaction_stage import MEMBER, NEW, OLD, TransactionStage
from tests.direct_kafka import DirectKafka

pytestmark = pytest.mark.medium

IN_0 = TopicPartition("in", 0)
TRANSACTIONS = 60
SECONDS = 20.0
ABORTED = 0.2
#: Errors that a coordinator returns now and then instead of serving the request.
TRANSIENT = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR)


class FaultyTransactions(FaultyBrokers):
    """FaultyBrokers with a coordinator that fails at random. seen: the faults that the client has met."""

    stage: TransactionStage

    def __init__(self, pick: random.Random, level: int) -> None:
        self.level = level
        self.still = 0  # how long brokers send no response
        super().__init__(pick)
        self.stage.brokers.answers_at_once = False

    def new_stage(self) -> TransactionStage:
        return TransactionStage(self.level, self.leaders, batch_bytes=400, max_request_bytes=900)

    def new_kafka(self) -> DirectKafka:
        return self.stage.brokers.kafka

    def serve(self) -> None:
        """Let brokers respond, or not, and the coordinator serve a request."""
        if self.still:
            self.still -= 1
        elif self._happens("brokers stand still"):
            self.still = self.pick.randrange(20)
        else:
            super().serve()
        if self.stage.brokers.pending and not self._happens("a coordinator takes its time"):
            if self._happens("a question is lost"):
                self.stage.brokers.answer_question(UnreachableError("lost"), is_done=False)
            elif self._happens("an answer is lost"):
                self.stage.brokers.answer_question(UnreachableError("lost"))
            else:
                if self._happens("a coordinator cannot now"):
                    self.stage.brokers.refuse(self.pick.choice(TRANSIENT))
                self.stage.brokers.answer_question()


class Writer:
    """A transactional application. expected: the records that must be visible, by partition."""

    def __init__(self, brokers: FaultyTransactions) -> None:
        self.brokers = brokers
        self.stage = brokers.stage
        self.pick = brokers.pick
        self.expected: dict[TopicPartition, list[bytes]] = {}
        self.replaced = 0
        self.stage.sender.wait = self._wait  # type: ignore[method-assign,assignment]
        self._initialize()

    def _wait(self, now: int, until: float) -> None:
        self.stage.clock.advance(20)
        self.brokers.serve()

    def _initialize(self) -> None:
        while True:
            try:
                self.stage.producer.init_transactions(SECONDS)
                return
            except TransactionError:
                self._replace()

    def _replace(self) -> None:
        self.replaced += 1
        self.stage.sender.close()
        self.stage.brokers.ends.clear()
        self.stage.brokers.pending.clear()
        self.stage.producer = self.stage.new_producer()
        self.stage.sender.wait = self._wait  # type: ignore[method-assign,assignment]

    def transaction(self, number: int) -> None:
        """Write a transaction; the coordinator's decision determines which records are expected."""
        written: dict[TopicPartition, list[bytes]] = {}
        self.stage.producer.begin_transaction()
        for index in range(self.pick.randrange(12)):
            partition, key = self.pick.choice(PARTITIONS), b"%d-%d" % (number, index)
            self.stage.send(key, to=partition)
            written.setdefault(partition, []).append(key)
            self.stage.clock.advance(self.pick.randrange(30))
            self.stage.producer.poll()
            self.brokers.serve()
        try:
            self._end(number)
        except TransactionError as failure:
            self._abort(failure)
        if self.brokers.kafka.committed_offset(IN_0) == number:
            for partition, keys in written.items():
                self.expected.setdefault(partition, []).extend(keys)
        assert self.stage.brokers.visible == self.expected

    def _end(self, number: int) -> None:
        producer = self.stage.producer
        if self.pick.random() < ABORTED:
            producer.abort_transaction(SECONDS)
            return
        producer.flush()
        if producer.take_lost():
            producer.abort_transaction(SECONDS)
            return
        producer.send_offsets_to_transaction({IN_0: OffsetAndMetadata(number, "", -1)}, MEMBER, SECONDS)
        producer.commit_transaction(SECONDS)

    def _abort(self, failure: TransactionError) -> None:
        try:
            if not failure.can_abort:
                raise failure
            self.stage.producer.abort_transaction(SECONDS)
        except TransactionError:
            self._replace()
            self._initialize()


@pytest.mark.parametrize("level", [OLD, NEW])
@pytest.mark.parametrize("seed", range(10))
def test_transactions_are_atomic_and_in_order(seed: int, level: int) -> None:
    brokers = FaultyTransactions(random.Random(seed), level)
    run(brokers)
    brokers.stage.close()
    assert brokers.met >= {"lost behind", "an answer is lost", "a question is lost", "a coordinator cannot now"}


def run(brokers: FaultyTransactions) -> None:
    """Write transactions with faults; raises AssertionError for a torn one."""
    writer = Writer(brokers)
    for number in range(1, TRANSACTIONS + 1):
        writer.transaction(number)
    brokers.faults = 0
    writer.stage.producer.begin_transaction()
    writer.stage.producer.send_offsets_to_transaction({IN_0: OffsetAndMetadata(1_000, "", -1)}, MEMBER)
    writer.stage.producer.commit_transaction()
    assert brokers.kafka.committed_offset(IN_0) == 1_000
    assert sum(map(len, writer.expected.values())) > TRANSACTIONS


def numbers_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TransactionManager, "bump", lambda manager: None)


def batches_of_an_aborted_transaction_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    drop = Sender.drop
    monkeypatch.setattr(Sender, "drop", lambda sender: drop(sender) and False)


def the_epoch_is_that_of_the_transaction_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_requests, "next_producer", lambda answer, producer: producer)


def offsets_have_the_epoch_of_the_transaction_before(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = transaction_requests.txn_offset_commit

    def late(transactional_id: str, producer: ProducerId, *more: Any) -> Any:
        return ask(transactional_id, ProducerId(producer.id, producer.epoch - 1), *more)

    monkeypatch.setattr(transaction_requests, "txn_offset_commit", late)


@pytest.mark.parametrize(
    ("mutate", "level"),
    [
        (numbers_come_again, OLD),
        (batches_of_an_aborted_transaction_are_not_waited_for, OLD),
        (the_epoch_is_that_of_the_transaction_before, NEW),
        (offsets_have_the_epoch_of_the_transaction_before, NEW),
    ],
)
def test_faults_in_the_producer_are_detected(
    mutate: Callable[[pytest.MonkeyPatch], None], level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    assert not all(holds(seed, level) for seed in range(20))


def holds(seed: int, level: int) -> bool:
    """Return True if a run finds no error."""
    brokers = FaultyTransactions(random.Random(seed), level)
    try:
        run(brokers)
    except (AssertionError, TransactionError):
        return False
    finally:
        brokers.stage.close()
    return True
