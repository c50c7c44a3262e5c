"""A few random plans for each guarantee."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos.checker import EXACTLY_ONCE

from . import run

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.parametrize(("guarantee", "seeds"), [(EXACTLY_ONCE, range(1, 5)), ("at_least_once", range(5, 8))])
def test_nothing_is_lost_doubled_or_stuck_after_random_plans(tmp_path: Path, guarantee: str, seeds: range) -> None:
    result = run.WirePlans(tmp_path, guarantee, "classic", sys.stdout).run(seeds)
    assert result.good, f"{result}\n" + "\n".join(result.findings)
    assert result.plans == len(seeds)
    assert result.done > 0
    assert result.records > 500
