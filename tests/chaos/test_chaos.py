"""A small chaos run for each guarantee, with real processes; runs can fail, and the same
seed gives the same schedule.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos import program
from tests.chaos.checker import AT_LEAST_ONCE
from tests.chaos.hosts import ROOT, Host
from tests.chaos.interruption import end_early_at_sigint
from tests.chaos.options import Options
from tests.chaos.run import Chaos, Outcome, run
from tests.chaos.schedule import FAMILIES, KILLS, PROCESSES, Action, Event, each_once, schedule

#: A run takes about a minute, and four more minutes of waiting if a record is lost.
pytestmark = pytest.mark.timeout(900)


def chaos(directory: Path, options: Options) -> Outcome:
    outcome = run(options, directory / "run", io.StringIO())
    print("\n".join(outcome.events))  # pytest shows it if the test fails
    return outcome


# -- the schedule


def test_the_same_seed_gives_the_same_schedule_in_any_process() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--brokers", "3", "--seed", "7", "--kills", "50", "--dry-run"]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert lines == [str(event) for event in schedule(7, 50)]
    assert schedule(7, 50) == schedule(7, 50)
    assert schedule(8, 50) != schedule(7, 50)


def test_a_longer_schedule_begins_like_a_shorter_one() -> None:
    short = schedule(7, 20)
    assert schedule(7, 50)[: len(short)] == short


def test_a_schedule_has_the_requested_kills_and_all_other_faults() -> None:
    events = schedule(1, 200)
    assert sum(event.kills for event in events) == 200
    assert {event.action for event in events} == set(FAMILIES[PROCESSES].actions)
    assert {event.host for event in events} == {0, 1}
    kinds = Counter(event.action for event in events if event.kills)
    assert kinds.most_common(1)[0][0] is Action.KILL_WORKER
    assert set(kinds) == set(KILLS)
    assert [event.number for event in events] == list(range(1, len(events) + 1))


def test_each_kind_of_fault_occurs_once_and_is_in_a_family_or_is_the_upgrade() -> None:
    events = each_once(3, list(FAMILIES))
    assert each_once(3, list(FAMILIES)) == events
    assert {event.action for event in events} | {Action.UPGRADE_CLUSTER} == set(Action)
    assert len(events) == len(Action) - 1
    upgraded = list(Options(3, each=True, upgrade_from="3.9.1").events())
    assert [event.action for event in upgraded].count(Action.UPGRADE_CLUSTER) == 1
    assert [event.number for event in upgraded] == list(range(1, len(upgraded) + 1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--unclean", "--workload", "recorded"], "unclean elections take the workload numbers, not recorded"),
        (["--faults", "network", "--workload", "queries"], "reaches no host in a network of its own"),
    ],
)
def test_a_workload_that_does_not_support_the_faults_is_refused(arguments: list[str], said: str) -> None:
    command = [sys.executable, "-m", "tests.chaos", "--dry-run", *arguments]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert said in process.stderr


# -- Ctrl-C


def test_ctrl_c_lets_the_current_event_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that was killed and not restarted would never let the system come to rest."""
    carried_out: list[str] = []

    def do(_chaos: Chaos, event: Event) -> str:
        if event.number == 2:
            signal.raise_signal(signal.SIGINT)
        carried_out.append(f"{event.number} done")
        return ""

    monkeypatch.setattr(Chaos, "_do", do)
    monkeypatch.setattr(Chaos, "_await", lambda *_: None)
    out = io.StringIO()
    chaos = Chaos(Options(seed=1, kills=20), tmp_path, out, None)
    before = signal.getsignal(signal.SIGINT)
    try:
        end_early_at_sigint(chaos.interrupt)
        chaos._do_all()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the second one ends it at once"
    finally:
        signal.signal(signal.SIGINT, before)
    assert carried_out == ["1 done", "2 done"]
    assert re.search(r"interrupted after \d of 20 kills\n$", out.getvalue())


@pytest.mark.broker
@pytest.mark.slow
def test_ctrl_c_ends_it_early_with_a_verdict(tmp_path: Path) -> None:
    """Also if a shell has started it in the background, which makes it ignore SIGINT from the beginning."""
    program = [sys.executable, "-u", "-m", "tests.chaos", "--seed", "7", "--kills", "500"]
    command = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *program]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        begun = next(line for line in process.stdout if "#1 " in line)
        process.send_signal(signal.SIGINT)
        lines = process.stdout.read().splitlines()
    assert any(re.fullmatch(r"interrupted after \d of 500 kills", line) for line in lines), (begun, lines)
    assert lines[-1] == "0 lost, 0 doubled, 0 out of order, state equal"
    assert process.returncode == 0


# -- real processes


@pytest.mark.broker
@pytest.mark.slow
def test_kills_with_exactly_once(tmp_path: Path) -> None:
    """test_workloads has runs with at-least-once and with the streams protocol."""
    outcome = chaos(tmp_path, Options(seed=20, kills=8, watch=True))
    assert outcome.failures == ()
    assert str(outcome.verdict).startswith("0 lost, 0 doubled, 0 out of order, state equal")
    assert outcome.records > 1_000
    assert outcome.aborted > 0


@pytest.mark.broker
@pytest.mark.slow
def test_a_duplicate_record_and_a_fault_without_effect_are_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """test_workloads has a run with a dropped record."""
    monkeypatch.setattr(Host, "victim", lambda _host, _share: None)
    without = frozenset(Action) - {Action.KILL_WORKER}
    outcome = chaos(tmp_path, Options(seed=1, each=True, without=without, fault=program.Fault.DOUBLE))
    assert not outcome.verdict.good
    assert str(outcome.verdict).startswith("0 lost, 1 doubled")
    assert "kill-worker was to happen, and nothing of it was seen" in outcome.failures


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.long
def test_at_least_once_does_not_pass_as_exactly_once(tmp_path: Path) -> None:
    """Workers are killed after processing and before the commit: their records are processed again."""
    options = Options(seed=38, kills=6, guarantee=AT_LEAST_ONCE, judged_as="exactly_once_v2")
    outcome = chaos(tmp_path, options)
    assert not outcome.verdict.good
    assert outcome.verdict.doubled > 0
    assert outcome.verdict.lost == 0


def test_the_program_and_the_checker_compute_the_same_groups() -> None:
    assert {program.group_of(f"k{number}") for number in range(program.KEYS)} == {
        f"g{number}" for number in range(program.GROUPS)
    }
