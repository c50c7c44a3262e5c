"""Which thread of a client gets which of its tasks (Kafka Streams: StreamsPartitionAssignor.assignTasksToThreads)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from penstock.topology.records import TaskId

from .client_state import ClientState


def assign_tasks_to_threads(
    tasks: Collection[TaskId], client: ClientState, thread_load: dict[str, int]
) -> dict[str, list[TaskId]]:
    """Deal tasks out to the client's consumers, evenly; each to the consumer that had it if that can be.

    Kafka Streams does the latter for stateful ones only. Tasks without a previous owner are interleaved, so that each
    consumer gets some of each sub-topology. thread_load: how many tasks each consumer has from earlier calls; changed
    here. Returns tasks by consumer, for all consumers.
    """
    consumers = sorted(client.consumers)
    load = {consumer: thread_load.get(consumer, 0) for consumer in consumers}
    assignment: dict[str, list[TaskId]] = {consumer: [] for consumer in consumers}
    unassigned = set(tasks)
    minimum = (sum(load.values()) + len(unassigned)) // len(consumers)

    def give(task: TaskId, consumer: str) -> None:
        assignment[consumer].append(task)
        load[consumer] += 1
        unassigned.discard(task)

    previous = [(t, c) for c in consumers for t in _previous_tasks(client, c)]
    for task, consumer in previous:
        if task in unassigned and load[consumer] < minimum:
            give(task, consumer)
    to_fill = deque(consumer for consumer in consumers if load[consumer] < minimum)
    for task in sorted(unassigned) if to_fill else ():
        consumer = to_fill.popleft()
        give(task, consumer)
        if load[consumer] < minimum:
            to_fill.append(consumer)
        if not to_fill:
            break
    # All have the minimum now; what is left goes to those that have no more than that.
    for task, consumer in sorted(previous):
        if task in unassigned and load[consumer] == minimum:
            give(task, consumer)
    for task in sorted(unassigned):
        give(task, min(consumers, key=lambda consumer: load[consumer]))
    thread_load.update(load)
    return assignment


def _previous_tasks(client: ClientState, consumer: str) -> list[TaskId]:
    """Return the tasks that the consumer had, the most caught up ones first."""
    return sorted(client.previous_tasks.get(consumer, ()), key=lambda task: (client.lags.get(task, 0), task))
