"""Unclean leader elections: a replica that lacks acknowledged records becomes leader, and they are gone.

Loss is legal there, of inputs, outputs, offsets and state alike. What must hold all the same: the application goes on
by itself, and what is written once the cluster is whole again comes out. The verdict says which records are gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from .broker_faults import BrokerFaults
from .checker import Ledger, TopicReader, Verdict
from .cluster import SETTLE_SECONDS, Cluster, Partition
from .faults import Faults, Stage
from .schedule import Action, Event

#: One replica may acknowledge alone, and any may become leader, within a second of the last one's death.
CONFIG = {
    "unclean.leader.election.enable": "true",
    "unclean.leader.election.interval.ms": "1000",
    "min.insync.replicas": "1",
    "transaction.state.log.min.isr": "1",
}
#: For an answer; librdkafka waits for leaders within it.
REQUEST_SECONDS = 2.0


class Ends:
    """Stands in for a TopicReader while logs are cut: it looks only at where partitions end, and reads nothing."""

    def __init__(self, bootstrap_servers: str, topics: Mapping[str, int]) -> None:
        self.seen: dict[Partition, int] = {(t, n): 0 for t, count in topics.items() for n in range(count)}
        self._client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})

    def poll(self, seconds: float) -> list[tuple[str, str, Any]]:
        """Look again; what cannot be asked stays as it was."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        partitions = {TopicPartition(*partition): latest for partition in self.seen}
        asked = self._client.list_offsets(partitions, request_timeout=REQUEST_SECONDS)
        for partition, answer in asked.items():
            try:
                self.seen[partition.topic, partition.partition] = answer.result().offset
            except KafkaException:
                continue  # it has no leader now
        time.sleep(seconds)  # the pace of a reader that finds nothing
        return []

    def read_to_end(self) -> list[tuple[str, str, Any]]:
        """See TopicReader; LossLedger reads for itself."""
        return []

    def close(self) -> None:
        """See TopicReader."""


@dataclass(frozen=True)
class LossVerdict(Verdict):
    """lost_inputs, missing: by key, the numbers that the input has no more, and those of it that have no copy."""

    lost_inputs: Mapping[str, tuple[int, ...]]
    missing: Mapping[str, tuple[int, ...]]

    def __str__(self) -> str:
        lines = [
            *(f"gone from the input: {key}: {ranges(numbers)}" for key, numbers in sorted(self.lost_inputs.items())),
            *(f"without a copy: {key}: {ranges(numbers)}" for key, numbers in sorted(self.missing.items())),
        ]
        gone = sum(map(len, self.lost_inputs.values()))
        copies = sum(map(len, self.missing.values()))
        summary = f"{gone} inputs gone and {copies} without a copy, both legal; {self.lost} of the last records lost"
        return "\n".join([*lines, summary])


class LossLedger(Ledger):
    """What the topics have in the end; the input may have gaps."""

    def __init__(self, guarantee: str, groups: int) -> None:
        super().__init__(guarantee, groups)
        self._inputs: dict[str, set[int]] = {}
        self._out: dict[str, set[int]] = {}

    def see_input(self, key: str, value: Any) -> None:
        """Take in a record of the input."""
        self._inputs.setdefault(key, set()).add(value["n"])
        self.expected[key] = max(self._inputs[key])

    def see_copy(self, key: str, value: Any) -> None:
        """Take in an output."""
        self._out.setdefault(key, set()).add(value["n"])

    def lost(self) -> int:
        """Return of how many keys the last record, which was written to a cluster that was whole, has not come out."""
        return sum(last not in self._out.get(key, set()) for key, last in self.expected.items())

    def complete(self) -> bool:
        """Return whether the last record of each key has come out."""
        return self.lost() == 0

    def verdict(self, tally_changelog: dict[str, Any], group_changelog: dict[str, Any]) -> Verdict:
        """Judge; tallies are of what is left, so nothing can be said of them."""
        gone = {k: tuple(sorted(set(range(1, n + 1)) - self._inputs[k])) for k, n in self.expected.items()}
        missing = {key: tuple(sorted(numbers - self._out.get(key, set()))) for key, numbers in self._inputs.items()}
        only = ({key: numbers for key, numbers in table.items() if numbers} for table in (gone, missing))
        return LossVerdict(self.guarantee, self.lost(), 0, 0, 0, (), 0, *only)


def read_all(bootstrap_servers: str, topics: Iterable[str]) -> list[tuple[str, str, Any]]:
    """Return all that topics have now: topic, key and value of each record."""
    reader = TopicReader(bootstrap_servers, topics)
    try:
        return reader.read_to_end()
    finally:
        reader.close()


def ranges(numbers: tuple[int, ...]) -> str:
    """Return numbers as 1-3, 7."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


class UncleanFaults(Faults):
    """ends: where partitions end; turn: see BrokerFaults."""

    def __init__(
        self, stage: Stage, cluster: Cluster, brokers: BrokerFaults, ends: Ends, turn: Callable[[], None]
    ) -> None:
        super().__init__(stage)
        self._cluster = cluster
        self._brokers = brokers
        self._ends = ends
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
        before = dict(self._ends.seen)
        alone.kill()
        self._cluster.start(others)
        self._until(lambda: -1 not in self._cluster.leaders().values(), "the others lead")
        self._ends.poll(0.0)
        cut = sum(max(before[partition] - end, 0) for partition, end in self._ends.seen.items())
        self._see(event, cut, "records cut off")
        self._cluster.start([alone])
        return f"{alone.name} had at least {cut} records that the others have not"

    def _await_records(self, what: str) -> None:
        """Wait until every partition has got another record."""
        begin = dict(self._ends.seen)
        self._until(lambda: all(end > begin[partition] for partition, end in self._ends.seen.items()), what)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what}: not so within {SETTLE_SECONDS:.0f} s")
            self._turn()
