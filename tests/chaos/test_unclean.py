"""The verdict where loss is legal: which records are lost, and that the last ones must exist."""

from __future__ import annotations

from tests.chaos.checker import EXACTLY_ONCE
from tests.chaos.workloads.lossy_numbers import LossLedger, ranges


def seen(inputs: dict[str, list[int]], copies: dict[str, list[int]]) -> LossLedger:
    ledger = LossLedger(EXACTLY_ONCE, groups=12)
    for key, numbers in inputs.items():
        for number in numbers:
            ledger.see_input(key, {"n": number})
    for key, numbers in copies.items():
        for number in numbers:
            ledger.see_copy(key, {"n": number})
    return ledger


def test_lost_records_are_named_and_legal() -> None:
    ledger = seen({"k1": [1, 2, 6, 7], "k2": [1, 2]}, {"k1": [1, 2, 4, 7], "k2": [1, 2]})
    verdict = ledger.verdict({}, {})
    assert ledger.complete()
    assert verdict.good
    assert str(verdict).splitlines() == [
        "gone from the input: k1: 3-5",
        "without a copy: k1: 6",
        "3 inputs gone and 1 without a copy, both legal; 0 of the last records lost",
    ]


def test_a_last_record_without_an_output_is_a_failure() -> None:
    """It was written after the cluster had recovered."""
    ledger = seen({"k1": [1, 2, 3]}, {"k1": [1, 2]})
    assert not ledger.complete()
    verdict = ledger.verdict({}, {})
    assert not verdict.good
    assert verdict.lost == 1


def test_numbers_are_shown_as_ranges() -> None:
    assert ranges(()) == ""
    assert ranges((1, 2, 3, 7, 9, 10)) == "1-3, 7, 9-10"
