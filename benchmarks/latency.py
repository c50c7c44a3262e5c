"""The latency from a record's creation to its result, at a steady rate, as a user of the application experiences it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer
from typing_extensions import override

from benchmarks.data import Workload, recreate_topic
from benchmarks.measure import BenchmarkError
from benchmarks.recovery import Recovered, RecoveryScenario, Run, running
from benchmarks.steady import TICK_SECONDS, SteadyWriter, following

RATE = 10_000  # records/s
#: Meanwhile a JVM compiles its hot code.
WARM_UP_SECONDS = 30
MEASURED_SECONDS = 20
KEYS = 10_000
POLL_SECONDS = 0.1


class Clockwork(SteadyWriter):
    """Writes this many records per second, each with the wall-clock time of its creation as its timestamp."""

    def __init__(self, bootstrap_servers: str, topic: str, rate: int = RATE) -> None:
        super().__init__(bootstrap_servers, topic)
        self._rate = rate
        self.written = 0

    @override
    def write(self, producer: Producer, seconds: float) -> None:
        due = int(seconds * self._rate)
        now = time.time_ns() // 1_000_000
        for number in range(self.written, due):
            producer.produce(self.topic, b"x", b"k%06d" % (number % KEYS), timestamp=now)
        self.written = due


class Ages:
    """The ages of results when they arrive, in ms: a result of an uncached count has its record's timestamp.

    Timestamps are whole ms, so all ages are half a ms too high on average.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.answers = 0
        self._consumer = consumer

    def read_until(self, end: float) -> list[float]:
        """Return the age of each result that arrives before a time (monotonic seconds)."""
        ages = []
        while time.monotonic() < end:
            message = self._consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                ages.append(time.time_ns() / 1_000_000 - message.timestamp()[1])
        self.answers += len(ages)
        return ages


@dataclass(frozen=True, slots=True)
class Steady:
    """One run. ages: of all results in MEASURED_SECONDS, in order; the other fields as in Recovered."""

    ages: list[float]
    first_answer_seconds: float
    rss_bytes: int
    cpu_seconds: float


def measured(
    run: Run,
    config: Mapping[str, str],
    of_input: bool = False,
    beside: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Steady:
    """Measure once; raises BenchmarkError for a failed run or missing results.

    of_input: read the input beside the application instead of its results, to measure the part of the ages that is not
    the application's. beside: what else is done from the first result on.
    """
    run.config = {"producer.linger.ms": "0", "commit.interval.ms": "100", **config}
    recreate_topic(run.bootstrap_servers, run.input)
    with running(run):
        begin = time.monotonic()
        program = run.start(threads=2)
        with (
            Clockwork(run.bootstrap_servers, run.input),
            following(run.bootstrap_servers, run.input if of_input else run.output) as consumer,
        ):
            ages = Ages(consumer)
            run.wait_until(lambda: bool(ages.read_until(time.monotonic() + TICK_SECONDS)), "the first answer")
            first_answer = time.monotonic() - begin
            with beside():
                ages.read_until(time.monotonic() + WARM_UP_SECONDS)
                found = sorted(ages.read_until(time.monotonic() + MEASURED_SECONDS))
        program.look()
    if len(found) < RATE * MEASURED_SECONDS * 0.95:
        raise BenchmarkError(f"only {len(found)} answers came in {MEASURED_SECONDS} s at {RATE} records/s")
    return Steady(found, first_answer, program.rss_bytes, program.cpu_seconds)


class Guarantee:
    """A count without cache, two threads, commits every 100 ms, no linger: each record has its result immediately.

    With exactly-once the result follows the commit. The percentiles of one run are read one after the other.
    """

    def __init__(self, name: str, title: str, config: Mapping[str, str], of_input: bool = False) -> None:
        self.name = name
        self.title = title
        self._config = config
        self._of_input = of_input
        #: By system: the last run, and which of its percentiles are already read.
        self._runs: dict[str, tuple[Steady, set[float]]] = {}

    def steady(self, run: Run, percentile: float) -> Steady:
        """Return a run whose percentile is not read yet: the last one, otherwise a new one."""
        steady, known = self._runs.get(run.system.name, (None, {percentile}))
        if steady is None or percentile in known:
            steady, known = measured(run, self._config, self._of_input), set()
            self._runs[run.system.name] = steady, known
        known.add(percentile)
        return steady


class Latency(RecoveryScenario):
    """A percentile of the ages of results."""

    unit, more_is_better = "ms", False

    def __init__(self, guarantee: Guarantee, percentile: float) -> None:
        self.guarantee = guarantee
        self.percentile = percentile
        self.name = f"{guarantee.name}-p{percentile:g}"
        self.title = f"{RATE:,} records/s to {guarantee.title}, p{percentile:g}"

    @override
    def run(self, run: Run, workload: Workload) -> Recovered:
        steady = self.guarantee.steady(run, self.percentile)
        value = steady.ages[int(len(steady.ages) * self.percentile / 100)]
        return Recovered(value, steady.first_answer_seconds, steady.rss_bytes, steady.cpu_seconds)


EXACTLY_ONCE = {"processing.guarantee": "exactly_once_v2"}
GUARANTEES = (
    Guarantee("latency", "their answers", {}),
    Guarantee("latency-eos", "their answers, exactly-once", EXACTLY_ONCE),
)
#: How soon a result of a transaction can be visible: see docs/decisions/11-exactly-once-commits.md.
SHORT_INTERVAL = Guarantee(
    "latency-eos-5ms", "their answers, exactly-once, commits every 5 ms", {**EXACTLY_ONCE, "commit.interval.ms": "5"}
)
LATENCY_SCENARIOS: tuple[RecoveryScenario, ...] = (
    *(Latency(guarantee, percentile) for guarantee in GUARANTEES for percentile in (50, 99, 99.9)),
    Latency(SHORT_INTERVAL, 50),
    Latency(Guarantee("latency-input", "another reader of the input", {}, of_input=True), 50),
)
