"""A group of many members: few rebalances, even tasks, and nothing lost."""

from __future__ import annotations

import pytest

from tests.simulation import crowd
from tests.simulation.command import main, scratch
from tests.simulation.crowd import Crowd
from tests.simulation.mutants.ownership import UNTOLD

pytestmark = pytest.mark.medium


def test_joining_dying_and_leaving_members_cause_few_rebalances_and_even_tasks() -> None:
    with scratch() as directory:
        found = Crowd(1, directory, members=20, tasks=50)
        found.run()
    assert found.world.violations == []
    together, joined, replaced, lost, left = found.steps
    assert [step.members for step in found.steps] == [18, 20, 20, 18, 16]
    assert (replaced.rebalances, replaced.moved) == (0, 0), "static members take up their tasks again"
    for step in (joined, lost, left):
        assert 0 < step.rebalances <= 2
        assert step.most - step.fewest <= 1
    assert (together.fewest, together.most) == (2, 3)


def _careful(seed: int) -> Crowd:
    """Run a group whose tasks move only to members that have restored them."""
    with scratch() as directory:
        found = Crowd(seed, directory, members=4, tasks=12, recovery_lag=0)
        found.run()
    return found


def test_tasks_that_move_to_members_with_their_state_reach_a_stable_assignment() -> None:
    found = _careful(UNTOLD.found_by)
    assert found.world.violations == []
    assert [step.members for step in found.steps] == [3, 4, 4, 3, 2]


@pytest.mark.slow
def test_the_group_never_stabilizes_if_its_leader_lacks_the_state_of_new_tasks() -> None:
    with UNTOLD.applied():
        found = _careful(UNTOLD.found_by)
    assert any(what.startswith("STALLED") for what in found.world.violations)


def test_too_many_rebalances_are_a_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crowd, "REBALANCES_MAX", 1)
    assert main(["--members", "4", "--tasks", "8"]) == 1
    assert "2 rebalances" in capsys.readouterr().out.splitlines()[-1]
