"""The benchmark measures only correct results: its input, the expected results, its checks,
and Penstock's topologies.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sysconfig
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from benchmarks import latency, measure, topologies
from benchmarks.__main__ import Bench, _chosen, main
from benchmarks.checks import Check, CountsCheck, RowsCheck, SumsCheck, sum_of_rows
from benchmarks.data import REPORT_EVERY_MS, WINDOW_MS, Workload, recreate_topic
from benchmarks.failover import RECOVERY_SCENARIOS
from benchmarks.hot_loop import Watch as HotLoopWatch
from benchmarks.latency import Ages, Clockwork
from benchmarks.measure import BenchmarkError, Measurement, Watch
from benchmarks.moving import ADDING_RATE, LATE_MS, MOVING_SCENARIOS, PUNCTUAL_SECONDS, Punctuality
from benchmarks.plot import write_plot
from benchmarks.progress import Curve, Progress
from benchmarks.recovery import Recovered, Restore, Run, running
from benchmarks.report import write_markdown
from benchmarks.rounds import Rounds
from benchmarks.scenarios import SCENARIOS, WIDE, Scenario
from benchmarks.systems import Penstock, PenstockDicts, System
from penstock import Serdes
from penstock.testing import TopologyTestDriver
from penstock.topology.records import TopicPartition
from penstock.workers.control.messages import Status
from tests.examples import examples
from tests.topics import delete_topics_of
from tests.waiting import PATIENCE_SECONDS, wait_for_partitions

pytestmark = pytest.mark.medium

WORKLOAD = Workload(5_000)
#: 25 s of event time; 100 users with one purchase about every half second.
SPARSE = Workload(5_000, keys=100, records_per_second=200)


def problem(check: Check, *rows: tuple[bytes, int]) -> str | None:
    for key, count in rows:
        check.read(key, count.to_bytes(8))
    return check.problem()


def test_counts_are_checked_by_their_last_value() -> None:
    expected = {b"a": 2, b"b": 1}
    assert problem(CountsCheck(expected), (b"a", 1), (b"b", 1), (b"a", 2)) is None
    assert problem(CountsCheck(expected), (b"a", 2), (b"b", 1)) is None, "a cache may leave out an update"
    assert problem(CountsCheck(expected), (b"a", 2), (b"b", 2)) is not None
    assert problem(CountsCheck(expected), (b"a", 2), (b"a", 1), (b"b", 1)) is not None
    assert problem(CountsCheck(expected), (b"a", 2)) is not None
    assert problem(CountsCheck(expected), (b"a", 2), (b"b", 1), (b"c", 1)) is not None


def test_without_a_cache_every_update_is_checked() -> None:
    expected = {b"a": 2, b"b": 1}
    assert problem(CountsCheck(expected, every_update=True), (b"a", 1), (b"b", 1), (b"a", 2)) is None
    assert problem(CountsCheck(expected, every_update=True), (b"b", 1), (b"a", 2)) is not None
    assert problem(CountsCheck(expected, every_update=True), (b"a", 1), (b"a", 1), (b"a", 2), (b"b", 1)) is not None


def test_a_merged_session_has_no_count() -> None:
    check = CountsCheck({b"a": 2})
    check.read(b"merged", (1).to_bytes(8))
    check.read(b"a", (2).to_bytes(8))
    assert check.problem() is not None
    check.read(b"merged", b"")
    assert check.problem() is None


def test_rows_are_checked_byte_by_byte_in_any_order() -> None:
    def found(*rows: tuple[bytes, bytes]) -> str | None:
        check = RowsCheck(sum_of_rows([(b"a", b"1"), (b"a", b"1"), (b"b", b"2")]))
        for row in rows:
            check.read(*row)
        return check.problem()

    assert found((b"b", b"2"), (b"a", b"1"), (b"a", b"1")) is None
    assert found((b"b", b"2"), (b"a", b"1")) is not None
    assert found((b"b", b"2"), (b"b", b"2"), (b"a", b"1")) is not None
    assert found((b"b", b"2"), (b"a", b"1"), (b"a1", b"")) is not None


def test_the_last_totals_of_all_tasks_are_added_up() -> None:
    def found(*rows: tuple[bytes, bytes]) -> str | None:
        check = SumsCheck({b"1": b'{"n":3,"sum":5}', b"2": b'{"n":4,"sum":9}'})
        for row in rows:
            check.read(*row)
        return check.problem()

    first, second = (b"1-0_0", b'{"n":1,"sum":2}'), (b"1-0_1", b'{"n":2,"sum":3}')
    later = (b"2-0_0", b'{"n":4,"sum":9}')
    assert found(first, second, later) is None
    assert found(first, first, second, later) is None, "a task may report again when it has moved"
    assert found(first, later) is not None
    assert found(first, second) is not None
    assert found(first, second, later, (b"3-0_0", b'{"n":4,"sum":9}')) is not None


def test_equal_record_counts_have_equal_records() -> None:
    assert list(WORKLOAD.users()) == list(Workload(5_000).users())
    assert WORKLOAD.counts().total() == WORKLOAD.windowed_counts().total() == 5_000
    times = [WORKLOAD.timestamp(number) for number in range(5_000)]
    assert all(a <= b for a, b in itertools.pairwise(times))
    wide = Workload(3_000_000)
    assert (wide.timestamp(2_999_999) - wide.timestamp(0)) // WINDOW_MS == 2, "three windows, each of a million"


def test_expected_windows_sessions_and_joins_are_not_empty() -> None:
    sessions = SPARSE.session_counts()
    assert sum(sessions.values()) == 5_000
    assert max(sessions.values()) > 2, "some records are merged"
    assert len(sessions) > 1_000, "and some are not"
    assert SPARSE.hopping_counts().total() == 25_000
    closed = list(SPARSE.final_counts())
    assert 200 == len(closed) < len(SPARSE.windowed_counts()) == 300
    paid = list(SPARSE.paid_purchases())
    assert 2_500 < len(paid) < 10_000
    assert len({key + value for key, value in paid}) < len(paid), "some are paid twice in the same way"
    assert not {time for *_, time in SPARSE.purchases()} & {time for *_, time in SPARSE.payments()}
    assert 4_500 < len(list(SPARSE.purchases_as_paid_before())) < 5_000, "the first ones are not paid yet"
    assert len(SPARSE.reports()) == 25_000 // REPORT_EVERY_MS - 1
    assert len(list(SPARSE.page_changes())) > 9_000, "most purchases are of another page than the one before"


def test_the_rows_that_a_scan_reads_are_counted() -> None:
    """By formulas, from the number of processed records: here from the counts themselves."""
    of_users: Counter[int] = Counter()
    read = 0
    for user in SPARSE.users():
        of_users[user] += 1
        read += of_users[user]
    step = SPARSE.records_per_second * REPORT_EVERY_MS // 1_000
    counted = {"prefix-scan": read, "range-scan": read, "punctuator": sum(range(step, 5_001, step))}
    for scenario in WIDE:
        if scenario.name in counted:
            assert scenario.rows(SPARSE, 5_000) == pytest.approx(counted[scenario.name], rel=0.05)
        else:
            assert scenario.rows(SPARSE, 5_000) == 5_000


def test_progress_is_the_committed_offset_of_the_last_internal_topic() -> None:
    scenarios = {scenario.name: scenario for scenario in WIDE}
    changes = len(list(SPARSE.page_changes()))
    progress = {name: scenario.progress(SPARSE, "app") for name, scenario in scenarios.items()}
    assert progress["versioned"] == {SPARSE.topic: 5_000, SPARSE.payments_topic: 2_500}
    assert progress["retraction"] == {"app-by-page-repartition": changes}
    assert progress["foreign-key-join"] == {"app-city-subscription-response-topic": 5_000}
    assert scenarios["foreign-key-join"].processed(SPARSE) == 15_000


def test_the_percentiles_of_a_round_come_from_one_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = (latency.Steady([float(number), number + 0.1, number + 0.2], 1.0, 1, 1.0) for number in range(9))
    monkeypatch.setattr(latency, "measured", lambda run, config, of_input: next(runs))
    systems: list[System] = [Able("one", None), Able("two", None)]
    guarantee = latency.Guarantee("latency", "", {})
    scenarios = [latency.Latency(guarantee, percentile) for percentile in (50, 99.9)]
    found = [
        (number, scenario.name, system.name, scenario.run(Run("", system, "", tmp_path, ""), SPARSE).value)
        for number, scenario, system in Rounds(2).runs(systems, scenarios)
    ]
    assert found == [
        (0, "latency-p50", "one", 0.1),
        (0, "latency-p50", "two", 1.1),
        (0, "latency-p99.9", "one", 0.2),
        (0, "latency-p99.9", "two", 1.2),
        (1, "latency-p50", "two", 2.1),
        (1, "latency-p50", "one", 3.1),
        (1, "latency-p99.9", "two", 2.2),
        (1, "latency-p99.9", "one", 3.2),
    ]


def test_recreating_an_input_keeps_the_input_with_a_longer_name(bootstrap_servers: str) -> None:
    name = f"benchmark-test-{uuid.uuid4().hex[:8]}-60"
    recreate_topic(bootstrap_servers, f"{name}0", 1)
    recreate_topic(bootstrap_servers, name, 1)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    wait_for_partitions(admin, name, 1)  # once it is known, no earlier operation is pending
    assert f"{name}0" in admin.list_topics(timeout=PATIENCE_SECONDS).topics
    delete_topics_of(admin, name)


WITH_DICTS = PenstockDicts.scenarios or ()
WAYS = [(scenario, scenario.topology) for scenario in SCENARIOS] + [
    (scenario, f"{scenario.topology}_dicts") for scenario in SCENARIOS if scenario.name in WITH_DICTS
]


@pytest.mark.parametrize(
    ("scenario", "way", "workload"),
    [(*way, replace(WORKLOAD, records=examples(5_000))) for way in WAYS]
    + [(scenario, scenario.topology, replace(SPARSE, records=examples(5_000))) for scenario in WIDE],
    ids=lambda value: getattr(value, "name", value if isinstance(value, str) else ""),
)
def test_penstocks_topologies_give_the_expected_results(
    scenario: Scenario, way: str, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(topologies.INPUT_VARIABLE, "in")
    monkeypatch.setenv(topologies.TABLE_VARIABLE, "users")
    monkeypatch.setenv(topologies.PAYMENTS_VARIABLE, "payments")
    monkeypatch.setenv(topologies.OUTPUT_VARIABLE, "out")
    topology = getattr(topologies, way)()
    check = scenario.check(workload)
    with TopologyTestDriver(topology, {"application.id": "benchmark", **scenario.config}) as driver:
        source = driver.create_input_topic("in", Serdes.bytes(), Serdes.bytes())
        if scenario.name in {"table-join", "foreign-key-join"}:
            users = driver.create_input_topic("users", Serdes.bytes(), Serdes.bytes())
            for key, value, timestamp in workload.user_rows():
                users.pipe_input(key, value, timestamp)
        records = [(timestamp, source, key, value) for key, value, timestamp in workload.purchases()]
        if scenario.with_payments:
            paid = driver.create_input_topic("payments", Serdes.bytes(), Serdes.bytes())
            records += [(timestamp, paid, key, value) for key, value, timestamp in workload.payments()]
        for timestamp, topic, key, value in sorted(records, key=itemgetter(0)):
            topic.pipe_input(key, value, timestamp)
        for row in driver.create_output_topic("out", Serdes.bytes(), Serdes.bytes()).read_records_to_list():
            check.read(row.key, row.value)
    assert check.problem() is None


def test_a_key_keeps_its_first_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(topologies.INPUT_VARIABLE, "in")
    monkeypatch.setenv(topologies.OUTPUT_VARIABLE, "out")
    with TopologyTestDriver(topologies.keep_first(), {"application.id": "benchmark"}) as driver:
        source = driver.create_input_topic("in", Serdes.bytes(), Serdes.bytes())
        for value in (b"first", b"later"):
            source.pipe_input(b"k", value, 0)
        answers = driver.create_output_topic("out", Serdes.bytes(), Serdes.bytes()).read_records_to_list()
    assert [(row.key, row.value) for row in answers] == [(b"k", b"first")] * 2


def test_a_group_of_scenarios_is_selected_by_its_name() -> None:
    scenarios, recoveries, on_spark = _chosen("count,moving,spark-count")
    assert [scenario.name for scenario in scenarios] == ["count"]
    assert recoveries == list(MOVING_SCENARIOS)
    assert [scenario.name for scenario in on_spark] == ["spark-count"]


class Written(Clockwork):
    """Has written this many records, without a broker."""

    def __init__(self, written: int) -> None:
        self.written = written


class Arrived(Ages):
    """Has these results, with their ages in ms."""

    def __init__(self, *looks: list[float]) -> None:
        self.answers, self._looks = 0, list(looks)

    def read_until(self, end: float) -> list[float]:
        found = self._looks.pop(0)
        self.answers += len(found)
        return found


def test_late_and_missing_results_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("benchmarks.moving.time.monotonic", lambda: now)
    writer, tick = Written(3), PUNCTUAL_SECONDS * 0.6
    answers = Punctuality(writer, Arrived([5.0], [LATE_MS + 1.0], [], [5.0], [5.0], [5.0]))
    found = []
    for now in (tick, 2 * tick, 3 * tick, 4 * tick, 5 * tick):
        writer.written = 10 * ADDING_RATE if now == 3 * tick else 3
        found.append(answers.lasts())
    assert found == [False, False, False, False, True]
    assert (answers.late_until, answers.latest_ms) == (3 * tick, LATE_MS + 1.0)


A, B = TopicPartition("in", 0), TopicPartition("in", 1)


class Looks(Watch):
    """Returns these samples in turn: seconds, and committed offsets of A and B; ten seconds of CPU each second."""

    rss_bytes = 1

    def __init__(self, looks: Iterable[tuple[float, int, int]]) -> None:
        self.progress, self.cpu = Progress((A, B)), Curve()
        self._looks = iter(looks)

    def look(self) -> float:
        at, *offsets = next(self._looks)
        self.progress.note(at, dict(zip((A, B), offsets, strict=True)))
        self.cpu.add(at, at * 10)
        return at


def measured(monkeypatch: pytest.MonkeyPatch, *looks: tuple[float, int, int]) -> Measurement:
    """Return the measurement of 1,000 records, 300 of them for warm-up, from these samples."""
    monkeypatch.setattr(measure, "SAMPLE_SECONDS", 0.0)
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            return measure._watch(process, Looks(looks), 1_000, 300)
        finally:
            process.kill()


def test_a_rate_is_measured_from_the_warm_up_to_the_last_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    steady = [(0, 0, 0), (1, 100, 100), (2, 200, 200), (3, 300, 300), (4, 400, 400), (9, 500, 500)]
    found = measured(monkeypatch, *steady)
    assert (found.rate, found.seconds) == (200, 2.5), "from 300 records at 1.5 s; the last commits come late"
    assert found.cpu_seconds_per_million == 25 / 500 * 1e6


def test_a_rate_does_not_depend_on_the_times_of_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With sums alone, only the samples 350 at 2.0 s and 750 at 2.1 s might lie between warm-up and end."""
    apart = [(0, 0, 0), (0.5, 50, 0), (1.0, 50, 100), (2.0, 50, 300), (2.1, 450, 300), (3.0, 450, 450), (9, 500, 500)]
    found = measured(monkeypatch, *apart)
    assert 350 < found.rate < 450
    assert found.seconds > 0.8


