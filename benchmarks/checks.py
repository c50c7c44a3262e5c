"""Checks of output topics: a fast engine with wrong results is not reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

READ_TIMEOUT_SECONDS = 30.0
POLL_SECONDS = 0.5
BATCH = 10_000


class Check(ABC):
    """Reads an output record by record, then reports what is wrong."""

    @abstractmethod
    def read(self, key: bytes, value: bytes) -> None:
        """Read the next record of a partition."""

    @abstractmethod
    def problem(self) -> str | None:
        """Return the error in the records that were read, None if they are right."""


class CountsCheck(Check):
    """The last count of each key is the expected one; with every_update, each is one more than the previous one.

    A key whose last record is a tombstone has no count.
    """

    def __init__(self, expected: Mapping[bytes, int], every_update: bool = False) -> None:
        self._expected = expected
        self._every_update = every_update
        self._latest: dict[bytes, int] = {}
        self._jumps = 0

    def read(self, key: bytes, value: bytes) -> None:
        if not value:  # a session that was merged into another one
            self._latest.pop(key, None)
            return
        count = int.from_bytes(value)
        if self._every_update and count != self._latest.get(key, 0) + 1:
            self._jumps += 1
        self._latest[key] = count

    def problem(self) -> str | None:
        if self._jumps:
            return f"{self._jumps} updates are not one more than the update before"
        wrong = [key for key, count in self._expected.items() if self._latest.get(key) != count]
        unexpected = self._latest.keys() - self._expected.keys()
        if wrong or unexpected:
            example = (wrong or sorted(unexpected))[0]
            return (
                f"{len(wrong)} of {len(self._expected)} counts are wrong and {len(unexpected)} keys unexpected, "
                f"e.g. {example!r}: {self._latest.get(example)} instead of {self._expected.get(example)}"
            )
        return None


class LatestCheck(Check):
    """The last value of each key is the expected one, byte for byte."""

    def __init__(self, expected: Mapping[bytes, Any]) -> None:
        self._expected = expected
        self._latest: dict[bytes, Any] = {}

    def read(self, key: bytes, value: bytes) -> None:
        self._latest[key] = value

    def problem(self) -> str | None:
        keys = self._expected.keys() | self._latest.keys()
        wrong = [key for key in keys if self._latest.get(key) != self._expected.get(key)]
        if not wrong:
            return None
        key = min(wrong)
        return (
            f"{len(wrong)} of {len(keys)} keys have the wrong last value, e.g. {key!r}: {self._latest.get(key)!r} "
            f"instead of {self._expected.get(key)!r}"
        )


class SumsCheck(LatestCheck):
    """The last totals (``n`` and ``sum``) of all tasks add up to the expected ones. The keys are ``<key>-<task>``."""

    def problem(self) -> str | None:
        if not self._expected:
            return "there is nothing to add up: give it more --records"
        sums: dict[bytes, Counter[str]] = defaultdict(Counter)
        for key, value in self._latest.items():
            sums[key.partition(b"-")[0]].update(orjson.loads(value))
        self._latest = {key: orjson.dumps(total) for key, total in sums.items()}
        return super().problem()


@dataclass(slots=True)
class RowSum:
    """The number of rows, and the sum of their hashes: Python's own, valid only in this process."""

    rows: int = 0
    hashes: int = 0

    def add(self, key: bytes, value: bytes) -> None:
        """Count a row."""
        self.rows += 1
        self.hashes += hash((key, value))


class RowsCheck(Check):
    """The rows are the expected ones with their duplicates, byte for byte, in any order: compared by a sum of their
    hashes.
    """

    def __init__(self, expected: RowSum) -> None:
        self._expected = expected
        self._found = RowSum()

    def read(self, key: bytes, value: bytes) -> None:
        self._found.add(key, value)

    def problem(self) -> str | None:
        if self._found != self._expected:
            return f"{self._found.rows} rows instead of {self._expected.rows}, or rows of other content"
        return None


def sum_of_rows(rows: Iterable[tuple[bytes, bytes]]) -> RowSum:
    """Return the sum that RowsCheck compares."""
    total = RowSum()
    for key, value in rows:
        total.add(key, value)
    return total


def check_topic(bootstrap_servers: str, topic: str, check: Check) -> str | None:
    """Read a topic from its beginning to its end and return the error found; raises KafkaException."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "never-joined", "enable.auto.commit": False}
    consumer = Consumer({**settings, "enable.partition.eof": True, "log_level": 3})
    try:
        unread = set(consumer.list_topics(topic, READ_TIMEOUT_SECONDS).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in unread])
        while unread:
            for message in consumer.consume(BATCH, POLL_SECONDS):
                error = message.error()
                if error is None:
                    check.read(message.key() or b"", message.value() or b"")
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return check.problem()
