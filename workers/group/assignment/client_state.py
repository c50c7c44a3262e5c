"""One client as the task assignors see it (Kafka Streams: ClientState), and their settings (AssignmentConfigs).

A client is one application instance: one state directory on one host, with one process id that is kept there. Its
consumers are its stream threads, each a separate process; a task moves between them without replay.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TaskId

from .java_hashes import process_order
from .spread import Loads
from .subscription_info import LATEST_OFFSET, UNKNOWN_OFFSET_SUM

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AssignmentConfigs:
    """Settings of the assignment by Kafka Streams' names; acceptable_recovery_lag in offsets, the interval in ms.

    The costs are None where each assignor has its own. spread: whether tasks that stay, and those that are dealt out,
    are spread over sub-topologies and loads (spread.py); else they are where Kafka Streams puts them.
    """

    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2
    num_standby_replicas: int = 0
    probing_rebalance_interval_ms: int = 600_000
    rack_aware_assignment_tags: tuple[str, ...] = ()
    rack_aware_assignment_strategy: str = "none"
    rack_aware_assignment_traffic_cost: int | None = None
    rack_aware_assignment_non_overlap_cost: int | None = None
    spread: bool = True

    @classmethod
    def of(cls, config: StreamsConfig) -> AssignmentConfigs:
        """Take the settings from a StreamsConfig."""
        return cls(
            config["acceptable.recovery.lag"],
            config["max.warmup.replicas"],
            config["num.standby.replicas"],
            config["probing.rebalance.interval.ms"],
            tuple(config["rack.aware.assignment.tags"]),
            config["rack.aware.assignment.strategy"],
            config["rack.aware.assignment.traffic_cost"],
            config["rack.aware.assignment.non_overlap_cost"],
        )


@dataclass(slots=True, eq=False)
class ClientState:
    """What a client had, the positions of its copies, and what an assignor gives it.

    rack: client.rack, empty if it has none, None if its threads say different things. consumers: member ids of its
    threads. previous_tasks: of each consumer, the tasks that it had, active and standby; previous_stateful_tasks: those
    of which it has state on its disk, open or not.
    lags: for each stateful task how many offsets its copy here is behind, LATEST_OFFSET where it runs here. A copy of
    unknown extent counts as none; Kafka Streams would rank it before all others.
    loads: of all clients' tasks, see spread.py. rank: in which order a leader on Java would meet the clients.
    """

    process_id: UUID
    client_tags: Mapping[str, str] = field(default_factory=dict)
    rack: str | None = ""
    consumers: set[str] = field(default_factory=set)
    previous_active_tasks: set[TaskId] = field(default_factory=set)
    previous_standby_tasks: set[TaskId] = field(default_factory=set)
    previous_tasks: dict[str, set[TaskId]] = field(default_factory=lambda: defaultdict(set))
    previous_stateful_tasks: dict[str, frozenset[TaskId]] = field(default_factory=dict)
    offset_sums: dict[TaskId, int] = field(default_factory=dict)
    lags: dict[TaskId, int] = field(default_factory=dict)
    active_tasks: set[TaskId] = field(default_factory=set)
    standby_tasks: set[TaskId] = field(default_factory=set)
    loads: Loads = field(default_factory=dict)
    rank: int = 0

    @property
    def capacity(self) -> int:
        """How many threads it has."""
        return len(self.consumers)

    @property
    def assigned_task_count(self) -> int:
        """How many tasks it was given, of both kinds."""
        return len(self.active_tasks) + len(self.standby_tasks)

    @property
    def assigned_task_load(self) -> float:
        """Tasks of both kinds per thread."""
        return self.assigned_task_count / self.capacity

    @property
    def active_task_load(self) -> float:
        """Active tasks per thread."""
        return len(self.active_tasks) / self.capacity

    def has_assigned_task(self, task: TaskId) -> bool:
        """True if it was given the task as an active or a standby one."""
        return task in self.active_tasks or task in self.standby_tasks

    def assign_active(self, task: TaskId) -> None:
        """Give it an active task; raises ValueError if it has the task already."""
        self._require_unassigned(task)
        self.active_tasks.add(task)

    def assign_standby(self, task: TaskId) -> None:
        """Give it a standby task; raises ValueError if it has the task already."""
        self._require_unassigned(task)
        self.standby_tasks.add(task)

    def _require_unassigned(self, task: TaskId) -> None:
        if self.has_assigned_task(task):
            raise ValueError(f"task {task} is already assigned to client {self.process_id}; this is a bug")

    def compute_task_lags(self, end_offset_sums: Mapping[TaskId, int]) -> None:
        """Fill lags for the stateful tasks, whose end offset sums are given."""
        for task, end in end_offset_sums.items():
            offset = self.offset_sums.get(task, 0)
            if offset == LATEST_OFFSET:
                self.lags[task] = LATEST_OFFSET
            elif offset == UNKNOWN_OFFSET_SUM:
                self.lags[task] = end
            elif end < offset:
                log.warning(
                    "Task %s had endOffsetSum=%d smaller than offsetSum=%d on client %s. Its changelog was probably "
                    "deleted or truncated, so it will be restored from scratch where it is assigned.",
                    task,
                    end,
                    offset,
                    self.process_id,
                )
                self.lags[task] = end
            else:
                self.lags[task] = end - offset


#: Clients by process id, in its order, so that every leader decides the same.
Clients = Mapping[UUID, ClientState]


def sorted_clients(clients: Iterable[ClientState]) -> Clients:
    """Return clients in the order of their process ids."""
    return {
        client.process_id: client for client in sorted(clients, key=lambda client: process_order(client.process_id))
    }


def least_loaded(
    clients: Collection[ClientState],
    suits: Callable[[ClientState], bool],
    load: Callable[[ClientState], float] = lambda client: client.assigned_task_load,
) -> ClientState | None:
    """Return the suiting client with the least load, the first of equals (Kafka: ConstrainedPrioritySet)."""
    return min((client for client in clients if suits(client)), key=load, default=None)