def test_a_run_that_ends_too_soon_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchmarkError, match=r"only 0\.00 s to measure: give it more --records"):
        measured(monkeypatch, (1, 0, 0), (2, 500, 500))
    with pytest.raises(BenchmarkError, match=r"only 0\.20 s to measure"):
        measured(monkeypatch, (1, 150, 150), (1.2, 450, 450), (2, 500, 500))


def test_records_between_two_commits_count_as_processed_evenly() -> None:
    progress = Progress((A, B))
    for at, a, b in ((1.0, 10, 0), (2.0, 10, 100), (3.0, 30, 100), (4.0, 30, 300), (4.5, 30, 300), (5.0, 50, 300)):
        progress.note(at, {A: a, B: b})
    assert progress.committed == 350
    assert progress.at(2.0) == 20 + 100
    assert progress.at(3.0) == 30 + 200
    assert progress.at(4.5) == 45 + 300
    assert progress.span(0) is None, "B's first commit comes when A's last one but one has been"
    progress.note(6.0, {A: 60, B: 310})
    assert progress.span(0) == (2.0, 4.0)
    assert progress.span(230) == (3.0, 4.0)


def test_many_partitions_are_measured_by_their_sum() -> None:
    """Each partition may be finished with one commit."""
    partitions = [TopicPartition("in", number) for number in range(100)]
    progress = Progress(partitions)
    for second in range(1, 11):
        progress.note(second, {p: 1_000 if p.partition < 10 * second else 0 for p in partitions})
    assert progress.span(25_000) == (2.5, 9)
    assert progress.at(9) - progress.at(2.5) == 65_000


