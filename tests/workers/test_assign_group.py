"""StreamsPartitionAssignor: a simulated group, round by round, and single decisions of leader and member."""

from __future__ import annotations

import logging
import random
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.clients.group.membership import MemberAssignment, MemberSubscription
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.errors import StreamsError, TaskAssignmentError
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.assignment_info import AssignmentInfo
from penstock.workers.group.assignment.changelog_offsets import ChangelogOffsets
from penstock.workers.group.assignment.client_state import AssignmentConfigs, Clients
from penstock.workers.group.assignment.streams_partition_assignor import Assignment, StreamsPartitionAssignor
from penstock.workers.group.assignment.subscription_info import (
    LATEST_OFFSET,
    LATEST_SUPPORTED_VERSION,
    AssignorError,
    SubscriptionInfo,
)
from penstock.workers.group.assignment.topics_info import TopicsInfo
from tests.examples import examples

LOG = PrefixedLogger("test", "")
NOW_MS = 1_000_000
END_OFFSET = 50
ROUNDS_MAX = 60


def topics_info(
    subtopology: int, *sources: str, changelogs: Collection[str] = (), shared: Collection[str] = ()
) -> TopicsInfo:
    stores = {name: StoreBuilder(name, StoreKind.KEY_VALUE) for name in (*changelogs, *shared)}
    return TopicsInfo(subtopology, frozenset(sources), frozenset(), {}, stores, frozenset(shared), ())


#: Sub-topology 0 is stateful and has two sources, with 6 and 4 partitions; 1 is stateless and has 5 partitions.
TOPICS = {0: topics_info(0, "a", "b", changelogs=["a-changelog"]), 1: topics_info(1, "c")}
COUNTS = {"a": 6, "b": 4, "c": 5}
TASKS = {TaskId(0, n) for n in range(6)} | {TaskId(1, n) for n in range(5)}


