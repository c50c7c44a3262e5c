"""With any faults of brokers and connections, each record is written once, in order: random faults, by seed."""

from __future__ import annotations

import random

import pytest

from penstock.clients.cluster.brokers import Leader, Leaders, ProducerId
from penstock.clients.errors import ErrorCode
from penstock.clients.served_clock import ServedClock
from penstock.topology.records import TopicPartition
from tests.clients.produce_stage import ProduceStage, Request
from tests.direct_kafka import Caller, DirectKafka
from tests.produce_bytes import Said

PARTITIONS = [TopicPartition("out", index) for index in range(4)]
NODES = (1, 2)
ROUNDS = 400
FAULTS = 0.3


class FaultyBrokers:
    """The brokers of a stage, which write to the in-memory broker. pick: chooses the faults."""

    def __init__(self, pick: random.Random) -> None:
        self.pick = pick
        self.leaders = {partition: Leader(pick.choice(NODES), 1) for partition in PARTITIONS}
        self.stage = self.new_stage()
        self.kafka = self.new_kafka()
        self.caller = Caller(self.kafka, "producer")
        self.unsaid: set[bytes] = set()  # written batches whose acknowledgement may be lost
        self.faults = FAULTS
        self.met: set[str] = set()

    def new_stage(self) -> ProduceStage:
        """Return a producer for these brokers."""
        compression = self.pick.choice(["none", "lz4"])
        stage = ProduceStage(self.leaders, batch_bytes=400, max_request_bytes=900, compression_type=compression)
        stage.brokers.ids = [ProducerId(7, 32_766), ProducerId(8, 0), ProducerId(9, 0)]
        return stage

    def new_kafka(self) -> DirectKafka:
        """Return the in-memory broker."""
        kafka = DirectKafka(self.stage.clock)
        kafka.create_topic("out", len(PARTITIONS))
        return kafka

    def serve(self) -> None:
        """Let each broker respond to one request, or fail."""
        for node in NODES:
            if node in self.stage.brokers.ends and self.stage.brokers.has_request(node):
                self._answer(node, self.stage.brokers.request(node))
        if self.pick.random() < self.faults / 3:
            partition = self.pick.choice(PARTITIONS)
            old = self.leaders[partition]
            self.leaders[partition] = Leader(self.pick.choice(NODES), old.epoch + 1)
        self.stage.brokers.answer = Leaders(self.leaders)

    def _answer(self, node: int, request: Request) -> None:
        if self._happens("lost before"):
            self.stage.brokers.ends[node].close()
            del self.stage.brokers.ends[node]
            return
        said = {partition: Said(self._write(node, partition, request)) for partition in request.records}
        if self._happens("lost behind"):
            self.stage.brokers.ends[node].close()
            del self.stage.brokers.ends[node]
            return
        self.stage.brokers.answer_with(request, said, node)

    def _write(self, node: int, partition: TopicPartition, request: Request) -> int:
        """Write a batch, or not; return the response's error code."""
        if self.leaders[partition].node != node:
            self.met.add("moved")
            return int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._happens("not taken"):
            return int(ErrorCode.NOT_ENOUGH_REPLICAS)
        log, records = self.kafka.log(partition), request.records[partition]
        # Otherwise a batch written without a response would be written twice.
        if self._happens("forgotten") and records not in self.unsaid and log.forget_producers():
            return int(ErrorCode.UNKNOWN_PRODUCER_ID)
        end = log.end
        answer = self.caller.produce(partition, records, request.version, request.transactional_id)
        self.unsaid.add(records)
        if answer.error_code == 0 and answer.base_offset < end:
            self.met.add("duplicate")
        elif answer.error_code == 0 and self._happens("taken, and not said"):
            return int(ErrorCode.REQUEST_TIMED_OUT)
        return int(answer.error_code)

    def _happens(self, what: str) -> bool:
        happens = self.pick.random() < self.faults / 5
        if happens:
            self.met.add(what)
        return happens


@pytest.mark.parametrize("seed", range(20))
def test_each_record_is_written_once_and_in_order(seed: int) -> None:
    run(seed)


def run(seed: int) -> None:
    """Write with faults, and with long times without a poll; raises AssertionError for a lost record."""
    pick = random.Random(seed)
    brokers = FaultyBrokers(pick)
    stage = brokers.stage
    expected: dict[TopicPartition, list[bytes]] = {partition: [] for partition in PARTITIONS}

    def wait(now: int, until: float) -> None:
        stage.clock.advance(20)
        brokers.serve()

    stage.sender.wait = wait  # type: ignore[method-assign,assignment]
    for number in range(ROUNDS):
        for _ in range(pick.randrange(6)):
            partition, key = pick.choice(PARTITIONS), b"%d-%d" % (number, pick.randrange(1_000))
            stage.send(key, to=partition)
            expected[partition].append(key)
        stage.clock.advance(pick.randrange(30))
        if number % 100 == 50:  # the application processes a record for long
            stage.clock.advance(stage.settings.delivery_timeout_ms)
        stage.producer.poll()
        brokers.serve()
        if pick.random() < 0.01:
            stage.producer.flush()
    brokers.faults = 0
    stage.producer.flush()
    lost = stage.lost()
    stage.close()
    assert lost == []
    assert brokers.kafka.keys("out") == expected
    assert brokers.met >= {"lost before", "lost behind", "not taken", "taken, and not said", "moved", "duplicate"}


def test_counting_deadlines_between_polls_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_transaction_faults.py has the faults of epochs."""
    monkeypatch.setattr(ServedClock, "monotonic_ms", lambda clock: clock._clock.monotonic_ms())
    assert not all(holds(seed) for seed in range(5))


def holds(seed: int) -> bool:
    """Return True if a run finds no error."""
    try:
        run(seed)
    except AssertionError:
        return False
    return True
