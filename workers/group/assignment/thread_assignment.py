"""Distributes a client's tasks over its threads (Kafka Streams: StreamsPartitionAssignor.assignTasksToThreads).

In a group with members on Java exactly as in Kafka Streams, otherwise also spread over sub-topologies and loads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Set
from enum import Enum

from penstock.topology.common.java_collections import PriorityQueue, grown_hash_order
from penstock.topology.records import TaskId

from .client_state import ClientState
from .java_hashes import task_hash
from .spread import Remaining, interleaved
from .subscription_info import LATEST_OFFSET


class Role(Enum):
    """Kinds of tasks to distribute, in Kafka Streams' order."""

    STATEFUL = "stateful active tasks"
    STANDBY = "standby tasks"
    STATELESS = "stateless tasks"


def spread_over_threads(
    tasks: Collection[TaskId], client: ClientState, thread_load: dict[str, int], role: Role = Role.STATEFUL
) -> dict[str, list[TaskId]]:
    """Distribute tasks evenly over the client's consumers; each to its previous consumer if possible.

    Kafka Streams does the latter for stateful tasks only. Each consumer keeps or gets its share of each sub-topology,
    and of the measured work. thread_load: by consumer, the number of tasks from earlier calls; updated here. role: not
    used. Returns tasks by consumer, for all consumers.
    """
    consumers = sorted(client.consumers)
    load = {consumer: thread_load.get(consumer, 0) for consumer in consumers}
    assignment: dict[str, list[TaskId]] = {consumer: [] for consumer in consumers}
    unassigned = set(tasks)
    minimum, extra = divmod(sum(load.values()) + len(unassigned), len(consumers))
    extra -= sum(count > minimum for count in load.values())

    def give(task: TaskId, consumer: str) -> None:
        assignment[consumer].append(task)
        load[consumer] += 1
        unassigned.discard(task)

    previous = [(t, c) for number, c in enumerate(consumers) for t in _previous_tasks(client, c, number, unassigned)]
    for quota, count in ((minimum, len(unassigned)), (minimum + 1, extra)):
        for task, consumer in previous:
            if count and task in unassigned and load[consumer] < quota:
                give(task, consumer)
                count -= 1
    to_fill = deque(consumer for consumer in consumers if load[consumer] < minimum)
    remaining = Remaining(unassigned, tasks, client.loads)
    while to_fill:
        consumer = to_fill.popleft()
        give(remaining.take(assignment[consumer]), consumer)
        if load[consumer] < minimum:
            to_fill.append(consumer)
    for task in sorted(unassigned):
        give(task, min(consumers, key=lambda consumer: load[consumer]))
    thread_load.update(load)
    return assignment


def _previous_tasks(client: ClientState, consumer: str, number: int, tasks: Set[TaskId]) -> list[TaskId]:
    """Return the tasks that the consumer had. Running ones come first, because moving them costs the most."""
    previous = client.previous_tasks.get(consumer, set()) & tasks
    running = {task for task in previous if client.lags.get(task, LATEST_OFFSET) == LATEST_OFFSET}
    return [*interleaved(running, client.loads, number), *interleaved(previous - running, client.loads, number)]


def assign_as_kafka_streams(
    tasks: Collection[TaskId], client: ClientState, thread_load: dict[str, int], role: Role
) -> dict[str, list[TaskId]]:
    """Distribute tasks as Kafka Streams does; see spread_over_threads. Stateful tasks go to their previous consumer.

    Kafka Streams keeps the tasks in a priority queue, and visits the last ones in the order of its array.
    """
    consumers = sorted(client.consumers)
    assignment: dict[str, list[TaskId]] = {consumer: [] for consumer in consumers}
    minimum = (sum(thread_load.values()) + len(tasks)) // len(consumers)
    # Standby tasks are in a sorted set, active ones in a hash set.
    given = sorted(tasks) if role is Role.STANDBY else grown_hash_order(sorted(tasks), task_hash)
    unassigned = PriorityQueue[TaskId](lambda task: task, given)
    skipped: dict[TaskId, str] = {}
    to_fill: deque[str] = deque()
    for consumer in consumers:
        wanted = minimum - thread_load.get(consumer, 0)
        for task in _previous_by_lag(client, consumer) if role is not Role.STATELESS else ():
            if task in unassigned and len(assignment[consumer]) < wanted:
                assignment[consumer].append(task)
                unassigned.remove(task)
            elif task in unassigned:
                skipped[task] = consumer
        if len(assignment[consumer]) < wanted:
            to_fill.append(consumer)
    while to_fill:
        consumer = to_fill.popleft()
        assignment[consumer].append(unassigned.poll())
        if len(assignment[consumer]) + thread_load.get(consumer, 0) < minimum:
            to_fill.append(consumer)
    fewest = [c for c in consumers if len(assignment[c]) + thread_load.get(c, 0) == minimum] if len(unassigned) else []
    for task, consumer in sorted(skipped.items()):
        if consumer in fewest and task in unassigned:
            assignment[consumer].append(task)
            unassigned.remove(task)
            fewest.remove(consumer)
    for task, consumer in zip(unassigned, fewest, strict=False):
        assignment[consumer].append(task)
    for consumer in consumers:
        thread_load[consumer] = thread_load.get(consumer, 0) + len(assignment[consumer])
    return assignment


def _previous_by_lag(client: ClientState, consumer: str) -> list[TaskId]:
    """Return the stateful tasks that the consumer had on its disk, those that lag least first."""
    previous = [task for task in client.previous_stateful_tasks.get(consumer, ()) if task in client.lags]
    return sorted(previous, key=lambda task: (client.lags[task], task))
