"""Moving state: restores of many small stores and of a large one, an added host, a backlog after a pause."""

from __future__ import annotations

import random
import time
from collections import Counter
from hashlib import shake_128
from itertools import islice

from confluent_kafka.admin import AdminClient
from typing_extensions import override

from benchmarks.checks import CountsCheck, LatestCheck, check_topic
from benchmarks.data import (
    ADMIN_TIMEOUT_SECONDS,
    FIRST_TIMESTAMP_MS,
    PARTITIONS,
    SEED,
    Workload,
    append,
    recreate_topic,
    stored_records,
)
from benchmarks.latency import KEYS, Ages, Clockwork
from benchmarks.measure import BenchmarkError
from benchmarks.recovery import SESSION_TIMEOUT_MS, Instance, Recovered, RecoveryScenario, Restore, Run, running
from benchmarks.steady import following
from benchmarks.systems import THREADS

#: Share of the records: the keys of a store of large values, a gigabyte by default; and the maximum number of records
#: that read them.
LARGE_SHARE, READ_SHARE, READ_MAX = 1 / 6, 1 / 60, 1_000_000
#: How often a group checks whether a copy of a task's state has caught up: the minimum of Kafka Streams.
PROBING_MS = 60_000
#: A result that took longer is late; and the time without late results that ends the measurement.
LATE_MS, PUNCTUAL_SECONDS = 1_000, 5.0
#: Records per second while a host is added.
ADDING_RATE = 2_000
LOOK_SECONDS = 0.2
#: The default of both systems, instead of none.
CACHE_BYTES = "10485760"


class LargeStore(RecoveryScenario):
    """One task has a large value for each key.

    It restores all of them, and then responds to records with one value each.
    """

    value_bytes = 1_000
    name, title, unit, more_is_better = "restore-large", "restore one store of values of 1 KB", "MB/s", True

    @override
    def run(self, run: Run, workload: Workload) -> Recovered:
        keys = int(workload.records * LARGE_SHARE)
        run.partitions, run.topology, run.store = 1, "keep_first", "first"
        run.config = {"session.timeout.ms": str(SESSION_TIMEOUT_MS)}
        run.write_changelog(((_key(n), self._value(n), FIRST_TIMESTAMP_MS) for n in range(keys)), keys)
        recreate_topic(run.bootstrap_servers, run.input, run.partitions)
        with running(run):
            begin = time.monotonic()
            program = run.start(threads=1)
            asked = [keys - 1]
            self.ask(run, asked)
            first_answer = time.monotonic() - begin
            megabytes = keys * self.value_bytes / 1e6 / run.log_lines().restore_seconds(run.partitions)
            found = Recovered(megabytes, first_answer, program.rss_bytes, program.cpu_seconds)
            found = self.go_on(run, program, found, asked, min(int(workload.records * READ_SHARE), READ_MAX))
        answers = LatestCheck({_key(n): self._value(n) for n in asked})
        problem = check_topic(run.bootstrap_servers, run.output, answers)
        if problem:
            raise BenchmarkError(f"wrong output: {problem}")
        return found

    def _value(self, number: int) -> bytes:
        return shake_128(_key(number)).digest(self.value_bytes)

    def go_on(self, run: Run, program: Instance, found: Recovered, asked: list[int], reads: int) -> Recovered:
        """Return the measurements of an application that has restored its store. asked: the keys of all records."""
        return found

    def ask(self, run: Run, numbers: list[int]) -> None:
        """Write a record for each of these keys, and wait for all results."""
        rows = ((_key(n), b"later", FIRST_TIMESTAMP_MS) for n in numbers)
        append(run.bootstrap_servers, run.input, rows, len(numbers))
        with run.committed() as committed:
            end = stored_records(run.bootstrap_servers, run.input)
            run.wait_until(lambda: sum(committed().values()) == end, "all answers")


class LargeState(LargeStore):
    """The same application responds to records of random keys. Then it is restarted on the same disk."""

    name, title, unit = "large-state", "random keys of a store of values of 1 KB; started again", "k/s"

    @override
    def go_on(self, run: Run, program: Instance, found: Recovered, asked: list[int], reads: int) -> Recovered:
        """Measure; first_answer_seconds is that of the restart."""
        draw, keys = random.Random(SEED).randrange, asked[0] + 1
        asked += [draw(keys) for _ in range(reads)]
        begin = time.monotonic()
        self.ask(run, asked[1:])
        rate = reads / (time.monotonic() - begin)
        program.look()
        program.stop()
        run.instances.remove(program)
        begin = time.monotonic()
        run.start_with(program.properties)
        self.ask(run, asked[:1])
        return Recovered(rate / 1000, time.monotonic() - begin, program.rss_bytes, program.cpu_seconds)


class ManyKeys(LargeState):
    """The same with more keys and smaller values: 50 million of 400 bytes are 20 GB."""

    value_bytes = 400
    name, title = "many-keys", "random keys of a store of values of 400 bytes; started again"


