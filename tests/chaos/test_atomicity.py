"""The checker of transactions detects each kind of fault: each is planted once, alone, in a made log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from tests.chaos.checkers.atomicity import Atomicity, Places, misread
from tests.chaos.checkers.log_reader import Log, Partition
from tests.chaos.checkers.record_batches import Batch, Record
from tests.chaos.checkers.transactions import Decision, decisions
from tests.chaos.made_log import (
    FEEDER,
    OFFSETS,
    OTHER_WORKER,
    PLACES,
    WORKER,
    MadeLog,
    group_tally,
    number,
    partition,
    tally,
    text,
)

IN, OUT, AGAIN = partition(PLACES.numbers), partition(PLACES.copies), partition(PLACES.repartition)
TALLIES, TALLY_LOG = partition(PLACES.tallies), partition(PLACES.tally_changelog)
GROUPS, GROUP_LOG = partition(PLACES.group_tallies), partition(PLACES.group_changelog)
KEYED = [OUT, TALLIES, TALLY_LOG, AGAIN, OFFSETS]
GROUPED = [GROUPS, GROUP_LOG, OFFSETS]


def feed(made: MadeLog) -> None:
    """Three records, of which the last but one was aborted, then one more."""
    made.append(FEEDER, IN, number("k0", 1), number("k1", 1))
    made.decide(FEEDER, [IN])
    made.append(FEEDER, IN, number("k0", 2, aborted=True))
    made.decide(FEEDER, [IN], commit=False)
    made.append(FEEDER, IN, number("k0", 2))
    made.decide(FEEDER, [IN])


def first(made: MadeLog, *, end: bool = True) -> None:
    """The worker's first transaction: k0:1 and k1:1, offsets 0 and 1; the marker is at 2."""
    made.append(WORKER, OUT, number("k0", 1), number("k1", 1))
    made.append(WORKER, TALLIES, tally("k0", 1), tally("k1", 1))
    made.append(WORKER, TALLY_LOG, tally("k0", 1), tally("k1", 1))
    made.append(WORKER, AGAIN, number("k0", 1), number("k1", 1))
    made.commit_offset(WORKER, PLACES.numbers, 3)
    if end:
        made.decide(WORKER, KEYED)


def second(made: MadeLog) -> None:
    """The second transaction, of another worker: k0:2."""
    made.append(OTHER_WORKER, OUT, number("k0", 2))
    made.append(OTHER_WORKER, TALLIES, tally("k0", 2))
    made.append(OTHER_WORKER, TALLY_LOG, tally("k0", 2))
    made.append(OTHER_WORKER, AGAIN, number("k0", 2))
    made.commit_offset(OTHER_WORKER, PLACES.numbers, 7)
    made.decide(OTHER_WORKER, KEYED)


def groups(made: MadeLog) -> None:
    """The groups' transactions for the first three records behind the repartition topic, two of them."""
    made.append(WORKER, GROUPS, group_tally("g0", k0=1), group_tally("g1", k1=1))
    made.append(WORKER, GROUP_LOG, group_tally("g0", k0=1), group_tally("g1", k1=1))
    made.commit_offset(WORKER, PLACES.repartition, 3)
    made.decide(WORKER, GROUPED)
    made.append(WORKER, GROUPS, group_tally("g0", k0=2))
    made.append(WORKER, GROUP_LOG, group_tally("g0", k0=2))
    made.commit_offset(WORKER, PLACES.repartition, 5)
    made.decide(WORKER, GROUPED)


def good() -> MadeLog:
    made = MadeLog()
    for part in (feed, first, second, groups):
        part(made)
    return made


def faults(made: MadeLog, places: Places = PLACES) -> list[str]:
    history = made.history()
    return [*history.faults, *Atomicity(places, history, made.starts).faults()]


def test_a_correct_log_has_no_faults() -> None:
    made = good()
    judge = Atomicity(PLACES, made.history(), made.starts)
    assert (made.history().faults, list(judge.faults())) == ([], [])
    assert judge.committed == 4


def test_an_aborted_attempt_changes_nothing() -> None:
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, commit=False)
    first(made)
    second(made)
    assert faults(made) == []


