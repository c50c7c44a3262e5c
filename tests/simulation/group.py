"""The coordinator of one classic group, as brokers run it (Kafka: GroupMetadataManager, ClassicGroup).

Joining, syncing, heartbeats, sessions, static members (KIP-345, KIP-814), committed offsets, and those of open
transactions (KIP-447). A removed member learns it from the error code of its next request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

from penstock.clients.errors import ErrorCode
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.topology.records import TopicPartition
from tests.simulation.connection import Reply
from tests.simulation.world import Due, World

GROUP_DELAY_MS = 50
OK = 0


class GroupState(Enum):
    """EMPTY and PREPARING wait for joins, COMPLETING for the leader's assignment."""

    EMPTY = "EMPTY"
    PREPARING = "PREPARING"
    COMPLETING = "COMPLETING"
    STABLE = "STABLE"


@dataclass
class Member:
    """The coordinator's state of a member."""

    member_id: str
    client: str
    instance_id: str | None
    session_ms: int
    rebalance_ms: int
    metadata: bytes = b""
    assignment: bytes = b""
    generation: int = -1
    joining: Reply | None = None
    syncing: Reply | None = None
    session: Due | None = None


@dataclass
class Offsets:
    """Committed offsets, and the open transaction of each partition with a pending commit."""

    committed: dict[TopicPartition, OffsetAndMetadata] = field(default_factory=dict)
    pending: dict[TopicPartition, object] = field(default_factory=dict)


