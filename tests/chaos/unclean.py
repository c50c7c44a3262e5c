"""Unclean leader elections: a replica that lacks acknowledged records becomes leader, and they are gone.

``workloads.lossy_numbers`` says what must hold all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from .broker_faults import BrokerFaults
from .checker import Reader
from .cluster import SETTLE_SECONDS, Cluster
from .faults import Faults, Stage
from .schedule import Action, Event

#: One replica may acknowledge alone, and any may become leader, within a second of the last one's death.
CONFIG = {
    "unclean.leader.election.enable": "true",
    "unclean.leader.election.interval.ms": "1000",
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
}


class UncleanFaults(Faults):
    """reader: says where partitions end; turn: see BrokerFaults."""

    def __init__(
        self, stage: Stage, cluster: Cluster, brokers: BrokerFaults, reader: Reader, turn: Callable[[], None]
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
        self._until(lambda: -1 not in self._cluster.leaders().values(), "the others lead")
        self._reader.poll(0.0)
        cut = sum(max(before[partition] - end, 0) for partition, end in self._reader.seen.items())
        self._see(event, cut, "records cut off")
        self._cluster.start([alone])
        return f"{alone.name} had at least {cut} records that the others have not"

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
