"""Markers that a broker dropped excuse their consequences, and nothing else: each is planted in a made log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tests.chaos.checker import AT_LEAST_ONCE, EXACTLY_ONCE, Ledger
from tests.chaos.checkers.atomicity import Atomicity, misread
from tests.chaos.checkers.dropped_markers import DroppedMarkers, milliseconds
from tests.chaos.checkers.excuse import Excuse, Number, Stall
from tests.chaos.checkers.log_reader import Partition
from tests.chaos.checkers.stuck import Stuck
from tests.chaos.made_log import FEEDER, OFFSETS, OTHER_WORKER, PLACES, WORKER, MadeLog, number, tally
from tests.chaos.test_atomicity import (
    AGAIN,
    GROUPS,
    IN,
    KEYED,
    OUT,
    TALLIES,
    TALLY_LOG,
    feed,
    first,
    good,
    no_end_in_one_partition,
    second,
)

FIRST = {("k0", 1), ("k1", 1)}
#: With an epoch for each transaction (KIP-890), and with one for all.
BUMPS = pytest.mark.parametrize("bumps", [False, True], ids=["one epoch", "epochs"])


def judge(made: MadeLog) -> tuple[list[str], Excuse]:
    history = made.history()
    atomicity = Atomicity(PLACES, history, made.starts)
    return [*history.faults, *atomicity.faults()], atomicity.excuse


def is_excused(made: MadeLog) -> Excuse:
    """Check that there are no faults with the excuse, and some without it; return the excused violations."""
    found, excuse = judge(made)
    assert found == []
    dropped, made.dropped = made.dropped, []
    assert judge(made)[0]
    made.dropped = dropped
    return excuse


# -- an aborted transaction that becomes visible with the next one


def aborted(place: Partition, bumps: bool = False) -> MadeLog:
    """The first transaction is aborted, then repeated and committed; in one partition the broker did not write the
    abort marker.
    """
    made = MadeLog(bumps)
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, commit=False, dropped=[place])
    first(made)
    return made


@BUMPS
@pytest.mark.parametrize(
    ("place", "numbers", "keys", "groups"),
    [
        (OUT, FIRST, set(), set()),
        (TALLIES, set(), {"k0", "k1"}, set()),
        (TALLY_LOG, set(), {"k0", "k1"}, set()),
        (AGAIN, set(), set(), {"g0", "g1"}),
        (OFFSETS, set(), set(), set()),  # the records of the next commit follow it, and count
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_an_abort_without_a_marker(
    place: Partition, numbers: set[Number], keys: set[str], groups: set[str], bumps: bool
) -> None:
    made = aborted(place, bumps)
    second(made)
    excuse = is_excused(made)
    assert (excuse.numbers, set(excuse.keys), set(excuse.groups)) == (numbers, keys, groups)
    assert excuse.markers == {"transaction 3 of producer-2": 1}


def test_visible_offsets_of_an_abort_skip_records() -> None:
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, commit=False, dropped=[OFFSETS])
    made.decide(WORKER, [OFFSETS])  # of other tasks
    second(made)
    excuse = is_excused(made)
    assert (excuse.numbers, set(excuse.keys), set(excuse.groups)) == (FIRST, {"k0", "k1"}, {"g0", "g1"})


# -- a committed transaction that ends with the abort of the next one


def committed(place: Partition, bumps: bool = False) -> MadeLog:
    made = MadeLog(bumps)
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, dropped=[place])
    made.append(WORKER, OUT, number("k0", 2))
    made.decide(WORKER, KEYED, commit=False)
    return made


@BUMPS
@pytest.mark.parametrize(
    ("place", "numbers", "keys", "groups"),
    [(OUT, FIRST, set(), set()), (TALLIES, set(), {"k0", "k1"}, set()), (AGAIN, set(), set(), {"g0", "g1"})],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_commit_without_a_marker(
    place: Partition, numbers: set[Number], keys: set[str], groups: set[str], bumps: bool
) -> None:
    made = committed(place, bumps)
    second(made)
    excuse = is_excused(made)
    assert (excuse.numbers, set(excuse.keys), set(excuse.groups)) == (numbers, keys, groups)


def test_state_restored_without_a_lost_update_is_wrong_from_then_on() -> None:
    made = committed(TALLY_LOG)
    behind = ("k0", {"records": 1, "sum": 2, "last": 2, "breaks": 1})
    made.append(OTHER_WORKER, OUT, number("k0", 2))
    made.append(OTHER_WORKER, TALLIES, behind)
    made.append(OTHER_WORKER, TALLY_LOG, behind)
    made.append(OTHER_WORKER, AGAIN, number("k0", 2))
    made.commit_offset(OTHER_WORKER, PLACES.numbers, 7)
    made.decide(OTHER_WORKER, KEYED)
    assert set(is_excused(made).keys) == {"k0", "k1"}


def test_lost_offsets_of_a_commit_cause_reprocessing() -> None:
    made = committed(OFFSETS)
    again = [
        ("k0", {"records": 3, "sum": 4, "last": 2, "breaks": 1}),
        ("k1", {"records": 2, "sum": 2} | tally("k1", 1)[1]),
    ]
    numbers = [number("k0", 1), number("k1", 1), number("k0", 2)]
    made.append(OTHER_WORKER, OUT, *numbers)
    made.append(OTHER_WORKER, TALLIES, *again)
    made.append(OTHER_WORKER, TALLY_LOG, *again)
    made.append(OTHER_WORKER, AGAIN, *numbers)
    made.commit_offset(OTHER_WORKER, PLACES.numbers, 7)
    made.decide(OTHER_WORKER, KEYED)
    excuse = is_excused(made)
    assert (excuse.numbers, set(excuse.keys)) == (FIRST, {"k0", "k1"})


def test_a_commit_that_ends_with_the_next_commit_is_only_late() -> None:
    made = MadeLog(bumps=True)
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, dropped=KEYED)
    made.append(WORKER, OUT, number("k0", 2))
    made.append(WORKER, TALLIES, tally("k0", 2))
    made.append(WORKER, TALLY_LOG, tally("k0", 2))
    made.append(WORKER, AGAIN, number("k0", 2))
    made.commit_offset(WORKER, PLACES.numbers, 7)
    made.decide(WORKER, KEYED)
    excuse = is_excused(made)
    assert (excuse.numbers, excuse.keys, excuse.groups) == (set(), {}, {})
    assert excuse.markers == {"transaction 3 of producer-2": len(KEYED)}


# -- the input


@pytest.mark.parametrize("commit", [True, False])
def test_an_input_without_a_marker(commit: bool) -> None:
    """The application has processed what readers receive, which differs from the feeder's decision."""
    made = MadeLog()
    made.append(FEEDER, IN, number("k0", 1, aborted=not commit))
    made.decide(FEEDER, [IN], commit=commit, dropped=[IN])
    made.append(FEEDER, IN, number("k0", 1 + commit))
    made.decide(FEEDER, [IN], commit=not commit)
    made.append(WORKER, OUT, *([] if commit else [number("k0", 1, aborted=True), number("k0", 1)]))
    made.append(WORKER, AGAIN, *([] if commit else [number("k0", 1, aborted=True), number("k0", 1)]))
    made.commit_offset(WORKER, PLACES.numbers, 3)
    made.decide(WORKER, [OUT, AGAIN, OFFSETS])
    excuse = is_excused(made)
    assert (excuse.numbers, set(excuse.keys), set(excuse.groups)) == ({("k0", 1)}, {"k0"}, {"g0"})


