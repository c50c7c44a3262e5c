"""How far an application is, seen from outside: what its group has committed against what there is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

REQUEST_TIMEOUT_SECONDS = 10.0
#: What a broker answers for a topic that is not quite there yet.
JUST_CREATED = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
)


@dataclass(frozen=True, slots=True)
class Progress:
    """Records committed and records there are, by topic."""

    committed: dict[str, int]
    available: dict[str, int]

    @property
    def finished(self) -> bool:
        """True if everything is processed and committed; then all answers are written too."""
        done = (self.committed.get(topic, 0) >= available for topic, available in self.available.items())
        return bool(self.available) and all(done)


class ProgressReader:
    """Reads the progress of a group through its input topics and its own repartition topics."""

    def __init__(self, bootstrap_servers: str, application_id: str, inputs: Iterable[str]) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})
        self._group = application_id
        self._inputs = frozenset(inputs)

    def read(self) -> Progress:
        """Ask the broker; raises KafkaException if it does not answer.

        First what is committed, then what there is: a commit comes after all that its records led to was written, so
        that equal numbers in this order leave nothing on the way, in no topic.
        """
        committed = self._committed()
        try:
            return Progress(committed, self._available())
        except KafkaException as error:
            if error.args[0].code() not in JUST_CREATED:
                raise
            return Progress(committed, {})

    def _committed(self) -> dict[str, int]:
        request = self._admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(self._group)])
        try:
            partitions = request[self._group].result(REQUEST_TIMEOUT_SECONDS).topic_partitions
        except KafkaException:  # nobody has joined the group yet
            return {}
        return _sum_by_topic((p.topic, max(p.offset, 0)) for p in partitions)

    def _available(self) -> dict[str, int]:
        topics = self._admin.list_topics(timeout=REQUEST_TIMEOUT_SECONDS).topics
        specs = {
            TopicPartition(name, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for name, topic in topics.items()
            if name in self._inputs or self._is_repartition_topic(name)
            for number in topic.partitions
        }
        ends = self._admin.list_offsets(specs)
        return _sum_by_topic((p.topic, future.result(REQUEST_TIMEOUT_SECONDS).offset) for p, future in ends.items())

    def _is_repartition_topic(self, name: str) -> bool:
        return name.startswith(f"{self._group}-") and name.endswith("-repartition")


def _sum_by_topic(offsets: Iterable[tuple[str, int]]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for topic, offset in offsets:
        sums[topic] = sums.get(topic, 0) + offset
    return sums