def test_a_failed_run_keeps_its_logs_but_not_its_state(bootstrap_servers: str, tmp_path: Path) -> None:
    run = Run(bootstrap_servers, Penstock(), f"failed-{uuid.uuid4().hex[:8]}", tmp_path, "in")
    (tmp_path / "state-0").mkdir()
    (tmp_path / "log-0").touch()
    try:
        with pytest.raises(BenchmarkError), running(run):
            raise BenchmarkError("wrong")
    finally:
        delete_topics_of(AdminClient({"bootstrap.servers": bootstrap_servers}), run.name)
    assert [path.name for path in tmp_path.iterdir()] == ["log-0"]


def test_the_error_names_an_unknown_scenario() -> None:
    result = CliRunner().invoke(main, ["--only", "count,cuont"])
    assert result.exit_code == 2
    assert "cuont: choose from count, count-uncached" in result.output


class Able(System):
    """A system whose abilities the test sets."""

    version = command = None  # type: ignore[assignment]

    def __init__(self, name: str, scenarios: tuple[str, ...] | None) -> None:
        self.name, self.scenarios = name, scenarios


def test_a_system_with_wrong_results_is_left_out_and_the_others_continue(capsys: pytest.CaptureFixture[str]) -> None:
    count = [scenario for scenario in SCENARIOS if scenario.name == "count"]
    good, wrong = Able("good", None), Able("wrong", None)
    runs: Counter[str] = Counter()

    def run_one(scenario: Scenario, system: System) -> int:
        runs[system.name] += 1
        if system is wrong and runs[system.name] % 2 == 0:
            raise BenchmarkError("wrong output: one key too many")
        return runs[system.name]

    rounds = Rounds(3)
    results = rounds.run([good, wrong], count, run_one, lambda _, number: f"run {number}")
    assert results == {count[0]: {"good": [1, 2, 3]}}
    assert runs == {"good": 3, "wrong": 2}
    assert (rounds.failed, rounds.problems) == (True, ["count, wrong: wrong output: one key too many"])
    assert "round 3: count, good: run 3" in capsys.readouterr().err
    wrong.dispensable = True
    with_peer = Rounds(2)
    assert with_peer.run([wrong], count, run_one, lambda _, number: "") == {}
    assert with_peer.problems
    assert not with_peer.failed, "it is a peer"


