"""From a record's creation to its answer, at a steady rate: what a user of the application waits for."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer

from benchmarks.data import Workload, recreate_topic
from benchmarks.measure import BenchmarkError
from benchmarks.recovery import Recovered, RecoveryScenario, Run, running
from benchmarks.steady import TICK_SECONDS, SteadyWriter, following

RATE = 10_000  # records/s
#: A JVM compiles its hot code meanwhile.
WARM_UP_SECONDS = 30
MEASURED_SECONDS = 20
KEYS = 10_000
POLL_SECONDS = 0.1


class Clockwork(SteadyWriter):
    """Writes so many records a second, each with the wall-clock time of its creation as its timestamp."""

    def __init__(self, bootstrap_servers: str, topic: str, rate: int = RATE) -> None:
        super().__init__(bootstrap_servers, topic)
        self._rate = rate
        self.written = 0

    def write(self, producer: Producer, seconds: float) -> None:
        """See SteadyWriter.write."""
        due = int(seconds * self._rate)
        now = time.time_ns() // 1_000_000
        for number in range(self.written, due):
            producer.produce(self.topic, b"x", b"k%06d" % (number % KEYS), timestamp=now)
        self.written = due


class Ages:
    """How old answers are when they arrive, in ms: an answer of an uncached count has its record's timestamp.

    A timestamp has whole ms: all ages are half a ms too high on average.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.answers = 0
        self._consumer = consumer

    def read_until(self, end: float) -> list[float]:
        """Return the age of each answer that arrives until a moment (monotonic seconds)."""
        ages = []
        while time.monotonic() < end:
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                ages.append(time.time_ns() / 1_000_000 - message.timestamp()[1])
        self.answers += len(ages)
        return ages


class Latency(RecoveryScenario):
    """A count without cache, two threads, commits every 100 ms, no linger: each record has its answer at once."""

    unit, more_is_better = "ms", False

    def __init__(self, percentile: int) -> None:
        self.percentile = percentile
        self.name = f"latency-p{percentile}"
        self.title = f"{RATE:,} records/s to their answers, p{percentile}"

    def run(self, run: Run, workload: Workload) -> Recovered:
        """See RecoveryScenario.run."""
        run.config = {"producer.linger.ms": "0", "commit.interval.ms": "100"}
        recreate_topic(run.bootstrap_servers, run.input)
        with running(run):
            begin = time.monotonic()
            program = run.start(threads=2)
            with (
                Clockwork(run.bootstrap_servers, run.input),
                following(run.bootstrap_servers, run.output) as consumer,
            ):
                ages = Ages(consumer)
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
