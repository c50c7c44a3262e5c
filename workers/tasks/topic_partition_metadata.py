"""The metadata of committed offsets (Kafka Streams: TopicPartitionMetadata, ProcessorMetadata; KIP-429, KIP-825).

The format is Kafka Streams': base64 of a version byte (2), the partition time as a big-endian long, and the processor
metadata. So partition times survive a move from or to a Java application.

Brokers refuse commits whose metadata is longer than ``offset.metadata.max.bytes`` (4,096). Kafka Streams stops there,
e.g. with 60 windowed nodes in a task. Here longer processor metadata is compressed, behind an empty one for Java.
"""

from __future__ import annotations

import base64
import binascii
import logging
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

logger = logging.getLogger(__name__)

LATEST_MAGIC_BYTE = 2
#: The longest text that brokers accept by default.
MAX_BYTES = 4096
#: Partition time before the first record.
UNKNOWN = -1
#: The key in the processor metadata that marks an application as handed over to Spark; the value is the number of the
#: handover. Kafka Streams' keys are names of operators and stores, which cannot contain a space.
SPARK_MARK = "penstock handed over to spark"
#: The key in the processor metadata that marks an application as a branch; see branch_mark.
BRANCH_MARK = "penstock branch"
#: The key for the number of the exchange of writers that has set this mark; see branch_mark.
EXCHANGE_MARK = "penstock exchange"
#: The beginning of keys that mark the topics of a task; see topic_marks.
TOPIC_MARK = "penstock topic "
#: The keys without which the wrong application could run: they are never left out.
KEPT_MARKS = (SPARK_MARK, BRANCH_MARK, EXCHANGE_MARK)

_HEAD = struct.Struct(">bq")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class TopicPartitionMetadata:
    """partition_time: highest timestamp (ms) read from the partition. processor_metadata: by key, e.g. a store's
    name.
    """

    partition_time: int = UNKNOWN
    processor_metadata: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the text to commit, of at most MAX_BYTES.

        Processor metadata that is too long even if compressed is left out, because the offsets must be committed: first
        the marks of topics, then the times of operators, but never KEPT_MARKS.
        Operators that need it may then accept late records after a restart, until newer ones arrive.
        """
        head, encoded = _HEAD.pack(LATEST_MAGIC_BYTE, self.partition_time), _encode_map(self.processor_metadata)
        text = _text(head + encoded)
        if len(text) <= MAX_BYTES:
            return text
        times = {key: value for key, value in self.processor_metadata.items() if not key.startswith(TOPIC_MARK)}
        for data in (encoded, _encode_map(times)):
            text = _text(head + _INT.pack(0) + zlib.compress(data))
            if len(text) <= MAX_BYTES:
                return text
        logger.warning(
            "The times of %d operators are too long for the metadata of an offset (%d bytes), and are left out",
            len(times),
            len(text),
        )
        return _text(head + _encode_map({key: value for key, value in times.items() if key in KEPT_MARKS}))

    @classmethod
    def decode(cls, text: str) -> TopicPartitionMetadata:
        """Decode metadata written by encode, or by Kafka Streams since 2.4. Unreadable metadata is logged and counts as
        empty.
        """
        text = text.rstrip("\0")  # librdkafka stores a trailing NUL with offsets of a transaction
        if not text:
            return cls()
        try:
            data = base64.b64decode(text, validate=True)
            version, partition_time = _HEAD.unpack_from(data)
            if version not in (1, LATEST_MAGIC_BYTE):
                logger.warning(
                    "Unsupported offset metadata version found. Supported version <= %s. Found version %s.",
                    LATEST_MAGIC_BYTE,
                    version,
                )
                return cls()
            return cls(partition_time, _decode_map(data[_HEAD.size :]) if version == LATEST_MAGIC_BYTE else {})
        except (binascii.Error, struct.error, UnicodeDecodeError, zlib.error):
            logger.warning("Unsupported offset metadata found: %r", text)
            return cls()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _encode_map(metadata: Mapping[str, int]) -> bytes:
    if not metadata:
        return b""
    parts = [_INT.pack(len(metadata))]
    for key, value in metadata.items():
        name = key.encode("utf-8")
        parts += [_INT.pack(len(name)), name, _LONG.pack(value)]
    return b"".join(parts)


def _decode_map(data: bytes) -> dict[str, int]:
    metadata: dict[str, int] = {}
    if not data:
        return metadata
    (count,) = _INT.unpack_from(data)
    position = _INT.size
    if count == 0 and len(data) > position:
        return _decode_map(zlib.decompress(data[position:]))
    for _ in range(count):
        (length,) = _INT.unpack_from(data, position)
        position += _INT.size
        key = data[position : position + length].decode("utf-8")
        position += length
        (metadata[key],) = _LONG.unpack_from(data, position)
        position += _LONG.size
    return metadata