# -- a blocked partition


def test_an_open_transaction_blocks_all_records_behind_it() -> None:
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, dropped=[OUT])
    second(made)
    excuse = is_excused(made)
    assert excuse.numbers == {*FIRST, ("k0", 2)}
    assert excuse.keys == {}
    history = made.history()
    assert history.held == {OUT: 0}
    assert list(misread(history, made.logs(), {OUT: []})) == []
    assert list(misread(history, made.logs(), {OUT: [0]})), "a reader that gets something there is wrong"
    (stall,) = excuse.stalls
    assert (list(stall.outputs), stall.until) == (["out-0"], None)


@pytest.mark.parametrize(("place", "outputs"), [(OFFSETS, []), (TALLY_LOG, ["out-0"])])
def test_a_task_that_cannot_start_processes_nothing(place: Partition, outputs: list[str]) -> None:
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, dropped=[place])
    excuse = is_excused(made)
    assert {("k0", 2)} <= excuse.numbers
    assert "k0" in excuse.keys
    assert [list(stall.outputs) for stall in excuse.stalls] == [outputs]


# -- everything else is still judged


def another_abort_comes_out(made: MadeLog) -> None:
    made.append(OTHER_WORKER, OUT, number("k0", 2))
    made.decide(OTHER_WORKER, [OUT], commit=False, marked=False)
    made.mark(OTHER_WORKER, OUT, commit=True)