class FixedOffsets(ChangelogOffsets):
    """Changelogs that all have the same length. asked: the partitions whose offsets were requested."""

    def __init__(self, known: bool = True) -> None:
        self.known = known
        self.asked: dict[str, set[TopicPartition]] = {"end": set(), "committed": set()}

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._answer("end", partitions)

    def committed_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return self._answer("committed", partitions)

    def _answer(self, kind: str, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        if not self.known:
            raise StreamsError("not known")
        self.asked[kind] |= set(partitions)
        return dict.fromkeys(partitions, END_OFFSET)


class FixedClock:
    """A clock that does not advance."""

    def monotonic_ms(self) -> int:
        return NOW_MS

    def wall_clock_ms(self) -> int:
        return NOW_MS


def assignor(
    process: int = 1,
    offsets: FixedOffsets | None = None,
    topics: Mapping[int, TopicsInfo] = TOPICS,
    counts: Mapping[str, int] = COUNTS,
    latest_version: int = LATEST_SUPPORTED_VERSION,
    **values: object,
) -> StreamsPartitionAssignor:
    config = StreamsConfig({name.replace("_", "."): value for name, value in values.items()})
    made = StreamsPartitionAssignor(
        config, UUID(int=process), offsets or FixedOffsets(), FixedClock(), LOG, latest_version=latest_version
    )
    made.update_topics(topics, counts)
    return made


def running(tasks: Collection[TaskId]) -> dict[TaskId, int]:
    return {task: LATEST_OFFSET for task in tasks if task.subtopology == 0}


def rebalance(
    leader: StreamsPartitionAssignor, members: Mapping[str, MemberSubscription]
) -> dict[str, MemberAssignment]:
    return leader.assign(members)


def subscribed(member: StreamsPartitionAssignor, *joining: Any) -> MemberSubscription:
    """Return what a member of a classic group joins with; see StreamsPartitionAssignor.joining."""
    return member.joining(*joining).subscription()


def answer(info: AssignmentInfo) -> MemberAssignment:
    return MemberAssignment(info.active_partitions, info.encode())


@dataclass
class Thread:
    """A simulated stream thread: the tasks it owns, and the contents of the state directory that its client's threads
    share.
    """

    name: str
    assignor: StreamsPartitionAssignor
    disk: set[TaskId]
    active: set[TaskId] = field(default_factory=set)
    standby: set[TaskId] = field(default_factory=set)
    wants_rebalance: bool = True
    probing: bool = False

    def subscription(self) -> MemberSubscription:
        offsets = {**dict.fromkeys(self.disk, END_OFFSET), **running(self.active)}
        return subscribed(self.assignor, self.active, self.standby, offsets)

    def take(self, part: Assignment, owned_by_others: set[TaskId]) -> None:
        assert part.error is AssignorError.NONE
        revoked = self.active - part.active.keys()
        self.active -= revoked
        new = part.active.keys() - self.active
        assert not new & owned_by_others, f"{self.name} starts {new & owned_by_others} while another runs them"
        self.active |= new
        self.standby = set(part.standby)
        self.disk |= self.standby | {task for task in self.active if task.subtopology == 0}
        assert not self.active & self.standby
        self.wants_rebalance = bool(revoked) or part.next_rebalance_in_ms == 0
        self.probing = part.next_rebalance_in_ms not in (None, 0)


class SimulatedGroup:
    """Threads and their rebalances; each round delivers the assignments in random order."""

    def __init__(self, seed: int, **values: object) -> None:
        self.random = random.Random(seed)
        self.values = values
        self.threads: list[Thread] = []
        self.disks: dict[int, set[TaskId]] = defaultdict(set)
        self.started = 0
        self.rounds = 0

    def start(self, process: int) -> None:
        self.started += 1
        made = assignor(process, **self.values)  # type: ignore[arg-type]
        self.threads.append(Thread(f"m-{self.started}", made, self.disks[process]))

    def kill(self, index: int) -> None:
        del self.threads[index % len(self.threads)]
        for thread in self.threads:
            thread.wants_rebalance = True

    def one_round(self) -> None:
        self.rounds += 1
        leader = self.random.choice(self.threads)
        parts = rebalance(leader.assignor, {thread.name: thread.subscription() for thread in self.threads})
        for thread in self.random.sample(self.threads, len(self.threads)):
            others = {task for other in self.threads if other is not thread for task in other.active}
            thread.take(thread.assignor.on_assignment(parts[thread.name]), others)

    def settle(self) -> None:
        before = self.rounds
        while any(thread.wants_rebalance or thread.probing for thread in self.threads):
            self.one_round()
            assert self.rounds - before <= ROUNDS_MAX, "the group does not settle"
        owned = [task for thread in self.threads for task in thread.active]
        assert sorted(owned) == sorted(TASKS)


actions = st.lists(st.tuples(st.sampled_from(["start", "kill", "round"]), st.integers(0, 5)), max_size=12)


@given(
    seed=st.integers(0, 2**16),
    what=actions,
    standbys=st.integers(0, 2),
    lag=st.sampled_from([0, 10_000]),
    name=st.sampled_from(["HighAvailabilityTaskAssignor", "StickyTaskAssignor"]),
)
@example(
    seed=0,
    what=[("kill", 0), ("start", 2), ("start", 0), ("kill", 0), ("round", 0), ("start", 2), ("kill", 0)],
    standbys=1,
    lag=0,
    name="StickyTaskAssignor",
)
@settings(max_examples=examples(80), deadline=None)
def test_no_task_runs_twice_and_all_run_after_any_membership_changes(
    seed: int, what: list[tuple[str, int]], standbys: int, lag: int, name: str
) -> None:
    group = SimulatedGroup(seed, num_standby_replicas=standbys, acceptable_recovery_lag=lag, task_assignor_class=name)
    group.start(process=0)
    for action, number in what:
        if action == "start":
            group.start(process=number // 2)
        elif action == "kill" and len(group.threads) > 1:
            group.kill(number)
        else:
            group.one_round()
    group.settle()
    rounds = group.rounds
    group.one_round()
    assert not any(thread.wants_rebalance for thread in group.threads), "a settled group moves tasks"
    assert group.rounds == rounds + 1


@given(threads=st.lists(st.integers(0, 2), min_size=1, max_size=6), seed=st.integers(0, 100))
@settings(max_examples=examples(40), deadline=None)
def test_a_settled_group_is_balanced_over_all_its_threads(threads: list[int], seed: int) -> None:
    group = SimulatedGroup(seed)
    for process in threads:
        group.start(process)
        group.settle()
    counts = [len(thread.active) for thread in group.threads]
    assert max(counts) - min(counts) <= 2  # one generator for the clients, one for the threads of a client


def test_a_new_thread_of_the_same_client_gets_tasks_without_warming_up() -> None:
    """The threads share the state directory, so the task moves with its files."""
    group = SimulatedGroup(1)
    group.start(process=1)
    group.settle()
    group.start(process=1)
    group.settle()
    assert group.rounds == 3  # alone; withheld from the new thread; handed over
    assert sorted(len(thread.active) for thread in group.threads) == [5, 6]


def part(encoded: dict[str, MemberAssignment], member: str) -> AssignmentInfo:
    return AssignmentInfo.decode(encoded[member].user_data, encoded[member].active)


def test_a_task_of_another_member_is_withheld_until_a_followup_rebalance() -> None:
    one = assignor()
    parts = rebalance(
        one,
        {"m-1": subscribed(one, TASKS, (), running(TASKS)), "m-2": subscribed(one, (), (), {})},
    )
    first, second = part(parts, "m-1"), part(parts, "m-2")
    assert second.active == {}
    assert second.next_rebalance_ms == 0
    assert first.active.keys() < TASKS
    assert first.next_rebalance_ms is None


def test_a_standby_copy_stays_open_until_its_active_task_arrives() -> None:
    two = {n: assignor(n, num_standby_replicas=1) for n in (1, 2)}
    stateful = {task for task in TASKS if task.subtopology == 0}
    offsets = dict.fromkeys(stateful, END_OFFSET)
    parts = rebalance(
        two[1],
        {
            "m-1": subscribed(two[1], TASKS, (), running(TASKS)),
            "m-2": subscribed(two[2], (), stateful, offsets),
        },
    )
    assert part(parts, "m-2").active == {}
    assert part(parts, "m-2").standby.keys() == stateful


def test_a_task_that_two_members_claim_is_revoked_from_both() -> None:
    one, two = assignor(1), assignor(2)
    task = TaskId(1, 0)
    parts = rebalance(one, {"m-1": subscribed(one, [task], (), {}), "m-2": subscribed(two, [task], (), {})})
    assert all(task not in part(parts, member).active for member in parts)
    assert 0 in {part(parts, member).next_rebalance_ms for member in parts}


def test_a_task_reads_the_topics_that_have_its_partition() -> None:
    one = assignor()
    active = one.on_assignment(rebalance(one, {"m": subscribed(one, (), (), {})})["m"]).active
    assert active.keys() == TASKS
    assert active[TaskId(0, 3)] == {TopicPartition("a", 3), TopicPartition("b", 3)}
    assert active[TaskId(0, 4)] == {TopicPartition("a", 4)}


def test_no_two_subscriptions_are_the_same() -> None:
    one = assignor()
    assert subscribed(one, (), (), {}) != subscribed(one, (), (), {})


def test_a_probing_rebalance_is_requested_from_one_member_of_the_leaders_client() -> None:
    leader, other = assignor(1, probing_rebalance_interval_ms=60_000, acceptable_recovery_lag=0), assignor(2)
    parts = rebalance(
        leader,
        {
            "m-1": subscribed(leader, [t for t in TASKS if t.partition % 2], (), {}),
            "m-2": subscribed(leader, [t for t in TASKS if not t.partition % 2], (), running(TASKS)),
            "m-3": subscribed(other, (), (), {}),
        },
    )
    assert part(parts, "m-3").standby  # warms up
    times = [part(parts, member).next_rebalance_ms for member in ("m-1", "m-2")]
    assert sorted(times, key=str) == [NOW_MS + 60_000, None]


def test_lags_use_end_offsets_of_changelogs_and_committed_offsets_of_source_changelogs() -> None:
    offsets = FixedOffsets()
    topics = {0: topics_info(0, "a", changelogs=["s-changelog"], shared=["a"]), 1: topics_info(1, "c")}
    one = assignor(offsets=offsets, topics=topics, counts={"a": 2, "c": 1})
    rebalance(one, {"m": subscribed(one, (), (), {})})
    assert offsets.asked["end"] == {TopicPartition("s-changelog", 0), TopicPartition("s-changelog", 1)}
    assert offsets.asked["committed"] == {TopicPartition("a", 0), TopicPartition("a", 1)}


def test_without_lags_all_tasks_stay_and_a_rebalance_follows() -> None:
    one = assignor(offsets=FixedOffsets(known=False))
    other = assignor(2)
    parts = rebalance(
        one,
        {"m-1": subscribed(one, TASKS, (), running(TASKS)), "m-2": subscribed(other, (), (), {})},
    )
    assert part(parts, "m-1").active.keys() == TASKS
    assert part(parts, "m-1").next_rebalance_ms == NOW_MS + 600_000


@pytest.mark.parametrize(
    ("counts", "subscriptions", "error"),
    [
        ({"a": 1, "b": 1}, ["{}"], AssignorError.INCOMPLETE_SOURCE_TOPIC_METADATA),
        (COUNTS, ["garbage"], AssignorError.ASSIGNMENT_ERROR),
        (COUNTS, ["shutdown"], AssignorError.SHUTDOWN_REQUESTED),
    ],
)
def test_an_assignor_error_reaches_all_members(
    counts: dict[str, int], subscriptions: list[str], error: AssignorError, caplog: pytest.LogCaptureFixture
) -> None:
    one = assignor(counts=counts)
    sent = {
        "{}": subscribed(one, (), (), {}),
        "garbage": MemberSubscription(b"\0\0\0\x0b"),
        "shutdown": subscribed(one, (), (), {}, AssignorError.SHUTDOWN_REQUESTED),
    }
    parts = rebalance(one, {"m-1": subscribed(one, (), (), {}), "m-2": sent[subscriptions[0]]})
    for member in parts:
        assert one.on_assignment(parts[member]) == Assignment(error=error)
    if error is not AssignorError.SHUTDOWN_REQUESTED:
        assert any(record.levelno == logging.ERROR for record in caplog.records)


def test_the_log_of_an_error_names_the_missing_topic(caplog: pytest.LogCaptureFixture) -> None:
    one = assignor(counts={"a": 1, "b": 1})
    rebalance(one, {"m-1": subscribed(one, (), (), {})})
    assert "Missing source topics: c" in caplog.text


def test_members_receive_the_hosts_of_all_partitions() -> None:
    servers = {n: assignor(n, application_server=f"h{n}:80", num_standby_replicas=1) for n in (1, 2)}
    parts = rebalance(servers[1], {f"m-{n}": subscribed(each, (), (), {}) for n, each in servers.items()})
    told = servers[2].on_assignment(parts["m-2"])
    assert told.partitions_by_host.keys() == {"h1:80", "h2:80"}
    everywhere = {partition for partitions in told.partitions_by_host.values() for partition in partitions}
    assert everywhere == {TopicPartition(topic, n) for topic, count in COUNTS.items() for n in range(count)}
    assert told.standby_partitions_by_host["h1:80"]
    assert told.next_rebalance_in_ms is None


def test_a_static_member_that_returns_with_another_endpoint_rebalances() -> None:
    old = assignor(application_server="old:80")
    stored = rebalance(old, {"m": subscribed(old, (), (), {})})["m"]
    assert assignor(application_server="new:80").on_assignment(stored).next_rebalance_in_ms == 0
    assert old.on_assignment(stored).next_rebalance_in_ms is None


def test_version_probing_lets_old_and_new_members_share_a_group() -> None:
    """KIP-268: the new member sends its version, receives the old version in response, and joins again with the old
    one.
    """
    old, new = assignor(1, latest_version=10), assignor(2)
    task = TaskId(1, 0)
    parts = rebalance(old, {"m-1": subscribed(old, (), (), {}), "m-2": subscribed(new, [task], (), {})})
    assert task not in part(parts, "m-1").active  # the leader has read that the new member owns it
    answer = new.on_assignment(parts["m-2"])
    assert task in answer.active
    assert answer.next_rebalance_in_ms == 0
    again = subscribed(new, [task], (), {})
    assert SubscriptionInfo.decode(again.user_data, "m-2").version == 10
    parts = rebalance(old, {"m-1": subscribed(old, (), (), {}), "m-2": again})
    assert new.on_assignment(parts["m-2"]).next_rebalance_in_ms is None


def test_the_new_version_is_used_after_the_last_old_member_left() -> None:
    new = assignor(2)
    new.on_assignment(answer(AssignmentInfo(10, 10)))
    assert SubscriptionInfo.decode(subscribed(new, (), (), {}).user_data, "m").version == 10
    parts = rebalance(new, {"m": subscribed(new, (), (), {})})
    assert new.on_assignment(parts["m"]).next_rebalance_in_ms == 0
    assert SubscriptionInfo.decode(subscribed(new, (), (), {}).user_data, "m").version == 11


@pytest.mark.parametrize(
    ("info", "message"),
    [(AssignmentInfo(12, 11), "version 12"), (AssignmentInfo(11, 12), "greater than we support")],
)
def test_an_assignment_in_a_version_that_was_not_offered_is_refused(info: AssignmentInfo, message: str) -> None:
    with pytest.raises(TaskAssignmentError, match=message):
        assignor().on_assignment(answer(info))


class EverythingToOne:
    """A user's task assignor."""

    def assign(
        self, clients: Clients, all_tasks: Collection[TaskId], stateful: Collection[TaskId], configs: AssignmentConfigs
    ) -> bool:
        next(iter(clients.values())).active_tasks.update(all_tasks)
        return False


class NothingToAnyone:
    """A user's task assignor that assigns no task."""

    def assign(
        self, clients: Clients, all_tasks: Collection[TaskId], stateful: Collection[TaskId], configs: AssignmentConfigs
    ) -> bool:
        return False


@pytest.mark.parametrize("named", [EverythingToOne, EverythingToOne()])
def test_a_users_task_assignor_decides(named: object) -> None:
    leader = assignor(1, task_assignor_class=named)
    parts = rebalance(leader, {f"m-{n}": subscribed(assignor(n), (), (), {}) for n in (1, 2)})
    assert part(parts, "m-1").active.keys() == TASKS


def test_a_users_task_assignor_is_checked() -> None:
    leader = assignor(1, task_assignor_class=NothingToAnyone)
    parts = rebalance(leader, {"m-1": subscribed(leader, (), (), {})})
    assert part(parts, "m-1").error is AssignorError.ASSIGNMENT_ERROR


def test_all_source_topics_are_subscribed() -> None:
    assert assignor().source_topics == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("jump_ms", "remaining_ms"), [(0, 600_000), (-86_400_000, 600_000), (60_000, 540_000), (86_400_000, 0)]
)
def test_a_clock_jump_does_not_delay_a_probing_rebalance(jump_ms: int, remaining_ms: int) -> None:
    member = assignor()
    info = AssignmentInfo(11, 11, next_rebalance_ms=NOW_MS + 600_000)
    member.clock = JumpedClock(jump_ms)
    assert member.on_assignment(answer(info)).next_rebalance_in_ms == remaining_ms


@dataclass
class JumpedClock:
    """A clock that someone has set."""

    jump_ms: int

    def monotonic_ms(self) -> int:
        return NOW_MS

    def wall_clock_ms(self) -> int:
        return NOW_MS + self.jump_ms


def test_the_leader_reports_a_member_with_other_stores(caplog: pytest.LogCaptureFixture) -> None:
    leader, member = assignor(1), assignor(2)
    same = assignor(3, topics=OTHER_TOPICS)
    members = {"m-1": subscribed(leader, (), (), {}), "m-2": subscribed(member, (), (), {})}
    with caplog.at_level(logging.WARNING):  # independent of other tests' settings
        rebalance(leader, members)
    assert not caplog.records
    rebalance(leader, {**members, "m-3": subscribed(same, (), (), {})})
    assert "The topology of members m-3 is not that of this member, which leads the group" in caplog.text


#: Sub-topologies with another store, or with other topics.
OTHER_TOPICS = {0: topics_info(0, "a", "b", changelogs=["other-changelog"]), 1: topics_info(1, "c")}
FOREIGN_TOPICS = {0: topics_info(0, "c"), 1: topics_info(1, "a", "b")}


@pytest.mark.parametrize("topics", [FOREIGN_TOPICS, {0: FOREIGN_TOPICS[0]}], ids=["other topics", "fewer"])
def test_tasks_of_another_topology_are_refused_and_both_topologies_are_named(topics: Mapping[int, TopicsInfo]) -> None:
    leader, stranger = assignor(1), assignor(2, topics=topics)
    parts = rebalance(leader, {"m-1": subscribed(leader, (), (), {}), "m-2": subscribed(stranger, (), (), {})})
    assert stranger.on_assignment(parts["m-2"]) == Assignment(next_rebalance_in_ms=0), "it may be an old one"
    with pytest.raises(
        TaskAssignmentError,
        match=r"assigned a task of another topology: task \d_\d reads .*in the topology of this program sub-topology "
        r"\d reads .*Two applications have the same application.id",
    ):
        stranger.on_assignment(parts["m-2"])
    assert leader.on_assignment(parts["m-1"]).active  # the leader's application continues
