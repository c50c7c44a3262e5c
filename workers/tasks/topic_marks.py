"""Which topics a task has read and logged to, by their ids, in the metadata of its committed offsets.

An offset and a changelog belong to a topic, not to its name: offsets of a topic that was deleted and created again mean
other records, and a changelog that was created again has lost the state. Brokers delete some of it with a topic, and
someone may delete the rest. With the marks, the next start notices both. Kafka Streams does not look.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.records import TopicPartition

from .topic_partition_metadata import TOPIC_MARK, TopicPartitionMetadata

Committed = Mapping[TopicPartition, OffsetAndMetadata | None]


def marks(ids: Mapping[str, bytes]) -> dict[str, int]:
    """Return the processor metadata of topics. ids: by name, 16 bytes."""
    return {TOPIC_MARK + name: _number(topic_id) for name, topic_id in ids.items()}


def changed_topic(committed: Committed, changelogs: Collection[str], ids: Mapping[str, bytes]) -> str | None:
    """Return how the topics of a task have changed since its last commit, as part of a sentence; None if they have not.

    committed: of its inputs. ids: the current ones; topics without one, and commits without marks, are not compared.
    """
    found = {partition: _marks_of(at) for partition, at in committed.items()}
    seen: dict[str, set[int]] = {}  # offsets of one task may be of several commits
    for own_marks in found.values():
        for name, number in own_marks.items():
            seen.setdefault(name, set()).add(number)
    for partition, at in committed.items():
        own = found[partition].get(partition.topic)
        if at is None and partition.topic in seen:
            return f"the committed offset of its input {partition} is gone: someone has deleted it, or the topic"
        if own is not None and partition.topic in ids and own != _number(ids[partition.topic]):
            return f"its input {partition.topic} was deleted and created again"
    for topic in changelogs:
        if topic in seen and topic in ids and _number(ids[topic]) not in seen[topic]:
            return f"its changelog {topic} was deleted, and with it the state"
    return None


def _marks_of(at: OffsetAndMetadata | None) -> dict[str, int]:
    if at is None:
        return {}
    known = TopicPartitionMetadata.decode(at.metadata).processor_metadata
    return {key.removeprefix(TOPIC_MARK): value for key, value in known.items() if key.startswith(TOPIC_MARK)}


def _number(topic_id: bytes) -> int:
    """Return the first half of a topic's id: it is random."""
    return int.from_bytes(topic_id[:8], "big", signed=True)
