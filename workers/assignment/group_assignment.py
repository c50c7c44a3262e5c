"""The leader's two ends: what all members sent, as clients; and the clients' tasks, as what each member is sent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from uuid import UUID

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.records import TaskId

from ..membership.membership import MemberAssignment, MemberSubscription
from .client_state import Clients, ClientState, sorted_clients
from .subscription_info import LATEST_OFFSET, AssignmentInfo, AssignorError, Partitions, SubscriptionInfo
from .thread_assignment import assign_tasks_to_threads


@dataclass(frozen=True, slots=True)
class GroupSubscriptions:
    """The members' subscriptions.

    owners: of each task that members own now, its owner; None if several say so, in which case none may keep it.
    used_version: the lowest encoding in use; supported_version: the highest that all understand.
    """

    infos: Mapping[str, SubscriptionInfo]
    clients: Clients
    owners: Mapping[TaskId, str | None]
    used_version: int
    supported_version: int

    @classmethod
    def decode(cls, members: Mapping[str, MemberSubscription], latest_version: int) -> GroupSubscriptions:
        """Read them; raises TaskAssignmentError, which names the member."""
        infos = {
            member: SubscriptionInfo.decode(subscription.user_data, member, latest_version)
            for member, subscription in sorted(members.items())
        }
        owners: dict[TaskId, str | None] = {}
        for member, info in infos.items():
            for task in info.active_tasks:
                owners[task] = None if task in owners else member
        return cls(
            infos,
            _clients(infos),
            owners,
            min(latest_version, *(info.version for info in infos.values())),
            min(latest_version, *(info.latest_supported_version for info in infos.values())),
        )

    @property
    def shutdown_requested(self) -> bool:
        """True if a member wants the whole application to end."""
        return any(info.error is AssignorError.SHUTDOWN_REQUESTED for info in self.infos.values())

    def endpoint(self, client: ClientState) -> str:
        """Return the user endpoint of a client, empty without one."""
        return next((e for consumer in sorted(client.consumers) if (e := self.infos[consumer].user_endpoint)), "")


def _clients(infos: Mapping[str, SubscriptionInfo]) -> Clients:
    clients: dict[UUID, ClientState] = {}
    for member, info in infos.items():
        client = clients.setdefault(info.process_id, ClientState(info.process_id, dict(info.client_tags), info.rack))
        client.rack = info.rack if client.rack == info.rack else None
        client.consumers.add(member)
        client.previous_active_tasks |= info.active_tasks
        client.previous_standby_tasks |= info.standby_tasks | info.offset_sums.keys()
        client.previous_tasks[member] |= info.active_tasks | info.standby_tasks
        for task, offset in info.offset_sums.items():
            known = client.offset_sums.get(task, offset)
            client.offset_sums[task] = LATEST_OFFSET if LATEST_OFFSET in (known, offset) else max(known, offset)
    loads = {task: load for info in infos.values() for task, load in info.loads.items()}
    for client in clients.values():
        client.previous_standby_tasks -= client.previous_active_tasks
        client.loads = loads
    return sorted_clients(clients.values())


class GroupAssignment:
    """Deals each client's tasks out to its threads, and withholds what others still own.

    tasks: all tasks with their input partitions. leader: process id of the leader's client, one of whose members is
    told to join again at probing_rebalance_ms (ms since the epoch), None for no probing rebalance.
    """

    def __init__(
        self,
        subscriptions: GroupSubscriptions,
        tasks: Mapping[TaskId, Partitions],
        stateful: Collection[TaskId],
        leader: UUID,
        probing_rebalance_ms: int | None,
        log: PrefixedLogger,
    ) -> None:
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._stateful = stateful
        self._leader = leader
        self._probing_rebalance_ms = probing_rebalance_ms
        self._log = log
        self._withheld: dict[str, set[TaskId]] = {}

    def encoded(self) -> dict[str, MemberAssignment]:
        """Return what each member is sent."""
        clients = self._subscriptions.clients.values()
        active_by_host, standby_by_host = self._partitions_by_host()
        active: dict[str, dict[TaskId, Partitions]] = {}
        standby: dict[str, dict[TaskId, Partitions]] = {}
        for client in clients:
            self._assign_threads(client, active, standby)
        rebalances = self._next_rebalances()
        unstable = "an unstable" if rebalances else "a stable"
        self._log.info("Finished %s assignment of %d tasks to %d members.", unstable, len(self._tasks), len(active))
        return {
            member: MemberAssignment(
                [partition for partitions in active[member].values() for partition in partitions],
                AssignmentInfo(
                    self._subscriptions.used_version,
                    self._subscriptions.supported_version,
                    AssignorError.NONE,
                    active[member],
                    standby[member],
                    active_by_host,
                    standby_by_host,
                    rebalances.get(member),
                ).encode(),
            )
            for member in active
        }

    def _partitions_by_host(self) -> tuple[dict[str, Partitions], dict[str, Partitions]]:
        active, standby = {}, {}
        for client in self._subscriptions.clients.values():
            endpoint = self._subscriptions.endpoint(client)
            if endpoint:
                active[endpoint] = self._partitions(client.active_tasks)
                standby[endpoint] = self._partitions(client.standby_tasks)
        return active, standby

    def _partitions(self, tasks: Collection[TaskId]) -> Partitions:
        return frozenset(partition for task in tasks for partition in self._tasks[task])

    def _assign_threads(
        self,
        client: ClientState,
        active: dict[str, dict[TaskId, Partitions]],
        standby: dict[str, dict[TaskId, Partitions]],
    ) -> None:
        load: dict[str, int] = {}
        stateful = {task for task in client.active_tasks if task in self._stateful}
        stateful_by_thread = assign_tasks_to_threads(stateful, client, load)
        standby_by_thread = assign_tasks_to_threads(client.standby_tasks, client, load)
        stateless_by_thread = assign_tasks_to_threads(client.active_tasks - stateful, client, load)
        for consumer in sorted(client.consumers):
            planned = {*stateful_by_thread[consumer], *stateless_by_thread[consumer]}
            withheld = {task for task in planned if self._subscriptions.owners.get(task, consumer) != consumer}
            self._withheld[consumer] = withheld
            # Its own standby copy stays open until the active task arrives, lest its state be closed in between.
            kept = withheld & self._subscriptions.infos[consumer].standby_tasks
            active[consumer] = {task: self._tasks[task] for task in sorted(planned - withheld)}
            standby[consumer] = {task: self._tasks[task] for task in sorted({*standby_by_thread[consumer], *kept})}
            if withheld:
                self._log.info(
                    "Withholding tasks %s from %s until they are safely revoked in a followup rebalance.",
                    ", ".join(map(str, sorted(withheld))),
                    consumer,
                )

    def _next_rebalances(self) -> dict[str, int]:
        """Return which members shall join again, and when."""
        rebalances = {member: 0 for member, tasks in self._withheld.items() if tasks}
        if self._probing_rebalance_ms is not None:
            candidates = sorted(self._subscriptions.clients[self._leader].consumers - rebalances.keys())
            if candidates:  # else the followup rebalance comes first anyway
                rebalances[candidates[0]] = self._probing_rebalance_ms
        return rebalances