@pytest.mark.parametrize("coordinator_epoch", [0, 1], ids=["leader failed", "coordinator failed"])
def test_a_marker_written_twice_by_a_coordinator_is_no_fault(coordinator_epoch: int) -> None:
    made = good()
    made.mark(WORKER, OUT, coordinator_epoch=coordinator_epoch)
    assert faults(made) == []


def test_a_duplicate_marker_is_identified_by_its_epoch_if_the_beginning_is_deleted() -> None:
    """The number of markers does not help there: with the duplicate, there is one for each transaction."""
    made = MadeLog(bumps=True)
    for number_, commit in ((1, True), (2, False), (3, True)):
        made.append(FEEDER, IN, number("k0", number_, aborted=not commit))
        made.decide(FEEDER, [IN], commit=commit)
        if not commit:
            made.mark(FEEDER, IN, commit=False, coordinator_epoch=1)
    made.starts[IN] = 2
    made.batches[IN] = made.batches[IN][2:]
    assert made.history().faults == []


def test_a_commit_marked_twice_shifts_no_records_if_the_beginning_is_deleted() -> None:
    """In a rolling upgrade this happened to a partition whose processed records are deleted."""
    made = MadeLog()
    for number_ in (1, 2, 3):
        made.append(FEEDER, IN, number("k0", number_))
        made.decide(FEEDER, [IN])
        if number_ == 2:
            made.mark(FEEDER, IN, coordinator_epoch=1)
    made.starts[IN] = 2
    made.batches[IN] = made.batches[IN][2:]
    history = made.history()
    assert history.faults == []
    held = [[record.offset for record in transaction.parts.get(IN, [])] for transaction in history.transactions]
    assert held == [[], [2], [5]]


def test_a_duplicate_marker_differs_from_the_end_of_a_transaction_without_records() -> None:
    """Without an epoch per transaction, both are markers without records behind a marker of the same kind."""
    made = MadeLog()
    feed(made)
    made.decide(FEEDER, [IN])  # nothing was written
    made.decide(FEEDER, [IN], commit=False)
    made.append(FEEDER, IN, number("k0", 3))
    made.decide(FEEDER, [IN])
    made.mark(FEEDER, IN, coordinator_epoch=1)
    made.decide(FEEDER, [IN], commit=False)
    assert made.history().faults == []


ONGOING, COMMIT, ABORT, COMMITTED, ABORTED = 1, 2, 3, 4, 5


@pytest.mark.parametrize(
    ("states", "decided"),
    [
        pytest.param([ONGOING, COMMIT, COMMIT, COMMITTED, ONGOING], [True], id="by a second coordinator"),
        pytest.param([ONGOING, COMMIT, COMMITTED, ONGOING, ABORT, ABORTED], [True, False], id="one after the other"),
        pytest.param([ONGOING, COMMIT], [True], id="not completed yet"),
        # It reached too few replicas, so it was not carried out.
        pytest.param([ONGOING, COMMIT, ABORT, ABORTED], [False], id="otherwise"),
        pytest.param([ONGOING, COMMIT, ONGOING, COMMIT, COMMITTED], [True], id="once more"),
    ],
)
def test_a_decision_prepared_more_than_once_counts_once(states: list[int], decided: list[bool]) -> None:
    log = Log(0, len(states), tuple(_state_batch(offset, state) for offset, state in enumerate(states)))
    found = [decision.commit for decision in decisions({("__transaction_state", 0): log})]
    assert found == decided


def _state_batch(offset: int, state: int) -> Batch:
    """Return a coordinator's record of a transaction of one partition (version 0)."""
    value = struct.pack(">hqhib", 0, WORKER, 0, 60_000, state)
    value += struct.pack(">i", 1) + text("out") + struct.pack(">iiqq", 1, 0, 0, 0)
    record = Record(offset, struct.pack(">h", 0) + text("app-1"), value)
    return Batch(offset, offset, -1, 0, False, (record,), None)


def test_a_repartition_topic_with_deleted_records_is_no_fault() -> None:
    made = good()
    made.starts[AGAIN] = 3  # all of the first transaction is deleted
    assert faults(made) == []
    made.batches[AGAIN] = made.batches[AGAIN][2:]  # its segment is deleted, too
    assert faults(made) == []


