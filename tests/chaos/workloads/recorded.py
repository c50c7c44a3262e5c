"""Runs recorded cases while processes are killed; Penstock's test driver gives the expected results for the same input.

The driver itself is compared with Kafka Streams' recorded results (``tests/goldens``).
"""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import override

from penstock import Record, Serdes
from penstock.testing import TopologyTestDriver
from tests.chaos.checker import Sight, Verdict, read_all
from tests.chaos.checkers import Report
from tests.chaos.checkers.outputs import Differences, Row, compare_bags, compare_counts, compare_tables
from tests.chaos.feeder import BATCH, Feeder, FeedRecord, TransactionWriter
from tests.chaos.workloads.recorded_cases import CASES, CLOSER, DISORDER_MS, Case, Comparison, decode_long, encode
from tests.chaos.workloads.workload import Setting, Workload

#: How far the closing records are ahead of all others, in ms.
CLOSE_MS = 60_000
#: The share of transactions that delete every row of a table, if the case has one.
STORM = 0.3
#: Records of each key of a global table.
GLOBAL_RECORDS = 3
#: Enough for all wall-clock punctuations.
WALL_CLOCK_MS = 60_000
#: Seconds between two checks of all outputs, while they are awaited.
JUDGE_SECONDS = 1.0


class CaseFeeder(Feeder):
    """Writes a few records of one case at a time. Each case has its own event time, which advances some ms per
    record.
    """

    def __init__(self, bootstrap_servers: str, seed: int, partitions: int) -> None:
        super().__init__(bootstrap_servers, seed)
        self._partitions = partitions
        start_ms = time.time_ns() // 1_000_000
        self._now_ms = {case.name: start_ms for case in CASES}
        self._written = 0
        #: The next cases to write, the last one first.
        self._turns: list[Case] = []

    def write_next(self, abort: bool) -> None:
        """Write records of one case, or delete every row of one of its tables."""
        if not self._turns:
            self._turns = self.rng.sample(CASES, len(CASES))
        case = self._turns.pop()
        stormy = self.rng.random() < STORM and (tables := sorted(case.tables))
        if stormy:
            records = list(self._storm(case, self.rng.choice(tables)))
        else:
            records = [self._record(case) for _ in range(self.rng.randint(1, BATCH))]
        self.writer.write(records, abort)  # its outcome is read from the topic at the end
        if abort:
            self.aborted += len(records)

    def _storm(self, case: Case, topic: str) -> Iterator[FeedRecord]:
        for key in case.inputs[topic][0]:
            self._now_ms[case.name] += 1
            name = case.sources()[topic]["topic"]
            yield FeedRecord(name, key.encode(), None, None, self._now_ms[case.name])

    def write_last(self) -> None:
        """Let the windows of all partitions close."""
        closers = [
            self._closer(case, op, partition)
            for case in CASES
            for op in case.sources().values()
            if op["op"] == "stream"
            for partition in range(self._partitions)
        ]
        while not self.writer.write(closers, abort=False):
            pass

    def _closer(self, case: Case, op: Mapping[str, Any], partition: int) -> FeedRecord:
        value, timestamp = encode(op["value"], 1), self._now_ms[case.name] + CLOSE_MS
        return FeedRecord(op["topic"], CLOSER.encode(), value, partition, timestamp)

    def _record(self, case: Case) -> FeedRecord:
        topic = self.rng.choice(sorted(case.inputs.keys() - case.global_topics))
        self._now_ms[case.name] += self.rng.choice((0, 1, 2))
        timestamp = self._now_ms[case.name] - self.rng.randint(0, DISORDER_MS)
        self._written += 1
        headers = (("n", str(self._written).encode()), ("none", None)) if case.headers else ()
        return record_of(case, topic, self.rng, self._written, timestamp, headers)


def record_of(
    case: Case,
    topic: str,
    rng: random.Random,
    number: int,
    timestamp: int,
    headers: tuple[tuple[str, bytes | None], ...] = (),
) -> FeedRecord:
    """Return a record for one of a case's topics."""
    keys, values = case.inputs[topic]
    op = case.sources()[topic]
    key, value = encode(op["key"], rng.choice(keys)), encode(op["value"], values(rng, number))
    return FeedRecord(op["topic"], key or b"", value, None, timestamp, headers)


def outputs_of(case: Case, records: Sequence[Sight]) -> dict[str, list[Row]]:
    """Return the test driver's outputs for a case's input, by the case's own topic names."""
    found: dict[str, list[Row]] = {output: [] for output in case.outputs}
    parts: defaultdict[int, list[Sight]] = defaultdict(list)
    tables = {case.topic(name) for name in case.global_topics}
    for record in records:
        parts[0 if case.whole else record.partition].append(record)
    for part in parts.values():
        part.sort(
            key=lambda record: record.topic not in tables
        )  # global tables first, all other records in their order
        with TopologyTestDriver(case.topology()) as driver:
            inputs = {r.topic: driver.create_input_topic(r.topic, Serdes.bytes(), Serdes.bytes()) for r in part}
            for record in part:
                inputs[record.topic].pipe_input(
                    Record(record.key, record.value, record.timestamp, list(record.headers) or None)
                )
            driver.advance_wall_clock_time(WALL_CLOCK_MS)
            for output, rows in found.items():
                produced = driver.create_output_topic(case.topic(output), Serdes.bytes(), Serdes.bytes())
                rows += [_row(case, r.key, r.value, r.headers or ()) for r in produced.read_records_to_list()]
    return found


