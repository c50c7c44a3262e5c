"""What librdkafka's errors mean for a stream thread's producer (Kafka Streams: RecordCollectorImpl's lists)."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

#: A new generation of the group has taken over: the transaction has to be aborted, the producer is as good as before.
MEMBER_FENCED = frozenset(
    (
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.FENCED_INSTANCE_ID,
        KafkaError.STALE_MEMBER_EPOCH,
        KafkaError.FENCED_MEMBER_EPOCH,
    )
)
#: The same, or another producer with our transactional id; or the broker has ended a transaction that took too long.
FENCED = MEMBER_FENCED | {
    KafkaError._FENCED,
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
}
#: The cluster was not able to, now: the same work may succeed when it is done again.
TRANSIENT = frozenset(
    (
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.INVALID_TXN_STATE,
        KafkaError.TRANSACTION_ABORTABLE,
        KafkaError._UNKNOWN_PARTITION,  # the topic was recreated with fewer: keys are partitioned by its new count then
    )
)
#: produce() in a client that is fenced, has failed for good, or whose transaction has to be aborted.
UNUSABLE = FENCED | {KafkaError._STATE, KafkaError._FATAL}
#: No other try changes these.
PERMANENT = frozenset(
    (
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.OFFSET_METADATA_TOO_LARGE,
        KafkaError.UNSUPPORTED_VERSION,
    )
)
#: Records that we have given up ourselves, with their transaction.
PURGED = frozenset((KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT))
MISSING_TOPIC = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC))


def checked(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a method of a Producer that serves its callbacks: poll, flush, or one of the transaction's.

    If the client fails for good meanwhile, confluent-kafka 2.16 sets an exception and returns a result nevertheless;
    called plainly, Python then raises it out of any later statement. operator.call looks at once.
    """
    try:
        return operator.call(call, *arguments)
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from None
        raise
