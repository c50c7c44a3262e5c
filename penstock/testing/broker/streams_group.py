"""The members of a group with the streams protocol: the broker configures the topology and assigns its tasks
(KIP-1071).

Kafka: StreamsGroup, CurrentAssignmentBuilder, and the part of GroupMetadataManager about streams groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

from typing_extensions import override

from penstock.clients.group.streams_values import Status

from .errors import ApiError, ErrorCode
from .modern_group import JOIN_EPOCH, MemberState, ModernGroup, ModernMember
from .streams_topology import Configured, Topology, WrongTopicsError, configure, missing_status, topology_of
from .task_assignor import Task, Tasks, assign


@dataclass
class Held:
    """The tasks of a member: active ones with the epoch in which it got them, and standby tasks."""

    active: dict[Task, int] = field(default_factory=dict)
    standby: set[Task] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.active or self.standby)

    def shares(self, owned: Tasks) -> bool:
        """Return True if a member reports any of these tasks."""
        return bool(self.active.keys() & owned.active or self.standby & owned.standby)

    def without(self, wanted: Tasks) -> Held:
        """Return the tasks that a member must release."""
        active = {task: epoch for task, epoch in self.active.items() if task not in wanted.active}
        return Held(active, self.standby - wanted.standby)


@dataclass(eq=False)
class StreamsMember(ModernMember):
    """assigned: the tasks that it may run. revoking: those that it must release."""

    topology_epoch: int = -1
    process_id: str = ""
    user_endpoint: tuple[str, int] | None = None
    client_tags: dict[str, str] = field(default_factory=dict)
    task_offsets: list[object] = field(default_factory=list)
    task_end_offsets: list[object] = field(default_factory=list)
    assigned: Held = field(default_factory=Held)
    revoking: Held = field(default_factory=Held)

    def update(self, body: SimpleNamespace, client_id: str, client_host: str) -> bool:
        """Apply a heartbeat's fields, null for unchanged; return True if the member has changed."""
        before = self._about()
        self.hear(body, client_id, client_host)
        if body.topology is not None:
            self.topology_epoch = body.topology.epoch
        if body.process_id is not None:
            self.process_id = body.process_id
        if body.user_endpoint is not None:
            self.user_endpoint = body.user_endpoint.host, body.user_endpoint.port
        if body.client_tags is not None:
            self.client_tags = {tag.key: tag.value for tag in body.client_tags}
        if body.task_offsets is not None:
            self.task_offsets = body.task_offsets
        if body.task_end_offsets is not None:
            self.task_end_offsets = body.task_end_offsets
        return self._about() != before

    def _about(self) -> tuple[object, ...]:
        who = self.client_id, self.client_host, self.rack_id, self.rebalance_timeout_ms
        return (*who, self.topology_epoch, self.process_id, self.user_endpoint, self.client_tags)


@dataclass(frozen=True)
class Heard:
    """The result of a heartbeat. is_new: whether the member must receive its tasks. tells_hosts: whether it must
    receive the hosts of all members.
    """

    member: StreamsMember
    is_new: bool
    statuses: list[tuple[Status, str]]
    tells_hosts: bool
    endpoint_epoch: int


