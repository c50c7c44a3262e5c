"""The engine of an application, for all hosts: a mark in the committed offsets of its group.

A handover commits it with one request, so the application changes its engine atomically.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.supervisor.offline.application_reset import ApplicationReset, Move
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.topic_partition_metadata import SPARK_MARK, TopicPartitionMetadata

from ..checkpoint.checkpoint import CheckpointError, full_source_topics
from ..checkpoint.ownership import Ownership

log = logging.getLogger(__name__)
Committed = Mapping[TopicPartition, OffsetAndMetadata | None]


def new_mark() -> int:
    """Return a number unique to this handover."""
    return secrets.randbits(62) + 1


def marks_of(committed: Committed) -> set[int]:
    """Return the marks that a group has committed: none if the application belongs to the local engine."""
    found = (TopicPartitionMetadata.decode(at.metadata) for at in committed.values() if at is not None)
    return {known.processor_metadata[SPARK_MARK] for known in found if SPARK_MARK in known.processor_metadata}


def is_spark(owner: Ownership, committed: Committed) -> bool:
    """Return whether the application continues from a checkpoint's state.

    It does if the group has no committed offsets: without a handover, or if the brokers have deleted the offsets of a
    group without members (offsets.retention.minutes).
    """
    return not any(committed.values()) or owner.mark in marks_of(committed)


def moves_to(committed: Committed) -> list[Move]:
    """Return the moves to a group's committed offsets."""
    return [
        Move(at, found.offset, found.offset, found.metadata) for at, found in committed.items() if found is not None
    ]


def marked(moves: Iterable[Move], mark: int) -> list[Move]:
    """Return moves with a mark."""
    with_it = []
    for move in moves:
        known = TopicPartitionMetadata.decode(move.metadata)
        metadata = {**known.processor_metadata, SPARK_MARK: mark}
        with_it.append(replace(move, metadata=TopicPartitionMetadata(known.partition_time, metadata).encode()))
    return with_it


def source_partitions(
    built: Sequence[ProcessorTopology], config: StreamsConfig, counts: Mapping[str, int]
) -> list[TopicPartition]:
    """Return the partitions that a topology's tasks read; counts: partitions by topic."""
    topics = sorted({topic for each in built for topic in full_source_topics(each, config["application.id"])})
    return [TopicPartition(topic, number) for topic in topics for number in range(counts[topic])]


def require_spark(config: StreamsConfig, partitions: Sequence[TopicPartition], owner: Ownership) -> None:
    """Raise CheckpointError if the group says that the local engine or another checkpoint owns the application.

    Commits the mark again, because the brokers would delete it otherwise (offsets.retention.minutes: a week). They
    refuse that while the group has members, for example until the session of a refused local engine has ended; then
    the next start does it, which is early enough.
    """
    with ApplicationReset(config) as group:
        committed = group.committed(partitions)
        if is_spark(owner, committed):
            try:
                group.move(moves_to(committed))
            except StreamsError as error:
                log.info("The mark of Spark in the group was not committed again: %s", error)
            return
    group_id = config["application.id"]
    if marks_of(committed):
        raise CheckpointError(
            f"The application was handed over to Spark with another checkpoint, according to the group "
            f"{group_id}: give that one as --checkpoint. If it is lost, `penstock reset` starts the application over."
        )
    raise CheckpointError(
        f"The application is the local engine's: the group {group_id} has committed offsets without a handover to this "
        "checkpoint. `penstock handover --to spark` brings it to an empty checkpoint; if it ran locally by mistake, "
        "`penstock handover --to spark --keep-checkpoint` returns to the state in this one."
    )
