"""The checkers of stuck records, queries and outputs detect their faults, and the report shows them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.checkers import Report
from tests.chaos.checkers.outputs import Differences, Row, compare_bags, compare_counts, compare_tables
from tests.chaos.checkers.queries import Answer, Queries
from tests.chaos.checkers.rows_on_disk import damaged_task, differences
from tests.chaos.checkers.stuck import Stuck

BUDGET = 10.0


class Clock:
    """A clock that only the test advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


# -- the report


def test_a_checker_without_records_proves_nothing() -> None:
    assert Report.of("x", 1, "answers", []).good
    assert Report.of("x", 0, "answers", []).faults == ("x: there were no answers, so nothing is proved",)


def test_a_report_prints_the_first_faults() -> None:
    lines = Report("x", "9 answers", tuple(f"fault {number}" for number in range(7))).lines()
    assert lines == ["x: 9 answers, 7 faults", *(f"  fault {number}" for number in range(5)), "  and 2 more"]


# -- stuck


def stuck() -> tuple[Stuck, Clock]:
    clock = Clock()
    made = Stuck(BUDGET, clock)
    made.came_in("k", 1)
    made.came_in("k", 2)
    return made, clock


def test_an_output_in_time_is_not_stuck() -> None:
    made, clock = stuck()
    clock.now = 100.0  # while a fault lasts, nothing counts
    made.came_out("k", 1)
    made.healed()
    clock.now = 109.0
    made.came_out("k", 2)
    report = made.report()
    assert report == Report("stuck", "2 records, the slowest took 9.0 of 10 s")


def test_a_record_without_an_output_is_stuck() -> None:
    made, clock = stuck()
    made.came_out("k", 1)
    made.healed()
    clock.now = 11.0
    assert made.report().faults == ("stuck: record 2 of k has not come out within 11.0 s",)


def test_a_record_with_a_late_output_was_stuck() -> None:
    made, clock = stuck()
    made.healed()
    clock.now = 11.0
    made.came_out("k", 1)
    made.came_out("k", 2)
    assert made.report().faults == (
        "stuck: record 1 of k came out after 11.0 s",
        "stuck: record 2 of k came out after 11.0 s",
    )


def test_a_record_whose_output_is_seen_before_its_input_is_not_stuck() -> None:
    """The input's partition had no leader when the copy was read."""
    made, clock = stuck()
    for number in (3, 1, 2):
        made.came_out("k", number)
    made.healed()
    made.came_in("k", 3)
    clock.now = 11.0
    assert made.report() == Report("stuck", "3 records, the slowest took 0.0 of 10 s")


def test_other_records_do_not_hide_a_stuck_one() -> None:
    made, clock = stuck()
    made.came_in("other", 1)
    made.healed()
    clock.now = 11.0
    made.came_in("other", 2)
    made.came_out("other", 2)
    assert len(made.report().faults) == 3


def test_without_records_nothing_is_proved() -> None:
    made = Stuck(BUDGET, Clock())
    made.healed()
    assert made.report().faults == ("stuck: there were no records",)


# -- queries


def tally(last: int, **changes: int) -> dict[str, Any]:
    return {"records": last, "sum": last * (last + 1) // 2, "last": last, "breaks": 0} | changes


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer("k", 3, tally(3)), ""),
        (Answer("k", 3, tally(5)), ""),  # not committed yet, but such a record exists at the end
        (Answer("k", 3, tally(2)), "stale: k was answered with 2, 3 was committed before"),
        (Answer("k", 1, tally(0)), "stale: k was answered with 0, 1 was committed before"),
        (Answer("k", 3, tally(3, records=4)), "impossible: k was answered with"),
        (Answer("k", 3, tally(3, breaks=1)), "impossible: k was answered with"),
        (Answer("k", 3, tally(6)), "alien: k was answered with 6, its last record is 5"),
    ],
)
def test_a_response_that_no_order_of_events_explains_is_a_fault(answer: Answer, said: str) -> None:
    queries = Queries(exact=True)
    queries.take(answer)
    faults = queries.report({"k": 5}).faults
    assert [fault.startswith(said) for fault in faults] == [True] * bool(said)


