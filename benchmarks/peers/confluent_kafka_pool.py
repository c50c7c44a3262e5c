"""A hand-written thread pool over confluent-kafka that calls a service for many records at once.

Results are written in the order of the records. At least once: written records are acknowledged before their input is
committed, also when partitions are revoked. The arguments are a topology's name (there is one), and the file with the
properties.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

WORKERS = 256
RETRIES = 50
PAUSE_SECONDS = 0.1
ADDRESS = urlsplit(os.environ["BENCHMARK_SERVICE"])
local = threading.local()


def ask(message: Any) -> bytes:
    """Return the record to write: each worker has its own connection."""
    purchase = orjson.loads(message.value())
    for attempt in range(RETRIES + 1):
        try:
            if not hasattr(local, "connection"):
                local.connection = HTTPConnection(ADDRESS.hostname or "", ADDRESS.port, timeout=30)
            local.connection.request("GET", f"/{purchase['amount']}")
            answer = local.connection.getresponse()
            body = answer.read()
            if answer.status == 200:
                break
        except (OSError, HTTPException):
            del local.connection
        if attempt == RETRIES:
            raise RuntimeError(f"the service does not answer for {purchase}")
        time.sleep(min(PAUSE_SECONDS * 2**attempt, 1))
    return orjson.dumps({**purchase, "x": orjson.loads(body)["double"]})


class Pool:
    """Reads, asks, writes and commits until SIGTERM."""

    def __init__(self, config: dict[str, str]) -> None:
        address = config["bootstrap.servers"]
        self._commit_seconds = int(config["commit.interval.ms"]) / 1000
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": config["application.id"],
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 50,
                "batch.size": 262_144,
                "compression.type": "lz4",
            }
        )
        self._workers = ThreadPoolExecutor(WORKERS)
        self._asked: deque[tuple[Any, Future[bytes]]] = deque()
        self._assigned: set[int] = set()
        self._positions: dict[int, int] = {}
        self._running = True

    def run(self) -> None:
        """Run until stop() is called."""
        self._consumer.subscribe([os.environ["BENCHMARK_INPUT"]], on_assign=self._take, on_revoke=self._give_up)
        committed = time.monotonic()
        while self._running:
            room = WORKERS - len(self._asked)
            for message in self._consumer.consume(room, 0.001) if room else ():
                if message.error() is not None:
                    raise RuntimeError(message.error())
                if message.partition() in self._assigned:
                    self._asked.append((message, self._workers.submit(ask, message)))
            self._write(wait=not room)
            if time.monotonic() >= committed + self._commit_seconds:
                self._commit()
                committed = time.monotonic()
        while self._asked:
            self._write(wait=True)
        self._commit()
        self._consumer.close()

    def stop(self, _signal: int, _frame: object) -> None:
        """Stop after the pending records: a signal handler."""
        self._running = False

    def _write(self, wait: bool) -> None:
        """Write the results so far, in the order of the records. wait: for the first one."""
        while self._asked and (wait or self._asked[0][1].done()):
            message, answer = self._asked.popleft()
            self._producer.produce(
                os.environ["BENCHMARK_OUTPUT"], answer.result(), message.key(), timestamp=message.timestamp()[1]
            )
            self._positions[message.partition()] = message.offset() + 1
            wait = False
        self._producer.poll(0)

    def _commit(self) -> None:
        if self._positions:
            self._producer.flush()
            topic = os.environ["BENCHMARK_INPUT"]
            offsets = [TopicPartition(topic, *position) for position in self._positions.items()]
            self._consumer.commit(offsets=offsets, asynchronous=False)
            self._positions.clear()

    def _take(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = {partition.partition for partition in partitions}

    def _give_up(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        while self._asked:
            self._write(wait=True)
        self._commit()
        self._assigned = set()


def main(properties: Path) -> None:
    """Run with confluent-kafka's defaults, except for the settings that all systems get."""
    pool = Pool(dict(line.split("=", 1) for line in properties.read_text("utf-8").splitlines()))
    signal.signal(signal.SIGTERM, pool.stop)
    pool.run()


if __name__ == "__main__":
    main(Path(sys.argv[2]))