@dataclass(eq=False)
class StreamsGroup(ModernGroup[StreamsMember, Tasks]):
    """A state machine with timeouts, which expire() applies."""

    group_type: ClassVar[str] = "streams"
    protocol_type = "streams"

    topology: Topology | None = None
    configured: Configured | None = None
    #: Counts the changes of the partitions at members' endpoints.
    endpoint_epoch: int = 0
    #: The member that requested the shutdown of the whole application.
    _shutdown_by: str | None = None
    #: The basis of an epoch: the topics with their ids and partition counts, and the number of standbys.
    _basis: tuple[object, ...] = ()
    _wrong: WrongTopicsError | None = None

    @property
    @override
    def state_name(self) -> str:
        if self.members and (self.configured is None or self.configured.missing):
            return "NotReady"
        return super().state_name

    # -- heartbeats

    def heartbeat(self, body: SimpleNamespace, client_id: str, client_host: str) -> Heard:
        """Add a member, or apply its heartbeat. Raises ApiError."""
        is_first = self.topology is None
        owned = None if body.active_tasks is None else Tasks(tasks_of(body.active_tasks), tasks_of(body.standby_tasks))
        topology = self._topology(body.topology)
        if body.member_epoch == JOIN_EPOCH:
            member = self.joining(body.member_id, body.instance_id, StreamsMember)
        else:
            member = self.known(body, lambda one: owned is not None and _within(owned, one.assigned))
        changed = member.update(body, client_id, client_host)
        self.topology = topology
        statuses = self._stale(member)
        self._configure(changed)
        self._check_tasks(owned)
        before = member.assigned
        self._reconcile(member, owned)
        member.heard_ms = self.cluster.now_ms
        if body.shutdown_application:
            self._shutdown_by = member.id
        is_new = body.member_epoch == JOIN_EPOCH or before != member.assigned
        if is_new and member.user_endpoint is not None:
            self.endpoint_epoch += 1
        tells_hosts = self.endpoint_epoch != body.endpoint_information_epoch
        endpoint_epoch = self.endpoint_epoch
        if is_first:  # Kafka drops it together with the state prepared for a group that did not exist yet
            self.endpoint_epoch = endpoint_epoch = 0
        return Heard(member, is_new, [*statuses, *self._statuses()], tells_hosts, endpoint_epoch)

    def leave_streams(self, body: SimpleNamespace) -> None:
        """Remove a member, which may request the shutdown of the others. Raises ApiError."""
        self.leave(body)
        if body.shutdown_application:
            self._shutdown_by = body.member_id

    def _topology(self, said: SimpleNamespace | None) -> Topology:
        if said is None:
            assert self.topology is not None, "a member that has joined has said its topology"
            return self.topology
        topology = topology_of(said)
        if self.topology is None or self.topology == topology:
            return topology
        if self.topology.epoch > topology.epoch:
            return self.topology
        raise ApiError(ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet.")

    def _stale(self, member: StreamsMember) -> list[tuple[Status, str]]:
        assert self.topology is not None
        if member.topology_epoch >= self.topology.epoch:
            return []
        said = (
            f"The member's topology epoch {member.topology_epoch} is behind the group's topology epoch "
            f"{self.topology.epoch}."
        )
        return [(Status.STALE_TOPOLOGY, said)]

    def _statuses(self) -> list[tuple[Status, str]]:
        found = []
        if self._wrong is not None:
            found.append((self._wrong.status, str(self._wrong)))
        elif self.configured is not None and (missing := missing_status(self.configured)):
            found.append(missing)
        if self._shutdown_by is not None:
            said = (
                f"Streams group member {self._shutdown_by} encountered a fatal error and requested a shutdown for the "
                "entire application."
            )
            found.append((Status.SHUTDOWN_APPLICATION, said))
        return found

    # -- topics and tasks

    @property
    def _standbys(self) -> int:
        return self.setting("num.standby.replicas")

    def _configure(self, changed: bool) -> None:
        """Begin an epoch if a member, the topics or the settings have changed, and compute its target."""
        assert self.topology is not None
        counts = {
            topic.name: len(topic.partitions)
            for topic in self.cluster.topics.values()
            if topic.name in self.topology.topics
        }
        basis = (*sorted((name, count, self.cluster.topics[name].id) for name, count in counts.items()), self._standbys)
        if changed or basis != self._basis:
            self._basis = basis
            self.bump()
        self.configured = self._wrong = None
        try:
            self.configured = configure(self.topology, counts)
        except WrongTopicsError as error:
            self._wrong = error
        if self.epoch > self.target_epoch:
            self.target = self._assigned()
            self.target_epoch = self.epoch

    def _assigned(self) -> dict[str, Tasks]:
        assert self.topology is not None
        if self.configured is None or self.configured.missing:
            return {}
        tasks = [Task(found, number) for found, count in self.configured.tasks.items() for number in range(count)]
        processes = {member.id: member.process_id for member in self.members.values()}
        stateful = {found.id for found in self.topology.subtopologies if found.is_stateful}
        return assign(processes, self.target, tasks, stateful, self._standbys)

    def create_missing_topics(self) -> None:
        """Create the internal topics that the topology needs. Raises ApiError."""
        if self.topology is None or self.configured is None:
            return
        for name in self.configured.missing:
            topic = self.topology.internal_topics[name]
            config = {one["key"]: one["value"] for one in topic["topic_configs"]}
            self.cluster.create_topic(name, self.configured.partitions[name], topic["replication_factor"] or -1, config)

    def _check_tasks(self, owned: Tasks | None) -> None:
        """Raise ApiError for tasks that the topology does not have."""
        if owned is None or self.configured is None or self.configured.missing:
            return
        for task in sorted(owned.active | owned.standby):
            count = self.configured.tasks.get(task.subtopology)
            if count is None:
                said = f"Subtopology {task.subtopology} does not exist in the topology."
                raise ApiError(ErrorCode.INVALID_REQUEST, said)
            if not 0 <= task.partition < count:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"Task {task.partition} for subtopology {task.subtopology} is invalid. Number of tasks for this "
                    f"subtopology: {count}",
                )

    def _reconcile(self, member: StreamsMember, owned: Tasks | None) -> None:
        """Bring a member one step closer to its target (Kafka: CurrentAssignmentBuilder).

        owned: the tasks that it reports.
        """
        if member.state is MemberState.STABLE and member.epoch == self.target_epoch:
            return
        if member.state is MemberState.UNREVOKED and (owned is None or member.revoking.shares(owned)):
            return
        wanted = self.target.get(member.id, Tasks())
        revoking = member.assigned.without(wanted)
        kept = Held(
            {task: epoch for task, epoch in member.assigned.active.items() if task in wanted.active},
            member.assigned.standby & wanted.standby,
        )
        if revoking and (owned is None or revoking.shares(owned)):
            member.move(MemberState.UNREVOKED, member.epoch)
            member.assigned, member.revoking = kept, revoking
            member.revoke_until = self.cluster.now_ms + member.rebalance_timeout_ms
            return
        active = {task for task in wanted.active - kept.active.keys() if self._is_free(task, member, active=True)}
        standby = {task for task in wanted.standby - kept.standby if self._is_free(task, member, active=False)}
        has = Held({**kept.active, **dict.fromkeys(active, self.target_epoch)}, kept.standby | standby)
        waits = has.active.keys() != wanted.active or has.standby != wanted.standby
        member.move(MemberState.UNRELEASED if waits else MemberState.STABLE, self.target_epoch)
        member.assigned, member.revoking = has, Held()

    def _is_free(self, task: Task, member: StreamsMember, active: bool) -> bool:
        """Return True if a task may be assigned: one member runs it, and each process has it at most once."""
        for other in self.members.values():
            same = other.process_id == member.process_id
            for held in (other.assigned, other.revoking):
                if (task in held.active and (active or same)) or (task in held.standby and same):
                    return False
        return True

    # -- leaving

    @override
    def left_for_a_while(self, member: StreamsMember) -> None:
        member.revoking = Held()

    @override
    def remove(self, member: StreamsMember) -> None:
        super().remove(member)
        if not self.members:
            self._shutdown_by = None

    # -- offsets

    @override
    def assigned_in(self, member: StreamsMember, topic: str, number: int) -> int:
        for found in self.topology.subtopologies if self.topology else ():
            if topic in found.read_topics:
                task = Task(found.id, number)
                return member.assigned.active.get(task, member.revoking.active.get(task, member.epoch))
        return member.epoch


def tasks_of(said: Iterable[SimpleNamespace] | None) -> set[Task]:
    """Return a message's tasks."""
    return {Task(one.subtopology_id, number) for one in said or () for number in one.partitions}


def _within(owned: Tasks, held: Held) -> bool:
    return owned.active <= held.active.keys() and owned.standby <= held.standby
