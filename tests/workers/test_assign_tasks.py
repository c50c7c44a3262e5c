"""The task assignors: properties that hold for every group, and cases from Kafka Streams' own tests."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.topology.errors import TaskAssignmentError
from penstock.topology.records import TaskId
from penstock.workers.group.assignment.client_state import AssignmentConfigs, Clients, ClientState, sorted_clients
from penstock.workers.group.assignment.subscription_info import LATEST_OFFSET, UNKNOWN_OFFSET_SUM
from penstock.workers.group.assignment.task_assignors import (
    FallbackPriorTaskAssignor,
    HighAvailabilityTaskAssignor,
    StickyTaskAssignor,
    TaskAssignor,
    validate_task_assignment,
)
from penstock.workers.group.assignment.thread_assignment import spread_over_threads
from tests.examples import examples

END_OFFSET = 1_000_000
ASSIGNORS: list[TaskAssignor] = [HighAvailabilityTaskAssignor(), StickyTaskAssignor(), FallbackPriorTaskAssignor()]


def task(text: str) -> TaskId:
    return TaskId.parse(text)


def tasks(text: str) -> set[TaskId]:
    return {task(name) for name in text.split()}


def client(number: int, threads: int = 1, **settings: object) -> ClientState:
    made = ClientState(UUID(int=number), consumers={f"{number}-{thread}" for thread in range(threads)})
    for name, value in settings.items():
        setattr(made, name, value)
    return made


def run(
    clients: Collection[ClientState],
    stateful: Collection[TaskId],
    stateless: Collection[TaskId] = (),
    assignor: TaskAssignor = ASSIGNORS[0],
    ends: Mapping[TaskId, int] | None = None,
    **settings: int | tuple[str, ...],
) -> tuple[Clients, bool]:
    ordered = sorted_clients(clients)
    for each in clients:
        each.compute_task_lags(ends or dict.fromkeys(stateful, END_OFFSET))
    configs = AssignmentConfigs(**settings)  # type: ignore[arg-type]
    probing = assignor.assign(ordered, {*stateful, *stateless}, set(stateful), configs)
    validate_task_assignment(ordered, {*stateful, *stateless})
    return ordered, probing


def again(clients: Clients) -> list[ClientState]:
    """Return the clients at the next rebalance: with the tasks they got, caught up."""
    return [
        client(
            each.process_id.int,
            each.capacity,
            previous_active_tasks=set(each.active_tasks),
            previous_standby_tasks=set(each.standby_tasks),
            offset_sums={
                **dict.fromkeys(each.standby_tasks, END_OFFSET),
                **dict.fromkeys(each.active_tasks, LATEST_OFFSET),
            },
        )
        for each in clients.values()
    ]


def per_thread(clients: Clients) -> list[float]:
    return [each.assigned_task_count / each.capacity for each in clients.values()]


task_ids = st.builds(TaskId, st.integers(0, 3), st.integers(0, 15))


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[ClientState], set[TaskId], set[TaskId]]:
    """Clients with any history: former active and standby tasks, and offsets of arbitrary state on disk."""
    everything = draw(st.sets(task_ids, min_size=1, max_size=40))
    stateful = draw(st.sets(st.sampled_from(sorted(everything))))
    clients = []
    owned: set[TaskId] = set()
    for number in range(draw(st.integers(1, 6))):
        had = draw(st.sets(task_ids, max_size=10)) - owned
        owned |= had
        standby = draw(st.sets(task_ids, max_size=10)) - had
        offsets = draw(
            st.dictionaries(task_ids, st.sampled_from([0, 5, END_OFFSET, END_OFFSET + 9, UNKNOWN_OFFSET_SUM]))
        )
        clients.append(
            client(
                number + 1,
                draw(st.integers(1, 4)),
                previous_active_tasks=had,
                previous_standby_tasks=standby,
                offset_sums={**offsets, **{t: LATEST_OFFSET for t in had if t in stateful}},
            )
        )
    return clients, stateful, everything - stateful


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: type(assignor).__name__)
@given(group=groups(), standbys=st.integers(0, 3), warmups=st.integers(1, 4))
@settings(max_examples=examples(60), deadline=None)
def test_each_task_is_active_once_and_copies_are_on_different_clients(
    assignor: TaskAssignor, group: tuple[list[ClientState], set[TaskId], set[TaskId]], standbys: int, warmups: int
) -> None:
    clients, stateful, stateless = group
    placed, _ = run(
        clients, stateful, stateless, assignor, num_standby_replicas=standbys, max_warmup_replicas=warmups
    )  # validates: every task is active exactly once, and never a standby on the same client
    copies = [t for each in placed.values() for t in each.standby_tasks]
    assert set(copies) <= stateful
    full = min(standbys, len(clients) - 1)
    extra = sum(max(0, copies.count(t) - standbys) for t in stateful)
    assert all(copies.count(t) >= full for t in stateful)
    assert extra <= warmups


@given(threads=st.lists(st.integers(1, 4), min_size=1, max_size=8), count=st.integers(1, 60))
@settings(max_examples=examples(60), deadline=None)
def test_a_new_group_is_balanced_over_threads(threads: list[int], count: int) -> None:
    clients = [client(number + 1, each) for number, each in enumerate(threads)]
    placed, probing = run(clients, {TaskId(0, partition) for partition in range(count)})
    assert not probing
    assert max(per_thread(placed)) - min(per_thread(placed)) <= 1 + 1e-9


@given(size=st.integers(2, 8), count=st.integers(1, 60), standbys=st.integers(1, 7))
@settings(max_examples=examples(60), deadline=None)
def test_standbys_are_balanced_too(size: int, count: int, standbys: int) -> None:
    stateful = {TaskId(0, partition) for partition in range(count)}
    placed, _ = run([client(number) for number in range(size)], stateful, num_standby_replicas=min(standbys, size - 1))
    assert max(per_thread(placed)) - min(per_thread(placed)) <= 1


@given(threads=st.lists(st.integers(1, 4), min_size=1, max_size=8), count=st.integers(0, 60))
@settings(max_examples=examples(60), deadline=None)
def test_stateless_tasks_are_balanced_and_stay(threads: list[int], count: int) -> None:
    stateless = {TaskId(0, partition) for partition in range(count)}
    placed, _ = run([client(number + 1, each) for number, each in enumerate(threads)], (), stateless)
    assert max(per_thread(placed)) - min(per_thread(placed)) <= 1 + 1e-9
    second, _ = run(again(placed), (), stateless)
    assert [each.active_tasks for each in second.values()] == [each.active_tasks for each in placed.values()]


@pytest.mark.parametrize("assignor", ASSIGNORS[:2], ids=lambda assignor: type(assignor).__name__)
def test_tasks_above_the_fair_share_stay(assignor: TaskAssignor) -> None:
    """Kafka Streams exchanges them in each rebalance."""
    stateless = {TaskId(0, partition) for partition in range(11)}
    small = {TaskId(0, 0), TaskId(0, 1)}
    clients = [
        client(1, 5, previous_active_tasks=stateless - small),
        client(2, 1, previous_active_tasks=set(small)),
    ]
    placed, _ = run(clients, (), stateless, assignor)
    assert placed[UUID(int=2)].active_tasks == small


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: type(assignor).__name__)
@given(
    threads=st.lists(st.integers(1, 4), min_size=1, max_size=6), count=st.integers(0, 40), standbys=st.integers(0, 2)
)
@settings(max_examples=examples(40), deadline=None)
def test_an_unchanged_group_keeps_its_active_tasks(
    assignor: TaskAssignor, threads: list[int], count: int, standbys: int
) -> None:
    stateful = {TaskId(0, partition) for partition in range(count)}
    stateless = {TaskId(1, partition) for partition in range(count)}
    clients = [client(number + 1, each) for number, each in enumerate(threads)]
    placed, _ = run(clients, stateful, stateless, assignor, num_standby_replicas=standbys)
    second, probing = run(again(placed), stateful, stateless, assignor, num_standby_replicas=standbys)
    assert [each.active_tasks for each in second.values()] == [each.active_tasks for each in placed.values()]
    assert probing == isinstance(assignor, FallbackPriorTaskAssignor)


def test_a_new_client_gets_warmups_first_and_the_tasks_once_they_have_caught_up() -> None:
    """KIP-441: max.warmup.replicas at a time, with probing rebalances until the warm-ups have caught up."""
    stateful = tasks("0_0 0_1 0_2 0_3")
    running = client(1, previous_active_tasks=set(stateful), offset_sums=dict.fromkeys(stateful, LATEST_OFFSET))
    placed, probing = run([running, client(2)], stateful, max_warmup_replicas=1)
    old, new = placed.values()
    assert probing
    assert old.active_tasks == stateful
    assert new.active_tasks == set()
    assert len(new.standby_tasks) == 1
    placed, probing = run(again(placed), stateful, max_warmup_replicas=1)
    old, new = placed.values()
    assert (len(old.active_tasks), len(new.active_tasks), len(new.standby_tasks)) == (3, 1, 1)
    assert probing
    placed, probing = run(again(placed), stateful, max_warmup_replicas=1)
    old, new = placed.values()
    assert (len(old.active_tasks), len(new.active_tasks), old.standby_tasks, new.standby_tasks) == (2, 2, set(), set())
    assert not probing


def test_a_lag_up_to_the_acceptable_one_counts_as_caught_up() -> None:
    stateful = tasks("0_0 0_1")
    for lag, caught_up in ((10, True), (11, False)):
        running = client(1, previous_active_tasks=set(stateful), offset_sums=dict.fromkeys(stateful, LATEST_OFFSET))
        other = client(2, offset_sums=dict.fromkeys(stateful, END_OFFSET - lag))
        placed, probing = run([running, other], stateful, acceptable_recovery_lag=10)
        assert (len(placed[UUID(int=2)].active_tasks) == 1) is caught_up
        assert probing is not caught_up


def test_a_caught_up_standby_takes_over_when_the_owner_is_gone() -> None:
    stateful = tasks("0_0")
    empty = client(1)
    standby = client(2, previous_standby_tasks=set(stateful), offset_sums=dict.fromkeys(stateful, END_OFFSET))
    placed, _ = run([empty, standby], stateful, num_standby_replicas=1)
    assert placed[UUID(int=2)].active_tasks == stateful
    assert placed[UUID(int=1)].standby_tasks == stateful


def test_the_most_caught_up_client_restores_if_none_is_caught_up() -> None:
    stateful = tasks("0_0")
    near = client(9, offset_sums=dict.fromkeys(stateful, END_OFFSET // 2))
    placed, probing = run([client(1), near], stateful)
    assert placed[UUID(int=9)].active_tasks == stateful
    assert placed[UUID(int=1)].standby_tasks == stateful  # warms up, because balance put the task there
    assert probing


def test_a_copy_of_unknown_size_counts_as_empty() -> None:
    stateful = tasks("0_0")
    unknown = client(9, offset_sums=dict.fromkeys(stateful, UNKNOWN_OFFSET_SUM))
    placed, probing = run([client(1), unknown], stateful)
    assert placed[UUID(int=1)].active_tasks == stateful
    assert not probing
    unknown = client(1, offset_sums=dict.fromkeys(stateful, UNKNOWN_OFFSET_SUM))
    placed, probing = run([unknown, client(9)], stateful)
    assert placed[UUID(int=1)].active_tasks == stateful  # and not as less than empty
    assert not probing


def test_a_copy_ahead_of_its_changelog_is_not_trusted() -> None:
    stateful = tasks("0_0")
    ahead = client(9, offset_sums=dict.fromkeys(stateful, END_OFFSET + 1))
    placed, _ = run([client(1), ahead], stateful)
    assert placed[UUID(int=1)].active_tasks == stateful


def test_standbys_are_spread_over_tags() -> None:
    """KIP-708: the second copy in another zone and cluster, the third at least in another zone."""
    stateful = tasks("0_0")
    zones = [(number, zone, cluster) for number, (cluster, zone) in enumerate((c, z) for c in "xy" for z in "abc")]
    clients = [client(n + 1, client_tags={"zone": zone, "cluster": cluster}) for n, zone, cluster in zones]
    placed, _ = run(clients, stateful, num_standby_replicas=2, rack_aware_assignment_tags=("zone", "cluster"))
    holders = [each for each in placed.values() if each.has_assigned_task(task("0_0"))]
    assert {each.client_tags["zone"] for each in holders} == {"a", "b", "c"}
    assert {each.client_tags["cluster"] for each in holders} == {"x", "y"}


def test_standbys_that_cannot_be_spread_over_tags_go_to_the_least_loaded() -> None:
    stateful = tasks("0_0 0_1")
    clients = [client(number, client_tags={"zone": "a"}) for number in (1, 2)]
    placed, _ = run(clients, stateful, num_standby_replicas=1, rack_aware_assignment_tags=("zone",))
    assert [len(each.standby_tasks) for each in placed.values()] == [1, 1]


def test_the_sticky_assignor_moves_no_more_tasks_than_balance_requires() -> None:
    stateful = {TaskId(0, partition) for partition in range(6)}
    running = client(1, previous_active_tasks=set(stateful))
    placed, _ = run([running, client(2)], stateful, assignor=StickyTaskAssignor())
    assert [len(each.active_tasks) for each in placed.values()] == [3, 3]


def test_the_sticky_assignor_prefers_clients_with_a_standby() -> None:
    had = client(2, previous_standby_tasks=tasks("0_1"))
    placed, _ = run([client(1), had], tasks("0_0 0_1"), assignor=StickyTaskAssignor())
    assert placed[UUID(int=2)].active_tasks == tasks("0_1")


def test_the_fallback_assignor_moves_nothing_and_requests_another_rebalance() -> None:
    stateful = {TaskId(0, partition) for partition in range(6)}
    running = client(1, previous_active_tasks=set(stateful))
    placed, probing = run([running, client(2)], stateful, assignor=FallbackPriorTaskAssignor())
    assert placed[UUID(int=1)].active_tasks == stateful
    assert probing


@pytest.mark.parametrize(
    ("active", "standby", "message"),
    [
        ({1: "0_0", 2: "0_0"}, {}, "assigned twice"),
        ({1: "0_0"}, {1: "0_0"}, "as active and as standby"),
        ({1: "0_0 9_9"}, {}, "There are no such tasks: 9_9"),
        ({}, {1: "0_0"}, "Tasks were not assigned: 0_0"),
    ],
)
def test_a_wrong_assignment_of_a_user_assignor_is_refused(
    active: dict[int, str], standby: dict[int, str], message: str
) -> None:
    clients = sorted_clients(
        client(number, active_tasks=tasks(active.get(number, "")), standby_tasks=tasks(standby.get(number, "")))
        for number in (1, 2)
    )
    with pytest.raises(TaskAssignmentError, match=message):
        validate_task_assignment(clients, tasks("0_0"))


@given(
    threads=st.integers(1, 6),
    active=st.sets(task_ids, max_size=30),
    standby=st.sets(task_ids, max_size=30),
    had=st.dictionaries(st.integers(0, 5), st.sets(task_ids, max_size=10)),
)
@settings(max_examples=examples(100), deadline=None)
def test_threads_share_the_tasks_of_a_client_and_keep_what_they_can(
    threads: int, active: set[TaskId], standby: set[TaskId], had: dict[int, set[TaskId]]
) -> None:
    each = client(1, threads)
    each.previous_tasks.update({f"1-{number}": tasks for number, tasks in had.items()})
    load: dict[str, int] = {}
    dealt = [spread_over_threads(part, each, load) for part in (active, standby - active)]
    for part, assigned in zip((active, standby - active), dealt, strict=True):
        assert sorted(t for given in assigned.values() for t in given) == sorted(part)
    counts = [load[consumer] for consumer in each.consumers]
    assert max(counts) - min(counts) <= 1
    assert counts == [sum(len(assigned[consumer]) for assigned in dealt) for consumer in each.consumers]
    for number in range(threads):
        its_own = had.get(number, set()) & active
        if any(t in had.get(other, ()) for t in its_own for other in range(threads) if other != number):
            continue  # claimed by another thread too; whichever gets it replaces one that does not
        assert len(its_own & set(dealt[0][f"1-{number}"])) >= min(len(its_own), len(active) // threads)


def test_threads_without_former_tasks_get_some_of_each_subtopology() -> None:
    each = client(1, 2)
    dealt = spread_over_threads(tasks("0_0 0_1 1_0 1_1"), each, {})
    assert [{t.subtopology for t in given} for given in dealt.values()] == [{0, 1}, {0, 1}]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: type(assignor).__name__)
def test_a_thousand_tasks_for_a_hundred_members_take_well_under_two_seconds(
    assignor: TaskAssignor, threads: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stateful = {TaskId(0, partition) for partition in range(800)}
    stateless = {TaskId(1, partition) for partition in range(200)}
    clients = [client(number + 1, threads) for number in range(100 // threads)]
    started = time.process_time()
    placed, _ = run(clients, stateful, stateless, assignor, num_standby_replicas=1)
    fresh = time.process_time() - started
    survivors = again(placed)[: len(clients) * 3 // 4]
    started = time.process_time()
    run(survivors, stateful, stateless, assignor, num_standby_replicas=1)
    shrunk = time.process_time() - started
    with capsys.disabled():
        print(
            f"\n{type(assignor).__name__}, 1,000 tasks with 800 standbys, {len(clients)} clients of {threads} threads: "
            f"{fresh:.2f} s of CPU new, {shrunk:.2f} s after losing a quarter"
        )
    assert fresh + shrunk < 2.0


@pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda assignor: type(assignor).__name__)
def test_standbys_that_cannot_be_placed_are_logged_once_for_all_tasks(
    assignor: TaskAssignor, caplog: pytest.LogCaptureFixture
) -> None:
    run([client(1), client(2)], tasks("0_0 0_1"), assignor=assignor, num_standby_replicas=3)
    (record,) = caplog.records
    assert "Unable to assign 2 of 3 standby tasks for tasks [0_0, 0_1]" in record.getMessage()
