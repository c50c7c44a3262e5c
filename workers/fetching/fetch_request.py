"""The Fetch request, version 12, as bytes (Kafka: FetchRequest.json). Brokers know it since Kafka 2.7."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .fetch_settings import FetchSettings

API_KEY = 1
API_VERSION = 12

_HEADER = struct.Struct(">hhi")
_BODY = struct.Struct(">iiiibii")
_PARTITION = struct.Struct(">iiqiqib")

_CONSUMER = -1  # instead of a replica's id
_NO_SESSION = (0, -1)  # id and epoch: each request names all partitions (KIP-227 would have the broker remember them)
_NO_LOG_START = -1
_NO_TAGS = b"\0"
_NONE_FORGOTTEN = b"\1"


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """leader_epoch: as its leader should have it; last_epoch: of the last record that was fetched; -1 if unknown."""

    partition: int
    offset: int
    leader_epoch: int
    last_epoch: int


def fetch_request(
    settings: FetchSettings, correlation_id: int, max_wait_ms: int, topics: Mapping[str, Sequence[PartitionRequest]]
) -> bytes:
    """Return a request for these partitions, without the length in front of it."""
    client_id, rack = settings.client_id.encode(), settings.rack.encode()
    parts = [
        _HEADER.pack(API_KEY, API_VERSION, correlation_id),
        struct.pack(">h", len(client_id)),
        client_id,
        _NO_TAGS,
        _BODY.pack(
            _CONSUMER, max_wait_ms, settings.min_bytes, settings.max_bytes, settings.read_committed, *_NO_SESSION
        ),
        _size(len(topics)),
    ]
    for topic, partitions in topics.items():
        name = topic.encode()
        parts += [_size(len(name)), name, _size(len(partitions))]
        parts += [
            _PARTITION.pack(
                p.partition, p.leader_epoch, p.offset, p.last_epoch, _NO_LOG_START, settings.max_partition_bytes, 0
            )
            for p in partitions
        ]
        parts.append(_NO_TAGS)
    parts += [_NONE_FORGOTTEN, _size(len(rack)), rack, _NO_TAGS]
    return b"".join(parts)


def _size(size: int) -> bytes:
    """Return a length of the compact kind: one more, seven bits in each byte, the lowest first."""
    rest, found = size + 1, bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)