def test_at_least_once_responses_may_be_older_and_include_duplicates() -> None:
    queries = Queries(exact=False)
    queries.take(Answer("k", 3, tally(2, records=4)))
    assert queries.report({"k": 5}).good
    queries.take(Answer("k", 3, tally(6)))
    assert not queries.report({"k": 5}).good


def test_refusals_are_counted_and_are_no_responses() -> None:
    queries = Queries(exact=True)
    queries.refused["RESTORING"] += 2
    report = queries.report({})
    assert report.examined == "0 answers (no answer: 2 RESTORING)"
    assert not report.good


# -- outputs against an oracle


def rows(**values: str | None) -> list[Row]:
    return [(key.encode(), None if value is None else value.encode(), ()) for key, value in values.items()]


@pytest.mark.parametrize(
    ("found", "differences"),
    [
        (rows(a="1", b="2"), Differences()),
        ([*rows(a="0"), *rows(b="2", a="1")], Differences()),
        ([*rows(a="1", b="2"), *rows(c="3"), *rows(c=None)], Differences()),
        (rows(a="1"), Differences(lost=1)),
        (rows(a="1", b=None), Differences(lost=1)),
        (rows(a="1", b="2", c="3"), Differences(alien=1)),
        (rows(a="1", b="3"), Differences(wrong=["t, b'b': b'3' instead of b'2'"])),
    ],
)
def test_tables_are_compared_by_their_last_values(found: list[Row], differences: Differences) -> None:
    assert compare_tables("t", rows(a="1", b="2"), found) == differences
    assert differences.none is (differences == Differences())


def test_bags_are_compared_record_by_record() -> None:
    wanted = [*rows(a="1"), *rows(a="1"), *rows(b="2")]
    assert compare_bags(wanted, reversed(wanted)) == Differences()
    assert compare_bags(wanted, wanted[1:]) == Differences(lost=1)
    assert compare_bags(wanted, [*wanted, wanted[2]]) == Differences(doubled=1)
    assert compare_bags(wanted, [*wanted, *rows(b="3")]) == Differences(alien=1)
    with_header: Row = (b"a", b"1", (("h", b"x"),))
    assert compare_bags([with_header], rows(a="1")) == Differences(lost=1, alien=1)


def test_sums_are_compared_by_key() -> None:
    wanted = Counter({b"a": 3, b"b": 1})
    assert compare_counts(wanted, Counter({b"a": 3, b"b": 1})) == Differences()
    assert compare_counts(wanted, Counter({b"a": 1, b"b": 1})) == Differences(lost=2)
    assert compare_counts(wanted, Counter({b"a": 4, b"b": 1})) == Differences(doubled=1)
    assert compare_counts(wanted, Counter({b"a": 3, b"b": 1, b"c": 1})) == Differences(alien=1)


def test_differences_can_be_added() -> None:
    assert Differences(lost=1, wrong=["x"]) + Differences(doubled=2, alien=1, wrong=["y"]) == Differences(
        1, 2, 1, ["x", "y"]
    )


# -- rows on disk


@pytest.mark.parametrize(
    ("found", "faults"),
    [
        ({"a": 1, "b": 2}, []),
        ({"a": 1}, ["b is missing"]),
        ({"a": 1, "b": 3}, ["b is 3, in the changelog 2"]),
        ({"a": 1, "b": 2, "c": 3}, ["c was deleted, and is there"]),
    ],
)
def test_rows_on_disk_are_those_of_the_changelog(found: dict[str, int], faults: list[str]) -> None:
    assert list(differences(found, {"a": 1, "b": 2})) == faults


def test_the_directory_of_a_task_with_a_damaged_store_is_known() -> None:
    """Its host has lost the task, and has not opened the store since the damage."""
    error = "Error: The store /run/host-2/state/chaos/0_1/stores/per-key is damaged: Corruption: Sst file size mismatch"
    assert damaged_task(f"a warning\n{error}") == Path("/run/host-2/state/chaos/0_1")
    assert damaged_task("Error: there is no state") is None
