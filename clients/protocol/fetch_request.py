"""Encodes Fetch requests, versions 12 (Kafka 2.7) to 17 (Kafka: FetchRequest.json)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from ..reading.fetch_settings import FetchSettings
from .compact import NO_TAGS, compact_length, compact_string, request_header

API_KEY = 1
#: The last version with topic names; later versions use topic ids.
NAMES_VERSION = 12
API_VERSIONS = (NAMES_VERSION, 17)

_BODY = struct.Struct(">iiibii")
_PARTITION = struct.Struct(">iiqiqib")
_INT32 = struct.Struct(">i")

_CONSUMER = -1  # instead of a replica's id
_NO_REPLICA_ID = 15  # the first version in which replicas identify themselves elsewhere, and clients send nothing
_NO_LOG_START = -1

#: A partition in requests and responses: topic id (bytes) or name, and number.
Part: TypeAlias = tuple[bytes | str, int]


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """leader_epoch: the epoch that its leader should have; last_epoch: of the last fetched record; -1 if unknown."""

    offset: int
    leader_epoch: int
    last_epoch: int


@dataclass(frozen=True, slots=True)
class SessionPart:
    """The session part of a request (KIP-227). changed: includes new partitions, in the order of a full request."""

    id: int
    epoch: int
    by_id: bool
    changed: Mapping[Part, PartitionRequest]
    forgotten: Sequence[Part]


def fetch_request(
    settings: FetchSettings, version: int, correlation_id: int, max_wait_ms: int, session: SessionPart
) -> bytes:
    """Return a request without its length prefix."""
    parts = [request_header(API_KEY, version, correlation_id, settings.client_id)]
    if version < _NO_REPLICA_ID:
        parts.append(_INT32.pack(_CONSUMER))
    limits = max_wait_ms, settings.min_bytes, settings.max_bytes, settings.read_committed
    parts.append(_BODY.pack(*limits, session.id, session.epoch))
    limit = settings.max_partition_bytes
    parts += _by_topic(
        {
            (topic, number): _PARTITION.pack(number, p.leader_epoch, p.offset, p.last_epoch, _NO_LOG_START, limit, 0)
            for (topic, number), p in session.changed.items()
        }
    )
    parts += _by_topic({part: _INT32.pack(part[1]) for part in session.forgotten})
    parts += [compact_string(settings.rack), NO_TAGS]
    return b"".join(parts)


def _by_topic(partitions: Mapping[Part, bytes]) -> list[bytes]:
    """Return partitions as a list of topics, in order, as brokers fill responses; a topic may occur twice."""
    topics = [(topic, list(group)) for topic, group in groupby(partitions.items(), lambda item: item[0][0])]
    parts = [compact_length(len(topics))]
    for topic, group in topics:
        parts += [topic if isinstance(topic, bytes) else compact_string(topic), compact_length(len(group))]
        parts += [data for _, data in group]
        parts.append(NO_TAGS)
    return parts
