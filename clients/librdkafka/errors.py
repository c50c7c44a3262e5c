"""Translates librdkafka's errors to ours."""

from __future__ import annotations

from confluent_kafka import KafkaError

from ..errors import (
    BrokerError,
    ClientError,
    DeliveryTimeoutError,
    ErrorCode,
    MissingPartitionError,
    RetriableError,
    UnreachableError,
    UnusableClientError,
    broker_error,
)

#: librdkafka's own codes that are equivalent to a broker's code.
_AS_BROKERS = {
    KafkaError._AUTO_OFFSET_RESET: ErrorCode.OFFSET_OUT_OF_RANGE,
    KafkaError._UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    KafkaError._FENCED: ErrorCode.PRODUCER_FENCED,
}
#: Codes of corrupted records; unlike a broker's CORRUPT_MESSAGE, a retry does not help.
_DAMAGED = frozenset((KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION))
_UNREACHABLE = frozenset(
    (
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
    )
)
#: The client is fenced, has failed, or its transaction has.
_UNUSABLE = frozenset((KafkaError._STATE, KafkaError._FATAL))
#: Records that were dropped on purpose, with their transaction or their client.
PURGED = frozenset((KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT))


def client_error(error: KafkaError) -> ClientError:
    """Return the ClientError of a KafkaError."""
    code, text = error.code(), error.str()
    if code >= KafkaError.UNKNOWN:  # brokers' codes start at -1
        return broker_error(code, text)
    if code in _AS_BROKERS:
        return broker_error(_AS_BROKERS[code], text)
    if code in _DAMAGED:
        return BrokerError(ErrorCode.CORRUPT_MESSAGE, text)
    if code == KafkaError._UNKNOWN_PARTITION:
        return MissingPartitionError(text)
    if code == KafkaError._MSG_TIMED_OUT:
        return DeliveryTimeoutError(text)
    if code in _UNREACHABLE:
        return UnreachableError(text)
    if code in _UNUSABLE:
        return UnusableClientError(text)
    return RetriableError(text) if error.retriable() else ClientError(text)
