"""The leader's input and output: members' subscriptions as clients, and the clients' tasks as members' assignments."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from penstock.clients.group.membership import MemberAssignment, MemberSubscription
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.common.java_collections import grown_hash_order, string_hash
from penstock.topology.records import TaskId

from .assignment_info import AssignmentInfo
from .client_state import Clients, ClientState, sorted_clients
from .subscription_info import LATEST_OFFSET, AssignorError, Partitions, SubscriptionInfo
from .thread_assignment import Role, assign_as_kafka_streams, spread_over_threads


@dataclass(frozen=True, slots=True)
class GroupSubscriptions:
    """The members' subscriptions.

    used_version: the lowest encoding in use; supported_version: the highest that all understand.
    """

    members: Mapping[str, MemberSubscription]
    infos: Mapping[str, SubscriptionInfo]
    used_version: int
    supported_version: int

    @classmethod
    def decode(cls, members: Mapping[str, MemberSubscription], latest_version: int) -> GroupSubscriptions:
        """Decode them; raises TaskAssignmentError with the member's id."""
        infos = {
            member: SubscriptionInfo.decode(subscription.user_data, member, latest_version)
            for member, subscription in sorted(members.items())
        }
        return cls(
            members,
            infos,
            min(latest_version, *(info.version for info in infos.values())),
            min(latest_version, *(info.latest_supported_version for info in infos.values())),
        )

    @property
    def shutdown_requested(self) -> bool:
        """True if a member has requested a shutdown of the whole application."""
        return any(info.error is AssignorError.SHUTDOWN_REQUESTED for info in self.infos.values())