@pytest.mark.parametrize("name", ["count", "restore"])
def test_all_kinds_of_scenarios_are_left_out_and_reported(
    monkeypatch: pytest.MonkeyPatch, bootstrap_servers: str, name: str
) -> None:
    def fail(*_: Any) -> None:
        raise BenchmarkError("no answer")

    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", bootstrap_servers)
    monkeypatch.setattr(Bench, "_run_one", fail)
    monkeypatch.setattr(Restore, "prepare", lambda *_: None)
    monkeypatch.setattr(Restore, "run", fail)
    arguments = ["--only", name, "--system", "penstock", "--records", "10000", "--rounds", "2"]
    found = CliRunner().invoke(main, arguments)
    assert f"Not reported: {name}, Penstock: no answer" in found.output
    assert found.output.count("left out from here on") == 1
    assert found.exit_code == 1


def test_the_tables_are_written_as_markdown(tmp_path: Path) -> None:
    file = tmp_path / "speed.md"
    count, restore = SCENARIOS[0], RECOVERY_SCENARIOS[0]
    runs = {"Kafka Streams": [Measurement(5e5, 9.0, 2.0, 900_000_000, 3.0)]}
    runs["Penstock"] = [Measurement(2e6, 5.0, 1.0, 300_000_000, 0.5)]
    recovered = {"Penstock": [Recovered(7.5, 1.5, 300_000_000, 4.0)]}
    environment = "2026-11-24; a machine; " + "a version, " * 30 + "the last"
    write_markdown({count: runs}, {restore: recovered}, environment, file)
    lines = [re.sub(" +", " ", line) for line in file.read_text("utf-8").splitlines()]
    assert lines[0] == environment, "as one line, however long"
    title = count.title
    assert f"| {title} | Kafka Streams | 500 | 500 | 500 | 9 | 4.00 (4.00 to 4.00) | 2.0 | 900 | 3.00 |" in lines
    assert f"| {title} | Penstock | 2,000 | 2,000 | 2,000 | 5 | | 1.0 | 300 | 0.50 |" in lines
    assert f"| {restore.title} | Penstock | {restore.unit} | 7.50 | 7.50 | 7.50 | | 1.5 | 300 | 4.0 |" in lines
    heads = [number for number, line in enumerate(lines) if set(line) == set("|-")]
    assert [lines[number - 1].split(" | ")[0] for number in heads] == ["| scenario"] * 2
    assert all(not lines[number - 2] for number in heads), "an empty line before a table"


