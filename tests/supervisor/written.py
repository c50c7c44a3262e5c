"""Records that are written while a test reads, and what a copy of the counts that has stopped at a position holds."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from typing import Any

from broker_stage import KEYS, PARTITIONS, Counting
from confluent_kafka import Producer

from penstock import Position
from tests.waiting import PATIENCE_SECONDS, eventually


class Written:
    """Writes records until it ends, and knows which ones each partition has."""

    def __init__(self, counting: Counting) -> None:
        self._producer = Producer({"bootstrap.servers": counting.bootstrap_servers, "linger.ms": 5})
        self._source = counting.source
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._keys: dict[int, dict[int, str]] = {number: {} for number in range(PARTITIONS)}

    def __enter__(self) -> Written:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(0.002):
            self._producer.produce(self._source, key=f"key-{number % KEYS}", value="x", on_delivery=self._note)
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def _note(self, error: object, message: Any) -> None:
        assert error is None
        self._keys[message.partition()][message.offset()] = message.key().decode()

    def counted_at(self, position: Position, topic: str) -> Counter[str]:
        """Return the counts of a copy that has stopped at a position."""
        found: Counter[str] = Counter()
        for partition, last in position.partition_positions(topic).items():
            eventually(partial(self._knows, partition, last), "the last record is noted")
            found.update(key for offset, key in list(self._keys[partition].items()) if offset <= last)
        return found

    def _knows(self, partition: int, offset: int) -> bool:
        """Return whether all records up to an offset are noted. They are noted in the order of their offsets."""
        return any(known >= offset for known in list(self._keys[partition]))
