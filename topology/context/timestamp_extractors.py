"""Timestamp extractors of input records (Kafka Streams: TimestampExtractor).

An extractor is a function (raw message, key, value, partition time) -> timestamp, all times in milliseconds; key and
value are deserialized, partition time is the highest timestamp so far of the record's partition, -1 before the first. A
negative result drops the record. A result other than a 64-bit integer is an error, as is an exception; the error names
source, topic, partition and offset.
"""

from __future__ import annotations

import logging
import operator
import time
from collections.abc import Callable
from typing import Any

from ..errors import StreamsError
from ..records import Message

logger = logging.getLogger(__name__)

TimestampExtractor = Callable[[Message, Any, Any, int], int]
#: Milliseconds since the epoch have 64 bits in Kafka.
TIMESTAMP_MAX = 2**63 - 1


def as_timestamp(found: object) -> int:
    """Return a user's timestamp as an int; accepts integers of NumPy and similar types, but no bool.

    Raises TypeError for anything else, ValueError for a number of more than 64 bits.
    """
    if isinstance(found, bool) or not hasattr(found, "__index__"):
        raise TypeError(f"a timestamp is an int, milliseconds since the epoch, not {found!r} ({type(found).__name__})")
    timestamp = operator.index(found)
    if timestamp > TIMESTAMP_MAX:
        raise ValueError(f"a timestamp has 64 bits, milliseconds since the epoch, not {timestamp}")
    return timestamp


def fail_on_invalid_timestamp(message: Message, key: object, value: object, partition_time: int) -> int:
    """Return the record's own timestamp; raises StreamsError if it is negative. The default."""
    timestamp = message.timestamp()[1]
    if timestamp < 0:
        raise StreamsError(
            f"Input record of {message.topic()}-{message.partition()} at offset {message.offset()} has the invalid "
            f"(negative) timestamp {timestamp}. Possibly a producer older than 0.10 wrote it. Use another timestamp "
            "extractor to process it."
        )
    return timestamp


def log_and_skip_on_invalid_timestamp(message: Message, key: object, value: object, partition_time: int) -> int:
    """Return the record's own timestamp; if it is negative, log it and drop the record."""
    timestamp = message.timestamp()[1]
    if timestamp < 0:
        logger.warning(
            "Skip record of %s-%s at offset %s: it has the invalid (negative) timestamp %s",
            message.topic(),
            message.partition(),
            message.offset(),
            timestamp,
        )
    return timestamp


def use_partition_time_on_invalid_timestamp(message: Message, key: object, value: object, partition_time: int) -> int:
    """Return the record's own timestamp, or partition time if it is negative; raises StreamsError if that is too."""
    timestamp = message.timestamp()[1]
    if timestamp >= 0:
        return timestamp
    if partition_time < 0:
        raise StreamsError(
            f"Could not infer a timestamp for the record of {message.topic()}-{message.partition()} at offset "
            f"{message.offset()}: its own is negative, and the partition had no valid one before"
        )
    return partition_time


def wallclock_timestamp_extractor(message: Message, key: object, value: object, partition_time: int) -> int:
    """Return the time of processing."""
    return time.time_ns() // 1_000_000
