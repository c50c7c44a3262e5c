"""Writes records in transactions, some of which are aborted, in spite of faults of the brokers."""

from __future__ import annotations

import json
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from typing_extensions import override

from tests.chaos.checker import TopicReader

#: Records of one transaction, at most.
BATCH = 24
#: The probability that a transaction is aborted.
ABORT = 0.1
#: Seconds between two transactions: with the batch size this gives about two hundred records a second.
PAUSE_SECONDS = 0.06
#: Minimum number of transactions in a run: one without kills would otherwise end before it has read anything.
LEAST = 60
REQUEST_SECONDS = 5.0
TRANSACTION_TIMEOUT_MS = 30_000
#: Records of one transaction when many are written at once.
MANY = 5_000
#: The number of keys with a last record: more would only take longer.
LAST_KEYS = 1_000
#: Size limit of a record and of a request: enough for records of 10 MB.
MAX_BYTES = 16 * 1024 * 1024
#: Leaves the partition to the partitioner.
PARTITIONER = -1


@dataclass(frozen=True)
class FeedRecord:
    """A record to write. partition: None leaves it to Kafka's partitioner; timestamp: ms, 0 for now."""

    topic: str
    key: bytes
    value: bytes | None
    partition: int | None = None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()


class InputWriter(Protocol):
    """Writes records together."""

    def write(self, records: Sequence[FeedRecord], abort: bool) -> bool:
        """Write records. abort: they must stay invisible.

        Returns False if some may be missing; the outcome of the rest is decided.
        """

    def flush(self) -> None:
        """Wait for records in flight."""


class PlainWriter(InputWriter):
    """Writes without transactions. bootstrap_servers: those of the run."""

    def __init__(self, bootstrap_servers: str) -> None:
        settings = {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "linger.ms": 1,
            "partitioner": "murmur2_random",
            "log_level": 2,
        }
        self._producer = Producer(settings)

    @override
    def write(self, records: Sequence[FeedRecord], abort: bool) -> bool:
        if abort:
            return True
        failed: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failed.append(error)

        for record in records:
            self._producer.produce(record.topic, record.value, record.key, on_delivery=delivered)
        while self._producer.flush(REQUEST_SECONDS):
            pass
        return not failed

    @override
    def flush(self) -> None:
        self._producer.flush(REQUEST_SECONDS)


