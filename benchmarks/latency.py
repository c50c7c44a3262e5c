"""From a record's creation to its answer, at a steady rate: what a user of the application waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.data import FLUSH_TIMEOUT_SECONDS, PARTITIONS, Workload, make_producer, recreate_topic
from benchmarks.measure import BenchmarkError
from benchmarks.recovery import Recovered, RecoveryScenario, Run, running

RATE = 10_000  # records/s
TICK_SECONDS = 0.01
#: A JVM compiles its hot code meanwhile.
WARM_UP_SECONDS = 15
MEASURED_SECONDS = 20
KEYS = 10_000
POLL_SECONDS = 0.1


class Clockwork:
    """Writes RATE records a second, each with the wall-clock time of its creation as its timestamp."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.written = 0
        self._topic = topic
        self._producer: Producer = make_producer(bootstrap_servers, linger_ms=0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clockwork")

    def _run(self) -> None:
        begin = time.monotonic()
        while not self._stop.wait(TICK_SECONDS):
            due = int((time.monotonic() - begin) * RATE)
            now = time.time_ns() // 1_000_000
            for number in range(self.written, due):
                self._producer.produce(self._topic, b"x", b"k%06d" % (number % KEYS), timestamp=now)
            self.written = due
            self._producer.poll(0)

    def __enter__(self) -> Clockwork:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._producer.flush(FLUSH_TIMEOUT_SECONDS):
            raise BenchmarkError(f"not all records could be written to {self._topic}")


class Ages:
    """How old answers are when they arrive, in ms: an answer of an uncached count has its record's timestamp."""

    def __init__(self, consumer: Consumer) -> None:
        self.answers = 0
        self._consumer = consumer

    def read_until(self, end: float) -> list[int]:
        """Return the age of each answer that arrives until a moment (monotonic seconds)."""
        ages = []
        while time.monotonic() < end:
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                ages.append(time.time_ns() // 1_000_000 - message.timestamp()[1])
        self.answers += len(ages)
        return ages


@contextmanager
def ages_of(bootstrap_servers: str, topic: str) -> Iterator[Ages]:
    """Read a topic as it grows, without letting the broker collect records."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": "never-joined", "enable.auto.commit": False}
    consumer = Consumer({**settings, "fetch.wait.max.ms": 10, "log_level": 3})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    try:
        yield Ages(consumer)
    finally:
        consumer.close()


class Latency(RecoveryScenario):
    """A count without cache, two threads, commits each 100 ms, no linger: each record has its answer at once."""

    unit, more_is_better = "ms", False

    def __init__(self, percentile: int) -> None:
        self.percentile = percentile
        self.name = f"latency-p{percentile}"
        self.title = f"{RATE:,} records/s to their answers, p{percentile}"

    def prepare(self, bootstrap_servers: str) -> str:
        """See RecoveryScenario.prepare: the input is the run's own."""
        return ""

    def run(self, run: Run, workload: Workload) -> Recovered:
        """See RecoveryScenario.run."""
        run.config = {"producer.linger.ms": "0", "commit.interval.ms": "100"}
        recreate_topic(run.bootstrap_servers, run.input)
        with running(run):
            begin = time.monotonic()
            program = run.start(threads=2)
            with Clockwork(run.bootstrap_servers, run.input), ages_of(run.bootstrap_servers, run.output) as ages:
                run.wait_until(lambda: bool(ages.read_until(time.monotonic() + TICK_SECONDS)), "the first answer")
                first_answer = time.monotonic() - begin
                ages.read_until(time.monotonic() + WARM_UP_SECONDS)
                measured = sorted(ages.read_until(time.monotonic() + MEASURED_SECONDS))
            program.look()
        if len(measured) < RATE * MEASURED_SECONDS * 0.95:
            raise BenchmarkError(f"only {len(measured)} answers came in {MEASURED_SECONDS} s at {RATE} records/s")
        value = measured[len(measured) * self.percentile // 100]
        return Recovered(value, first_answer, program.rss_bytes, program.cpu_seconds)


LATENCY_SCENARIOS: tuple[RecoveryScenario, ...] = (Latency(50), Latency(99))
