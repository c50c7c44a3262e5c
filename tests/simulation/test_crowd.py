"""A group of many members: few rebalances, even tasks, and nothing lost."""

from __future__ import annotations

import pytest

from tests.simulation import crowd
from tests.simulation.command import main, scratch
from tests.simulation.crowd import Crowd


def test_members_that_join_die_and_leave_cost_few_rebalances_and_have_even_tasks() -> None:
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


def test_too_many_rebalances_are_a_violation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(crowd, "REBALANCES_MAX", 1)
    assert main(["--members", "4", "--tasks", "8"]) == 1
    assert "2 rebalances" in capsys.readouterr().out.splitlines()[-1]
