"""Wide random cases end well or with an error of Penstock's own, whatever is declared and put in."""

from __future__ import annotations

import pytest

from penstock import PenstockError
from tests.goldens.compare import Run
from tests.goldens.wide_generator import generate_wide

SEEDS = range(100, 160)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wide_case_runs_or_fails_with_an_error_of_penstock(seed: int) -> None:
    run = Run({**generate_wide(seed), "stores": {}})
    run.run()
    assert run.error is None or isinstance(run.error, PenstockError), repr(run.error)


def test_a_seed_gives_the_same_case_each_time() -> None:
    assert generate_wide(7) == generate_wide(7)
    assert generate_wide(7) != generate_wide(8)


def test_most_cases_run_to_their_end() -> None:
    """A generator whose topologies are refused tests nothing else."""
    runs = [Run({**generate_wide(seed), "stores": {}}) for seed in SEEDS]
    for run in runs:
        run.run()
    assert sum(run.error is None for run in runs) > len(runs) * 2 / 3