def test_a_system_keeps_its_color_in_all_scenarios(tmp_path: Path) -> None:
    file = tmp_path / "speed.svg"
    theirs, ours = Measurement(5e5, 9.0, 2.0, 900_000_000, 3.0), Measurement(2e6, 5.0, 1.0, 300_000_000, 0.5)
    results = {SCENARIOS[0]: {"Penstock": [ours]}, SCENARIOS[1]: {"Penstock": [ours], "Kafka Streams": [theirs]}}
    write_plot(results, "2026-11-26; a machine; versions", file)
    drawn = file.read_text("utf-8")
    assert re.findall(r'class="bar(\d)" x="\d+" y="\d+" width="\d+\.', drawn) == ["0", "0", "1"]
    assert drawn.index(">Penstock</text>") < drawn.index(">Kafka Streams</text>")
    results = {SCENARIOS[0]: {"Kafka Streams": [theirs], "Penstock": [ours]}, SCENARIOS[1]: {"Penstock": [ours]}}
    write_plot(results, "2026-11-26; a machine; versions", file)
    assert re.findall(r'class="bar(\d)" x="\d+" y="\d+" width="\d+\.', file.read_text("utf-8")) == ["0", "1", "1"]


def test_slower_systems_get_fewer_records_to_be_measured_equally_long() -> None:
    count, json = (scenario for scenario in SCENARIOS if scenario.name in {"count", "map-filter"})
    slow = Able("slow", None)
    assert slow.share(count) == 1.0
    slow.share_of_records, slow.shares = 0.1, {json.name: 0.2}
    assert [slow.share(count), slow.share(json)] == [0.1, 0.2]


