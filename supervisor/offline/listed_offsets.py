"""The results of an AdminClient's list_offsets."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError, KafkaException

#: The result of "the first record since …" if there is none.
NO_RECORD = -1


def listed_offset(answer: Any, by_time: bool = False) -> int:
    """Return the offset of a ListOffsetsResultInfo; NO_RECORD only if it was requested by time.

    Raises KafkaException (_TRANSPORT, so that callers retry) if there is none: when a broker disconnects during the
    request, librdkafka 2.16 returns offset -1001 without an error. As the end of a changelog, this offset would make an
    empty store count as restored.
    """
    offset = int(answer.offset)
    if offset < 0 and not (by_time and offset == NO_RECORD):
        reason = f"the broker went away before it had answered (offset {offset})"
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, reason))
    return offset