def test_a_transaction_with_deleted_records_and_a_remaining_marker_is_no_fault() -> None:
    """Brokers delete whole segments, so a large record may be deleted alone."""
    made = good()
    made.starts[AGAIN] = 2
    made.batches[AGAIN] = made.batches[AGAIN][1:]
    assert faults(made) == []


# -- planted faults: the log, and the expected finding


def without(topic: Partition) -> Callable[[], MadeLog]:
    """The first transaction has no record in this partition, although it takes part."""

    def make() -> MadeLog:
        made = MadeLog()
        feed(made)
        first(made, end=False)
        made.batches[topic] = []
        made.decide(WORKER, KEYED)
        second(made)
        return made

    return make


def outputs_before_their_offsets() -> MadeLog:
    """Two transactions instead of one: the content is right, but a crash in between would have duplicated it."""
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.batches[OFFSETS] = []
    made.decide(WORKER, KEYED[:-1])
    made.commit_offset(WORKER, PLACES.numbers, 3)
    made.decide(WORKER, [OFFSETS])
    return made


def outside_of_any_transaction() -> MadeLog:
    made = MadeLog()
    feed(made)
    made.append(-1, OUT, number("k0", 1), number("k1", 1), transactional=False)
    first(made, end=False)
    made.batches[OUT] = made.batches[OUT][:1]
    made.decide(WORKER, KEYED)
    return made


def another_end_in_one_partition() -> MadeLog:
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, marked=False)
    for place in KEYED:
        made.mark(WORKER, place, commit=place != OUT)
    return made


def no_end_in_one_partition() -> MadeLog:
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, marked=False)
    for place in KEYED[1:]:
        made.mark(WORKER, place)
    return made


def an_end_without_a_decision() -> MadeLog:
    made = good()
    made.append(WORKER, OUT, number("k0", 3))
    made.mark(WORKER, OUT)
    return made


def a_partition_that_did_not_take_part() -> MadeLog:
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.decide(WORKER, KEYED, marked=False)
    made.decisions[-1] = Decision(WORKER, True, frozenset(KEYED[1:]))
    for place in KEYED:
        made.mark(WORKER, place)
    return made


def offsets_go_back() -> MadeLog:
    made = good()
    made.commit_offset(WORKER, PLACES.numbers, 2)
    made.decide(WORKER, [OFFSETS])
    return made


def an_output_of_an_aborted_record() -> MadeLog:
    made = MadeLog()
    feed(made)
    made.append(WORKER, OUT, number("k0", 2, aborted=True))
    made.decide(WORKER, [OUT])
    return made


def a_repartitioned_aborted_record() -> MadeLog:
    made = MadeLog()
    feed(made)
    made.append(WORKER, AGAIN, number("k0", 2, aborted=True))
    made.decide(WORKER, [AGAIN])
    return made


def copies_in_another_order() -> MadeLog:
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.batches[OUT] = []
    made.append(WORKER, OUT, number("k1", 1), number("k0", 1))
    made.decide(WORKER, KEYED)
    return made


def a_changelog_that_is_ahead() -> MadeLog:
    made = MadeLog()
    feed(made)
    first(made, end=False)
    made.append(WORKER, TALLY_LOG, tally("k0", 2))
    made.decide(WORKER, KEYED)
    return made


def a_group_changelog_that_lacks() -> MadeLog:
    made = good()
    made.batches[GROUP_LOG] = made.batches[GROUP_LOG][:2]
    made.mark(WORKER, GROUP_LOG)
    return made