def _row(case: Case, key: bytes, value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> Row:
    return key, value, tuple(headers) if case.headers else ()


def compare(
    case: Case, output: str, expected: Iterable[Row], found: Iterable[Row], inputs: Counter[bytes]
) -> Differences:
    """Compare an output with the oracle's. inputs: number of input records by key."""
    wanted, rows = _without_closers(expected), _without_closers(found)
    match case.outputs[output]:
        case Comparison.TABLE:
            return compare_tables(case.topic(output), wanted, rows)
        case Comparison.BAG:
            return compare_bags(wanted, rows)
        case Comparison.SUM:
            sums: Counter[bytes] = Counter()
            for key, value, _ in rows:
                sums[key] += decode_long(value)
            return compare_counts(inputs, sums)


def _without_closers(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if CLOSER.encode() not in row[0]]


class Recorded(Workload):
    """All of recorded_cases.CASES in one application."""

    name: ClassVar[str] = "recorded"
    topology: ClassVar[str] = "tests.chaos.workloads.recorded_cases:topology"
    steady: ClassVar[bool] = False

    def __init__(self, setting: Setting, directory: Path) -> None:
        super().__init__(setting, directory)
        self._cases = [case for case in CASES if setting.exact or case.repeatable]
        self._found: dict[str, list[Row]] = {case.topic(output): [] for case in CASES for output in case.outputs}
        self._case_of = {case.topic(output): case for case in CASES for output in case.outputs}
        self._expected: dict[str, list[Row]] | None = None
        self._inputs: dict[str, Counter[bytes]] = {}
        self._sent = self._seen = self._judged_at = 0
        self._differences = Differences(lost=1)
        self._finished_at = self._complete_at = 0.0

    @property
    @override
    def topics(self) -> Mapping[str, Mapping[str, str]]:
        inputs = [op["topic"] for case in CASES for op in case.sources().values()]
        return {topic: {} for topic in (*inputs, *self.followed)}

    @property
    def partitions(self) -> int:
        """About sixteen sub-topologies: with two partitions there are enough tasks to move."""
        return 2

    @property
    @override
    def followed(self) -> tuple[str, ...]:
        return tuple(self._found)

    @property
    @override
    def moving(self) -> tuple[str, ...]:
        """All followed topics; a single case gets records only now and then."""
        return self.followed

    def prepare(self, bootstrap_servers: str) -> None:
        """Fill the global tables."""
        rng = random.Random(self.setting.seed)
        records = [
            record_of(case, topic, rng, number, time.time_ns() // 1_000_000)
            for case in CASES
            for topic in case.global_topics
            for number in range(GLOBAL_RECORDS * len(case.inputs[topic][0]))
        ]
        writer = TransactionWriter(bootstrap_servers)
        while not writer.write(records, abort=False):
            pass

    @override
    def start(self, bootstrap_servers: str) -> None:
        self._address = bootstrap_servers
        self._feeder = CaseFeeder(bootstrap_servers, self.setting.seed, self.partitions)
        self._feeder.start()

    @override
    def see(self, record: Sight) -> None:
        row = _row(self._case_of[record.topic], record.key, record.value, record.headers)
        self._found[record.topic].append(row)
        self._seen += 1

    def finish(self) -> None:
        """End the input, and ask the oracle."""
        self._feeder.finish()
        self._finished_at = time.monotonic()
        self._expected = {}
        for case in self._cases:
            records = read_all(self._address, [op["topic"] for op in case.sources().values()])
            self._sent += len(records)
            self._inputs[case.name] = Counter(r.key for r in records if r.key != CLOSER.encode())
            self._expected |= {case.topic(output): rows for output, rows in outputs_of(case, records).items()}

    @property
    @override
    def aborted(self) -> int:
        return self._feeder.aborted

    @override
    def sent(self) -> int:
        return self._sent

    def copied(self) -> int:
        """The number of outputs, which differs from the number of records: some operators give more, some fewer."""
        return self._seen

    @override
    def complete(self) -> bool:
        if self._seen != self._judged_at and time.monotonic() > self._complete_at + JUDGE_SECONDS:
            self._judge()
        return self._differences.none

    def _judge(self) -> None:
        self._judged_at, self._complete_at = self._seen, time.monotonic()
        self._differences = self._compare()

    def _compare(self) -> Differences:
        assert self._expected is not None
        total = Differences()
        for case in self._cases:
            for output in case.outputs:
                topic = case.topic(output)
                found = compare(case, output, self._expected[topic], self._found[topic], self._inputs[case.name])
                if not self.setting.exact:
                    found.doubled = 0
                total += found
        return total

    @override
    def verdict(self, bootstrap_servers: str) -> Verdict:
        self._judge()
        found = self._differences
        state = tuple(found.wrong)
        return Verdict(self.setting.judged_as, found.lost, found.doubled, 0, found.alien, state, 0)

    @override
    def reports(self, bootstrap_servers: str) -> list[Report]:
        took = self._complete_at - self._finished_at
        late = (
            [f"stuck: the last output came {took:.1f} s after the last record"]
            if took > self.setting.budget_seconds
            else []
        )
        outputs = sum(len(rows) for rows in self._found.values())
        examined = f"{outputs} outputs of {len(self._cases)} cases"
        idle = [f"recorded cases: {topic} has no output" for topic, rows in self._found.items() if not rows]
        return [
            Report(
                "recorded cases",
                f"{examined}, the last after {took:.1f} of {self.setting.budget_seconds:g} s",
                (*late, *idle),
            )
        ]
