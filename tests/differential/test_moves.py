"""A count moves through all engines once, with two kills; ``python -m tests.differential.moves`` does it with more
records.
"""

from __future__ import annotations

import pytest

from tests.differential.moves import moves

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_count_moves_through_all_engines_despite_kills(bootstrap_servers: str) -> None:
    """The handover to Spark and Spark itself are killed."""
    steps: list[str] = []
    with moves(bootstrap_servers, keys=500, kills=frozenset({1, 2}), seed=2, say=steps.append) as moving:
        moving.round(1_000)
    assert moving.counts.total == moving.application.produced == 4 * 1_000 + 1  # one more after the kill of Spark
    assert sum(", killed after " in step for step in steps) == 2
