"""The progress of an application, seen from outside: its group's committed offsets against the end offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass

from penstock.clients.cluster.admin import Admin, KafkaAdmin
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.network_settings import network_settings
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.partition_offsets import PartitionOffsets

TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Progress:
    """Committed and existing records, by topic."""

    committed: dict[str, int]
    available: dict[str, int]

    @property
    def finished(self) -> bool:
        """True if everything is processed and committed; then all results are written too."""
        done = (self.committed.get(topic, 0) >= available for topic, available in self.available.items())
        return bool(self.available) and all(done)


class ProgressReader:
    """Reads the progress of a group through its input topics and its own repartition topics, without joining it."""

    def __init__(self, bootstrap_servers: str, application_id: str, inputs: Iterable[str]) -> None:
        network = network_settings({"bootstrap.servers": bootstrap_servers})
        with ExitStack() as clients:
            self._admin = clients.enter_context(closing(KafkaAdmin(network)))
            self._offsets = clients.enter_context(GroupOffsetsReader(application_id, network))
            self._close = clients.pop_all().close  # an open client would complain when the demo stops its broker
        self._group = application_id
        self._inputs = frozenset(inputs)

    def __enter__(self) -> ProgressReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self) -> Progress:
        """Read both from the broker; raises StreamsError if it does not respond.

        It reads the committed offsets first, then the ends. A commit follows all resulting writes. So if the numbers
        read in this order are equal, no record is in flight in any topic.
        """
        partitions = partitions_of(self._admin, self._is_read)
        committed = self._offsets.committed(partitions)
        ends = PartitionOffsets(self._admin, committed_only=False).end_offsets(partitions)
        return Progress(
            _sum_by_topic((p.topic, at.offset if at else 0) for p, at in committed.items()),
            _sum_by_topic((p.topic, end) for p, end in ends.items()),
        )

    def _is_read(self, topic: str) -> bool:
        return topic in self._inputs or (topic.startswith(f"{self._group}-") and topic.endswith("-repartition"))


def partitions_of(admin: Admin, is_wanted: Callable[[str], bool]) -> list[TopicPartition]:
    """Return the partitions of all topics whose name is wanted."""
    counts = admin.describe(None, TIMEOUT_MS).partition_counts
    return [TopicPartition(name, number) for name in counts if is_wanted(name) for number in range(counts[name])]


def _sum_by_topic(offsets: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for topic, offset in offsets:
        sums[topic] = sums.get(topic, 0) + offset
    return sums
