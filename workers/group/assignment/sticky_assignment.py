"""The StickyTaskAssignor's algorithm: tasks stay with their client, as far as balance allows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Set

from penstock.topology.common.java_collections import copied_hash_order, grown_hash_order
from penstock.topology.records import TaskId

from .client_state import Clients, ClientState
from .java_hashes import process_hash, task_hash
from .spread import interleaved


def previous_active_tasks(clients: Clients, tasks: Set[TaskId]) -> list[TaskId]:
    """Return the clients' previous tasks, ordered so that each client keeps tasks of each sub-topology and its share of
    work.
    """
    return [
        task
        for number, client in enumerate(clients.values())
        for task in interleaved(client.previous_active_tasks & tasks, client.loads, number)
    ]


def has_unfulfilled_quota(client: ClientState, tasks_per_thread: int) -> bool:
    """Return whether a client has fewer active tasks per thread than this."""
    return len(client.active_tasks) < client.capacity * tasks_per_thread


class StickyAssignment:
    """One run of the StickyTaskAssignor.

    must_preserve_active: every task returns to its previous client, regardless of balance.
    """

    def __init__(self, clients: Clients, all_tasks: Collection[TaskId], must_preserve_active: bool) -> None:
        self._clients = clients
        self._all_tasks = all_tasks
        self._must_preserve_active = must_preserve_active
        self._pairs = _TaskPairs(len(all_tasks))
        self._previous_active: dict[TaskId, ClientState] = {}
        self._previous_standby: dict[TaskId, list[ClientState]] = defaultdict(list)
        for client in clients.values():
            self._previous_active.update(dict.fromkeys(sorted(client.previous_active_tasks), client))
            for task in client.previous_standby_tasks:
                self._previous_standby[task].append(client)

    def assign_active(self) -> None:
        """Assign each task to a client."""
        capacity = sum(client.capacity for client in self._clients.values())
        tasks_per_thread, extra = divmod(len(self._all_tasks), capacity)
        all_tasks = set(self._all_tasks)
        owned = previous_active_tasks(self._clients, all_tasks)
        rest = dict.fromkeys([*owned, *sorted(all_tasks)])

        def give(task: TaskId, client: ClientState) -> None:
            self._give(task, client, active=True)
            del rest[task]

        for task in list(rest):
            previous = self._previous_active.get(task)
            if previous and (self._must_preserve_active or has_unfulfilled_quota(previous, tasks_per_thread)):
                give(task, previous)

        def give_to_copies(tasks: Collection[TaskId]) -> None:
            for task in tasks:
                seen_by = (c for c in self._previous_standby[task] if has_unfulfilled_quota(c, tasks_per_thread))
                if client := next(seen_by, None):
                    give(task, client)

        # First those that no client runs: a task that was just given back for a client must not lose its place there to
        # another task, which would be given back next, and so on without an end.
        give_to_copies([task for task in rest if task not in self._previous_active])
        # In Kafka Streams tasks above the quota move in each rebalance; each such move costs two rounds.
        for task in list(rest):
            previous = self._previous_active.get(task)
            if previous and extra and has_unfulfilled_quota(previous, tasks_per_thread + 1):
                give(task, previous)
                extra -= 1
        give_to_copies(list(rest))
        for task in list(rest):
            give(task, self._find_client(task, list(self._clients.values())))

    def assign_standby(self, task: TaskId, count: int) -> int:
        """Assign up to count standby tasks; return how many were assigned."""
        for placed in range(count):
            free = [client for client in self._clients.values() if not client.has_assigned_task(task)]
            if not free:
                return placed
            self._give(task, self._find_client(task, self._ordered(free)), active=False)
        return count

    def in_order(self, stateful_tasks: Collection[TaskId]) -> list[TaskId]:
        """Return the tasks in the order in which their standby tasks are assigned."""
        return sorted(stateful_tasks)

    def _ordered(self, clients: list[ClientState]) -> list[ClientState]:
        """Return clients in the order that decides between equals."""
        return clients

    def _with_copy(self, task: TaskId) -> list[ClientState]:
        """Return the clients that had a standby task of it, in the order that decides between equals."""
        return self._previous_standby[task]

    def _give(self, task: TaskId, client: ClientState, active: bool) -> None:
        self._pairs.add(task, client)
        if active:
            client.assign_active(task)
        else:
            client.assign_standby(task)

    def _find_client(self, task: TaskId, candidates: list[ClientState]) -> ClientState:
        standby = self._least_loaded(task, [c for c in self._with_copy(task) if c in candidates])
        previous = self._previous_active.get(task)
        if previous is None or previous not in candidates:
            previous = standby
        if previous is not None and not self._should_balance_load(previous):
            return previous
        if previous is not None and standby is not None and not self._should_balance_load(standby):
            return standby
        found = self._least_loaded(task, candidates)
        assert found is not None, "no client to choose from; this is a bug"
        return found

    def _should_balance_load(self, client: ClientState) -> bool:
        reached_capacity = client.assigned_task_count >= client.capacity
        return reached_capacity and any(_has_more_available_capacity(c, client) for c in self._clients.values())

    def _least_loaded(self, task: TaskId, candidates: list[ClientState]) -> ClientState | None:
        """Return an idle client, else the least loaded client without a task paired with this one, else the least
        loaded one.
        """
        with_new_pair = [c for c in candidates if not c.assigned_task_count or self._pairs.has_new_pair(task, c)]
        return min(with_new_pair or candidates, key=_available_capacity, default=None)


def _available_capacity(client: ClientState) -> tuple[float, int]:
    return client.assigned_task_load, -client.capacity


def _has_more_available_capacity(client: ClientState, other: ClientState) -> bool:
    return _available_capacity(client) < _available_capacity(other)


class _TaskPairs:
    """Pairs of tasks that share a client, to avoid the same pair on every client."""

    def __init__(self, tasks: int) -> None:
        self._pairs: set[tuple[TaskId, TaskId]] = set()
        self._max = tasks * (tasks - 1) // 2

    def has_new_pair(self, task: TaskId, client: ClientState) -> bool:
        if len(self._pairs) == self._max:
            return False
        return any(_pair(task, other) not in self._pairs for other in _assigned(client))

    def add(self, task: TaskId, client: ClientState) -> None:
        self._pairs.update(_pair(task, other) for other in _assigned(client))


def _assigned(client: ClientState) -> set[TaskId]:
    return client.active_tasks | client.standby_tasks


def _pair(first: TaskId, second: TaskId) -> tuple[TaskId, TaskId]:
    return (first, second) if first < second else (second, first)


class StickyAssignmentOfKafkaStreams(StickyAssignment):
    """The same with Kafka Streams' exact result, for a group with members on Java.

    Kafka Streams visits tasks and clients in the order of its hash tables. Among clients without a task it takes the
    first one, regardless of threads; and it keeps no previous task above a client's quota.
    """

    def __init__(self, clients: Clients, all_tasks: Collection[TaskId], must_preserve_active: bool) -> None:
        met = sorted(clients.values(), key=lambda client: client.rank)
        ordered = {client.process_id: client for client in _in_hash_order(met)}
        super().__init__(ordered, all_tasks, must_preserve_active)

    def assign_active(self) -> None:
        """Assign each task to a client."""
        capacity = sum(client.capacity for client in self._clients.values())
        tasks_per_thread = len(self._all_tasks) // capacity
        rest = set(self._all_tasks)

        def give(task: TaskId, client: ClientState) -> None:
            self._give(task, client, active=True)
            rest.discard(task)

        for task in grown_hash_order(self._previous_active, task_hash):
            client = self._previous_active[task]
            if task in rest and (self._must_preserve_active or has_unfulfilled_quota(client, tasks_per_thread)):
                give(task, client)
        for task in [task for task in copied_hash_order(_grown(self._all_tasks), task_hash) if task in rest]:
            seen_by = _in_hash_order(self._previous_standby.get(task, ()))
            fitting = (client for client in seen_by if has_unfulfilled_quota(client, tasks_per_thread))
            if (found := next(fitting, None)) is not None:
                give(task, found)
        for task in sorted(rest):
            give(task, self._find_client(task, list(self._clients.values())))

    def in_order(self, stateful_tasks: Collection[TaskId]) -> list[TaskId]:
        """Return the tasks in the order in which their standby tasks are assigned."""
        return _grown(stateful_tasks)

    def _ordered(self, clients: list[ClientState]) -> list[ClientState]:
        return _in_hash_order(clients)

    def _with_copy(self, task: TaskId) -> list[ClientState]:
        return copied_hash_order(_in_hash_order(self._previous_standby[task]), _hash)

    def _least_loaded(self, task: TaskId, candidates: list[ClientState]) -> ClientState | None:
        idle = next((client for client in candidates if not client.assigned_task_count), None)
        return idle or super()._least_loaded(task, candidates)


def _grown(tasks: Collection[TaskId]) -> list[TaskId]:
    return grown_hash_order(sorted(tasks), task_hash)


def _in_hash_order(clients: Collection[ClientState]) -> list[ClientState]:
    return grown_hash_order(clients, _hash)


def _hash(client: ClientState) -> int:
    return process_hash(client.process_id)
