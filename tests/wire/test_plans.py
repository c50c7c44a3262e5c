"""A few random plans for each guarantee; and that a run can fail."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.testing.wire import Drop, Plan, Rule, WireProxy
from tests.chaos.checker import EXACTLY_ONCE
from tests.chaos.program import Fault
from tests.wire import run

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.parametrize(("guarantee", "seeds"), [(EXACTLY_ONCE, range(1, 5)), ("at_least_once", range(5, 8))])
def test_nothing_is_lost_duplicated_or_stuck_after_random_plans(tmp_path: Path, guarantee: str, seeds: range) -> None:
    plans = run.WirePlans(tmp_path, guarantee, "classic", sys.stdout)

    def then_ctrl_c() -> Iterator[int]:
        yield from seeds
        plans.interrupt()
        yield seeds.stop

    result = plans.run(then_ctrl_c())
    assert result.good, f"{result}\n" + "\n".join(result.findings)
    assert result.plans == len(seeds)
    assert result.done > 0
    assert result.records > 500


@pytest.mark.long
def test_an_application_that_drops_a_record_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("START_SECONDS", "STUCK_SECONDS"):
        monkeypatch.setattr(run, name, 15.0)  # a lost record is waited for
    result = run.WirePlans(tmp_path, EXACTLY_ONCE, "classic", sys.stdout, Fault.DROP).run([])
    assert not result.good
    assert str(result.verdict).startswith("1 lost, 0 doubled")


def test_a_stuck_application_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No records can be read any more, and the plan does not end."""
    plan = Plan(0, (Rule(Drop(acted=False), api="Fetch"),))
    monkeypatch.setattr(Plan, "random", lambda _: plan)
    monkeypatch.setattr(WireProxy, "heal", lambda _: None)
    monkeypatch.setattr(run, "STUCK_SECONDS", 8.0)
    result = run.WirePlans(tmp_path, EXACTLY_ONCE, "classic", sys.stdout).run([0])
    assert not result.good
    assert re.match(r"seed 0: stuck: \d+ records have not come out", result.findings[0])