def another_marker_is_missing(made: MadeLog) -> None:
    made.append(OTHER_WORKER, OUT, number("k0", 2))
    made.decide(OTHER_WORKER, [OUT], commit=False, marked=False)


def another_partition_of_it_has_no_marker(made: MadeLog) -> None:
    made.append(WORKER, GROUPS, ("g0", {}))
    made.decide(WORKER, [OUT, GROUPS], commit=False, marked=False)
    made.mark(WORKER, OUT, commit=False)


def another_copy_is_missing(made: MadeLog) -> None:
    made.commit_offset(OTHER_WORKER, PLACES.numbers, 7)
    made.decide(OTHER_WORKER, [OFFSETS])


def a_tally_of_another_table_is_wrong(made: MadeLog) -> None:
    second(made)
    made.append(OTHER_WORKER, TALLIES, tally("k0", 9))
    made.decide(OTHER_WORKER, [TALLIES])


@pytest.mark.parametrize("make", [aborted, committed])
@pytest.mark.parametrize(
    ("other", "said"),
    [
        (another_abort_comes_out, "ends at out-0 offset"),
        (another_marker_is_missing, "has no marker in out-0"),
        (another_partition_of_it_has_no_marker, "has no marker in groups-0"),
        (another_copy_is_missing, "torn: copies of in-0 are none"),
        (a_tally_of_another_table_is_wrong, "torn: tallies has"),
    ],
)
def test_an_additional_fault_is_detected(
    make: Callable[[Partition], MadeLog], other: Callable[[MadeLog], None], said: str
) -> None:
    made = make(OUT)
    other(made)
    found, _ = judge(made)
    assert any(said in fault for fault in found), found


def test_a_marker_of_another_transaction_is_not_excused() -> None:
    """The log line is about the producer's second transaction; the marker of the first is missing."""
    made = no_end_in_one_partition()
    made.append(WORKER, OUT, number("k0", 2))
    made.decide(WORKER, [OUT], commit=False)
    made.dropped.append(DroppedMarkers(made.tick(), "broker-1", "producer-2", frozenset([OUT]), "made"))
    assert "torn: transaction 3 of producer-2 has no marker in out-0" in judge(made)[0]


def test_a_marker_that_was_finally_written_excuses_nothing() -> None:
    made = good()
    made.append(WORKER, OUT, number("k0", 3))
    made.decide(WORKER, [OUT], commit=False)
    made.dropped.append(DroppedMarkers(made.tick(), "broker-1", "producer-2", frozenset([OUT]), "made"))
    found, excuse = judge(made)
    assert (found, bool(excuse)) == ([], False)


# -- the effect on the ledger


def ledger(excuse: Excuse, *copies: int, inputs: Iterable[int] = (1, 2, 3), guarantee: str = EXACTLY_ONCE) -> Ledger:
    made = Ledger(guarantee, groups=2)
    made.excuse = excuse
    for n in inputs:
        made.see_input("k0", {"n": n})
    for n in copies:
        made.see_copy("k0", {"n": n})
    made.tallies, made.group_tallies = made.replayed_tallies(), made.replayed_group_tallies()
    return made


def said(made: Ledger) -> str:
    return str(made.verdict(made.replayed_tallies(), made.replayed_group_tallies())).partition(";")[0]


RIGHT = "0 lost, 0 doubled, 0 out of order, state equal"


@pytest.mark.parametrize(
    ("copies", "verdict"),
    [
        ((1, 2, 2, 3), RIGHT),
        ((1, 3), RIGHT),
        ((1, 2, 2, 3, 3), "0 lost, 1 doubled, 0 out of order, state equal"),
        ((3,), "1 lost, 0 doubled, 0 out of order, state equal"),
    ],
)
def test_only_excused_numbers_may_be_lost_or_duplicated(copies: tuple[int, ...], verdict: str) -> None:
    excuse = Excuse(numbers={("k0", 2)}, markers={"transaction 1": 1})
    assert said(ledger(excuse, *copies)) == verdict
    assert said(ledger(Excuse(), *copies)) != RIGHT


