"""Workloads: their outcome is as deterministic as they claim, planted faults are detected,
and real runs are correct.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import program
from tests.chaos.checker import AT_LEAST_ONCE, EXACTLY_ONCE, Sight
from tests.chaos.feeder import FeedRecord
from tests.chaos.options import Options
from tests.chaos.program import Fault
from tests.chaos.test_chaos import chaos
from tests.chaos.workloads import WORKLOADS, Setting
from tests.chaos.workloads.dead_letters import LETTERS, PLACE_HEADERS, DeadLetters
from tests.chaos.workloads.numbers import HotKeys, LargeRecords, Numbers
from tests.chaos.workloads.recorded import Recorded, compare, outputs_of, record_of
from tests.chaos.workloads.recorded_cases import CASES, CLOSER, DISORDER_MS, Case, Comparison, encode

#: A run of each workload takes about half a minute where nothing else runs.
REAL = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]
RECORDS = 60
PARTITIONS = 2


# -- recorded cases: the oracle's results do not depend on the interleaving of partitions and topics


def sighted(record: FeedRecord, rng: random.Random) -> Sight:
    """Return a record as a reader returns it; each key has one partition."""
    partition = sum(record.key) % PARTITIONS if record.partition is None else record.partition
    return Sight(record.topic, partition, record.key, record.value, record.timestamp, record.headers)


def an_input(case: Case, rng: random.Random) -> list[Sight]:
    """Return records as the feeder writes them, with a burst of tombstones and records that close windows."""
    now_ms, records = 1_000_000, []
    for number in range(RECORDS):
        now_ms += rng.choice((0, 1, 2))
        topic = rng.choice(sorted(case.inputs))
        headers = (("n", str(number).encode()), ("none", None)) if case.headers else ()
        records.append(record_of(case, topic, rng, number, now_ms - rng.randint(0, DISORDER_MS), headers))
    for topic in case.tables:
        name = case.sources()[topic]["topic"]
        records[RECORDS // 2 : RECORDS // 2] = [
            FeedRecord(name, key.encode(), None, None, now_ms) for key in case.inputs[topic][0][::3]
        ]
    for op in case.sources().values():
        if op["op"] == "stream":
            value = encode(op["value"], 1)
            records += [
                FeedRecord(op["topic"], CLOSER.encode(), value, partition, now_ms + 60_000)
                for partition in range(PARTITIONS)
            ]
    return [sighted(record, rng) for record in records]


def otherwise(records: list[Sight], rng: random.Random) -> list[Sight]:
    """Return the same records with another interleaving of partitions and topics."""
    parts: defaultdict[tuple[str, int], list[Sight]] = defaultdict(list)
    for record in records:
        parts[record.topic, record.partition].append(record)
    order = [place for place, part in parts.items() for _ in part]
    rng.shuffle(order)
    places: dict[tuple[str, int], Iterator[Sight]] = {place: iter(part) for place, part in parts.items()}
    return [next(places[place]) for place in order]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_cases_outcome_does_not_depend_on_the_interleaving(case: Case) -> None:
    rng = random.Random(case.name)
    records = an_input(case, rng)
    inputs = Counter(record.key for record in records if record.key != CLOSER.encode())
    expected = outputs_of(case, records)
    assert all(expected[output] for output in case.outputs)
    for _ in range(3):
        found = outputs_of(case, otherwise(records, rng))
        for output in case.outputs:
            differences = compare(case, output, expected[output], found[output], inputs)
            assert differences.none, (output, differences)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_an_output_with_a_missing_record_is_detected(case: Case) -> None:
    """The last record of a key that exists at the end: it must be present in a table, a bag or a sum."""
    records = an_input(case, random.Random(case.name))
    inputs = Counter(record.key for record in records if record.key != CLOSER.encode())
    expected = outputs_of(case, records)
    for output, comparison in case.outputs.items():
        rows = expected[output]
        last = next(
            place
            for place in reversed(range(len(rows)))
            if rows[place][1] is not None and CLOSER.encode() not in rows[place][0]
        )
        key = rows[last][0]
        without_key, without_row = [row for row in rows if row[0] != key], rows[:last] + rows[last + 1 :]
        lacking = without_key if comparison is Comparison.TABLE else without_row
        assert compare(case, output, rows, lacking, inputs).lost, output


def test_every_kind_of_comparison_is_used() -> None:
    assert {comparison for case in CASES for comparison in case.outputs.values()} == set(Comparison)


# -- dead letters and large records: planted faults


def seen(topic: str, value: object, headers: tuple[tuple[str, bytes | None], ...] = ()) -> Sight:
    return Sight(topic, 0, b"k0", json.dumps(value).encode(), 0, headers)


def dead_letters(tmp_path: Path, guarantee: str = EXACTLY_ONCE) -> DeadLetters:
    return DeadLetters(Setting(1, 2, guarantee, guarantee), tmp_path)


@pytest.mark.parametrize(
    ("copies", "said"),
    [
        ([1, 2], "0 lost, 0 doubled, 0 out of order, state equal"),
        ([2, 1], "0 lost, 0 doubled, 0 out of order, state equal"),
        ([1], "1 lost, 0 doubled, 0 out of order, state equal"),
        ([1, 2, 2], "0 lost, 1 doubled, 0 out of order, state equal"),
        ([1, 2, 3], "0 lost, 0 doubled, 0 out of order, 1 of aborted transactions, state equal"),
    ],
)
def test_a_replayed_record_has_one_output(tmp_path: Path, copies: list[int], said: str) -> None:
    workload = dead_letters(tmp_path)
    for number in (1, 2, 2):  # the second one once more, by a replay
        workload.see(seen(program.NUMBERS, {"key": "k0", "n": number}))
    for number in copies:
        workload.see(seen(program.COPIES, {"key": "k0", "n": number}))
    tallies = {"k0": {"records": 2, "sum": 3, "last": 1, "breaks": 1}}
    assert str(workload.judge(tallies)) == said
    workload.see(seen(program.COPIES, {"key": "k0", "n": 9, "aborted": True}))
    assert not workload.judge(tallies).good


@pytest.mark.parametrize(
    ("records", "total", "exactly_once", "at_least_once"),
    [
        (2, 3, "state equal", "state equal"),
        (3, 5, "state differs from a replay in 1 values", "state complete (1 values count doubled records too)"),
        (2, 2, *["state differs from a replay in 1 values"] * 2),
        (1, 2, *["state differs from a replay in 1 values"] * 2),
        (0, 0, *["state differs from a replay in 1 values"] * 2),
    ],
)
def test_a_tally_without_a_replayed_record_or_with_it_twice_is_detected(
    tmp_path: Path, records: int, total: int, exactly_once: str, at_least_once: str
) -> None:
    tallies = {"k0": {"records": records, "sum": total, "last": 2, "breaks": 0}} if records else {}
    for guarantee, said in ((EXACTLY_ONCE, exactly_once), (AT_LEAST_ONCE, at_least_once)):
        workload = dead_letters(tmp_path, guarantee)
        for number in (1, 2):
            for topic in (program.NUMBERS, program.COPIES):
                workload.see(seen(topic, {"key": "k0", "n": number}))
        assert str(workload.judge(tallies)) == f"0 lost, 0 doubled, 0 out of order, {said}"


def test_two_dead_letters_for_one_failure_are_detected(tmp_path: Path) -> None:
    class Idle:
        replays = kills = 0

    def reports(guarantee: str, *offsets: bytes) -> bool:
        workload = dead_letters(tmp_path, guarantee)
        workload._replayer = Idle()  # type: ignore[assignment]
        for offset in offsets:
            place = dict(zip(PLACE_HEADERS, (b"numbers", b"0", offset), strict=True))
            workload.see(seen(LETTERS, {"key": "k0", "n": 1}, tuple(place.items())))
        return workload.reports("")[0].good

    assert reports(EXACTLY_ONCE, b"1", b"2")
    assert not reports(EXACTLY_ONCE, b"1", b"1")
    assert reports(AT_LEAST_ONCE, b"1", b"1")
    assert not reports(EXACTLY_ONCE), "without letters nothing is proved"


def test_a_truncated_padding_is_detected(tmp_path: Path) -> None:
    workload = LargeRecords(Setting(1, 2), tmp_path)
    good = {"key": "k0", "n": 1, "size": 100, "pad": program.padding(100)}
    workload.see(seen(program.COPIES, good))
    assert workload._spoiled == []
    workload.see(seen(program.COPIES, good | {"pad": program.padding(99)}))
    assert len(workload._spoiled) == 1


def test_late_or_missing_outputs_of_recorded_cases_are_detected(tmp_path: Path) -> None:
    def faults(took: float, without: str = "") -> list[str]:
        workload = Recorded(Setting(1, 2, budget_seconds=10.0), tmp_path)
        for topic in workload.followed:
            if topic != without:
                workload.see(Sight(topic, 0, b"k", b"v", 0, ()))
        workload._complete_at = took
        return list(workload.reports("")[0].faults)

    assert faults(9.0) == []
    assert faults(11.0) == ["stuck: the last output came 11.0 s after the last record"]
    assert faults(9.0, "process_dedup-out") == ["recorded cases: process_dedup-out has no output"]


# -- progress


def test_every_partition_must_progress_or_any_output_where_records_are_few(tmp_path: Path) -> None:
    seen = {(program.NUMBERS, 0): 9, (program.COPIES, 0): 3, (program.COPIES, 1): 0}
    assert Numbers(Setting(1, 2), tmp_path).progress(seen) == {"copies-0": 3, "copies-1": 0}
    assert HotKeys(Setting(1, 2), tmp_path).progress(seen) == {"any output": 3}


# -- real processes


def test_each_workload_has_a_description() -> None:
    assert all(workload.name == name for name, workload in WORKLOADS.items())


@pytest.mark.parametrize(
    ("workload", "protocol", "guarantee"),
    [
        pytest.param("queries", "streams", EXACTLY_ONCE, marks=REAL),
        # It takes the longest, and passed only once since the fault that it found was fixed.
        pytest.param("recorded", "classic", EXACTLY_ONCE, marks=[*REAL, pytest.mark.long]),
        pytest.param("dead-letters", "streams", EXACTLY_ONCE, marks=[*REAL, pytest.mark.long]),
        pytest.param("large-records", "classic", AT_LEAST_ONCE, marks=[*REAL, pytest.mark.long]),
        pytest.param("many-keys", "streams", EXACTLY_ONCE, marks=[*REAL, pytest.mark.long]),
    ],
)
def test_a_workload_survives_kills(tmp_path: Path, workload: str, protocol: str, guarantee: str) -> None:
    outcome = chaos(tmp_path, Options(3, 2, guarantee, protocol, workload=workload, watch=True))
    assert outcome.failures == ()
    assert outcome.verdict.good, outcome.verdict
    assert [line for report in outcome.reports if not report.good for line in report.lines()] == []
    assert outcome.records > 0


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_during_async_functions(tmp_path: Path) -> None:
    outcome = chaos(tmp_path, Options(39, 3, workload="async-functions"))
    assert outcome.failures == ()
    assert str(outcome.verdict).startswith("0 lost, 0 doubled, 0 out of order, state equal")
    assert [line for report in outcome.reports if not report.good for line in report.lines()] == []
    assert outcome.records > 1_000


@pytest.mark.parametrize(
    ("workload", "fault", "guarantee", "said"),
    [
        pytest.param(
            "queries",
            f"{Fault.OUTSIDE} {Fault.AHEAD}",
            EXACTLY_ONCE,
            ("torn: copies of numbers-", "stale: k"),
            marks=[*REAL, pytest.mark.long],
        ),
        pytest.param(
            "numbers", f"{Fault.UNCOMMITTED} {Fault.DROP}", AT_LEAST_ONCE, ("stuck: record 1 of k1",), marks=REAL
        ),
        pytest.param("recorded", Fault.WINDOW, EXACTLY_ONCE, (), marks=[*REAL, pytest.mark.long]),
    ],
)
def test_a_planted_fault_is_detected(
    tmp_path: Path, workload: str, fault: str, guarantee: str, said: tuple[str, ...]
) -> None:
    options = Options(1, 0, guarantee, fault=fault, workload=workload, patience_seconds=15.0, budget_seconds=10.0)
    outcome = chaos(tmp_path, options)
    assert not outcome.verdict.good
    found = [fault for report in outcome.reports for fault in report.faults]
    for words in said:
        assert any(words in fault for fault in found), (words, found)
    if Fault.DROP in fault:
        assert outcome.verdict.lost == 1
    if Fault.UNCOMMITTED in fault:
        assert outcome.verdict.alien, "records of aborted transactions were read"
    if Fault.WINDOW in fault:
        assert outcome.verdict.lost
        assert outcome.verdict.alien