class GroupMembers:
    """The members, grouped into clients, and the tasks they own. tasks: all tasks with their input partitions.

    owners: the owner of each task that is owned now; None if several members claim it, in which case none keeps it.
    """

    def __init__(self, subscriptions: GroupSubscriptions, tasks: Mapping[TaskId, Partitions]) -> None:
        self.infos = subscriptions.infos
        #: Whether no member runs on Java, as far as their versions can be read.
        self.all_penstock = all(info.is_penstock for info in self.infos.values())
        self._subscriptions = subscriptions
        self._tasks = tasks
        self.owners: dict[TaskId, str | None] = {}
        task_of = {partition: task for task, partitions in tasks.items() for partition in partitions}
        self._owned: dict[str, set[TaskId]] = {}
        for member in self.infos:
            owned = {task_of[p] for p in subscriptions.members[member].owned if p in task_of}
            self._owned[member] = owned
            for task in owned:
                self.owners[task] = None if task in self.owners else member
        self.clients = self._clients()

    def endpoint(self, client: ClientState) -> str:
        """Return the user endpoint of a client as host:port, empty if missing or invalid."""
        texts = (self.infos[consumer].user_endpoint for consumer in sorted(client.consumers))
        return next((found for text in texts if (found := host_and_port(text))), "")

    def _clients(self) -> Clients:
        clients: dict[UUID, ClientState] = {}
        for member, info in self.infos.items():
            rack = self._subscriptions.members[member].rack
            client = clients.setdefault(info.process_id, ClientState(info.process_id, dict(info.client_tags), rack))
            client.rack = rack if client.rack == rack else None
            client.consumers.add(member)
            client.previous_active_tasks |= self._owned[member]
            client.previous_standby_tasks |= info.standby_tasks
            client.previous_tasks[member] |= self._owned[member] | info.active_tasks | info.standby_tasks
            client.previous_stateful_tasks[member] = frozenset(info.offset_sums)
            for task, offset in info.offset_sums.items():
                known = client.offset_sums.get(task, offset)
                client.offset_sums[task] = LATEST_OFFSET if LATEST_OFFSET in (known, offset) else max(known, offset)
        met = enumerate(grown_hash_order(self._subscriptions.members, string_hash))
        for rank, member in sorted(met, reverse=True):
            clients[self.infos[member].process_id].rank = rank
        loads = {task: load for info in self.infos.values() for task, load in info.loads.items()}
        for client in clients.values():
            running = {task for task, offset in client.offset_sums.items() if offset == LATEST_OFFSET}
            client.previous_active_tasks |= running
            client.previous_standby_tasks |= client.offset_sums.keys()
            client.previous_standby_tasks -= client.previous_active_tasks
            client.loads = loads
        return sorted_clients(clients.values())

    def assignments(
        self, stateful: Collection[TaskId], leader: UUID, probing_rebalance_ms: int | None, log: PrefixedLogger
    ) -> dict[str, MemberAssignment]:
        """Distribute each client's tasks over its threads, withhold those that others still own, and encode the result.

        leader: process id of the leader's client, one of whose members joins again at probing_rebalance_ms (ms since
        the epoch); None: no probing rebalance.
        """
        active: dict[str, dict[TaskId, Partitions]] = {}
        standby: dict[str, dict[TaskId, Partitions]] = {}
        rebalances: dict[str, int] = {}
        for client in self.clients.values():
            for consumer, (planned, planned_standby) in self._planned(client, stateful).items():
                withheld = {task for task in planned if self.owners.get(task, consumer) != consumer}
                # Its own standby task stays open until the active task arrives, so the state is not closed in between.
                kept = withheld & self.infos[consumer].standby_tasks
                active[consumer] = {task: self._tasks[task] for task in sorted(planned - withheld)}
                standby[consumer] = {task: self._tasks[task] for task in sorted(planned_standby | kept)}
                if withheld:
                    rebalances[consumer] = 0
                    log.info(
                        "Withholding tasks %s from %s until they are safely revoked in a followup rebalance.",
                        ", ".join(map(str, sorted(withheld))),
                        consumer,
                    )
        if probing_rebalance_ms is not None:
            for consumer in sorted(self.clients[leader].consumers - rebalances.keys())[:1]:
                rebalances[consumer] = probing_rebalance_ms  # without one, the followup rebalance is earlier anyway
        unstable = "an unstable" if rebalances else "a stable"
        log.info("Finished %s assignment of %d tasks to %d members.", unstable, len(self._tasks), len(active))
        by_host = self._by_host(lambda client: client.active_tasks), self._by_host(lambda client: client.standby_tasks)
        used, supported = self._subscriptions.used_version, self._subscriptions.supported_version
        infos = {
            member: AssignmentInfo(
                used, supported, AssignorError.NONE, active[member], standby[member], *by_host, rebalances.get(member)
            )
            for member in active
        }
        return {member: MemberAssignment(info.active_partitions, info.encode()) for member, info in infos.items()}

    def _planned(self, client: ClientState, stateful: Collection[TaskId]) -> dict[str, tuple[set[TaskId], set[TaskId]]]:
        """Return the active and the standby tasks of each thread of a client."""
        load: dict[str, int] = {}
        assign = spread_over_threads if self.all_penstock else assign_as_kafka_streams
        with_state = {task for task in client.active_tasks if task in stateful}
        stateful_by_thread = assign(with_state, client, load, Role.STATEFUL)
        standby_by_thread = assign(client.standby_tasks, client, load, Role.STANDBY)
        stateless_by_thread = assign(client.active_tasks - with_state, client, load, Role.STATELESS)
        return {
            consumer: (
                {*stateful_by_thread[consumer], *stateless_by_thread[consumer]},
                set(standby_by_thread[consumer]),
            )
            for consumer in sorted(client.consumers)
        }

    def _by_host(self, tasks: Callable[[ClientState], Collection[TaskId]]) -> dict[str, Partitions]:
        """Return the input partitions of these tasks of each client that has a user endpoint."""
        hosts = {self.endpoint(client): client for client in self.clients.values()}
        return {
            endpoint: frozenset(partition for task in tasks(client) for partition in self._tasks[task])
            for endpoint, client in hosts.items()
            if endpoint
        }


_ENDPOINT = re.compile(r".*?\[?([0-9a-zA-Z\-%._:]*)\]?:([0-9]+)")


def host_and_port(endpoint: str) -> str:
    """Return an ``application.server`` in Kafka Streams' form, empty for none.

    Without scheme, brackets, and leading zeros of the port, because the port is encoded as a number.
    """
    match = _ENDPOINT.fullmatch(endpoint)
    return f"{match[1]}:{int(match[2])}" if match else ""
