"""The Fetch request, version 12, as bytes (Kafka: FetchRequest.json). Brokers know it since Kafka 2.7."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ..reading.fetch_settings import FetchSettings
from .compact import NO_TAGS, compact_length, compact_string, request_header

API_KEY = 1
API_VERSION = 12

_BODY = struct.Struct(">iiiibii")
_PARTITION = struct.Struct(">iiqiqib")

_CONSUMER = -1  # instead of a replica's id
_NO_SESSION = (0, -1)  # id and epoch: each request names all partitions (KIP-227 would have the broker remember them)
_NO_LOG_START = -1
_NONE_FORGOTTEN = b"\1"


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """leader_epoch: as its leader should have it; last_epoch: of the last record that was fetched; -1 if unknown."""

    partition: int
    offset: int
    leader_epoch: int
    last_epoch: int


def fetch_request(
    settings: FetchSettings,
    correlation_id: int,
    max_wait_ms: int,
    topics: Sequence[tuple[str, Sequence[PartitionRequest]]],
) -> bytes:
    """Return a request for these partitions, without the length in front of it; a topic may come more than once."""
    parts = [
        request_header(API_KEY, API_VERSION, correlation_id, settings.client_id),
        _BODY.pack(
            _CONSUMER, max_wait_ms, settings.min_bytes, settings.max_bytes, settings.read_committed, *_NO_SESSION
        ),
        compact_length(len(topics)),
    ]
    for topic, partitions in topics:
        parts += [compact_string(topic), compact_length(len(partitions))]
        parts += [
            _PARTITION.pack(
                p.partition, p.leader_epoch, p.offset, p.last_epoch, _NO_LOG_START, settings.max_partition_bytes, 0
            )
            for p in partitions
        ]
        parts.append(NO_TAGS)
    parts += [_NONE_FORGOTTEN, compact_string(settings.rack), NO_TAGS]
    return b"".join(parts)
