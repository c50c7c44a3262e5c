"""Clients whose consumer really stops fetching a partition; spawned processes import this by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from penstock.workers.thread.client_supplier import KafkaClientSupplier

DEAF_PARTITION = 0
#: File in state.dir: how many more assignments of the partition have no effect.
COUNT_FILE = "deaf-assignments"


class DeafConsumer:
    """A Consumer whose librdkafka does not fetch one partition: it is paused without its owner's knowledge."""

    def __init__(self, consumer: Consumer, is_deaf: Callable[[], bool]) -> None:
        self._consumer = consumer
        self._is_deaf = is_deaf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumer, name)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Assign, and pause the partition while it must be deaf."""
        self._consumer.incremental_assign(partitions)
        found = [TopicPartition(p.topic, p.partition) for p in partitions if p.partition == DEAF_PARTITION]
        if found and self._is_deaf():
            self._consumer.pause(found)


class DeafClientSupplier(KafkaClientSupplier):
    """Creates them as main consumers."""

    def get_consumer(self, client_id: str) -> Any:
        """Return the main consumer."""
        return DeafConsumer(self.confluent_consumer(client_id), self._is_deaf)

    def _is_deaf(self) -> bool:
        file = Path(self._config["state.dir"]) / COUNT_FILE
        left = int(file.read_text())
        file.write_text(str(max(left - 1, 0)))
        return left > 0
