"""The progress of an application, seen from outside: its group's committed offsets against the end offsets."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.network_settings import network_settings
from penstock.supervisor.offline.application_reset import listed_offset
from penstock.topology import records

REQUEST_TIMEOUT_SECONDS = 10.0
#: Errors for a topic that is still being created.
JUST_CREATED = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)


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
        settings: dict[str, str | int | float | bool] = {"bootstrap.servers": bootstrap_servers, "log_level": 3}
        with ExitStack() as clients:
            self._admin = clients.enter_context(AdminClient(settings))
            # Not librdkafka's: see GroupOffsetsReader.
            self._offsets = clients.enter_context(
                GroupOffsetsReader(application_id, network_settings({"bootstrap.servers": bootstrap_servers}))
            )
            self._close = clients.pop_all().close  # an open client would complain when the demo stops its broker
        self._group = application_id
        self._inputs = frozenset(inputs)

    def __enter__(self) -> ProgressReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def read(self) -> Progress:
        """Read both from the broker; raises KafkaException or StreamsError if it does not respond.

        It reads the committed offsets first, then the ends. A commit follows all resulting writes. So if the numbers
        read in this order are equal, no record is in flight in any topic.
        """
        partitions = self._partitions()
        committed = self._offsets.committed([records.TopicPartition(p.topic, p.partition) for p in partitions])
        sums = _sum_by_topic((p.topic, at.offset if at else 0) for p, at in committed.items())
        try:
            return Progress(sums, self._available(partitions))
        except KafkaException as error:
            if error.args[0].code() not in JUST_CREATED:
                raise
            return Progress(sums, {})

    def _partitions(self) -> list[TopicPartition]:
        topics = self._admin.list_topics(timeout=REQUEST_TIMEOUT_SECONDS).topics
        chosen = [name for name in topics if name in self._inputs or self._is_repartition_topic(name)]
        return [TopicPartition(name, number) for name in chosen for number in topics[name].partitions]

    def _is_repartition_topic(self, name: str) -> bool:
        return name.startswith(f"{self._group}-") and name.endswith("-repartition")

    def _available(self, partitions: list[TopicPartition]) -> dict[str, int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        ends = self._admin.list_offsets(dict.fromkeys(partitions, latest))
        return _sum_by_topic(
            (p.topic, listed_offset(future.result(REQUEST_TIMEOUT_SECONDS))) for p, future in ends.items()
        )


def _sum_by_topic(offsets: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for topic, offset in offsets:
        sums[topic] = sums.get(topic, 0) + offset
    return sums
