"""Which thread of a client gets which of its tasks (Kafka Streams: StreamsPartitionAssignor.assignTasksToThreads)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Set

from penstock.topology.records import TaskId

from .client_state import ClientState
from .spread import Remaining, interleaved
from .subscription_info import LATEST_OFFSET


def assign_tasks_to_threads(
    tasks: Collection[TaskId], client: ClientState, thread_load: dict[str, int]
) -> dict[str, list[TaskId]]:
    """Deal tasks out to the client's consumers, evenly; each to the consumer that had it if that can be.

    Kafka Streams does the latter for stateful ones only. Each consumer keeps, or gets, its share of each sub-topology,
    and of the work where that was measured.
    thread_load: how many tasks each consumer has from earlier calls; changed here. Returns tasks by consumer, for all
    consumers.
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
    """Return which of the tasks the consumer had. Running ones come first: moving them would cost the most."""
    previous = client.previous_tasks.get(consumer, set()) & tasks
    running = {task for task in previous if client.lags.get(task, LATEST_OFFSET) == LATEST_OFFSET}
    return [*interleaved(running, client.loads, number), *interleaved(previous - running, client.loads, number)]
