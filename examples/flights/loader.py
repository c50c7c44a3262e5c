"""Loads the data set into Kafka: ``python -m examples.flights.loader`` (KAFKA_BOOTSTRAP_SERVERS says where)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from rich.console import Console
from rich.progress import track

from examples.flights import dataset, topics
from penstock import StreamsConfig
from penstock.cli.topics import Topics

ADMIN_TIMEOUT_SECONDS = 30.0
FLUSH_TIMEOUT_SECONDS = 60.0
#: The timestamp of rows that do not change during the year: its first moment, before the first flight.
START_OF_2013_MS = 1_356_998_400_000

#: Errors only: a broker that has just started makes a producer wait, and librdkafka would remark on it.
QUIET = {"log_level": 3}

#: Key, value and timestamp (ms) of a record to be loaded.
Keyed = tuple[str | None, dict[str, Any], int]


def flights() -> Iterator[Keyed]:
    """Yield the flights in the order of their scheduled departures, keyed by plane; a few have no tail number."""
    for row in dataset.flights():
        yield row["tailnum"], row, row["scheduled"]


def weather() -> Iterator[Keyed]:
    """Yield the weather in the order of its hours, keyed by airport and hour.

    Each report is dated a minute before its hour. A join sees the rows of a table that are older than the record; a
    report of the same millisecond as a departure on the hour could come before or after it.
    """
    for row in sorted(dataset.weather(), key=lambda row: row["hour"]):
        yield f"{row['origin']}@{row['hour']}", row, dataset.epoch_ms(row["hour"]) - dataset.MINUTE_MS


def planes() -> Iterator[Keyed]:
    """Yield the planes, keyed by tail number."""
    for row in dataset.planes():
        yield row["tailnum"], row, START_OF_2013_MS


def airports() -> Iterator[Keyed]:
    """Yield the airports, keyed by their code."""
    for row in dataset.airports():
        yield row["faa"], row, START_OF_2013_MS


def airlines() -> Iterator[Keyed]:
    """Yield the airlines, keyed by their code."""
    for row in dataset.airlines():
        yield row["carrier"], row, START_OF_2013_MS


SOURCES: dict[str, Callable[[], Iterable[Keyed]]] = {
    topics.AIRLINES: airlines,
    topics.AIRPORTS: airports,
    topics.PLANES: planes,
    topics.WEATHER: weather,
    topics.FLIGHTS: flights,
}


def load(bootstrap_servers: str) -> int:
    """Create all topics of the example and fill the inputs; return how many records that took.

    Raises StreamsError if a topic cannot be created, KafkaException if it cannot be written.
    """
    create_topics(bootstrap_servers)
    produce(bootstrap_servers, SOURCES)
    return sum(dataset.ROWS.values())


def produce(bootstrap_servers: str, sources: Mapping[str, Callable[[], Iterable[Keyed]]]) -> None:
    """Write records into topics, all of one topic before the next; raises KafkaException."""
    # Java's partitioner, so that a Java program that joins with these topics finds the same keys in the same places.
    producer = Producer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 50,
            "compression.type": "lz4",
        }
    )
    console = Console(stderr=True)
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: object) -> None:
        if error is not None:
            failures.append(error)

    for topic, source in sources.items():
        what, rows = f"Loading {topic}", dataset.ROWS[topic]
        records = track(source(), what, rows, console=console, transient=True, disable=not console.is_terminal)
        for key, value, timestamp in records:
            _produce(producer, topic, key, orjson.dumps(value), timestamp, delivered)
    if producer.flush(FLUSH_TIMEOUT_SECONDS) or failures:
        raise KafkaException(failures[0] if failures else KafkaError(KafkaError._MSG_TIMED_OUT))


def create_topics(bootstrap_servers: str) -> None:
    """Create the topics that do not exist yet."""
    cluster = Topics(StreamsConfig({"bootstrap.servers": bootstrap_servers}))
    for topic in (*topics.INPUTS, *topics.ANSWERS):
        cluster.create([topic.name], topic.partitions, None, topic.config)


def loaded_rows(bootstrap_servers: str) -> dict[str, int]:
    """Return how many records each input topic holds; 0 for a topic that does not exist."""
    consumer = Consumer({**QUIET, "bootstrap.servers": bootstrap_servers, "group.id": "never-joined"})
    try:
        existing = consumer.list_topics(timeout=ADMIN_TIMEOUT_SECONDS).topics
        return {name: sum(_sizes(consumer, name, len(existing[name].partitions))) if name in existing else 0
                for name in dataset.ROWS}  # fmt: skip
    finally:
        consumer.close()


def is_loaded(bootstrap_servers: str) -> bool:
    """Return whether every row of the data set is in its topic, once."""
    return loaded_rows(bootstrap_servers) == dataset.ROWS


def _sizes(consumer: Consumer, topic: str, partitions: int) -> Iterator[int]:
    for partition in range(partitions):
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), ADMIN_TIMEOUT_SECONDS)
        yield high - low


def _produce(
    producer: Producer, topic: str, key: str | None, value: bytes, timestamp: int, delivered: Callable[..., None]
) -> None:
    while True:
        try:
            producer.produce(topic, value, key, timestamp=timestamp, on_delivery=delivered)
        except BufferError:  # the local queue is full: wait until some of it is sent
            producer.poll(0.1)
        else:
            return


if __name__ == "__main__":
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if not servers:
        sys.exit('Set KAFKA_BOOTSTRAP_SERVERS first: eval "$(penstock broker start)"')
    print(f"{load(servers)} records loaded into {', '.join(SOURCES)} at {servers}")
