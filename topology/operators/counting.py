"""What count() aggregates with; a fused loop knows these functions and writes what they do."""

from __future__ import annotations

from typing import Any


def count_initializer() -> int:
    """Return the first count."""
    return 0


def count_aggregator(key: Any, value: Any, aggregate: int) -> int:
    """Return the count after one more record."""
    return aggregate + 1


def count_merger(key: Any, one: int, other: int) -> int:
    """Return the count of two sessions that have become one."""
    return one + other
