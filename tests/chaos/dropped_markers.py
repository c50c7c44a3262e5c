"""Kafka drops the marker of a transaction in a partition that has no leader: a reproducer with a plain client.

Needs confluent-kafka and a KRaft cluster of two brokers with node ids 1 and 2, whose controller survives the death of
broker 2 (broker 1 can be the controller). Broker settings, because one of two brokers dies:

    transaction.state.log.replication.factor=2
    transaction.state.log.min.isr=1
    offsets.topic.replication.factor=2

    python dropped_markers.py HOST:PORT

HOST:PORT is broker 1. The script asks you to kill broker 2 (``kill -9``) and to start it again; it prints the records
that read_committed consumers receive, and the expected ones. Exit status 1 if they differ.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.topics import create_topics

#: The broker that dies; it alone has the topic.
VICTIM = 2
#: Timeout of a request, and for brokers to detect a death (broker.session.timeout.ms is 9 s by default) or a start.
SECONDS, PATIENCE_SECONDS = 30.0, 180.0
POLL_SECONDS = 0.2
#: The coordinator's first decision in each partition; the next transaction of the same producer ends the other way.
FIRST_IS_COMMITTED = (False, True)


@dataclass(frozen=True)
class Found:
    """The state of a partition. committed: whether the first transaction was; the next one ended the other way.

    stable, end: its last stable offset and its end, after the first transaction. read: the records that a
    read_committed consumer receives after the next one.
    """

    committed: bool
    stable: int
    end: int
    read: list[str]

    @property
    def expected(self) -> list[str]:
        """The records that the consumer should receive."""
        return ["first"] if self.committed else ["next"]

    def __str__(self) -> str:
        ends = ("committed", "aborted") if self.committed else ("aborted", "committed")
        return (
            f"The first transaction was {ends[0]}; then the partition ended at {self.end} and its last stable offset "
            f"was {self.stable}. The next one was {ends[1]}; then a consumer read {self.read}, not {self.expected}."
        )


def reproduce(address: str, kill: Callable[[], object], start: Callable[[], object]) -> list[Found]:
    """Return the results of an aborted transaction, and of a committed one.

    kill, start: functions that kill and start broker 2.
    """
    admin = AdminClient({"bootstrap.servers": address})
    topic = f"dropped-markers-{uuid.uuid4().hex[:8]}"
    count = len(FIRST_IS_COMMITTED)
    create_topics(admin, NewTopic(topic, count, replica_assignment=[[VICTIM]] * count))
    _await_leaders(admin, topic, [VICTIM] * count)
    producers = [_producer(address, f"{topic}-{number}") for number in range(count)]
    for number, producer in enumerate(producers):
        producer.begin_transaction()
        producer.produce(topic, "first", partition=number)
        producer.flush(SECONDS)
    kill()
    _await_leaders(admin, topic, [-1] * count)
    for producer, committed in zip(producers, FIRST_IS_COMMITTED, strict=True):
        _end(producer, committed)  # it succeeds, although no leader can write the marker
    start()
    _await_leaders(admin, topic, [VICTIM] * count)
    offsets = [_offsets(admin, Place(topic, number)) for number in range(count)]
    for number, (producer, committed) in enumerate(zip(producers, FIRST_IS_COMMITTED, strict=True)):
        producer.begin_transaction()
        producer.produce(topic, "next", partition=number)
        producer.flush(SECONDS)
        _end(producer, not committed)
    return [
        Found(committed, *offsets[number], _read(address, Place(topic, number)))
        for number, committed in enumerate(FIRST_IS_COMMITTED)
    ]


def _producer(address: str, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": transactional_id, "linger.ms": 0})
    producer.init_transactions(SECONDS)
    return producer


def _end(producer: Producer, commit: bool) -> None:
    """End a transaction; repeat the call while its coordinator moves away from the dead broker."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            (producer.commit_transaction if commit else producer.abort_transaction)(SECONDS)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


def _await_leaders(admin: AdminClient, topic: str, wanted: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        partitions = admin.list_topics(topic, timeout=SECONDS).topics[topic].partitions
        leaders = [partition.leader for _, partition in sorted(partitions.items())]
        if leaders == wanted:
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic} has the leaders {leaders} instead of {wanted}")
        time.sleep(POLL_SECONDS)


def _offsets(admin: AdminClient, place: Place) -> tuple[int, int]:
    """Return the last stable offset and the end of a partition."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    levels = (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    stable, end = (
        admin.list_offsets({place: latest}, isolation_level=level, request_timeout=SECONDS)[place]
        .result(SECONDS)
        .offset
        for level in levels
    )
    return stable, end


def _read(address: str, place: Place) -> list[str]:
    """Return the committed records of a partition."""
    settings = {"bootstrap.servers": address, "group.id": place.topic, "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([Place(place.topic, place.partition, OFFSET_BEGINNING)])
    found = []
    try:
        while (message := consumer.poll(SECONDS)) is not None:
            error = message.error()
            if error is None:
                found.append((message.value() or b"").decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise KafkaException(error)
        raise TimeoutError(f"no end of {place.topic}-{place.partition} within {SECONDS:.0f} s")
    finally:
        consumer.close()


def main() -> int:
    """Ask the user to kill and start broker 2; return the exit status."""
    found = reproduce(
        sys.argv[1],
        lambda: input(f"Kill broker {VICTIM} with SIGKILL, then press Enter. "),
        lambda: input(f"Start broker {VICTIM} again, then press Enter. "),
    )
    print(*found, sep="\n")
    return int(any(partition.read != partition.expected for partition in found))


if __name__ == "__main__":
    sys.exit(main())