class TransactionWriter(InputWriter):
    """Writes transactions independently of each other: a producer that cannot continue is replaced."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": "chaos-feeder",
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            "linger.ms": 1,
            "partitioner": "murmur2_random",
            "message.max.bytes": MAX_BYTES,
            "log_level": 2,
        }
        self._producer = self._new_producer()

    @override
    def write(self, records: Sequence[FeedRecord], abort: bool) -> bool:
        try:
            self._producer.begin_transaction()
            for record in records:
                self._produce(record)
            if abort:
                self._producer.flush(
                    REQUEST_SECONDS
                )  # otherwise librdkafka drops them, and they would not be aborted records in the log
            self._insist(self._producer.abort_transaction if abort else self._producer.commit_transaction)
        except KafkaException:
            self._producer = self._new_producer()  # this makes the broker decide the last transaction
            return False
        return True

    @override
    def flush(self) -> None:
        self._producer.flush(REQUEST_SECONDS)

    def _produce(self, record: FeedRecord) -> None:
        headers: list[tuple[str, str | bytes | None]] = list(record.headers)
        self._producer.produce(
            record.topic,
            record.value,
            record.key,
            partition=PARTITIONER if record.partition is None else record.partition,
            timestamp=record.timestamp,
            headers=headers,
        )

    def _insist(self, call: Callable[[float], object]) -> None:
        """Repeat a call until its outcome is known: a commit without a response may have happened."""
        while True:
            try:
                call(REQUEST_SECONDS)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _new_producer(self) -> Producer:
        producer = Producer(self._settings)
        self._insist(producer.init_transactions)
        return producer


class Feeder(threading.Thread, ABC):
    """Writes transactions until finish() is called. bootstrap_servers, seed: those of the run."""

    def __init__(self, bootstrap_servers: str, seed: int) -> None:
        super().__init__(name="feeder", daemon=True)
        #: Number of records in aborted transactions.
        self.aborted = 0
        self.rng = random.Random(seed)
        self.writer = self.new_writer(bootstrap_servers)
        self._transactions = 0
        self._finish = threading.Event()
        self._error: BaseException | None = None

    def new_writer(self, bootstrap_servers: str) -> InputWriter:
        """Return the writer of the input."""
        return TransactionWriter(bootstrap_servers)

    def finish(self) -> None:
        """Write the last records, and end. Raises the error of a failed write."""
        self._finish.set()
        self.join()
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        """Write until ``finish``, and at least the minimum number of transactions."""
        try:
            self.write_first()
            while not self._finish.is_set() or self._transactions < LEAST:
                self.write_next(abort=self.rng.random() < ABORT)
                self._transactions += 1
                self._finish.wait(PAUSE_SECONDS)
            self.write_last()
            self.writer.flush()
        except BaseException as error:  # noqa: BLE001  finish() raises it
            self._error = error

    def write_first(self) -> None:
        """Write the records that must precede all others."""

    @abstractmethod
    def write_next(self, abort: bool) -> None:
        """Write a transaction."""

    @abstractmethod
    def write_last(self) -> None:
        """Write records that prove that all earlier ones have arrived."""


@dataclass(frozen=True)
class Numbering:
    """The form of numbered records. keys: k0, k1 …; hot: the additional share of records with the key k0.

    extras: more fields of a record's value, drawn for each record. filled: whether each key has an initial record.
    """

    keys: int
    hot: float = 0.0
    batch: int = BATCH
    extras: Callable[[random.Random], Mapping[str, Any]] = field(default=lambda _: {})
    filled: bool = False


class NumberFeeder(Feeder):
    """Each key's committed records are numbered 1, 2, 3 ….

    Records of aborted transactions carry the next numbers too, and say that they are aborted.
    """

    def __init__(self, bootstrap_servers: str, topic: str, numbering: Numbering, seed: int) -> None:
        super().__init__(bootstrap_servers, seed)
        self._address = bootstrap_servers
        self._topic = topic
        self._numbering = numbering
        self._keys = [f"k{number}" for number in range(numbering.keys)]
        self._numbers = dict.fromkeys(self._keys, 0)
        self._sent = 0
        #: The offset up to which ``_numbers`` and ``_sent`` were read from the topic.
        self._positions: dict[tuple[str, int], int] = {}

    def sent(self) -> int:
        """Return the number of committed records."""
        return self._sent

    def write_first(self) -> None:
        """Write one record of each key, if the numbering says so."""
        for first in range(0, len(self._keys) if self._numbering.filled else 0, MANY):
            self._transaction(self._keys[first : first + MANY], abort=False)

    def write_next(self, abort: bool) -> None:
        """Write one record of each of some keys."""
        count = self.rng.randint(1, self._numbering.batch)
        keys = ["k0" if self._is_hot() else key for key in self.rng.choices(self._keys, k=count)]
        self._transaction(keys, abort)

    def write_last(self) -> None:
        """Write one more record of each of the first keys."""
        self._transaction(self._keys[:LAST_KEYS], abort=False)

    def _is_hot(self) -> bool:
        return self._numbering.hot > 0 and self.rng.random() < self._numbering.hot

    def _transaction(self, keys: list[str], abort: bool) -> None:
        """Write one record of each of the keys; retried until it succeeds."""
        sent = self._sent
        while not self._try_transaction(keys, abort):
            if self._sent != sent:  # it was committed, although the response was lost
                return
        if abort:
            self.aborted += len(keys)

    def _try_transaction(self, keys: list[str], abort: bool) -> bool:
        numbers: dict[str, int] = {}
        records = []
        for key in keys:
            numbers[key] = numbers.get(key, self._numbers[key]) + 1
            value = {"key": key, "n": numbers[key], **self._numbering.extras(self.rng)}
            value |= {"aborted": True} if abort else {}
            records.append(FeedRecord(self._topic, key.encode(), json.dumps(value).encode()))
        if not self.writer.write(records, abort):
            self._read_back()
            return False
        if not abort:
            self._numbers |= numbers
            self._sent += len(keys)
        return True

    def _read_back(self) -> None:
        """Read the records committed since the last call from the topic."""
        reader = TopicReader(self._address, [self._topic], self._positions)
        try:
            for record in reader.read_to_end():
                self._numbers[record.name] = max(self._numbers[record.name], record.content["n"])
        finally:
            reader.close()
        self._positions |= {partition: offsets[-1] + 1 for partition, offsets in reader.offsets.items() if offsets}
        self._sent = sum(self._numbers.values())
