"""The order in which tasks are kept and dealt out: each member gets tasks of all sub-topologies, its share of work.

Sub-topologies differ in load: a process with all tasks of the heaviest one does nearly all the work. Kafka Streams
orders tasks by id. Its members keep the first ones, and a new member gets all tasks of the last sub-topology.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping

from penstock.topology.records import TaskId

#: How much work tasks are, by what their members have measured, in thousandths of a stream thread's time.
Loads = Mapping[TaskId, int]


def interleaved(tasks: Collection[TaskId], loads: Loads, owner: int = 0) -> list[TaskId]:
    """Return tasks in an order of which every prefix has its share of each sub-topology, and of the work.

    owner: number of the member that keeps the first ones; equal members then give tasks of different sub-topologies.
    """
    by_subtopology: dict[int, list[TaskId]] = defaultdict(list)
    for task in sorted(tasks):
        by_subtopology[task.subtopology].append(task)
    placed = [
        ((number + 0.5) / len(siblings), (order + owner) % len(by_subtopology), task)
        for order, siblings in enumerate(by_subtopology.values())
        for number, task in enumerate(siblings)
    ]
    ordered = [task for _, _, task in sorted(placed)]
    return _heavy_and_light(ordered, loads) if any(loads.get(task) for task in tasks) else ordered


def _heavy_and_light(tasks: list[TaskId], loads: Loads) -> list[TaskId]:
    """Return the heaviest task, the lightest, the second heaviest, and so on; equals stay in their order."""
    usual = _mean(tasks, loads)
    heaviest_first = deque(sorted(tasks, key=lambda task: -loads.get(task, usual)))
    return [heaviest_first.pop() if number % 2 else heaviest_first.popleft() for number in range(len(tasks))]


def _mean(tasks: Collection[TaskId], loads: Loads) -> float:
    """Return the load of a task that is known of these; one of which nothing is known is taken to be like that."""
    known = [loads[task] for task in tasks if task in loads]
    return sum(known) / len(known) if known else 0.0


class Remaining:
    """Tasks without a member. all_tasks: these and the ones that have one."""

    def __init__(self, remaining: Collection[TaskId], all_tasks: Collection[TaskId], loads: Loads) -> None:
        self._totals = Counter(task.subtopology for task in all_tasks)
        self._mean = _mean(all_tasks, loads)
        self._loads = {task: loads.get(task, self._mean) for task in all_tasks}
        self._left = set(remaining)

    def take(self, received: Collection[TaskId]) -> TaskId:
        """Remove and return the task that brings the receiver closest to its share of the work.

        Among equals, the first one of the sub-topology of which the receiver has the smallest share. received: the
        receiver's tasks. Raises ValueError if no task is left.
        """
        count = Counter(task.subtopology for task in received)
        wanted = self._mean * (len(received) + 1) - sum(self._loads[task] for task in received)

        def preference(task: TaskId) -> tuple[float, float, TaskId]:
            return abs(self._loads[task] - wanted), count[task.subtopology] / self._totals[task.subtopology], task

        chosen = min(self._left, key=preference)
        self._left.remove(chosen)
        return chosen
