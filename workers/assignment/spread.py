"""In which order tasks are kept, and dealt out, so that nobody ends up with one sub-topology alone.

Sub-topologies differ in how much work a record is, and how many there are: the processes that have all tasks of the
heaviest one do nearly all the work. Kafka Streams goes by task id: it lets members keep the first tasks, which are
those of the first sub-topology.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection

from penstock.topology.records import TaskId


def interleaved(tasks: Collection[TaskId], owner: int = 0) -> list[TaskId]:
    """Return tasks so ordered that the first n, for every n, have their share of each sub-topology.

    owner: the number of whoever keeps the first ones. What is left over by equal owners is of different sub-topologies.
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
    """Tasks that are still to be dealt out, of all tasks; the rest is dealt out already."""

    def __init__(self, remaining: Collection[TaskId], all_tasks: Collection[TaskId]) -> None:
        self._totals = Counter(task.subtopology for task in all_tasks)
        self._by_subtopology: dict[int, list[TaskId]] = defaultdict(list)
        for task in sorted(remaining, reverse=True):
            self._by_subtopology[task.subtopology].append(task)

    def take(self, company: Collection[TaskId]) -> TaskId:
        """Remove and return the first task of that sub-topology of which the company has the smallest share.

        company: what the receiver has already. Raises ValueError if nothing is left.
        """
        count = Counter(task.subtopology for task in company)
        chosen = min(sorted(self._by_subtopology), key=lambda number: count[number] / self._totals[number])
        siblings = self._by_subtopology[chosen]
        task = siblings.pop()
        if not siblings:
            del self._by_subtopology[chosen]
        return task
