"""Computes the answers with plain Python directly from the data set, and compares them with those in Kafka.

It shares only the names of topics and of missing values with the topology: two independent computations of the same
answers.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from examples.flights import dataset, topics
from examples.flights.topology import HOT, NO_TAIL_NUMBER, NO_WEATHER, TEMPERATURE_BANDS, UNKNOWN_PLANE

HOUR_MS = 3_600_000
READ_TIMEOUT_SECONDS = 30.0
BATCH = 10_000
POLL_SECONDS = 0.5

Row = dict[str, Any]
#: The latest row of each key.
Table = dict[str, Row]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The comparison of one answer: missing keys, unexpected keys, and keys with another row than expected."""

    topic: str
    rows: int
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    different: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """True if the answer equals plain Python's."""
        return not (self.missing or self.unexpected or self.different)

    def __str__(self) -> str:
        if self.equal:
            return f"{self.topic}: equal ({self.rows} rows)"
        parts = [f"{len(keys)} {word}, e.g. {keys[0]}" for word, keys in self._problems() if keys]
        return f"{self.topic}: NOT EQUAL ({self.rows} rows expected): {'; '.join(parts)}"

    def _problems(self) -> Iterable[tuple[str, tuple[str, ...]]]:
        return ("missing", self.missing), ("unexpected", self.unexpected), ("different", self.different)


def verify(bootstrap_servers: str) -> list[Verdict]:
    """Compare all four answers."""
    expected = expected_answers(dataset.flights())
    return [compare(topic, table, read_table(bootstrap_servers, topic)) for topic, table in expected.items()]


def compare(topic: str, expected: Table, found: Table) -> Verdict:
    """Compare two tables row by row."""
    return Verdict(
        topic=topic,
        rows=len(expected),
        missing=tuple(sorted(expected.keys() - found.keys())),
        unexpected=tuple(sorted(found.keys() - expected.keys())),
        different=tuple(sorted(key for key in expected.keys() & found.keys() if expected[key] != found[key])),
    )


def expected_answers(flights: list[Row]) -> dict[str, Table]:
    """Return the four answers about these flights, by topic."""
    departed = [flight for flight in flights if flight["dep_delay"] is not None]
    return {
        topics.DELAYS: _average_delays(departed),
        topics.ROUTES: _busiest_routes(flights),
        topics.MANUFACTURERS: _by_manufacturer(flights),
        topics.TEMPERATURES: _by_temperature(departed),
    }


def _average_delays(departed: list[Row]) -> Table:
    names = {airline["carrier"]: airline["name"] for airline in dataset.airlines()}
    delays = defaultdict(list)
    for flight in departed:
        delays[flight["carrier"], flight["scheduled"] // HOUR_MS * HOUR_MS].append(flight["dep_delay"])
    return {
        f"{carrier}@{hour}": {**_departures(minutes), "carrier": carrier, "airline": names[carrier]}
        for (carrier, hour), minutes in delays.items()
    }


def _busiest_routes(flights: list[Row]) -> Table:
    names = {airport["faa"]: airport["name"] for airport in dataset.airports()}
    groups = defaultdict(list)
    for flight in flights:
        groups[flight["origin"], flight["dest"]].append(flight)
    return {
        f"{origin}-{dest}": {**_flights(group), "origin": origin, "dest": dest, "airport": names.get(dest)}
        for (origin, dest), group in groups.items()
    }


def _by_manufacturer(flights: list[Row]) -> Table:
    makers = {plane["tailnum"]: plane["manufacturer"] for plane in dataset.planes()}
    groups = defaultdict(list)
    for flight in flights:
        tail_number = flight["tailnum"]
        groups[NO_TAIL_NUMBER if tail_number is None else makers.get(tail_number, UNKNOWN_PLANE)].append(flight)
    return {maker: _flights(group) for maker, group in groups.items()}


def _by_temperature(departed: list[Row]) -> Table:
    temperatures = {(row["origin"], row["hour"]): row["temp"] for row in dataset.weather()}
    delays = defaultdict(list)
    for flight in departed:
        temperature = temperatures.get((flight["origin"], flight["hour"]))
        delays[_band(temperature)].append(flight["dep_delay"])
    return {band: {**_departures(minutes), "band": band} for band, minutes in delays.items()}


def _band(temperature: float | None) -> str:
    if temperature is None:
        return NO_WEATHER
    return next((name for bound, name in TEMPERATURE_BANDS if temperature < bound), HOT)


def _departures(minutes: list[int]) -> Row:
    return {"departures": len(minutes), "minutes": sum(minutes), "average": sum(minutes) / len(minutes)}


def _flights(group: list[Row]) -> Row:
    return {"flights": len(group), "cancelled": sum(flight["dep_delay"] is None for flight in group)}


def read_table(bootstrap_servers: str, topic: str) -> Table:
    """Return the latest row of each key of a topic; raises KafkaException."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "never-joined", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "log_level": 3})
    try:
        partitions = consumer.list_topics(topic, READ_TIMEOUT_SECONDS).topics[topic].partitions
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        return _read_to_end(consumer, set(partitions))
    finally:
        consumer.close()


def _read_to_end(consumer: Consumer, unread: set[int]) -> Table:
    table: Table = {}
    while unread:
        for message in consumer.consume(BATCH, POLL_SECONDS):
            error = message.error()
            if error is None:
                key, value = (message.key() or b"").decode(), message.value()
                table.pop(key, None) if value is None else table.update({key: orjson.loads(value)})
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            else:
                raise KafkaException(error)
    return table


if __name__ == "__main__":
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if not servers:
        sys.exit('Set KAFKA_BOOTSTRAP_SERVERS first: eval "$(penstock broker start)"')
    verdicts = verify(servers)
    print(*verdicts, sep="\n")
    sys.exit(0 if all(verdict.equal for verdict in verdicts) else 1)
