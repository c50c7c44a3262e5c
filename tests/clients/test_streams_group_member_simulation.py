"""Two members of a streams group and a coordinator that loses requests and responses: no task is ever open in both.

The coordinator is a small version of Kafka's (GroupMetadataManager.streamsGroupHeartbeat, CurrentAssignmentBuilder).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clients.errors import BrokerError, ErrorCode
from penstock.clients.group.member_state import MemberState
from penstock.clients.group.membership import Lost
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.group.streams_membership import StreamsEvent, StreamsMembership
from penstock.clients.group.streams_values import Heartbeat, HeartbeatResponse, Report, Tasks, TasksAssigned
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TaskId
from tests.examples import examples

TASKS = tuple(TaskId(0, number) for number in range(4))
INTERVAL_MS = 1_000
STEPS = 60
QUIET_ROUNDS = 20

Set = frozenset[TaskId]
NONE: Set = frozenset()


@dataclass
class KnownMember:
    """The coordinator's state of a member. owned, pending and target are active tasks."""

    epoch: int = 0
    previous_epoch: int = 0
    assigned: Set = NONE
    pending: Set = NONE
    unreleased: bool = False


@dataclass
class Coordinator:
    """Assigns tasks, each to one member at a time."""

    targets: dict[str, Set] = field(default_factory=dict)
    epoch: int = 1
    members: dict[str, KnownMember] = field(default_factory=dict)

    def assign(self, targets: dict[str, Set]) -> None:
        self.targets = targets
        self.epoch += 1

    def heartbeat(self, name: str, heartbeat: Heartbeat) -> HeartbeatResponse:
        member = self.members.setdefault(name, KnownMember())
        owned = None if heartbeat.owned is None else heartbeat.owned.active
        if heartbeat.epoch > member.epoch:
            raise BrokerError(ErrorCode.FENCED_MEMBER_EPOCH)
        if 0 < heartbeat.epoch < member.epoch and (
            heartbeat.epoch != member.previous_epoch or owned is None or not owned <= member.assigned
        ):
            raise BrokerError(ErrorCode.FENCED_MEMBER_EPOCH)
        before = member.assigned
        self._reconcile(name, member, owned)
        changed = heartbeat.epoch == 0 or member.assigned != before
        return HeartbeatResponse(
            member.epoch, INTERVAL_MS, INTERVAL_MS, 0, {}, Tasks(member.assigned) if changed else None, endpoint_epoch=0
        )

    def _reconcile(self, name: str, member: KnownMember, owned: Set | None) -> None:
        if member.pending:
            if owned is None or owned & member.pending:
                return
            member.pending = NONE
            self._advance(name, member, owned, member.epoch + 1)
        elif member.epoch != self.epoch or member.unreleased:
            self._advance(name, member, owned, member.epoch)

    def _advance(self, name: str, member: KnownMember, owned: Set | None, epoch: int) -> None:
        target = self.targets.get(name, NONE)
        kept = member.assigned & target
        member.pending = member.assigned - kept
        member.assigned = kept
        if member.pending and (owned is None or owned & member.pending):
            self._move(member, epoch)
            return
        member.pending = NONE
        held = frozenset(task for other in self.members.values() for task in other.assigned | other.pending)
        member.assigned = kept | (target - held)
        member.unreleased = member.assigned != target
        self._move(member, self.epoch)

    def _move(self, member: KnownMember, epoch: int) -> None:
        if epoch != member.epoch:
            member.previous_epoch, member.epoch = member.epoch, epoch


@dataclass
class Thread:
    """A stream thread and its member; `open` has the tasks that it runs."""

    name: str
    chance: random.Random
    membership: StreamsMembership
    open: Set = NONE
    events: list[StreamsEvent] = field(default_factory=list)
    wants_join: bool = True
    joining: bool = False
    missed: bool = False

    def act(self) -> None:
        """Do what a stream thread does in one iteration."""
        for event in self.events:
            if isinstance(event, TasksAssigned):
                self.joining = False
                self.wants_join |= event.taken
                self.open = event.tasks.active
            elif isinstance(event, Lost):
                self.joining, self.wants_join = False, True
                self.open = NONE
            else:
                self.wants_join = True
        self.events = []
        if self.wants_join and not self.joining:
            self.wants_join, self.joining = False, True
            report = Report(UUID(int=1), self.open)
            self.membership.join(report, self.membership.losses)

    def exchange(self, coordinator: Coordinator, now_ms: int, loss: float) -> None:
        """Send the heartbeat if it is due; with probability loss the request or the response gets lost."""
        if self.membership.ms_until_heartbeat(now_ms) != 0:
            return
        heartbeat = self.membership.next_heartbeat(now_ms)
        arrives, comes_back = self.chance.random() >= loss, self.chance.random() >= loss
        try:
            answer = coordinator.heartbeat(self.name, heartbeat) if arrives else None
        except BrokerError as error:
            if comes_back:
                self.events += self.membership.on_refusal(heartbeat, error, now_ms)
                return
            answer = None
        if answer is None or not comes_back:
            self.missed = True
            self.membership.on_no_response(heartbeat)
            return
        if self.missed and heartbeat.joining is None and answer.tasks is None:
            answer = replace(answer, tasks=Tasks(coordinator.members[self.name].assigned))
        self.missed = False
        self.events += self.membership.on_response(heartbeat, answer, now_ms)


def random_targets(chance: random.Random, names: list[str]) -> dict[str, Set]:
    targets: dict[str, set[TaskId]] = {name: set() for name in names}
    for task in TASKS:
        targets[chance.choice(names)].add(task)
    return {name: frozenset(found) for name, found in targets.items()}


@settings(max_examples=examples(150), deadline=None)
@given(seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.1, 0.5]))
def test_no_task_is_open_twice_and_finally_all_are_open(seed: int, loss: float) -> None:
    chance = random.Random(seed)
    names = ["one", "two"]
    coordinator = Coordinator(random_targets(chance, names))
    threads = [
        Thread(name, chance, StreamsMembership(GroupMemberConfig("g"), name, (0,), PrefixedLogger(__name__, name)))
        for name in names
    ]
    now_ms = 0

    def step(thread: Thread, loss: float) -> None:
        nonlocal now_ms
        now_ms += chance.choice((1, INTERVAL_MS))
        if chance.random() < 0.5:
            thread.exchange(coordinator, now_ms, loss)
        else:
            thread.act()
        both = threads[0].open & threads[1].open
        assert not both, f"open in both: {both}"

    for _ in range(STEPS):
        if chance.random() < 0.1:
            coordinator.assign(random_targets(chance, names))
        step(chance.choice(threads), loss)
    for _ in range(QUIET_ROUNDS):
        for thread in threads:
            for _ in range(4):
                step(thread, loss=0.0)
    assert {thread.name: thread.open for thread in threads} == coordinator.targets
    assert {thread.membership.state for thread in threads} == {MemberState.STABLE}
