"""Unclean leader elections: a replica that lacks acknowledged records becomes leader, and they are gone.

``workloads.lossy_numbers`` says what must hold all the same. Not with transactions: their ends can be cut off too, and
Kafka then holds the partition's readers until an operator ends the transaction (kafka-transactions.sh, KIP-664).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from tests.chaos.broker_faults import BrokerFaults
from tests.chaos.checker import Reader
from tests.chaos.cluster import SETTLE_SECONDS, Cluster
from tests.chaos.faults import Faults, Stage
from tests.chaos.schedule import Action, Event

#: One replica may acknowledge alone, and any may become leader, within a second of the last one's death.
CONFIG = {
    "unclean.leader.election.enable": "true",
    "unclean.leader.election.interval.ms": "1000",
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
}
#: Kafka never lets a replica lead it that lacks records: it waits for the broker that was alone.
TRANSACTION_TOPIC = "__transaction_state"


class UncleanFaults(Faults):
    """reader: says where partitions end; turn: see BrokerFaults."""

    def __init__(
        self, stage: Stage, cluster: Cluster, brokers: BrokerFaults, reader: Reader, turn: Callable[[], object]
    ) -> None:
        super().__init__(stage)
        self._cluster = cluster
        self._brokers = brokers
        self._reader = reader
        self._turn = turn

    @property
    def actions(self) -> Mapping[Action, Callable[[Event], str]]:
        """See Faults."""
        return {Action.UNCLEAN_ELECTION: self._elect}

    def _elect(self, event: Event) -> str:
        """Let one broker alone take records, kill it, and let the others, which lack them, go on without it."""
        self._brokers.await_settled()
        self._await_records("all partitions have records")
        brokers = list(self._cluster.brokers.values())
        alone = brokers[int(event.victim * len(brokers))]
        others = [node for node in brokers if node is not alone]
        for node in others:
            node.kill()
        self._until(lambda: set(self._cluster.leaders().values()) == {alone.node_id}, "one broker leads all")
        self._await_records("it takes records of all partitions")
        before = dict(self._reader.seen)
        alone.kill()
        self._cluster.start(others)
        self._until(self._others_lead, "the others lead")
        self._until(lambda: self._cut_off(before) > 0, "records are cut off")
        cut = self._cut_off(before)
        self._see(event, cut, "records cut off")
        self._cluster.start([alone])
        return f"{alone.name} had at least {cut} records that the others have not"

    def _cut_off(self, before: Mapping[tuple[str, int], int]) -> int:
        """Return how many records there are fewer than before; new ones may hide some."""
        return sum(max(before[partition] - end, 0) for partition, end in self._reader.seen.items())

    def _others_lead(self) -> bool:
        leaders = self._cluster.leaders().items()
        return all(leader >= 0 for (topic, _), leader in leaders if topic != TRANSACTION_TOPIC)

    def _await_records(self, what: str) -> None:
        """Wait until every partition has got another record."""
        begin = dict(self._reader.seen)
        self._until(lambda: all(end > begin[partition] for partition, end in self._reader.seen.items()), what)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not so within {SETTLE_SECONDS:.0f} s")
            self._turn()
