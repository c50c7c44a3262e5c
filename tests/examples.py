"""How many examples property tests try in each run, and which variants are tested before each change."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

#: In the environment: try all examples.
ALL_VARIABLE = "ALL_EXAMPLES"


def examples(number: int) -> int:
    """Return how many of these examples to try in this run."""
    return number if os.environ.get(ALL_VARIABLE) else max(number // 4, 2)


def one_of(step: int, variants: Iterable[T], name: Callable[[T], str] = str) -> list[Any]:
    """Return the variants of a test; one in ``step`` of them runs before each change, and the others are marked slow.

    For tests with many similar variants. name: returns a variant's id.
    """
    return [
        pytest.param(variant, id=name(variant), marks=[] if number % step == 0 else pytest.mark.slow)
        for number, variant in enumerate(variants)
    ]
