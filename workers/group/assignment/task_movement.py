"""Keeps tasks where their state is until the planned client has caught up (Kafka Streams: TaskMovement, KIP-441)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from uuid import UUID

from penstock.topology.common.java_collections import PriorityQueue, grown_hash_order
from penstock.topology.records import TaskId

from .client_state import AssignmentConfigs, Clients, ClientState
from .java_hashes import process_hash
from .subscription_info import LATEST_OFFSET

#: An acceptable.recovery.lag that accepts everything (Java's Long.MAX_VALUE).
UNBOUNDED = 2**63 - 1

_Suits = Callable[[ClientState], bool]


class ConstrainedPrioritySet:
    """Clients by their load, as Kafka Streams' set keeps them. clients: the initial clients, in insertion order.

    Loads change while clients are in the queue, so the result depends on the shape of the heap. The heap is therefore
    the one of Java.
    """

    def __init__(self, clients: Iterable[ClientState]) -> None:
        self._queue = PriorityQueue[ClientState](lambda client: (client.assigned_task_load, client.order))
        self.offer(clients)

    def poll(self, suits: Callable[[ClientState], bool]) -> ClientState | None:
        """Remove and return the suitable client with the least load, None if there is none."""
        passed_over: list[ClientState] = []
        found = None
        while found is None and len(self._queue):
            client = self._queue.poll()
            if suits(client):
                found = client
            else:
                passed_over.append(client)
        self.offer(grown_hash_order(passed_over, lambda client: process_hash(client.process_id)))
        return found

    def offer(self, clients: Iterable[ClientState]) -> None:
        """Insert clients; reinsert those already in the set with their current load."""
        for client in clients:
            if client in self._queue:
                self._queue.remove(client)
            self._queue.add(client)


class TaskMovements:
    """Changes a balanced assignment so that no member must restore before it can process.

    If a task's planned client has not caught up and another client is further ahead, the latter gets the task for now.
    The planned client gets a warm-up copy, as far as ``max.warmup.replicas`` allows.
    """

    def __init__(self, clients: Clients, stateful_tasks: Collection[TaskId], configs: AssignmentConfigs) -> None:
        self._clients = clients
        self._remaining_warmups = configs.max_warmup_replicas
        self._warmups: dict[UUID, set[TaskId]] = defaultdict(set)
        self._by_load = ConstrainedPrioritySet(())
        self._caught_up = {
            task: {
                client.process_id
                for client in clients.values()
                if _is_caught_up(client.lags[task], configs.acceptable_recovery_lag)
            }
            for task in stateful_tasks
        }
        self._least_lag = {task: min(client.lags[task] for client in clients.values()) for task in stateful_tasks}

    def move_active_tasks(self) -> int:
        """Return how many active tasks are not on their planned clients."""
        movements = self._needed(
            [(client, task) for client in self._clients.values() for task in sorted(client.active_tasks)]
        )
        self._by_load = ConstrainedPrioritySet(self._clients.values())
        for task, planned in movements:
            self._by_load.offer([self._move_active(task, planned), planned])
        return len(movements)

    def move_standby_tasks(self) -> int:
        """Return how many standby tasks are on unplanned clients, or have additional copies there."""
        planned = [
            (client, task)
            for client in self._clients.values()
            for task in sorted(client.standby_tasks - self._warmups[client.process_id])
        ]
        self._by_load = ConstrainedPrioritySet(self._clients.values())
        return sum(self._move_standby(task, client) for task, client in self._needed(planned))

    def _needed(self, planned: list[tuple[ClientState, TaskId]]) -> list[tuple[TaskId, ClientState]]:
        """Return the tasks whose planned client has not caught up although another client is further ahead.

        Tasks with the fewest caught-up clients come first, because they have the fewest options. Copies of one task are
        in the order of Kafka Streams' priority queue.
        """
        needed = PriorityQueue[tuple[TaskId, ClientState]](lambda move: (len(self._caught_up[move[0]]), move[0]))
        for client, task in planned:
            is_stateful = task in self._caught_up
            if (
                is_stateful
                and client.process_id not in self._caught_up[task]
                and self._least_lag[task] < client.lags[task]
            ):
                needed.add((task, client))
        return [needed.poll() for _ in range(len(needed))]

    def _move_active(self, task: TaskId, planned: ClientState) -> ClientState:
        """Move the task; return the client that gets it for now."""
        standby = self._caught_up_client(task, lambda client: task in client.standby_tasks)
        source = standby or self._caught_up_client(task) or self._most_caught_up(task, planned)
        assert source is not None, f"no client is further than the planned one with task {task}; this is a bug"
        planned.active_tasks.remove(task)
        if task in source.standby_tasks:
            source.standby_tasks.remove(task)
            planned.assign_standby(task)
        elif self._take_warmup():
            planned.assign_standby(task)
            self._warmups[planned.process_id].add(task)
        source.assign_active(task)
        return source

    def _move_standby(self, task: TaskId, planned: ClientState) -> bool:
        def is_free(client: ClientState) -> bool:
            return not client.has_assigned_task(task)

        source = self._caught_up_client(task, is_free) or self._most_caught_up(task, planned, is_free)
        if source is None:
            return False
        source.assign_standby(task)
        if not self._take_warmup():
            planned.standby_tasks.remove(task)
        self._by_load.offer([source, planned])
        return True

    def _take_warmup(self) -> bool:
        self._remaining_warmups -= 1
        return self._remaining_warmups >= 0

    def _caught_up_client(self, task: TaskId, suits: _Suits = lambda client: True) -> ClientState | None:
        candidates = self._caught_up[task]
        return self._by_load.poll(lambda client: client.process_id in candidates and suits(client))

    def _most_caught_up(
        self, task: TaskId, planned: ClientState, suits: _Suits = lambda client: True
    ) -> ClientState | None:
        """Return the suitable client with the least lag, None if it lags as much as the planned one."""

        def order(client: ClientState) -> tuple[int, tuple[int, int]]:
            return client.lags[task], client.order

        further = [client for client in self._clients.values() if order(client) < order(planned)]
        return min((client for client in further if suits(client)), key=order, default=None)


def _is_caught_up(lag: int, acceptable: int) -> bool:
    return lag == LATEST_OFFSET or acceptable >= UNBOUNDED or 0 <= lag <= acceptable
