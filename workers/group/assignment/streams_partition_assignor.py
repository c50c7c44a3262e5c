"""The partition assignor: a member's subscription, the leader's decision, and each member's assignment.

Kafka Streams: StreamsPartitionAssignor (KIP-429, KIP-441). A task that another member still owns is withheld; its new
owner gets it in a follow-up rebalance. Both trigger that rebalance: the old owner when it has closed the task, the new
one immediately. So no member stops a task that it keeps, and no task runs twice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import InitVar, dataclass, field, replace
from functools import partial
from uuid import UUID

from penstock.clients.clock import Clock
from penstock.clients.group.membership import Assigned, Joining, MemberAssignment, MemberSubscription
from penstock.clients.group.streams_values import TasksGiven
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import MissingSourceTopicError, StreamsError, TaskAssignmentError
from penstock.topology.records import TaskId, TopicPartition

from .assignment_info import AssignmentInfo
from .changelog_offsets import ChangelogOffsets
from .client_state import AssignmentConfigs, Clients
from .group_assignment import GroupMembers, GroupSubscriptions, host_and_port
from .group_gate import ADVICE, OtherTopologyError, refuse_to_lead, unfit
from .rack_aware import RackAwareOptimizer, rack_aware_optimizer
from .spread import Loads
from .subscription_info import (
    LATEST_SUPPORTED_VERSION,
    PROBING_VERSION,
    UNKNOWN_OFFSET_SUM,
    AssignorError,
    Partitions,
    SubscriptionInfo,
)
from .task_assignors import (
    FallbackPriorTaskAssignor,
    HighAvailabilityTaskAssignor,
    StickyTaskAssignor,
    TaskAssignor,
    validate_task_assignment,
)
from .topics_info import TopicsInfo, partition_groups, topology_digest

PartitionRacks = Mapping[TopicPartition, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Assignment:
    """A member's assignment. next_rebalance_in_ms: when to join again: 0 immediately, None not by itself.

    With an error there are no tasks, and the stream thread shuts down with error.description; SHUTDOWN_REQUESTED
    concerns the whole application. partitions_by_host: the input partitions of each user endpoint, for queries.
    """

    active: Mapping[TaskId, Partitions] = field(default_factory=dict)
    standby: Mapping[TaskId, Partitions] = field(default_factory=dict)
    partitions_by_host: Mapping[str, Partitions] = field(default_factory=dict)
    standby_partitions_by_host: Mapping[str, Partitions] = field(default_factory=dict)
    next_rebalance_in_ms: int | None = None
    error: AssignorError = AssignorError.NONE


def create_task_assignor(config: StreamsConfig) -> TaskAssignor:
    """Return the assignor named by ``task.assignor.class``: one of Penstock's, or the user's object."""
    named = config["task.assignor.class"]
    ours: dict[str | None, type[TaskAssignor]] = {
        None: HighAvailabilityTaskAssignor,
        "HighAvailabilityTaskAssignor": HighAvailabilityTaskAssignor,
        "StickyTaskAssignor": StickyTaskAssignor,
    }
    if named is None or isinstance(named, str):
        return ours[named]()
    user_assignor: TaskAssignor = named() if isinstance(named, type) else named
    return user_assignor


@dataclass(eq=False)
class StreamsPartitionAssignor:
    """The assignor of one member. assign() runs in the leader only, on its own thread; the rest in the stream thread.

    process_id: of the application instance, kept in its state directory. config: a StreamsConfig. latest_version: the
    highest encoding this member understands. rack: client.rack. facts: for SubscriptionInfo.facts.
    """

    config: InitVar[StreamsConfig]
    process_id: UUID
    offsets: ChangelogOffsets
    clock: Clock
    log: PrefixedLogger
    client_tags: InitVar[Mapping[str, str] | None] = None
    latest_version: int = LATEST_SUPPORTED_VERSION
    rack: str = ""
    facts: bytes = b""

    def __post_init__(self, config: StreamsConfig, client_tags: Mapping[str, str] | None) -> None:
        self._configs = AssignmentConfigs.of(config)
        self._task_assignor = create_task_assignor(config)
        self._user_endpoint: str = config["application.server"] or ""
        self._client_tags = dict(client_tags or {})
        self._used_version = self.latest_version
        self._has_been_assigned = False
        self._unique_field = 0
        self._topics: tuple[Mapping[int, TopicsInfo], Mapping[str, int], PartitionRacks] = ({}, {}, {})

    def update_topics(
        self,
        topics: Mapping[int, TopicsInfo],
        partition_counts: Mapping[str, int],
        partition_racks: PartitionRacks | None = None,
    ) -> None:
        """Set the current topics of the sub-topologies and their partition counts; call it before each join.

        partition_racks: the racks of each partition's replicas, for a rack.aware.assignment.strategy.
        """
        # Replaced as a whole, because assign() reads it in another thread.
        self._topics = (topics, partition_counts, partition_racks or {})

    @property
    def source_topics(self) -> frozenset[str]:
        """All topics that the application reads; the member subscribes to them."""
        return frozenset(topic for info in self._topics[0].values() for topic in info.source_topics)

    def joining(
        self,
        active: Collection[TaskId],
        standby: Collection[TaskId],
        offset_sums: Mapping[TaskId, int],
        error: AssignorError = AssignorError.NONE,
        loads: Loads | None = None,
    ) -> Joining:
        """Return what the thread joins with; no two subscriptions are equal.

        active, standby: tasks that this thread owns. offset_sums: see SubscriptionInfo; unknown ones are not sent.
        error: SHUTDOWN_REQUESTED ends the whole application. loads: measured loads of active tasks.
        """
        self._unique_field += 1
        info = SubscriptionInfo(
            self._used_version,
            self.latest_version,
            self.process_id,
            frozenset(active),
            frozenset(standby),
            {task: offset for task, offset in offset_sums.items() if offset != UNKNOWN_OFFSET_SUM},
            self._user_endpoint,
            self._client_tags,
            self._unique_field,
            error,
            topology_digest(self._topics[0]),
            self.facts,
            loads or {},
        )
        return Joining(info.report(), partial(self._subscription, info))

    def _subscription(self, info: SubscriptionInfo) -> MemberSubscription:
        topics, counts, _ = self._topics
        known = ((topics[task.subtopology], task.partition) for task in info.active_tasks if task.subtopology in topics)
        owned = frozenset(p for part, number in known for p in part.input_partitions(number, counts))
        return MemberSubscription(info.encode(), self.source_topics, owned, self.rack)

    def assign(self, members: Mapping[str, MemberSubscription]) -> dict[str, MemberAssignment]:
        """Assign tasks to the whole group; an error is sent to all members.

        Raises OtherTopologyError if the other members run another topology, which this member cannot assign.
        """
        version = self.latest_version
        try:
            subscriptions = GroupSubscriptions.decode(members, version)
            version = subscriptions.used_version
            if subscriptions.shutdown_requested:
                return self._error_assignment(members, AssignorError.SHUTDOWN_REQUESTED, version)
            return self._assign(subscriptions)
        except OtherTopologyError:
            raise  # concerns this member only; the others continue without it
        except (TaskAssignmentError, MissingSourceTopicError) as error:
            self.log.error("Caught an error in the task assignment. Returning an error assignment. %s", error)
            incomplete = isinstance(error, MissingSourceTopicError)
            code = AssignorError.INCOMPLETE_SOURCE_TOPIC_METADATA if incomplete else AssignorError.ASSIGNMENT_ERROR
            return self._error_assignment(members, code, version)

    def _error_assignment(
        self, members: Mapping[str, MemberSubscription], error: AssignorError, version: int
    ) -> dict[str, MemberAssignment]:
        user_data = AssignmentInfo(version, version, error).encode()
        return {member: MemberAssignment((), user_data) for member in members}

    def _assign(self, subscriptions: GroupSubscriptions) -> dict[str, MemberAssignment]:
        topics, counts, _ = self._topics
        self._tell_other_topologies(subscriptions, topology_digest(topics))
        missing = self.source_topics - counts.keys()
        if missing or not topics:
            raise MissingSourceTopicError(f"Missing source topics: {', '.join(sorted(missing)) or 'none are known'}.")
        tasks = partition_groups(topics, counts)
        refuse_to_lead(subscriptions.infos, {m: s.owned for m, s in subscriptions.members.items()}, topics)
        stateful = {task for task in tasks if topics[task.subtopology].changelog_topics}
        members = GroupMembers(subscriptions, tasks)
        probing_needed = self._assign_tasks_to_clients(members, tasks, stateful)
        probing_ms = self.clock.wall_clock_ms() + self._configs.probing_rebalance_interval_ms
        return members.assignments(stateful, self.process_id, probing_ms if probing_needed else None, self.log)

    def _assign_tasks_to_clients(
        self, members: GroupMembers, tasks: Mapping[TaskId, Partitions], stateful: set[TaskId]
    ) -> bool:
        """Return True if a probing rebalance is needed."""
        assignor, clients = self._task_assignor, members.clients
        # A leader on Java would undo the spreading: tasks would move each time the leader changes.
        configs = self._configs if members.all_penstock else replace(self._configs, spread=False)
        try:
            end_offset_sums = self._end_offset_sums(stateful)
        except StreamsError as error:
            self.log.info(
                "Failed to retrieve all end offsets for changelogs, and hence could not calculate the per-task lag; "
                "this is not a fatal error but would cause the assignor to fallback to a naive algorithm: %s",
                error,
            )
            if not isinstance(assignor, StickyTaskAssignor):  # the assignor ignores lags
                assignor = FallbackPriorTaskAssignor()
        else:
            for client in clients.values():
                client.compute_task_lags(end_offset_sums)
        self.log.info(
            "%d client nodes and %d consumers participating in this rebalance, %d stateful and %d stateless tasks.",
            len(clients),
            len(members.infos),
            len(stateful),
            len(tasks) - len(stateful),
        )
        if isinstance(assignor, HighAvailabilityTaskAssignor | StickyTaskAssignor):
            racks = self._rack_aware_optimizer(clients, tasks, stateful)
            probing_needed = assignor.assign(clients, tasks.keys(), stateful, configs, racks)
        else:
            probing_needed = assignor.assign(clients, tasks.keys(), stateful, configs)
        validate_task_assignment(clients, tasks.keys())
        return probing_needed

    def _rack_aware_optimizer(
        self, clients: Clients, tasks: Mapping[TaskId, Partitions], stateful: set[TaskId]
    ) -> RackAwareOptimizer | None:
        changelogs = self._changelogs(stateful) if self._configs.num_standby_replicas else {}
        strategy, racks = self._configs.rack_aware_assignment_strategy, self._topics[2]
        return rack_aware_optimizer(strategy, clients, tasks, changelogs, racks, self.log)

    def _changelogs(self, stateful: set[TaskId]) -> dict[TaskId, list[TopicPartition]]:
        topics = self._topics[0]
        return {
            task: [TopicPartition(topic, task.partition) for topic in topics[task.subtopology].changelog_topics]
            for task in stateful
        }

    def _tell_other_topologies(self, subscriptions: GroupSubscriptions, own: str) -> None:
        others = [member for member, info in subscriptions.infos.items() if info.topology not in ("", own)]
        if others:
            self.log.error(
                "The topology of members %s is not that of this member, which leads the group: their stores or "
                "repartition topics differ. All members of an application must run the same topology. Are there two "
                "applications with the same application.id, or two versions of a program?",
                ", ".join(others),
            )

    def _end_offset_sums(self, stateful: set[TaskId]) -> dict[TaskId, int]:
        """Return the sum of the end offsets of each stateful task's changelogs."""
        topics, changelogs = self._topics[0], self._changelogs(stateful)
        # For a source topic that serves as changelog, records not consumed yet are no lag of the state.
        sources = {topic for info in topics.values() for topic in info.source_changelog_topics}
        partitions = {partition for found in changelogs.values() for partition in found}
        ends = {
            **self.offsets.end_offsets([p for p in partitions if p.topic not in sources]),
            **self.offsets.committed_offsets([p for p in partitions if p.topic in sources]),
        }
        return {task: sum(ends[partition] for partition in found) for task, found in changelogs.items()}

    def on_assignment(self, part: MemberAssignment | Assigned) -> Assignment:
        """Take this member's assignment; raises TaskAssignmentError for an invalid one."""
        if isinstance(part, Assigned) and part.tasks is not None:
            return self._on_given(part.tasks)
        info = AssignmentInfo.decode(part.user_data, part.active, self.latest_version)
        if info.error is not AssignorError.NONE:
            return Assignment(error=info.error)
        if info.version > self._used_version:
            raise TaskAssignmentError(
                f"Sent a version {self._used_version} subscription but got an assignment with higher version "
                f"{info.version}."
            )
        if info.commonly_supported_version > self.latest_version:
            raise TaskAssignmentError("Can't upgrade to metadata version greater than we support")
        refused = self._refused(info.active, info.standby)
        if refused is not None:
            return refused
        return Assignment(
            info.active,
            info.standby,
            info.partitions_by_host,
            info.standby_partitions_by_host,
            0 if self._must_rejoin(info) else self._time_until(info.next_rebalance_ms),
        )

    def _on_given(self, given: TasksGiven) -> Assignment:
        """Take what the broker has assigned (KIP-1071)."""
        if given.shutdown_application:
            return Assignment(error=AssignorError.SHUTDOWN_REQUESTED)
        refused = self._refused(given.active, given.standby)
        if refused is not None:
            return refused
        active, standby = ({host_and_port(name): found for name, found in hosts.items()} for hosts in given.hosts)
        return Assignment(given.active, given.standby, active, standby, 0 if given.taken else None)

    def _refused(self, active: Mapping[TaskId, Partitions], standby: Mapping[TaskId, Partitions]) -> Assignment | None:
        """Return what to do in place of tasks that do not fit this topology, None if they do.

        Join once more: a static member that returns quickly gets its previous topology's assignment.
        """
        reason = unfit({**active, **standby}, self._topics[0])
        was_assigned, self._has_been_assigned = self._has_been_assigned, True
        if reason is None:
            return None
        said = f"The group's leader assigned a task of another topology: {reason}"
        if was_assigned:
            raise OtherTopologyError(f"{said} {ADVICE}")
        self.log.info("%s Rebalancing again, in case it is this member's previous assignment.", said)
        return Assignment(next_rebalance_in_ms=0)

    def _time_until(self, next_rebalance_ms: int | None) -> int | None:
        """Return the time until then, limited to the probing interval in case a clock has jumped."""
        if next_rebalance_ms is None:
            return None
        remaining = next_rebalance_ms - self.clock.wall_clock_ms()
        return min(max(remaining, 0), self._configs.probing_rebalance_interval_ms)

    def _must_rejoin(self, info: AssignmentInfo) -> bool:
        """Return True after version probing, and if the group knows another endpoint of this static member."""
        common = info.commonly_supported_version
        probed = (
            info.version >= PROBING_VERSION
        )  # otherwise the leader does not send the version that all members support
        if probed and (common > self._used_version or info.version < self._used_version):
            self.log.info(
                "Sent a version %d subscription and got version %d assignment back; using version %d, which all "
                "members support, and rebalancing again (version probing).",
                self._used_version,
                info.version,
                common,
            )
            self._used_version = common
            return True
        endpoint = host_and_port(self._user_endpoint)
        if endpoint and info.partitions_by_host and endpoint not in info.partitions_by_host:
            self.log.info("Rebalancing again to inform the group of the new host endpoint %s.", self._user_endpoint)
            return True
        return False