def test_a_lost_or_aborted_input_is_excused_and_another_gap_is_not() -> None:
    excuse = Excuse(numbers={("k0", 2)}, keys={"k0": 0}, groups={"g0": 0})
    assert said(ledger(excuse, 1, 3, inputs=(1, 3))) == RIGHT
    made = ledger(excuse, 1, 2, 3)
    made.see_input("k0", {"n": 2, "aborted": True})
    made.see_copy("k0", {"n": 2, "aborted": True})
    assert said(made) == RIGHT
    with pytest.raises(ValueError, match="the feeder is wrong"):
        said(ledger(excuse, 3, inputs=(3,)))
    made.see_copy("k0", {"n": 3, "aborted": True})
    assert "1 of aborted transactions" in said(made)


def test_a_lost_last_input_counts_as_sent() -> None:
    assert ledger(Excuse(numbers={("k0", 3)}), 1, 2, inputs=(1, 2)).sent() == 3


@pytest.mark.parametrize("guarantee", [EXACTLY_ONCE, AT_LEAST_ONCE])
def test_only_excused_tallies_may_differ(guarantee: str) -> None:
    def differences(excuse: Excuse) -> int:
        made = ledger(excuse, 1, 2, 3, guarantee=guarantee)
        made.see_input("k1", {"n": 1})
        made.see_copy("k1", {"n": 1})
        wrong: dict[str, Any] = made.replayed_tallies()
        wrong["k0"], wrong["k1"] = wrong["k0"] | {"last": 1}, wrong["k1"] | {"last": 0}
        made.tallies, made.group_tallies = made.replayed_tallies(), made.replayed_group_tallies()
        return len(made.verdict(wrong, made.replayed_group_tallies()).state)

    assert differences(Excuse()) == 2
    assert differences(Excuse(keys={"k0": 0})) == 1
    assert differences(Excuse(keys={"k0": 0, "k1": 0})) == 0


@pytest.mark.parametrize(("key", "doubled"), [("k0", 0), ("k1", 1)])
def test_a_repeated_tally_is_excused_by_its_key(key: str, doubled: int) -> None:
    made = ledger(Excuse(keys={key: 0}), 1, 2, 3)
    made.see_tally("k0", made.tallies["k0"])
    assert said(made) == RIGHT.replace("0 doubled", f"{doubled} doubled")


def test_the_verdict_lists_the_excused_violations() -> None:
    excuse = Excuse({("k0", 2)}, {"k0": 0}, markers={"transaction 1": 2, "transaction 2": 1})
    made = ledger(excuse, 1, 2, 3)
    assert str(made.verdict(made.replayed_tallies(), made.replayed_group_tallies())) == (
        f"{RIGHT}; excused: 2 transactions of which brokers dropped 3 markers, with 1 records, tallies of 1 keys and "
        "0 groups"
    )


def test_an_excused_record_is_not_stuck() -> None:
    stuck = Stuck(-1.0, lambda: 0.0)
    stuck.came_in("k0", 1)
    stuck.came_in("k0", 2)
    stuck.healed()
    assert len(stuck.report([("k0", 1)]).faults) == 1


def test_outputs_may_stall_while_a_partition_is_blocked() -> None:
    excuse = Excuse(stalls=[Stall(["out-0"], 100, 200), Stall(["out-1"], 150, None)])
    assert excuse.stalls_all(["out-0"], 200, 300)
    assert not excuse.stalls_all(["out-0"], 201, 300)
    assert excuse.stalls_all(["out-0", "out-1"], 180, 300)
    assert not excuse.stalls_all(["out-0", "out-2"], 180, 300)
    assert Excuse(stalls=[Stall([], 100, 200)]).stalls_all(["out-2"], 180, 300)


# -- log lines of brokers


@pytest.mark.parametrize("names", ["Set(in-0, a-topic-12)", "[in-0, a-topic-12]", "HashSet(in-0, a-topic-12)"])
@pytest.mark.parametrize("time", ["2026-11-28T10:00:00,123", "2026-11-28 10:00:00,123"])
def test_a_line_about_dropped_markers(names: str, time: str) -> None:
    line = (
        f"{time} INFO  [TxnMarkerSenderThread-1] [Transaction Marker Channel Manager 1]: Couldn't find leader endpoint "
        f"for partitions {names} while trying to send transaction markers for app-1, these partitions are likely "
        "deleted already and hence can be skipped (TransactionMarkerChannelManager)\n"
    )
    markers = DroppedMarkers.parse(line, "broker-1")
    assert markers is not None
    assert (markers.at, markers.transactional_id) == (milliseconds("2026-11-28T10:00:00,123"), "app-1")
    assert markers.partitions == {("in", 0), ("a-topic", 12)}
    assert DroppedMarkers.parse(line.replace("Couldn't", "Could"), "broker-1") is None
