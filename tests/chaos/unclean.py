"""Unclean leader elections: a replica that lacks acknowledged records becomes leader, and the records are lost.

``workloads.lossy_numbers`` says what must still hold. Not with transactions: their ends can be lost too, and Kafka then
blocks the partition's readers until an operator ends the transaction (kafka-transactions.sh, KIP-664).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from typing_extensions import override

from tests.chaos.broker_faults import BrokerFaults
from tests.chaos.checker import Reader
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults, Stage
from tests.chaos.schedule import Action, Event

#: One replica may acknowledge alone, and any may become leader, within a second after the last one's death.
CONFIG = {
    "unclean.leader.election.enable": "true",
    "unclean.leader.election.interval.ms": "1000",
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
}
#: A controller's log line for each partition.
ELECTED = "UNCLEAN partition change"
#: Kafka never elects a replica that lacks records: it waits for the broker that was alone.
TRANSACTION_TOPIC = "__transaction_state"


class UncleanFaults(Faults):
    """reader: returns the end offsets of partitions."""

    def __init__(self, stage: Stage, cluster: Cluster, brokers: BrokerFaults, reader: Reader) -> None:
        super().__init__(stage)
        self._cluster = cluster
        self._brokers = brokers
        self._reader = reader

    @property
    @override
    def actions(self) -> Mapping[Action, Callable[[Event], str]]:
        return {Action.UNCLEAN_ELECTION: self._elect}

    def _elect(self, event: Event) -> str:
        """Let one broker alone accept records, kill it, and let the others, which lack them, continue without it."""
        self._brokers.await_settled()
        self._await_records()
        brokers = list(self._cluster.brokers.values())
        alone = brokers[int(event.victim * len(brokers))]
        others = [node for node in brokers if node is not alone]
        for node in others:
            node.kill()
        leads_all = {alone.node_id}
        self._brokers.wait_until(
            lambda: set(self._cluster.leaders().values()) == leads_all, f"{alone.name} does not lead all partitions"
        )
        self._await_records()
        before = self._elections()
        alone.kill()
        self._cluster.start(others)
        self._brokers.wait_until(lambda: self._others_lead(alone.node_id), f"none but {alone.name} leads")
        count = self._elections() - before
        self._see(event, count, "unclean elections")
        self._cluster.start([alone])
        return f"{count} partitions go on without the last records of {alone.name}"

    def _elections(self) -> int:
        """Return how many unclean elections the controllers have logged so far."""
        return max(
            node.log_file.read_text(errors="replace").count(ELECTED) for node in self._cluster.controllers.values()
        )

    def _others_lead(self, alone: int) -> bool:
        leaders = self._cluster.leaders().items()
        return all(leader not in (-1, alone) for (topic, _), leader in leaders if topic != TRANSACTION_TOPIC)

    def _await_records(self) -> None:
        """Wait until every partition has a new record."""
        begin = dict(self._reader.seen)
        self._brokers.wait_until(
            lambda: all(end > begin[partition] for partition, end in self._reader.seen.items()),
            "not all partitions have got another record",
        )
