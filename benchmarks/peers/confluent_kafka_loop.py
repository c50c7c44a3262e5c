"""JSON map and filter as a loop over confluent-kafka, written by hand: topology, file with the properties, number.

At least once: written records are acknowledged before its input is committed, also when partitions are revoked.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Consumer, Producer, TopicPartition

BATCH = 10_000


class Loop:
    """Reads, maps, writes and commits until SIGTERM."""

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
                "queue.buffering.max.messages": 500_000,
            }
        )
        self._assigned: set[int] = set()
        self._positions: dict[int, int] = {}
        self._running = True

    def run(self) -> None:
        """Run until stop() is called."""
        self._consumer.subscribe([os.environ["BENCHMARK_INPUT"]], on_assign=self._take, on_revoke=self._give_up)
        committed = time.monotonic()
        while self._running:
            # Records fetched before their partition was revoked are left to its new owner.
            messages = [m for m in self._consumer.consume(BATCH, 0.05) if m.partition() in self._assigned]
            self._process(messages)
            if time.monotonic() >= committed + self._commit_seconds:
                self._commit()
                committed = time.monotonic()
        self._commit()
        self._consumer.close()

    def stop(self, _signal: int, _frame: object) -> None:
        """Stop after the current batch: a signal handler."""
        self._running = False

    def _process(self, messages: list[Any]) -> None:
        loads, dumps, produce = orjson.loads, orjson.dumps, self._producer.produce
        output = os.environ["BENCHMARK_OUTPUT"]
        for message in messages:
            if message.error() is not None:
                raise RuntimeError(message.error())
            purchase = loads(message.value())
            if purchase["amount"] % 2 != 0:
                row = dumps({**purchase, "x": purchase["amount"] * 2})
                produce(output, row, message.key(), timestamp=message.timestamp()[1])
            self._positions[message.partition()] = message.offset() + 1
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
        self._commit()
        self._assigned = set()


def main(properties: Path) -> None:
    """Run with confluent-kafka's defaults, except for the settings that all systems get."""
    loop = Loop(dict(line.split("=", 1) for line in properties.read_text("utf-8").splitlines()))
    signal.signal(signal.SIGTERM, loop.stop)
    loop.run()


if __name__ == "__main__":
    main(Path(sys.argv[2]))
