"""The options of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from tests.chaos.checker import EXACTLY_ONCE
from tests.chaos.means import PREVIOUS
from tests.chaos.schedule import HOSTS, NETWORK, PROCESSES, UNCLEAN, Action, Event, each_once, endless, schedule
from tests.chaos.workloads import BUDGET_SECONDS, WORKLOADS, Setting, Workload
from tests.chaos.workloads.lossy_numbers import LossyNumbers
from tests.chaos.workloads.numbers import Numbers, Queried

#: Number of events that hit the older Kafka before the cluster is upgraded.
UPGRADE_AFTER = 4
#: Seconds without any output at the end after which missing records count as lost: enough for two sessions, a
#: transaction, a restart and their retries on a busy machine.
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Options:
    """Parameters of a run.

    kills: their number. each: every kind of fault once instead. minutes: instead as many kills as fit into this time.
    families: see schedule.FAMILIES. brokers: 1, or 3 with as many controllers. upgrade_from: the cluster's initial
    version of Kafka; after UPGRADE_AFTER events it is upgraded, node by node. previous: the commit whose Penstock
    alternates with this one. without: kinds of faults that are not available here, see means.why_not. fault: see
    program.FAULT_VARIABLE. judged_as: the guarantee that the checker demands. workload: a name of WORKLOADS. watch:
    hosts watch each other (penstock.host.watch). patience_seconds: the longest time without output at the end.
    budget_seconds: see Setting. branch_seconds: the time between the beginnings of two branches, 0 for none.

    Raises ValueError if options do not fit together.
    """

    seed: int
    kills: int = 0
    guarantee: str = EXACTLY_ONCE
    protocol: str = "classic"
    fault: str = ""
    judged_as: str | None = None
    each: bool = False
    minutes: float = 0.0
    families: tuple[str, ...] = (PROCESSES,)
    brokers: int = 1
    upgrade_from: str | None = None
    previous: str = PREVIOUS
    without: frozenset[Action] = frozenset()
    workload: str = Numbers.name
    watch: bool = False
    patience_seconds: float = PATIENCE_SECONDS
    budget_seconds: float = BUDGET_SECONDS
    branch_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.unclean and self.workload != Numbers.name:
            raise ValueError(f"unclean elections take the workload {Numbers.name}, not {self.workload}")
        if self.unclean and self.exact:
            raise ValueError("an unclean election may cut off the end of a transaction: take at_least_once")
        if NETWORK in self.families and self.workload == Queried.name:
            raise ValueError(
                f"the workload {Queried.name} reaches no host in a network of its own: leave {NETWORK} out"
            )
        if self.branch_seconds and not self.exact:
            raise ValueError("with at_least_once an application repeats records that its branch does not")
        if self.branch_seconds and self.workload != Numbers.name:
            raise ValueError(f"branches are compared with the workload {Numbers.name}, not {self.workload}")

    @property
    def unclean(self) -> bool:
        """True if records may be lost, see unclean.py."""
        return UNCLEAN in self.families

    @property
    def exact(self) -> bool:
        """True if the application runs with exactly-once."""
        return self.guarantee == EXACTLY_ONCE

    def new_workload(self, directory: Path) -> Workload:
        """Return the workload. directory: its own, see Workload."""
        setting = Setting(
            self.seed, HOSTS, self.guarantee, self.judged_as or self.guarantee, self.fault, self.budget_seconds
        )
        return (LossyNumbers if self.unclean else WORKLOADS[self.workload])(setting, directory)

    def events(self) -> Iterable[Event]:
        """Return the events with their times; endless if the run is limited by minutes."""
        events: Iterable[Event]
        if self.minutes:
            events = endless(self.seed, self.families, self.without)
        elif self.each:
            events = each_once(self.seed, self.families, self.without)
        else:
            events = schedule(self.seed, self.kills, self.families, self.without)
        return events if self.upgrade_from is None else _with_upgrade(events, self.seed)


def _with_upgrade(events: Iterable[Event], seed: int) -> Iterator[Event]:
    """Yield the events with an upgrade among them, so that they hit first the old cluster, then the new one."""
    later = iter(events)
    yield from islice(later, UPGRADE_AFTER)
    yield Event(UPGRADE_AFTER + 1, True, 0, Action.UPGRADE_CLUSTER, 0, 0.0, 0, seed)
    yield from (replace(event, number=event.number + 1) for event in later)
