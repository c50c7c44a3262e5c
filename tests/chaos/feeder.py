"""Writes numbered records in transactions, some of which are aborted."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable

from confluent_kafka import KafkaException, Producer

from .checker import read_table

#: Records of one transaction, at most.
BATCH = 24
#: The chance that a transaction is aborted.
ABORT = 0.1
#: Between two transactions: with the batch size this makes some two hundred records a second.
PAUSE_SECONDS = 0.06
REQUEST_SECONDS = 5.0


class Feeder(threading.Thread):
    """Each key's committed records are numbered 1, 2, 3 …, whatever the broker goes through meanwhile.

    Records of aborted transactions carry the next numbers too, and say that they are aborted.
    """

    def __init__(self, bootstrap_servers: str, topic: str, keys: int, seed: int) -> None:
        super().__init__(name="feeder", daemon=True)
        self.aborted = 0
        #: What ended it, if it was not ``finish``.
        self.error: BaseException | None = None
        self._settings = {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": "chaos-feeder",
            "transaction.timeout.ms": 30_000,
            "linger.ms": 1,
            "partitioner": "murmur2_random",
            "log_level": 2,
        }
        self._address = bootstrap_servers
        self._topic = topic
        self._numbers = dict.fromkeys((f"k{number}" for number in range(keys)), 0)
        self._rng = random.Random(seed)
        self._finish = threading.Event()
        self._producer = self._new_producer()

    def sent(self) -> int:
        """Return how many records are committed."""
        return sum(self._numbers.values())

    def finish(self) -> None:
        """Write one more record of each key, and end. Raises what went wrong."""
        self._finish.set()
        self.join()
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        """Write until ``finish``."""
        try:
            while not self._finish.is_set():
                keys = self._rng.choices(list(self._numbers), k=self._rng.randint(1, BATCH))
                self._transaction(keys, abort=self._rng.random() < ABORT)
                self._finish.wait(PAUSE_SECONDS)
            self._transaction(list(self._numbers), abort=False)
            self._producer.flush(REQUEST_SECONDS)
        except BaseException as error:  # noqa: BLE001  finish() raises it
            self.error = error

    def _transaction(self, keys: list[str], abort: bool) -> None:
        """Write one record of each of the keys; again and again if the broker makes it impossible."""
        sent = self.sent()
        while not self._try_transaction(keys, abort):
            if self.sent() != sent:  # it was committed, although nobody could say so
                return
        if abort:
            self.aborted += len(keys)

    def _try_transaction(self, keys: list[str], abort: bool) -> bool:
        numbers = dict(self._numbers)
        try:
            self._producer.begin_transaction()
            for key in keys:
                numbers[key] += 1
                value = {"key": key, "n": numbers[key]} | ({"aborted": True} if abort else {})
                self._producer.produce(self._topic, json.dumps(value), key)
            self._insist(self._producer.abort_transaction if abort else self._producer.commit_transaction)
        except KafkaException:
            self._start_anew()
            return False
        if not abort:
            self._numbers = numbers
        return True

    def _start_anew(self) -> None:
        """Take a new producer, which makes the broker decide the last transaction, and look what came of it."""
        self._producer = self._new_producer()
        written = read_table(self._address, self._topic)
        self._numbers = {key: written[key]["n"] if key in written else 0 for key in self._numbers}

    def _insist(self, call: Callable[[float], object]) -> None:
        """Call until it is decided: a commit that was not answered may have happened."""
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