class CatchUp(RecoveryScenario):
    """A count by window is stopped after half of the records, and must process the other half after its restart."""

    name, title, unit, more_is_better = "catch-up", "10 s windows after a standstill", "k/s", True

    @override
    def run(self, run: Run, workload: Workload) -> Recovered:
        """Measure; the rate covers the time from the start of the program to the last record's commit."""
        run.topology, half = "windowed_count", workload.records // 2
        run.config = {"statestore.cache.max.bytes": CACHE_BYTES, "session.timeout.ms": str(SESSION_TIMEOUT_MS)}
        rows = workload.purchases()
        recreate_topic(run.bootstrap_servers, run.input)
        with running(run), run.committed() as committed:
            append(run.bootstrap_servers, run.input, islice(rows, half), half)
            before = run.start(THREADS)
            run.wait_until(lambda: sum(committed().values()) == half, "the first half")
            before.stop()
            run.instances.remove(before)
            append(run.bootstrap_servers, run.input, rows, workload.records - half)
            begin = time.monotonic()
            program = run.start_with(before.properties)
            run.wait_until(lambda: sum(committed().values()) > half, "the first answers")
            first_answer = time.monotonic() - begin
            run.wait_until(lambda: sum(committed().values()) == workload.records, "all answers")
            seconds = time.monotonic() - begin
            program.look()
        problem = check_topic(run.bootstrap_servers, run.output, CountsCheck(workload.windowed_counts()))
        if problem:
            raise BenchmarkError(f"wrong output: {problem}")
        return Recovered(
            (workload.records - half) / seconds / 1000, first_answer, program.rss_bytes, program.cpu_seconds
        )


class Punctuality:
    """Follows the results of a steady input: until when (monotonic seconds) some were late, and the maximum delay."""

    def __init__(self, writer: Clockwork, ages: Ages) -> None:
        self._writer, self._ages = writer, ages
        self.late_until = time.monotonic()
        self.latest_ms = 0.0

    def lasts(self) -> bool:
        """Read results; return True if none was late for a while. A silent task counts as late, too."""
        found = self._ages.read_until(time.monotonic() + LOOK_SECONDS)
        waiting, now = self._writer.written - self._ages.answers, time.monotonic()
        self.latest_ms = max(self.latest_ms, *found, 0.0)
        if max(found, default=0.0) > LATE_MS or waiting * 1000 > ADDING_RATE * LATE_MS:
            self.late_until = now
        return now - self.late_until > PUNCTUAL_SECONDS


class AddHost(RecoveryScenario):
    """One program processes a steady input; a second one joins with an empty disk.

    The measurement ends when each has half of the tasks and no result is late any more.
    """

    name, title, unit, more_is_better = "add-host", "a second host joins: tasks spread, answers in time", "s", False

    @override
    def run(self, run: Run, workload: Workload) -> Recovered:
        """Measure; first_answer_seconds is the maximum wait of a record for its result."""
        run.config = {
            "producer.linger.ms": "0",
            "commit.interval.ms": "100",
            "probing.rebalance.interval.ms": str(PROBING_MS),
        }
        restored = run.write_counts(workload)
        recreate_topic(run.bootstrap_servers, run.input)
        admin = AdminClient({"bootstrap.servers": run.bootstrap_servers, "log_level": 3})

        def is_spread() -> bool:
            group = admin.describe_consumer_groups([run.name])[run.name].result(ADMIN_TIMEOUT_SECONDS)
            return [len(member.assignment.topic_partitions) for member in group.members] == [PARTITIONS // 2] * 2

        with (
            running(run),
            Clockwork(run.bootstrap_servers, run.input, ADDING_RATE) as writer,
            following(run.bootstrap_servers, run.output) as consumer,
        ):
            ages = Ages(consumer)
            first = Punctuality(writer, ages)
            run.start(threads=1)
            run.wait_until(first.lasts, "answers in time")
            begin, answers = time.monotonic(), Punctuality(writer, ages)
            run.start(threads=1)
            spread: list[float] = []

            def has_settled() -> bool:
                in_time = answers.lasts()
                if not spread and is_spread():
                    spread.append(time.monotonic())
                return in_time and bool(spread)

            run.wait_until(has_settled, "both hosts to have tasks, and answers in time")
            writer.stop()
            run.wait_until(lambda: answers.lasts() and ages.answers >= writer.written, "the last answers")
            for program in run.instances:
                program.look()
        written = Counter(b"k%06d" % (number % KEYS) for number in range(writer.written))
        expected = {key: restored[key] + count for key, count in written.items()}
        problem = check_topic(run.bootstrap_servers, run.output, CountsCheck(expected))
        if problem:
            raise BenchmarkError(f"wrong output: {problem}")
        seconds = max(spread[0], answers.late_until) - begin
        rss, cpu = sum(p.rss_bytes for p in run.instances), sum(p.cpu_seconds for p in run.instances)
        return Recovered(seconds, answers.latest_ms / 1000, rss, cpu)


def _key(number: int) -> bytes:
    return b"k%09d" % number


#: The scenarios of ``--only moving``.
MOVING_SCENARIOS: tuple[RecoveryScenario, ...] = (
    Restore("restore-256", "restore 256 stores of a count, start included", partitions=256, start_included=True),
    LargeStore(),
    AddHost(),
    CatchUp(),
    LargeState(),
    ManyKeys(),
)