def test_the_profile_of_a_thread_that_finished_at_once_asks_for_more_records() -> None:
    watch = HotLoopWatch(100)
    watch.report(Status("RUNNING", records_processed=0))
    watch.report(Status("RUNNING", records_processed=100))
    with pytest.raises(ClickException, match="--records"):
        watch.cost()


def test_systems_take_turns_and_unsupported_scenarios_are_left_out() -> None:
    chosen = [scenario for scenario in SCENARIOS if scenario.name in {"count", "table-join"}]
    runs = Rounds(2).runs([Able("one", None), Able("two", ("count",))], chosen)
    assert [(number, scenario.name, system.name) for number, scenario, system in runs] == [
        (0, "count", "one"),
        (0, "count", "two"),
        (0, "table-join", "one"),
        (1, "count", "two"),
        (1, "count", "one"),
        (1, "table-join", "one"),
    ]


@pytest.mark.parametrize(
    ("variables", "is_plain"),
    [
        ({"CONFIG_ARGS": "'--enable-shared'", "PGO_PROF_USE_FLAG": "-fprofile-use"}, True),
        ({"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'", "PGO_PROF_USE_FLAG": "-fprofile-use"}, False),
        ({"CONFIG_ARGS": "'--enable-shared'"}, False),  # Debian's Python, which has its own optimization flags
        ({}, False),
    ],
)
def test_a_report_names_a_python_built_without_optimizations(
    variables: dict[str, str], is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", variables.get)
    assert Penstock().version.endswith(" (a plain build)") is is_plain
