"""The simulation finds no violation in the real code, detects every mutant, and is deterministic."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import examples
from tests.simulation.applications import service_ms
from tests.simulation.command import main, run_seed, run_seeds, scratch
from tests.simulation.kinds import PLAIN, Kind
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.simulation import SETTLE_MS, Simulation
from tests.simulation.world import LOG

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[2]
SEEDS = examples(80)
#: One in this many mutants is tried before each change, the others by bin/test --all.
ONE_MUTANT_OF = 8


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with scratch() as made:
        yield made


def test_schedules_find_no_violation(directory: Path) -> None:
    outcomes = list(run_seeds(0, SEEDS, directory))
    assert [outcome.violations[0] for outcome in outcomes if outcome.violations] == []
    points = {what for outcome in outcomes for _, _, what in outcome.trace}
    assert points >= {"KILLED", "continues", "commit transaction", "group commit", "restore store", "persist store"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # locks that a mutant does not release
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, id=mutant.name, marks=[] if number % ONE_MUTANT_OF == 0 else pytest.mark.slow)
        for number, mutant in enumerate(MUTANTS)
    ],
)
def test_a_mutant_is_found(mutant: Mutant, directory: Path) -> None:
    with mutant.applied():
        assert run_seed(mutant.found_by, directory, aims=mutant.aims, plain=mutant.plain).violations
    gc.collect()


@pytest.mark.slow
def test_schedules_of_mutants_find_no_violation_in_the_real_code(directory: Path) -> None:
    """Some mutants are faults that the code once had, and their seeds have found them."""
    seeds = sorted({(mutant.found_by, mutant.aims, mutant.plain) for mutant in MUTANTS})
    assert [seed for seed, aims, plain in seeds if run_seed(seed, directory, aims=aims, plain=plain).violations] == []


@pytest.mark.parametrize("seed", [3, 6, 17, 23])
def test_a_seed_always_gives_the_same_run(seed: int, directory: Path) -> None:
    first, second = run_seed(seed, directory), run_seed(seed, directory)
    assert first.trace == second.trace
    assert len(first.trace) > 100
    assert run_seed(seed + 1, directory).trace != first.trace


@pytest.mark.parametrize("seed", [23, 55])  # 55: of an application whose tasks have two changelogs
def test_a_seed_gives_the_same_run_with_any_order_of_sets(seed: int) -> None:
    def traced(hash_seed: str) -> str:
        command = [sys.executable, "-m", "tests.simulation", "--log", "--trace", str(seed)]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert traced("1") == traced("2")


@pytest.mark.parametrize("seed", [12, 34])
def test_log_lines_change_no_schedule(seed: int, directory: Path) -> None:
    """Otherwise a trace with --log would differ from the original run."""
    trace = run_seed(seed, directory, log=True).trace
    told = tuple(line for line in trace if line[1] != LOG)
    assert len(told) < len(trace)
    assert told == run_seed(seed, directory).trace


def test_everything_has_settled_only_after_uninterrupted_rest(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick's work may be aborted, and is then repeated at a later tick. Found by seed 19167."""
    simulation, at_rest = Simulation(4, directory), True
    monkeypatch.setattr(simulation, "_at_rest", lambda: at_rest)
    has_settled = simulation._settling()
    for _ in range(2):
        simulation.world.advance(SETTLE_MS - 1)
        assert not has_settled()
        at_rest = False
        assert not has_settled()
        at_rest = True
    simulation.world.advance(SETTLE_MS)
    assert has_settled()


def test_the_time_of_a_service_is_that_of_its_responses() -> None:
    assert [service_ms([number]) for number in ("7", "6", "17", "11", "34")] == [0, 2_500, 4_800, 100, 6_600]


@pytest.mark.parametrize(
    "seed",
    [
        *(2908, 9406, 9485, 14037),  # a task left uncommitted because no broker returned its changelog's end
        *(7122, 10322, 11770, 11026, 19690),  # responses were reordered; batches queued up; records expired
        *(7918, 9382, 18086),  # a service's responses needed longer than the time limit
        19167,  # everything was shut down while a tick's work was being repeated
        340239,  # a suspend in the middle of a wait, of which the client counted 1,100 ms and the checker 1,000
        48377,  # a stopped process wrote to a changelog, and only that state had the record that a tick would have sent
        50485,  # one task ran twice, because the old owner did not know yet, and another was not counted as missing
        35647,  # the tombstone of a suppressed result was written, and the result itself was not
    ],
)
def test_seeds_that_once_found_a_violation_find_none(seed: int, directory: Path) -> None:
    """They found it with the simulation's own brokers; with those of penstock.testing their schedules differ."""
    assert run_seed(seed, directory).violations == ()


def test_a_process_removed_from_the_group_has_no_tasks_at_rest(directory: Path) -> None:
    """It was stopped, and its stores were mistaken for those of the new owner, which had just released the task."""
    assert run_seed(106, directory, aims=("send some", "flush producer"), plain=True).violations == ()


def test_the_command_prints_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--from", "7"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("3 schedules, 0 violations, ")
    assert main(["--trace", "7"]) == 0
    assert "is asked to shut down" in capsys.readouterr().out


def test_the_command_names_a_failing_seed(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = next(m for m in MUTANTS if not m.aims and Kind.of(m.found_by) == PLAIN)
    with mutant.applied():
        assert main(["--seeds", "1", "--from", str(mutant.found_by), "--jobs", "1"]) == 1
    assert f"seed {mutant.found_by}: " in capsys.readouterr().out
