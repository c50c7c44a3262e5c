"""Wide random cases end normally or with one of Penstock's own errors, whatever is declared and read."""

from __future__ import annotations

from functools import cache

import pytest

from penstock import PenstockError
from tests.goldens.compare import Run
from tests.goldens.wide_generator import generate_wide

SEEDS = range(100, 160)


@cache
def error_of(seed: int) -> Exception | None:
    """Return the error that ended a case's run, None if it ran to its end."""
    run = Run({**generate_wide(seed), "stores": {}})
    run.run()
    return run.error


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wide_case_runs_or_fails_with_one_of_penstocks_errors(seed: int) -> None:
    error = error_of(seed)
    assert error is None or isinstance(error, PenstockError), repr(error)


def test_a_seed_always_gives_the_same_case() -> None:
    assert generate_wide(7) == generate_wide(7)
    assert generate_wide(7) != generate_wide(8)


def test_most_cases_run_to_their_end() -> None:
    """A generator whose topologies are all refused would test nothing else."""
    assert sum(error_of(seed) is None for seed in SEEDS) > len(SEEDS) * 2 / 3
