"""Encodes Produce requests and decodes the responses, versions 9 to 12 (Kafka: ProduceRequest.json).

Brokers support version 9 since Kafka 2.4, version 12 since 4.0. Their fields are the same except for tagged ones.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.topology.records import TopicPartition

from ..writing.produce_settings import ProduceSettings
from .compact import NO_TAGS, NULL, CompactReader, compact_length, compact_string, request_header

API_KEY = 0
API_VERSION = 9
#: From this version on, the broker adds the partitions to the transaction automatically (KIP-890).
NEW_TRANSACTIONS_VERSION = 12

_ALL_REPLICAS = -1
_BODY = struct.Struct(">hi")
_INDEX = struct.Struct(">i")


def produce_request(
    settings: ProduceSettings,
    version: int,
    transactional_id: str | None,
    batches: Mapping[TopicPartition, bytes],
    correlation_id: int,
) -> bytes:
    """Return a request that writes one record batch to each of these partitions, without the length prefix."""
    by_topic: dict[str, list[tuple[int, bytes]]] = {}
    for partition, data in batches.items():
        by_topic.setdefault(partition.topic, []).append((partition.partition, data))
    parts = [
        request_header(API_KEY, version, correlation_id, settings.client_id),
        NULL if transactional_id is None else compact_string(transactional_id),
        _BODY.pack(_ALL_REPLICAS, settings.request_timeout_ms),
        compact_length(len(by_topic)),
    ]
    for topic, entries in by_topic.items():
        parts += [compact_string(topic), compact_length(len(entries))]
        for index, data in entries:
            parts += [_INDEX.pack(index), compact_length(len(data)), data, NO_TAGS]
        parts.append(NO_TAGS)
    parts.append(NO_TAGS)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class PartitionResponse:
    """The result of a partition's batch.

    error: Kafka's code, 0 if it was written. message: the broker's message. refused: the records because of which the
    batch was refused, by their position in it, with the broker's message about each (KIP-467); empty if it names none.
    """

    error: int
    message: str
    refused: Mapping[int, str] = field(default_factory=dict)


class ProduceResponse:
    """A response. data: its bytes without the length. Raises ValueError if malformed. All versions are parsed alike."""

    def __init__(self, data: bytes | bytearray, _version: int = API_VERSION) -> None:
        reader = CompactReader(data)
        reader.number(4)  # the correlation id
        reader.tags()
        #: The result of each partition's batch.
        self.partitions: dict[TopicPartition, PartitionResponse] = {}
        for _ in range(reader.count()):
            topic = reader.string()
            for _ in range(reader.count()):
                partition = TopicPartition(topic, reader.number(4))
                self.partitions[partition] = _partition_response(reader)
            reader.tags()
        #: The quota throttle, in ms.
        self.throttle_time_ms = reader.number(4)
        reader.tags()


def _partition_response(reader: CompactReader) -> PartitionResponse:
    error = reader.number(2)
    for _ in ("the first record's offset", "the time of a log that has its own", "where the log starts"):
        reader.number(8)
    refused = dict(_record_error(reader) for _ in range(reader.count()))
    message = reader.string() or next(filter(None, refused.values()), "")
    reader.tags()
    return PartitionResponse(error, message, refused)


def _record_error(reader: CompactReader) -> tuple[int, str]:
    position = reader.number(4)
    message = reader.string()
    reader.tags()
    return position, message
