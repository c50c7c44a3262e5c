"""A group of many members: how often it rebalances while they join, die and leave, and how balanced its tasks are.

The members are those of the schedules (simulation.py), each on its own host. There are no faults but those of the
steps, and after each step all input is processed. The auditor checks the end, as always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.workers.group.assignment.task_assignors import (
    HighAvailabilityTaskAssignor,
    StickyTaskAssignor,
    TaskAssignor,
)
from tests.simulation.applications import APPLICATIONS, IN
from tests.simulation.kinds import PLAIN, Kind
from tests.simulation.process import Host, Process, Roughness
from tests.simulation.simulation import IDLE_STEPS, Plan, Simulation

#: The share of the members that join late, die or leave in a step.
SHARE = 0.1
#: Moving tasks takes two rebalances: one member releases them, others get them. At the start one more may be in
#: progress.
REBALANCES_MAX = 6


ASSIGNORS: Mapping[str, type[TaskAssignor]] = {
    "high-availability": HighAvailabilityTaskAssignor,
    "sticky": StickyTaskAssignor,
}


@dataclass(frozen=True)
class Step:
    """The outcome of a step. seconds: simulated, until all input was processed; moved: tasks that changed their slot.

    fewest, most: active tasks of a member.
    """

    what: str
    members: int
    rebalances: int
    seconds: float
    moved: int
    fewest: int
    most: int

    def __str__(self) -> str:
        return (
            f"{self.what}: {self.members} members, {self.rebalances} rebalances, {self.seconds:.1f} s, "
            f"{self.moved} tasks moved, {self.fewest} to {self.most} tasks each"
        )


class Crowd(Simulation):
    """A group of so many members with so many tasks. report: called after each step; assignor: one of ASSIGNORS.

    recovery_lag: acceptable.recovery.lag. With 0 a task moves once the member has restored it. So a step takes more
    rebalances, and tasks are not even after it.
    """

    def __init__(
        self,
        seed: int,
        directory: Path,
        members: int,
        tasks: int,
        report: Callable[[Step], object] = str,
        assignor: str = "high-availability",
        recovery_lag: int = 10_000,
    ) -> None:
        self._assignor = ASSIGNORS[assignor]
        self._recovery_lag = recovery_lag
        self._members, self._number_of_tasks, self._report = members, tasks, report
        super().__init__(seed, directory)
        self._idle_steps = IDLE_STEPS * members  # each member runs before time passes faster
        self.steps: list[Step] = []
        self._places: dict[Any, str] = {}

    def _planned(self, kind: Kind = PLAIN) -> Plan:
        plan = super()._planned(kind)
        settings = {
            "processing.guarantee": "at_least_once",
            "commit.interval.ms": 400,
            "poll.ms": 1,  # each idle poll advances the time by this
            "num.standby.replicas": 0,
            "penstock.static.membership": True,
            "acceptable.recovery.lag": self._recovery_lag,
            "task.assignor.class": self._assignor,
        }
        return replace(
            plan,
            application=APPLICATIONS[0],
            exactly_once=False,
            settings={**plan.settings, **settings},
            partitions=self._number_of_tasks,
            hosts=self._members,
            slots=1,
            fault_share=0.0,
            roughness=Roughness(),
        )

    def _go_wrong(self) -> None:
        for what, happen, whom in self._happenings():
            generation, begun_ms = self.broker.group.generation, self.world.now_ms
            for each in whom:
                happen(each)
            for partition in range(self.plan.partitions):
                self._write(IN, f"k{partition}", partition)
            self._go_on(self._at_rest, begun_ms + self._rest_ms)
            rested_ms = self.world.now_ms
            self._go_on(self._settling(), rested_ms + self._rest_ms)
            self._take(what, self.broker.group.generation - generation, (rested_ms - begun_ms) / 1000)

    def _happenings(self) -> Iterator[tuple[str, Callable[[Any], None], Sequence[Any]]]:
        some = max(int(self._members * SHARE), 1)
        yield "start together", self._start_on, self.hosts[:-some]
        yield "join", self._start_on, self.hosts[-some:]
        yield "killed and replaced", self._kill, self._alive()[:some]
        yield "killed with their hosts", self._lose, self._alive()[:some]
        yield "leave", self._leave, self._alive()[:some]

    def _start_on(self, host: Host) -> None:
        self._start(host, 1)

    def _leave(self, process: Process) -> None:
        process.shut_down(leave_group=True)

    def _lose(self, process: Process) -> None:
        process.leaves = True
        self._kill(process)

    def _take(self, what: str, rebalances: int, seconds: float) -> None:
        alive = [process for process in self._alive() if process.thread is not None]
        before, self._places = (
            self._places,
            {
                task_id: process.host.name
                for process in alive
                if process.thread is not None
                for task_id in process.thread.task_manager.active.all_tasks()
            },
        )
        counts = Counter(self._places.values())
        each = [counts[process.host.name] for process in alive]
        moved = sum(before.get(task_id, place) != place for task_id, place in self._places.items())
        self.steps.append(Step(what, len(alive), rebalances, seconds, moved, min(each), max(each)))
        self._report(self.steps[-1])
        if not self._recovery_lag:
            return
        if max(each) - min(each) > 1:
            self.world.violated(f"{what}: members have {min(each)} to {max(each)} tasks")
        if rebalances > REBALANCES_MAX:
            self.world.violated(f"{what}: {rebalances} rebalances")
