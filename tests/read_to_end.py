"""Reads topics to their ends, without the waits of a consumer that continues reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.waiting import PATIENCE_SECONDS, eventually

NOT_YET = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART)


def read_to_end(bootstrap_servers: str, *topics: str) -> Iterator[Message]:
    """Yield the committed records of topics up to their current ends, in order within a partition.

    The end of a transaction shows in its partitions only after its producer knows it: read_to_end waits for that.
    """
    ends = ends_of(bootstrap_servers, topics)
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
        for topic in topics:
            consumer.list_topics(topic, PATIENCE_SECONDS)
        unread = set(ends)
        consumer.assign([TopicPartition(*partition, OFFSET_BEGINNING) for partition in sorted(unread)])
        while unread:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"nothing more of {unread} within {PATIENCE_SECONDS:.0f} s"
            error = message.error()
            if error is None:
                yield message
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                partition = message.topic() or "", message.partition() or 0
                if (message.offset() or 0) >= ends[partition]:
                    unread.discard(partition)
    finally:
        consumer.close()


def ends_of(bootstrap_servers: str, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """Return the ends of all partitions, behind open transactions, too."""
    config = {"bootstrap.servers": bootstrap_servers, "group.id": "unused", "isolation.level": "read_uncommitted"}
    consumer = Consumer(config)
    try:
        found = {topic: consumer.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions for topic in topics}
        partitions = [(topic, number) for topic in topics for number in found[topic]]
        return {each: _end(consumer, TopicPartition(*each)) for each in partitions}
    finally:
        consumer.close()


def _end(consumer: Consumer, partition: TopicPartition) -> int:
    """Return the end of a partition; the leader of a new one may not know yet that it leads it."""
    ends: list[int] = []

    def has_answered() -> bool:
        try:
            ends.append(consumer.get_watermark_offsets(partition, PATIENCE_SECONDS)[1])
        except KafkaException as error:
            if error.args[0].code() not in NOT_YET:
                raise
        return bool(ends)

    eventually(has_answered, f"{partition} has a leader")
    return ends[0]
