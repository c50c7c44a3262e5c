"""A guard against a fast way for one serde only, in bytecode instructions of a record: see benchmarks/matrix.py."""

from __future__ import annotations

from functools import cache

import pytest

from benchmarks import matrix
from benchmarks.matrix import INT64, KEY_KINDS, OPERATORS, TEXT, VALUE_KINDS, Kind

cost = cache(matrix.instructions)


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("keys", KEY_KINDS[1:], ids=lambda kind: kind.name)
def test_no_serde_of_keys_is_more_than_a_third_slower_than_text(operator: str, keys: Kind) -> None:
    assert cost(operator, keys, INT64) / cost(operator, TEXT, INT64) < matrix.SLOWER


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("values", VALUE_KINDS[1:], ids=lambda kind: kind.name)
def test_no_serde_of_values_is_more_than_a_third_slower_than_int64(operator: str, values: Kind) -> None:
    assert cost(operator, TEXT, values) / cost(operator, TEXT, INT64) < matrix.SLOWER
