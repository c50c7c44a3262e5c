"""Reads topics to their ends, without the waits of a consumer that continues reading."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, TopicPartition

from tests.waiting import PATIENCE_SECONDS


def read_to_end(bootstrap_servers: str, *topics: str) -> Iterator[Message]:
    """Yield the committed records of topics up to their current ends, in order within a partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 10,  # 500 by default: the broker holds the response that reports the end for so long
        }
    )
    try:
        # A consumer without information on the leaders of its partitions requests it twice a second.
        metadata = {topic: consumer.list_topics(topic, PATIENCE_SECONDS).topics[topic] for topic in topics}
        unread = {(topic, number) for topic in topics for number in metadata[topic].partitions}
        consumer.assign([TopicPartition(*partition, OFFSET_BEGINNING) for partition in sorted(unread)])
        while unread:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"nothing more of {unread} within {PATIENCE_SECONDS:.0f} s"
            error = message.error()
            if error is None:
                yield message
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unread.discard((message.topic() or "", message.partition() or 0))
    finally:
        consumer.close()
