"""The assignor of streams groups, which computes the target assignment of tasks (KIP-1071).

Tasks stay where they are or where their state is, as far as the balance permits. Kafka: StickyTaskAssignor, without
rack awareness.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Task(NamedTuple):
    """A sub-topology's id and a partition number."""

    subtopology: str
    partition: int


@dataclass
class Tasks:
    """A member's current or target tasks. Kafka 4.4 never assigns warm-up tasks."""

    active: set[Task] = field(default_factory=set)
    standby: set[Task] = field(default_factory=set)


def assign(
    processes: Mapping[str, str], current: Mapping[str, Tasks], tasks: Collection[Task], stateful: Collection[str],
    standbys: int,
) -> dict[str, Tasks]:  # fmt: skip
    """Return the tasks of each member.

    processes: by member. current: the target so far. stateful: sub-topologies with state, whose tasks have this many
    standbys.
    """
    with_state = [task for task in tasks if task.subtopology in stateful]
    work = _Work(processes, len(tasks), standbys * len(with_state))
    had = {task: member for member in processes for task in current.get(member, Tasks()).active}
    copies: dict[Task, list[str]] = {}
    for member in processes:
        for task in current.get(member, Tasks()).standby:
            copies.setdefault(task, []).append(member)
    _assign_active(work, tasks, had, copies)
    for task in sorted(with_state, key=lambda task: (task.partition, task.subtopology), reverse=True):
        for _ in range(standbys):
            _assign_standby(work, task, [*([had[task]] if task in had else []), *copies.get(task, [])])
    return work.members


class _Quota:
    """The maximum number of tasks of a member: those of members with room, divided by their number."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks, self._members = tasks, members

    @property
    def limit(self) -> int:
        return -(-self._tasks // self._members) if self._members else 0

    def count(self, has: int) -> None:
        """Record a member's new number of tasks."""
        if has == self.limit:
            self._tasks, self._members = self._tasks - has, self._members - 1


class _Work:
    """An assignment in progress. active, standby: numbers of tasks."""

    def __init__(self, processes: Mapping[str, str], active: int, standby: int) -> None:
        self.members = {member: Tasks() for member in processes}
        self._processes = processes
        self._active_quota = _Quota(active, len(processes))
        self._quota = _Quota(active + standby, len(processes))

    def size(self, member: str) -> int:
        return len(self.members[member].active) + len(self.members[member].standby)

    def has_room(self, member: str, active: bool) -> bool:
        return self.size(member) < (self._active_quota if active else self._quota).limit

    def give(self, member: str, task: Task, active: bool) -> None:
        tasks = self.members[member]
        (tasks.active if active else tasks.standby).add(task)
        self._quota.count(self.size(member))
        if active:
            self._active_quota.count(self.size(member))

    def shares(self, member: str, task: Task) -> bool:
        """Return True if the member's process has a task already."""
        return self._has(self._processes[member], task)

    def least_loaded(self, without: Task | None = None) -> str | None:
        """Return a member of the process with the fewest tasks per member, None if all processes have the task."""
        possible = [
            process
            for process in dict.fromkeys(self._processes.values())
            if without is None or not self._has(process, without)
        ]
        return min(self._of(min(possible, key=self._load)), key=self.size) if possible else None

    def _has(self, process: str, task: Task) -> bool:
        found = (self.members[member] for member in self._of(process))
        return any(task in tasks.active or task in tasks.standby for tasks in found)

    def _of(self, process: str) -> list[str]:
        return [member for member, its in self._processes.items() if its == process]

    def _load(self, process: str) -> float:
        members = self._of(process)
        return sum(self.size(member) for member in members) / len(members)


def _assign_active(
    work: _Work, tasks: Collection[Task], had: Mapping[Task, str], copies: Mapping[Task, list[str]]
) -> None:
    """Keep tasks where they are, then assign them to members with their state, then to members with room."""
    placed = set()
    by_partition = sorted(tasks, key=lambda task: (task.partition, task.subtopology))
    for before in (had.get, lambda task: min(copies.get(task, []), key=work.size, default=None)):
        for task in by_partition:
            member = None if task in placed else before(task)
            if member is not None and work.has_room(member, active=True):
                work.give(member, task, active=True)
                placed.add(task)
    for task in sorted(set(tasks) - placed):
        if (member := work.least_loaded()) is not None:
            work.give(member, task, active=True)


def _assign_standby(work: _Work, task: Task, before: Iterable[str]) -> None:
    """Assign a standby to a member that had the task, otherwise to the least loaded process without it."""
    able = (member for member in before if not work.shares(member, task) and work.has_room(member, active=False))
    member = next(able, None) or work.least_loaded(without=task)
    if member is not None:
        work.give(member, task, active=False)