class Group:
    """on_commit(client, offsets, current): called before offsets are stored."""

    def __init__(self, world: World, offsets: Offsets, on_commit: Callable[[str, Mapping[Any, Any]], None]) -> None:
        self.world = world
        self.offsets = offsets
        self.state = GroupState.EMPTY
        self.generation = 0
        self.members: dict[str, Member] = {}
        self._removals: Counter[str] = Counter()  # how often a process was removed, or left
        self._leader = ""
        self._on_commit = on_commit
        self._timer: Due | None = None
        self._ids = 0
        self._promised: set[str] = set()  # member ids of the first of two joins (KIP-394)
        self._handlers: dict[str, Callable[[str, Any, Reply], None]] = {
            "JoinGroup": self._join,
            "SyncGroup": self._sync,
            "Heartbeat": self._heartbeat,
            "LeaveGroup": self._leave,
            "OffsetCommit": self._commit,
            "OffsetFetch": self._fetch,
        }

    def handle(self, client: str, request: Any, reply: Reply) -> None:
        """Answer a request of a member, at once or later."""
        self._handlers[request.api.name](client, SimpleNamespace(**request.body), reply)

    def check(self, member_id: str, instance_id: str | None, generation: int | None) -> int:
        """Return the error code for a member's identity; generation None: do not check it."""
        if instance_id is not None:
            known = self._static(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known.member_id != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation is not None and generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return OK

    def is_current(self, client: str) -> bool:
        """Return whether a process is a member of the current generation."""
        return any(m.client == client and m.generation == self.generation for m in self.members.values())

    def term(self, client: str) -> int:
        """Return a number that changes when the group removes a process."""
        return self._removals[client]

    def _static(self, instance_id: str | None) -> Member | None:
        return next(
            (m for m in self.members.values() if instance_id is not None and m.instance_id == instance_id), None
        )

    # Joining

    def _join(self, client: str, request: Any, reply: Reply) -> None:
        instance_id = request.group_instance_id
        known = self._static(instance_id)
        if request.member_id == "" and instance_id is None:
            pending = self._new_id(client)
            self._promised.add(pending)
            reply(_joined(ErrorCode.MEMBER_ID_REQUIRED, pending))
            return
        if known is not None and request.member_id == "":
            self._replace(known, client, request, reply)
            return
        if known is not None and request.member_id != known.member_id:
            reply(_joined(ErrorCode.FENCED_INSTANCE_ID))
            return
        member = self.members.get(request.member_id)
        if member is None:
            if request.member_id and request.member_id not in self._promised:
                reply(_joined(ErrorCode.UNKNOWN_MEMBER_ID))
                return
            self._promised.discard(request.member_id)
            member = Member(
                request.member_id or self._new_id(client),
                client,
                instance_id,
                request.session_timeout_ms,
                request.rebalance_timeout_ms,
            )
            self.members[member.member_id] = member
        member.metadata = request.protocols[0]["metadata"]
        member.joining = reply
        self._alive(member)
        self._prepare()

    def _replace(self, old: Member, client: str, request: Any, reply: Reply) -> None:
        """Handle the join of a static member under a known instance id: fence the previous member with it."""
        for pending in (old.joining, old.syncing):
            if pending is not None:
                pending(_joined(ErrorCode.FENCED_INSTANCE_ID))
        del self.members[old.member_id]
        new = Member(
            self._new_id(client), client, old.instance_id, request.session_timeout_ms, request.rebalance_timeout_ms
        )
        new.metadata, new.assignment, new.generation = request.protocols[0]["metadata"], old.assignment, old.generation
        if old.session is not None:
            self.world.cancel(old.session)
        self.members[new.member_id] = new
        self._alive(new)
        led = self._leader == old.member_id
        if led:
            self._leader = new.member_id
        if self.state is GroupState.STABLE:
            new.generation = self.generation
            members = self._subscriptions() if led else []
            reply(_joined(OK, new.member_id, self.generation, self._leader, members, skip_assignment=led))
            return
        new.joining = reply
        self._prepare()

    def _new_id(self, client: str) -> str:
        self._ids += 1
        return f"{client}-{self._ids}"

    def _prepare(self) -> None:
        if self.state is not GroupState.PREPARING:
            first = self.state is GroupState.EMPTY
            self.state = GroupState.PREPARING
            for member in self.members.values():
                syncing, member.syncing = member.syncing, None
                if syncing is not None:
                    syncing(_synced(ErrorCode.REBALANCE_IN_PROGRESS))
            longest_ms = max(member.rebalance_ms for member in self.members.values())
            self._set_timer(GROUP_DELAY_MS if first else longest_ms, self._complete_join)
            if first:
                return
        self._maybe_complete_join()

    def _maybe_complete_join(self) -> None:
        waiting = self._timer is not None and self.state is GroupState.PREPARING
        if waiting and self.members and all(m.joining is not None for m in self.members.values()):
            self._complete_join()

    def _complete_join(self) -> None:
        if self.state is not GroupState.PREPARING:
            return
        if self.world.brokers_away:
            self._set_timer(GROUP_DELAY_MS, self._complete_join)
            return
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._remove(member)
        joined = [m for m in self.members.values() if m.joining is not None]
        if not joined:
            if not self.members:
                self.state = GroupState.EMPTY
            else:
                self._set_timer(GROUP_DELAY_MS, self._complete_join)
            return
        self._stop_timer()
        self.generation += 1
        self.state = GroupState.COMPLETING
        if self._leader not in {m.member_id for m in joined}:
            self._leader = joined[0].member_id
        self.world.note("group", f"generation {self.generation}: {', '.join(m.member_id for m in joined)}")
        for member in joined:
            reply, member.joining = member.joining, None
            member.generation, member.assignment = self.generation, b""
            self._alive(member)
            members = self._subscriptions() if member.member_id == self._leader else []
            assert reply is not None
            reply(_joined(OK, member.member_id, self.generation, self._leader, members))

    def _subscriptions(self) -> list[Any]:
        return [
            SimpleNamespace(member_id=m.member_id, group_instance_id=m.instance_id, metadata=m.metadata)
            for m in self.members.values()
        ]

    def _sync(self, client: str, request: Any, reply: Reply) -> None:
        code = self.check(request.member_id, request.group_instance_id, request.generation_id)
        if code == OK and self.state is GroupState.PREPARING:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        if code != OK:
            reply(_synced(code))
            return
        member = self.members[request.member_id]
        self._alive(member)
        if self.state is GroupState.STABLE:
            reply(_synced(OK, member.assignment))
            return
        member.syncing = reply
        if request.member_id == self._leader:
            given = {each["member_id"]: each["assignment"] for each in request.assignments}
            self.state = GroupState.STABLE
            for other in self.members.values():
                other.assignment = given.get(other.member_id, b"")
                syncing, other.syncing = other.syncing, None
                if syncing is not None:
                    syncing(_synced(OK, other.assignment))

    # Staying and leaving

    def _heartbeat(self, client: str, request: Any, reply: Reply) -> None:
        code = self.check(request.member_id, request.group_instance_id, request.generation_id)
        if code == OK:
            self._alive(self.members[request.member_id])
            if self.state is GroupState.PREPARING:
                code = ErrorCode.REBALANCE_IN_PROGRESS
        reply(SimpleNamespace(error_code=code))

    def _alive(self, member: Member) -> None:
        if member.session is not None:
            self.world.cancel(member.session)
        member.session = self.world.after(member.session_ms, lambda: self._expire(member))

    def _expire(self, member: Member) -> None:
        if self.members.get(member.member_id) is not member:
            return
        if member.joining is not None or self.world.brokers_away:  # it waits for us; the next coordinator starts again
            self._alive(member)
            return
        self.world.note("group", f"the session of {member.member_id} has expired")
        self.world.happened("a session expires")
        self._remove(member)
        self._after_removal()

    def _leave(self, client: str, request: Any, reply: Reply) -> None:
        for leaving in request.members:
            member = self._static(leaving["group_instance_id"]) or self.members.get(leaving["member_id"])
            if member is not None:
                self._remove(member)
        self._after_removal()
        reply(SimpleNamespace(error_code=OK, members=[]))

    def _remove(self, member: Member) -> None:
        self.members.pop(member.member_id, None)
        self._removals[member.client] += 1
        if member.session is not None:
            self.world.cancel(member.session)
        for reply, answer in ((member.joining, _joined), (member.syncing, _synced)):
            if reply is not None:
                reply(answer(ErrorCode.UNKNOWN_MEMBER_ID))

    def _after_removal(self) -> None:
        if not self.members:
            self._stop_timer()
            self.state = GroupState.EMPTY
            self.generation += 1
        elif self.state is GroupState.PREPARING:
            self._maybe_complete_join()
        else:
            self._prepare()

    def _set_timer(self, ms: int, happen: Callable[[], None]) -> None:
        self._stop_timer()
        self._timer = self.world.after(ms, happen)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self.world.cancel(self._timer)
        self._timer = None

    # Offsets

    def _commit(self, client: str, request: Any, reply: Reply) -> None:
        code = self.check(request.member_id, request.group_instance_id, request.generation_id_or_member_epoch)
        if code == OK and self.state is GroupState.COMPLETING:
            code = ErrorCode.REBALANCE_IN_PROGRESS
        given = {
            TopicPartition(topic["name"], p["partition_index"]): OffsetAndMetadata(
                p["committed_offset"], p["committed_metadata"], p["committed_leader_epoch"]
            )
            for topic in request.topics
            for p in topic["partitions"]
        }
        if code == OK:
            self._alive(self.members[request.member_id])
            self._on_commit(client, given)
            self.offsets.committed |= given
        reply(SimpleNamespace(topics=[_partition(p, error_code=code) for p in given]))

    def _fetch(self, client: str, request: Any, reply: Reply) -> None:
        asked = [
            TopicPartition(topic["name"], number)
            for topic in request.groups[0]["topics"]
            for number in topic["partition_indexes"]
        ]
        unstable = any(partition in self.offsets.pending for partition in asked)
        if unstable:
            self.world.happened("committed offsets are not decided yet")
        code = ErrorCode.UNSTABLE_OFFSET_COMMIT if unstable else OK
        nothing = OffsetAndMetadata(-1, "")
        found = {partition: self.offsets.committed.get(partition, nothing) for partition in asked}
        topics = [
            _partition(
                p,
                error_code=OK,
                committed_offset=at.offset,
                metadata=at.metadata,
                committed_leader_epoch=at.leader_epoch,
            )
            for p, at in found.items()
        ]
        reply(SimpleNamespace(groups=[SimpleNamespace(error_code=code, topics=topics)]))


def _partition(partition: TopicPartition, **values: Any) -> Any:
    return SimpleNamespace(
        name=partition.topic, partitions=[SimpleNamespace(partition_index=partition.partition, **values)]
    )


def _joined(
    code: int,
    member_id: str = "",
    generation: int = -1,
    leader: str = "",
    members: list[Any] | None = None,
    skip_assignment: bool = False,
) -> Any:
    return SimpleNamespace(
        error_code=code,
        member_id=member_id,
        generation_id=generation,
        leader=leader,
        members=members or [],
        skip_assignment=skip_assignment,
    )


def _synced(code: int, assignment: bytes = b"") -> Any:
    return SimpleNamespace(error_code=code, assignment=assignment)