PLANTED: dict[Callable[[], MadeLog], str] = {
    without(OUT): "torn: copies of in-0 are none, consumed were k0:1 k1:1",
    without(TALLIES): "torn: tallies has None of k0",
    without(TALLY_LOG): "torn: tally-log has None of k0",
    without(AGAIN): "torn: repartition has none too many and lacks k0:1 k1:1",
    without(OFFSETS): "torn: copies of in-0 are k0:1 k1:1, consumed were none",
    outputs_before_their_offsets: "torn: copies of in-0 are k0:1 k1:1, consumed were none",
    outside_of_any_transaction: "torn: copies of in-0 are none, consumed were k0:1 k1:1",
    another_end_in_one_partition: "torn: transaction 3 of producer-2 ends at out-0 offset 0 otherwise than",
    no_end_in_one_partition: "open: a transaction of producer 2 at out-0 offset 0 has no end",
    an_end_without_a_decision: "producer 2 at out-0 offset 5 has an end that no coordinator has decided",
    a_partition_that_did_not_take_part: "producer 2 at out-0 offset 0 has an end that no coordinator has decided",
    offsets_go_back: "the offset of in-0 goes back from 7 to 2",
    an_output_of_an_aborted_record: "aborted read: copies of in-0 hold",
    a_repartitioned_aborted_record: "aborted read: repartition hold",
    copies_in_another_order: "torn: copies of in-0 are k1:1 k0:1, consumed were k0:1 k1:1",
    a_changelog_that_is_ahead: "torn: tally-log has {'records': 2, 'sum': 3, 'last': 2, 'breaks': 0} of k0",
    a_group_changelog_that_lacks: "torn: group-log has None of g0",
}


@pytest.mark.parametrize("make", PLANTED, ids=lambda make: getattr(make, "__name__", str(make)))
def test_a_planted_fault_is_detected(make: Callable[[], MadeLog]) -> None:
    found = faults(make())
    assert any(PLANTED[make] in fault for fault in found), found


def test_with_reordered_keys_only_the_order_within_a_key_counts() -> None:
    def copied(*numbers: tuple[str, int]) -> list[str]:
        made = MadeLog()
        feed(made)
        made.append(WORKER, OUT, *(number(*each) for each in numbers))
        made.commit_offset(WORKER, PLACES.numbers, 7)
        made.decide(WORKER, [OUT, OFFSETS])
        by_key = replace(PLACES, by_key=True)
        return [fault for fault in faults(made, by_key) if "copies" in fault]

    assert copied(("k1", 1), ("k0", 1), ("k0", 2)) == copied(("k0", 1), ("k0", 2), ("k1", 1)) == []
    assert copied(("k0", 2), ("k0", 1), ("k1", 1))
    assert copied(("k0", 1), ("k1", 1))


def test_a_group_that_forgets_is_detected() -> None:
    made = good()
    made.append(FEEDER, IN, number("k0", 3))
    made.decide(FEEDER, [IN])
    made.append(WORKER, OUT, number("k0", 3))
    made.append(WORKER, TALLIES, tally("k0", 3))
    made.append(WORKER, TALLY_LOG, tally("k0", 3))
    made.append(WORKER, AGAIN, number("k0", 3))
    made.commit_offset(WORKER, PLACES.numbers, 9)
    made.append(WORKER, GROUPS, ("g0", {"records": 1, "sum": 3, "last": {"k0": 3}, "breaks": 1}))
    made.append(WORKER, GROUP_LOG, ("g0", {"records": 1, "sum": 3, "last": {"k0": 3}, "breaks": 1}))
    made.commit_offset(WORKER, PLACES.repartition, 7)
    made.decide(WORKER, [*KEYED, GROUPS, GROUP_LOG])
    assert [fault.split(": ", 1)[1].split(" has ")[0] for fault in faults(made)] == ["torn: groups", "torn: group-log"]


# -- records that a read_committed reader received


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([0, 1, 3], []),
        ([0, 1, 3, 4], ["aborted read: a read_committed reader was given in-0 offset 4, which is not committed"]),
        ([0, 3], ["a read_committed reader was not given in-0 offset 1, which is committed"]),
        ([0, 1, 1, 3], ["a read_committed reader was given in-0 offset 1 more than once"]),
    ],
)
def test_records_of_a_reader_are_compared_with_the_log(given: Iterable[int], said: list[str]) -> None:
    made = MadeLog()
    made.append(FEEDER, IN, number("k0", 1), number("k1", 1))
    made.decide(FEEDER, [IN])
    made.append(-1, IN, number("k0", 2), transactional=False)
    made.append(FEEDER, IN, number("k0", 3, aborted=True))
    made.decide(FEEDER, [IN], commit=False)
    assert list(misread(made.history(), made.logs(), {IN: given})) == said
