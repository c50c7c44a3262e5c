"""How one task writes: outputs and changelogs (Kafka Streams: RecordCollectorImpl).

send and log_change are made once for each task as closures over the client's own produce: they run for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.topology.records import Headers, TopicPartition

from .streams_producer import StreamsProducer

#: send(topic, key, value, timestamp, headers, partition=None); see TaskContext.send.
Send = Callable[..., None]
#: log_change(store name, key, value, timestamp, headers=None); see TaskContext.log_change.
LogChange = Callable[..., None]

#: librdkafka's "the partitioner decides".
UNASSIGNED = -1
#: librdkafka takes timestamp 0 for "now", which would move a record from 1970 to today; 1 ms after it is closest.
EARLIEST_TIMESTAMP = 1
NOW = 0


def make_send(producer: StreamsProducer) -> Send:
    """Return a task's send. It raises the error of an earlier record, as Kafka Streams' does."""
    produce, errors, check, wait_for_room = producer.produce, producer.errors, producer.check, producer.wait_for_room

    def send(
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp: int | None,
        headers: Headers,
        partition: int | None = None,
    ) -> None:
        if errors:
            check()
        to = UNASSIGNED if partition is None else partition
        at = NOW if timestamp is None else timestamp or EARLIEST_TIMESTAMP
        while True:
            try:
                if headers:
                    produce(topic, value, key, to, timestamp=at, headers=list(headers))
                else:
                    produce(topic, value, key, to, timestamp=at)
                return
            except BufferError:
                wait_for_room()

    return send


def make_log_change(producer: StreamsProducer, changelogs: Mapping[str, TopicPartition]) -> LogChange:
    """Return a task's log_change. changelogs: by store; stores whose source topic is the changelog are not in it."""
    send = make_send(producer)

    def log_change(
        store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        topic, partition = changelogs[store_name]
        send(topic, key, value, timestamp, headers, partition)

    return log_change
