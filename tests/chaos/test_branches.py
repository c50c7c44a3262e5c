"""Branches under faults: the comparison finds each kind of difference, and a real run has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import program
from tests.chaos.branches import EXACT, STORES
from tests.chaos.checker import AT_LEAST_ONCE, Sight
from tests.chaos.checkers.branch_outputs import BranchOutputs, includes, is_whole
from tests.chaos.means import why_not
from tests.chaos.options import Options
from tests.chaos.schedule import PROCESSES, Action
from tests.chaos.test_chaos import chaos

PREFIX = "next."


def sight(topic: str, key: str, value: Any, timestamp: int = 7) -> Sight:
    return Sight(topic, 0, key.encode(), json.dumps(value).encode(), timestamp, ())


def tally(last: int) -> dict[str, Any]:
    return {"records": last, "sum": last * (last + 1) // 2, "last": last, "breaks": 0}


def group_tally(**last: int) -> dict[str, Any]:
    numbers = last.values()
    return {"records": sum(numbers), "sum": sum(n * (n + 1) // 2 for n in numbers), "last": last, "breaks": 0}


def outputs(prefix: str = "") -> list[Sight]:
    """Return the outputs for the numbers 4 and 5 of k1, behind a cut."""
    return [
        *(sight(prefix + program.COPIES, "k1", {"key": "k1", "n": n}) for n in (4, 5)),
        *(sight(prefix + program.TALLIES, "k1", tally(n)) for n in (4, 5)),
        *(sight(prefix + program.GROUP_TALLIES, "g1", group_tally(k1=n, k13=2)) for n in (4, 5)),
    ]


def tables() -> dict[str, dict[str, Any]]:
    return dict(zip(STORES, ({"k1": tally(5), "k9": tally(3)}, {"g1": group_tally(k1=5, k13=2)}), strict=True))


def compared(branch: list[Sight], own: dict[str, dict[str, Any]]) -> BranchOutputs:
    made = BranchOutputs(EXACT, PREFIX, outputs(), tables())
    made.see(branch, own)
    return made


def test_an_equal_branch_has_no_faults_even_if_it_is_ahead_of_its_original() -> None:
    further = [sight(PREFIX + program.COPIES, "k1", {"key": "k1", "n": 6}), sight(PREFIX + program.COPIES, "k2", 1)]
    own = {**tables(), STORES[0]: {"k1": tally(6), "k9": tally(3)}}
    found = compared([*outputs(PREFIX), *further], own)
    assert (found.missing(), list(found.faults()), found.compared) == ([], [], 6)


@pytest.mark.parametrize(
    ("place", "record", "said"),
    [
        (1, sight(PREFIX + program.COPIES, "k1", {"key": "k1", "n": 4}), "record 1 since the cut is"),
        (0, sight(PREFIX + program.COPIES, "k1", {"key": "k1", "n": 5}), "record 0 since the cut is"),
        (0, sight(PREFIX + program.COPIES, "k1", {"key": "k1", "n": 4}, timestamp=8), "record 0 since the cut is"),
        (2, sight(PREFIX + program.TALLIES, "k1", tally(4) | {"records": 3}), "record 0 since the cut is"),
        (4, sight(PREFIX + program.GROUP_TALLIES, "g1", group_tally(k1=4, k13=2) | {"records": 5}), "lacks or repeats"),
        (4, sight(PREFIX + program.GROUP_TALLIES, "g1", group_tally(k1=3, k13=2)), " follows "),
    ],
    ids=["doubled", "lost", "time", "state", "group", "jump"],
)
def test_another_output_is_a_fault(place: int, record: Sight, said: str) -> None:
    branch = outputs(PREFIX)
    branch[place] = record
    (fault,) = compared(branch, tables()).faults()
    assert said in fault


def test_what_a_branch_lacks_is_missing() -> None:
    branch = outputs(PREFIX)
    (copy,) = compared(branch[1:], tables()).missing()
    assert copy.startswith("k1 in copies-0 has 1 records, and not yet ")
    (group,) = compared(branch[:-1], tables()).missing()
    assert group.startswith("g1 in group-tallies-0 has 1 records, and not yet ")
    lacking = {**tables(), STORES[0]: {"k1": tally(5)}}  # k9 has no record since the cut: its row was not copied
    (row,) = compared(branch, lacking).missing()
    assert row.startswith("the store per-key has None of k9")


def test_state_that_repeats_a_record_is_a_fault() -> None:
    wrong = {**tables(), STORES[0]: {"k1": tally(5), "k9": tally(3) | {"records": 4, "breaks": 1}}}
    (fault,) = compared(outputs(PREFIX), wrong).faults()
    assert fault.startswith("the store per-key has {'records': 4")


def test_tallies_are_whole_and_include_others() -> None:
    assert is_whole(tally(3))
    assert is_whole(group_tally(k1=2, k13=1))
    assert not is_whole(tally(3) | {"sum": 5})
    assert includes(group_tally(k1=2, k13=1), group_tally(k1=2))
    assert not includes(group_tally(k1=2), group_tally(k1=2, k13=1))
    assert not includes(None, tally(1))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"guarantee": AT_LEAST_ONCE}, "repeats records that its branch does not"),
        ({"workload": "recorded"}, "compared with the workload numbers, not recorded"),
    ],
)
def test_options_that_do_not_fit_branches_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Options(1, branch_seconds=30.0, **options)


def test_a_lone_broker_keeps_its_partitions_with_exactly_once() -> None:
    assert set(why_not([PROCESSES], 1, exact=True)) == {Action.RESTART_BROKER}
    assert set(why_not([PROCESSES], 1, exact=True, branches=True)) == {Action.KILL_BROKER, Action.RESTART_BROKER}
    assert not why_not([PROCESSES], 1)
    assert not why_not([PROCESSES], 3, exact=True, branches=True)


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_branches_under_kills_are_exact(tmp_path: Path) -> None:
    """Their commands are killed, too. The state directory is kept, so each branch is deleted."""
    without = frozenset({Action.DELETE_STATE, *why_not([PROCESSES], 1, exact=True, branches=True)})
    outcome = chaos(tmp_path, Options(3, kills=5, branch_seconds=15.0, without=without))
    assert outcome.verdict.good, outcome.verdict
    assert outcome.failures == ()
    (report,) = (report for report in outcome.reports if report.name == "branches")
    assert report.faults == ()
    assert any("outputs compared" in line for line in outcome.events)
