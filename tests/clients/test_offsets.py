"""Encoding of offset requests and responses; tests/clients/test_admin_broker.py uses real brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.clients.cluster.leader_questions import LeaderResponse
from penstock.clients.cluster.offsets import EARLIEST, LATEST, NO_RECORD, offsets_at
from penstock.clients.cluster.retrying import TRY_MS, to_tell
from penstock.clients.errors import ErrorCode, UnreachableError, broker_error
from penstock.topology.records import TopicPartition

IN_0, IN_1, OUT_0 = TopicPartition("in", 0), TopicPartition("in", 1), TopicPartition("out", 0)


def response(*offsets: tuple[TopicPartition, int, int]) -> Any:
    """Return a ListOffsets response: partitions with error code and offset."""
    topics = [
        SimpleNamespace(
            name=p.topic, partitions=[SimpleNamespace(partition_index=p.partition, error_code=code, offset=offset)]
        )
        for p, code, offset in offsets
    ]
    return SimpleNamespace(topics=topics)


def test_a_request_has_all_partitions_by_topic_with_leader_epochs() -> None:
    question = offsets_at({IN_0: LATEST, IN_1: 1_000, OUT_0: EARLIEST}, committed_only=True)
    body = question.request({IN_1: 7, OUT_0: 8, IN_0: 9}).body
    assert body["isolation_level"] == 1
    assert body["topics"] == [
        {
            "name": "in",
            "partitions": [
                {"partition_index": 0, "current_leader_epoch": 9, "timestamp": LATEST},
                {"partition_index": 1, "current_leader_epoch": 7, "timestamp": 1_000},
            ],
        },
        {"name": "out", "partitions": [{"partition_index": 0, "current_leader_epoch": 8, "timestamp": EARLIEST}]},
    ]


def test_a_response_without_an_offset_is_no_end_of_a_partition() -> None:
    """If it counted as the end of a changelog, an empty store would count as restored."""
    question = offsets_at({IN_0: LATEST, IN_1: 1_000, OUT_0: EARLIEST}, committed_only=False)
    answers = list(question.responses(response((IN_0, 0, -1), (IN_1, 0, NO_RECORD), (OUT_0, 0, 5))))
    assert answers == [
        LeaderResponse(IN_0, ErrorCode.OFFSET_NOT_AVAILABLE, -1),
        LeaderResponse(IN_1, 0, NO_RECORD),
        LeaderResponse(OUT_0, 0, 5),
    ]
    assert ErrorCode.OFFSET_NOT_AVAILABLE.retriable


def test_a_last_attempt_with_too_little_time_keeps_the_brokers_error() -> None:
    """The connection worked: no broker can respond within a few ms."""
    answer, silence = broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), UnreachableError("no answer within 3 ms")
    assert to_tell(answer, silence, 3) is answer
    assert to_tell(answer, silence, TRY_MS) is silence, "it went away"
    assert to_tell(silence, answer, 3) is answer
    assert to_tell(None, silence, 3) is silence
