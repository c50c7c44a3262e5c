"""The order in which tasks are kept and distributed: each member gets tasks of all sub-topologies, and its share of
work.

Sub-topologies differ in load: a process with all tasks of the heaviest one does nearly all the work. Kafka Streams
orders tasks by id, so members keep the first ones, and a new member gets all tasks of the last sub-topology.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from penstock.topology.records import TaskId

#: Loads of tasks, as measured by their members, in thousandths of a stream thread's time.
Loads = Mapping[TaskId, int]


def interleaved(tasks: Collection[TaskId], loads: Loads, owner: int = 0) -> list[TaskId]:
    """Return tasks in an order in which every prefix has its share of each sub-topology, or of the work.

    owner: number of the member that keeps the first ones, so that equal members release tasks of different
    sub-topologies.
    """
    if any(loads.get(task) for task in tasks):
        ordered: list[TaskId] = []
        remaining = Remaining(tasks, tasks, loads)
        while len(ordered) < len(tasks):
            ordered.append(remaining.take(ordered))
        return ordered
    by_subtopology: dict[int, list[TaskId]] = defaultdict(list)
    for task in sorted(tasks):
        by_subtopology[task.subtopology].append(task)
    placed = [
        ((number + 0.5) / len(siblings), (order + owner) % len(by_subtopology), task)
        for order, siblings in enumerate(by_subtopology.values())
        for number, task in enumerate(siblings)
    ]
    return [task for _, _, task in sorted(placed)]


class Remaining:
    """Unassigned tasks. all_tasks: unassigned and assigned ones.

    A task without a measured load counts as the average of the others.
    """

    def __init__(self, remaining: Collection[TaskId], all_tasks: Collection[TaskId], loads: Loads) -> None:
        self._totals = Counter(task.subtopology for task in all_tasks)
        known = [loads[task] for task in all_tasks if task in loads]
        self._mean = sum(known) / len(known) if known else 0.0
        self._loads = {task: loads.get(task, self._mean) for task in all_tasks}
        self._left: dict[float, dict[int, list[TaskId]]] = {}  # by load and sub-topology
        for task in sorted(remaining, reverse=True):
            self._left.setdefault(self._loads[task], {}).setdefault(task.subtopology, []).append(task)
        self._steps = sorted(self._left)

    def take(self, received: Collection[TaskId]) -> TaskId:
        """Remove and return the task that brings the receiver closest to its share of the work.

        Among equally heavy tasks, the first one of the sub-topology of which the receiver has the smallest share.
        received: the receiver's tasks. Raises IndexError if no task is left.
        """
        load = self._nearest(self._mean * (len(received) + 1) - sum(self._loads[task] for task in received))
        siblings = self._left[load]
        count = Counter(task.subtopology for task in received)
        chosen = min(sorted(siblings), key=lambda number: count[number] / self._totals[number])
        task = siblings[chosen].pop()
        if not siblings[chosen]:
            del siblings[chosen]
        if not siblings:
            self._steps.remove(load)
        return task

    def _nearest(self, wanted: float) -> float:
        at = bisect_left(self._steps, wanted)
        return min(self._steps[max(at - 1, 0) : at + 1], key=lambda load: abs(load - wanted))
