"""Offsets of partitions: where they begin and end, which is the first since a time; and the deletion of old records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from penstock.topology.records import TopicPartition

from ..errors import ErrorCode
from ..protocol.admin_messages import DELETE_RECORDS
from ..protocol.messages import LIST_OFFSETS
from ..protocol.schema import Request
from .leader_questions import Answer, LeaderQuestion
from .retrying import TRY_MS

#: Timestamps that stand for the first record, and for the end: the high watermark, or the last stable offset.
EARLIEST, LATEST = -2, -1
#: The offset of the first record since a time where no record is that late.
NO_RECORD = -1


def offsets_at(timestamps: Mapping[TopicPartition, int], committed_only: bool) -> LeaderQuestion:
    """Return the question for the first offsets with these timestamps (ms) or later ones.

    committed_only: LATEST is the last stable offset, before all open transactions (``read_committed``).
    """

    def request(epochs: Mapping[TopicPartition, int]) -> Request:
        by_topic = {
            topic: [
                {
                    "partition_index": partition.partition,
                    "current_leader_epoch": epochs[partition],
                    "timestamp": timestamps[partition],
                }
                for partition in partitions
            ]
            for topic, partitions in _by_topic(epochs).items()
        }
        return LIST_OFFSETS(isolation_level=int(committed_only), topics=_topics(by_topic), timeout_ms=TRY_MS)

    def answers(response: Any) -> Iterator[Answer]:
        for topic in response.topics:
            for each in topic.partitions:
                partition = TopicPartition(topic.name, each.partition_index)
                code = each.error_code
                if not code and each.offset < 0 and timestamps[partition] < 0:
                    code = ErrorCode.OFFSET_NOT_AVAILABLE  # taken for an end, an empty store would be a restored one
                yield Answer(partition, code, each.offset)

    return LeaderQuestion(request, answers)


def deletions(before: Mapping[TopicPartition, int], purpose: str) -> LeaderQuestion:
    """Return the order to delete records before these offsets; purpose: see Cluster.send."""

    def request(epochs: Mapping[TopicPartition, int]) -> Request:
        by_topic = {
            topic: [{"partition_index": p.partition, "offset": before[p]} for p in partitions]
            for topic, partitions in _by_topic(epochs).items()
        }
        return DELETE_RECORDS(topics=_topics(by_topic), timeout_ms=TRY_MS // 2)

    def answers(response: Any) -> Iterator[Answer]:
        for topic in response.topics:
            for each in topic.partitions:
                yield Answer(TopicPartition(topic.name, each.partition_index), each.error_code, each.low_watermark)

    return LeaderQuestion(request, answers, purpose)


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for partition in sorted(partitions):
        found.setdefault(partition.topic, []).append(partition)
    return found


def _topics(by_topic: Mapping[str, list[dict[str, int]]]) -> list[dict[str, Any]]:
    return [{"name": topic, "partitions": partitions} for topic, partitions in by_topic.items()]
