"""The checker detects each kind of fault: each is planted once and must be reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import AT_LEAST_ONCE, EXACTLY_ONCE, Ledger, Sequence, Verdict

COUNTS = {"k0": 3, "k1": 2, "k2": 1}
GROUPS = 2  # k0 and k2 are of g0, k1 is of g1


def numbers(count: int) -> range:
    return range(1, count + 1)


def ledger(guarantee: str = EXACTLY_ONCE) -> Ledger:
    """A ledger that has seen the input and none of the outputs."""
    made = Ledger(guarantee, GROUPS)
    for key, count in COUNTS.items():
        for number in numbers(count):
            made.see_input(key, {"key": key, "n": number})
    return made


def good(made: Ledger) -> Ledger:
    for key, count in COUNTS.items():
        for number in numbers(count):
            made.see_copy(key, {"key": key, "n": number})
    made.tallies = made.replayed_tallies()
    made.group_tallies = made.replayed_group_tallies()
    return made


def judge(made: Ledger, tallies: Any = None, groups: Any = None) -> Verdict:
    return made.verdict(tallies or made.replayed_tallies(), groups or made.replayed_group_tallies())


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_a_correct_run_has_no_faults(guarantee: str) -> None:
    made = good(ledger(guarantee))
    assert made.complete()
    verdict = judge(made)
    assert verdict.good
    assert str(verdict) == "0 lost, 0 doubled, 0 out of order, state equal"


def test_a_replay_of_a_small_input() -> None:
    made = ledger()
    assert made.replayed_tallies()["k0"] == {"records": 3, "sum": 6, "last": 3, "breaks": 0}
    assert made.replayed_group_tallies()["g0"] == {"records": 4, "sum": 7, "last": {"k0": 3, "k2": 1}, "breaks": 0}


def dropped(made: Ledger) -> None:
    made.copies["k0"] = Sequence()
    for number in (1, 3):
        made.copies["k0"].see(number)


def cut_off(made: Ledger) -> None:
    made.copies["k0"] = Sequence()
    for number in (1, 2):
        made.copies["k0"].see(number)


def doubled(made: Ledger) -> None:
    made.see_copy("k0", {"n": 2})


def disordered(made: Ledger) -> None:
    made.copies["k0"] = Sequence()
    for number in (1, 3, 2):
        made.copies["k0"].see(number)


def aborted(made: Ledger) -> None:
    made.see_copy("k0", {"n": 4, "aborted": True})


def made_up(made: Ledger) -> None:
    made.see_copy("k0", {"n": 4})


def lost_update(made: Ledger) -> None:
    made.tallies["k0"] = made.tallies["k0"] | {"records": 2}


def lost_group_update(made: Ledger) -> None:
    made.group_tallies["g0"] = made.group_tallies["g0"] | {"last": {"k0": 2, "k2": 1}}


def stranger(made: Ledger) -> None:
    made.tallies["k9"] = {"records": 1, "sum": 1, "last": 1, "breaks": 0}


def update_twice(made: Ledger) -> None:
    made.see_tally("k0", made.tallies["k0"])


FAULTS: dict[Callable[[Ledger], None], str] = {
    dropped: "1 lost, 0 doubled, 0 out of order, state equal",
    cut_off: "1 lost, 0 doubled, 0 out of order, state equal",
    doubled: "0 lost, 1 doubled, 0 out of order, state equal",
    disordered: "0 lost, 0 doubled, 1 out of order, state equal",
    aborted: "0 lost, 0 doubled, 0 out of order, 1 of aborted transactions, state equal",
    made_up: "0 lost, 0 doubled, 0 out of order, 1 of aborted transactions, state equal",
    lost_update: "0 lost, 0 doubled, 0 out of order, state differs from a replay in 1 values",
    lost_group_update: "0 lost, 0 doubled, 0 out of order, state differs from a replay in 1 values",
    stranger: "0 lost, 0 doubled, 0 out of order, state differs from a replay in 1 values",
    update_twice: "0 lost, 1 doubled, 0 out of order, state equal",
}
ALLOWED_AT_LEAST_ONCE = {doubled, update_twice}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_breaks_exactly_once(fault: Callable[[Ledger], None]) -> None:
    made = good(ledger())
    fault(made)
    assert str(judge(made)) == FAULTS[fault]
    assert not judge(made).good


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_at_least_once_allows_duplicates_and_nothing_else(fault: Callable[[Ledger], None]) -> None:
    made = good(ledger(AT_LEAST_ONCE))
    fault(made)
    assert judge(made).good is (fault in ALLOWED_AT_LEAST_ONCE)


def test_a_changelog_that_differs_from_a_replay_is_reported() -> None:
    made = good(ledger())
    tallies, groups = made.replayed_tallies(), made.replayed_group_tallies()
    del tallies["k1"]
    groups["g1"] = groups["g1"] | {"breaks": 1}
    verdict = judge(made, tallies, groups)
    assert not verdict.good
    assert verdict.state == (
        "changelog of the tallies, k1: None instead of {'records': 2, 'sum': 3, 'last': 2, 'breaks': 0}",
        "changelog of the group tallies, g1: {'records': 2, 'sum': 3, 'last': {'k1': 2}, 'breaks': 1} instead of "
        "{'records': 2, 'sum': 3, 'last': {'k1': 2}, 'breaks': 0}",
    )


def test_at_least_once_may_count_more_but_not_less() -> None:
    made = good(ledger(AT_LEAST_ONCE))
    tallies = made.replayed_tallies()
    tallies["k0"] = tallies["k0"] | {"records": 5, "breaks": 1}
    verdict = judge(made, tallies)
    assert verdict.good
    assert str(verdict).endswith("state complete (1 values count doubled records too)")
    tallies["k0"] = tallies["k0"] | {"records": 2}
    assert not judge(made, tallies).good


def test_an_input_with_a_gap_is_an_error_of_the_feeder() -> None:
    made = good(ledger())
    made.see_input("k0", {"n": 5})
    with pytest.raises(ValueError, match="the feeder is wrong"):
        judge(made)
