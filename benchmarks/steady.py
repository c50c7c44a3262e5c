"""A steady input and its results, for the scenarios about single records."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.data import FLUSH_TIMEOUT_SECONDS, PARTITIONS, make_producer
from benchmarks.measure import BenchmarkError

#: Seconds between two portions.
TICK_SECONDS = 0.01
#: Without linger an idempotent librdkafka producer waits in a busy loop, whose CPU time would be measured.
LINGER_MS = 1


class SteadyWriter(ABC):
    """Writes a portion of records to a topic repeatedly, in a separate thread."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.topic = topic
        self._producer: Producer = make_producer(bootstrap_servers, linger_ms=LINGER_MS)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__.lower())

    @abstractmethod
    def write(self, producer: Producer, seconds: float) -> None:
        """Write the records that are due this many seconds after the start."""

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stop.wait(TICK_SECONDS):
            self.write(self._producer, time.monotonic() - begin)
            self._producer.poll(0)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, and wait until the broker has all records; raises BenchmarkError if it does not."""
        self._stop.set()
        self._thread.join()
        if self._producer.flush(FLUSH_TIMEOUT_SECONDS):
            raise BenchmarkError(f"not all records could be written to {self.topic}")


@contextmanager
def following(bootstrap_servers: str, topic: str) -> Iterator[Consumer]:
    """Yield a consumer of a topic from its beginning, for which the broker does not batch records."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "never-joined", "enable.auto.commit": False}
    consumer = Consumer({**settings, "fetch.wait.max.ms": 10, "log_level": 3})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    try:
        yield consumer
    finally:
        consumer.close()
