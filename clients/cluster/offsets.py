"""Offsets of partitions (earliest, latest, first at or after a timestamp), and deletion of old records."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import SimpleNamespace

from penstock.topology.records import TopicPartition

from ..errors import ErrorCode
from ..protocol.admin_messages import DELETE_RECORDS
from ..protocol.by_topic import by_topic, each_partition
from ..protocol.messages import LIST_OFFSETS
from ..protocol.schema import Request
from .leader_questions import LeaderQuestion, LeaderResponse
from .retrying import TRY_MS

#: Special timestamps for the first record and for the end (the high watermark, or the last stable offset).
EARLIEST, LATEST = -2, -1
#: For the record with the highest timestamp (KIP-734).
NEWEST = -3
#: The offset returned for a timestamp if no record is at or after it.
NO_RECORD = -1


def offsets_at(timestamps: Mapping[TopicPartition, int], committed_only: bool) -> LeaderQuestion:
    """Return the request for the first offsets at or after these timestamps (ms).

    committed_only: LATEST is the last stable offset, before all open transactions (``read_committed``).
    """

    def responses(response: SimpleNamespace) -> Iterator[LeaderResponse]:
        for partition, each in each_partition(response.topics):
            code = each.error_code
            if not code and each.offset < 0 and timestamps[partition] < 0:
                code = ErrorCode.OFFSET_NOT_AVAILABLE  # as an end offset it would make an empty store look restored
            yield LeaderResponse(partition, code, each.offset)

    return _list_offsets(timestamps, committed_only, responses)


def newest_timestamps(partitions: Collection[TopicPartition], committed_only: bool) -> LeaderQuestion:
    """Return the request for the highest timestamps (ms) of partitions, -1 for one without records."""

    def responses(response: SimpleNamespace) -> Iterator[LeaderResponse]:
        for partition, each in each_partition(response.topics):
            yield LeaderResponse(partition, each.error_code, each.timestamp)

    return _list_offsets(dict.fromkeys(partitions, NEWEST), committed_only, responses)


def _list_offsets(
    timestamps: Mapping[TopicPartition, int],
    committed_only: bool,
    responses: Callable[[SimpleNamespace], Iterable[LeaderResponse]],
) -> LeaderQuestion:
    def request(epochs: Mapping[TopicPartition, int]) -> Request:
        topics = by_topic(
            (p, {"partition_index": p.partition, "current_leader_epoch": epoch, "timestamp": timestamps[p]})
            for p, epoch in sorted(epochs.items())
        )
        return LIST_OFFSETS(isolation_level=int(committed_only), topics=topics, timeout_ms=TRY_MS)

    return LeaderQuestion(LIST_OFFSETS.name, request, responses)


def deletions(before: Mapping[TopicPartition, int], purpose: str) -> LeaderQuestion:
    """Return the request to delete records before these offsets; purpose: see Cluster.send."""

    def request(epochs: Mapping[TopicPartition, int]) -> Request:
        topics = by_topic((p, {"partition_index": p.partition, "offset": before[p]}) for p in sorted(epochs))
        return DELETE_RECORDS(topics=topics, timeout_ms=TRY_MS // 2)

    def responses(response: SimpleNamespace) -> Iterator[LeaderResponse]:
        for partition, each in each_partition(response.topics):
            yield LeaderResponse(partition, each.error_code, each.low_watermark)

    return LeaderQuestion(DELETE_RECORDS.name, request, responses, purpose)
