"""The order in which tasks are kept and dealt out, to give each member tasks of all sub-topologies.

Sub-topologies differ in load: a process with all tasks of the heaviest one does nearly all the work. Kafka Streams
orders tasks by id. Its members keep the first ones, and a new member gets all tasks of the last sub-topology.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from penstock.topology.records import TaskId


def interleaved(tasks: Collection[TaskId], owner: int = 0) -> list[TaskId]:
    """Return tasks in an order of which every prefix has its share of each sub-topology.

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
    return [task for _, _, task in sorted(placed)]


class Remaining:
    """Tasks without a member. all_tasks: these and the ones that have one."""

    def __init__(self, remaining: Collection[TaskId], all_tasks: Collection[TaskId]) -> None:
        self._totals = Counter(task.subtopology for task in all_tasks)
        self._by_subtopology: dict[int, list[TaskId]] = defaultdict(list)
        for task in sorted(remaining, reverse=True):
            self._by_subtopology[task.subtopology].append(task)

    def take(self, received: Collection[TaskId]) -> TaskId:
        """Remove and return the first task of the sub-topology of which the receiver has the smallest share.

        received: the receiver's tasks. Raises ValueError if no task is left.
        """
        count = Counter(task.subtopology for task in received)
        chosen = min(sorted(self._by_subtopology), key=lambda number: count[number] / self._totals[number])
        siblings = self._by_subtopology[chosen]
        task = siblings.pop()
        if not siblings:
            del self._by_subtopology[chosen]
        return task
