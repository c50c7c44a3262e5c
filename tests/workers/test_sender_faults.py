"""Whatever brokers and connections do, each record is written once, in order: random faults, from a seed."""

from __future__ import annotations

import random

import pytest

from penstock import kernel
from penstock.clients.cluster.brokers import Leader, Leaders, ProducerId
from penstock.clients.errors import ErrorCode
from penstock.clients.served_clock import ServedClock
from penstock.topology.records import TopicPartition
from tests.produce_bytes import Said
from tests.workers.produce_stage import PartitionLog, ProduceStage, Request, Sent

pytestmark = pytest.mark.skipif(kernel.record_accumulator is None, reason="the compiled kernel is not built here")
PARTITIONS = [TopicPartition("out", index) for index in range(4)]
NODES = (1, 2)
ROUNDS = 400
FAULTS = 0.3


class FaultyBrokers:
    """The brokers of a stage, with a log for each partition. pick: what goes wrong."""

    def __init__(self, pick: random.Random) -> None:
        self.pick = pick
        self.leaders = {partition: Leader(pick.choice(NODES), 1) for partition in PARTITIONS}
        self.logs = {partition: PartitionLog() for partition in PARTITIONS}
        self.stage = self.new_stage()
        self.faults = FAULTS
        self.met: set[str] = set()

    def new_stage(self) -> ProduceStage:
        """Return a producer for these brokers."""
        compression = self.pick.choice(["none", "lz4"])
        stage = ProduceStage(self.leaders, batch_bytes=400, max_request_bytes=900, compression_type=compression)
        stage.brokers.ids = [ProducerId(7, 32_766), ProducerId(8, 0), ProducerId(9, 0)]
        return stage

    def serve(self) -> None:
        """Let each broker answer one request, or not."""
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
        said = {partition: Said(self._write(node, partition, sent)) for partition, sent in request.batches.items()}
        if self._happens("lost behind"):
            self.stage.brokers.ends[node].close()
            del self.stage.brokers.ends[node]
            return
        self.stage.brokers.answer_with(request, said, node)

    def _write(self, node: int, partition: TopicPartition, sent: Sent) -> int:
        if self.leaders[partition].node != node:
            self.met.add("moved")
            return int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self._happens("not taken"):
            return int(ErrorCode.NOT_ENOUGH_REPLICAS)
        log = self.logs[partition]
        # What has been written without an answer would be written twice.
        if self._happens("forgotten") and log.producers.last and sent not in log.unsaid:
            log.producers.forget()
            return int(ErrorCode.UNKNOWN_PRODUCER_ID)
        code = log.append(sent)
        log.unsaid.add(sent)
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            self.met.add("duplicate")
        if code == 0 and self._happens("taken, and not said"):
            return int(ErrorCode.REQUEST_TIMED_OUT)
        return code

    def _happens(self, what: str) -> bool:
        happens = self.pick.random() < self.faults / 5
        if happens:
            self.met.add(what)
        return happens


@pytest.mark.parametrize("seed", range(20))
def test_each_record_is_written_once_and_in_order(seed: int) -> None:
    run(seed)


def run(seed: int) -> None:
    """Write while things go wrong, and while no one serves the producer for long; raises AssertionError for a loss."""
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
        if number % 100 == 50:  # a record of the application's takes long
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
    assert {partition: log.keys for partition, log in brokers.logs.items()} == expected
    assert brokers.met >= {"lost before", "lost behind", "not taken", "taken, and not said", "moved", "duplicate"}


def test_deadlines_that_count_while_nobody_serves_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """test_transaction_faults.py has faults of the epochs."""
    monkeypatch.setattr(ServedClock, "monotonic_ms", lambda clock: clock._clock.monotonic_ms())
    assert not all(holds(seed) for seed in range(5))


def holds(seed: int) -> bool:
    """Return whether a run finds nothing."""
    try:
        run(seed)
    except AssertionError:
        return False
    return True
