"""A client, for the task assignors (Kafka Streams: ClientState), and their settings (AssignmentConfigs).

A client is one application instance: one state directory on one host, which holds its process id. Its consumers are its
stream threads, each a separate process; a task moves between them without a restore.
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

    Costs are None to use each assignor's defaults. spread: whether to spread tasks over sub-topologies and loads
    (spread.py), or to assign them as Kafka Streams does.
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
    """A client's previous tasks, the lags of its copies, and its newly assigned tasks.

    rack: client.rack, empty if it has none, None if its threads differ. consumers: member ids of its threads.
    previous_tasks: by consumer, its previous active and standby tasks; previous_stateful_tasks: those with state on its
    disk, open or not. lags: by stateful task, how many offsets its copy here is behind, LATEST_OFFSET if it runs here.
    A copy with unknown offsets counts as missing; Kafka Streams would rank it first. loads: of all clients' tasks, see
    spread.py. rank: the client's position in the iteration order of a leader on Java. order: of its process id in Java.
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
    order: tuple[int, int] = field(init=False)  # queues ask for it a million times in a large group

    def __post_init__(self) -> None:
        self.order = process_order(self.process_id)

    @property
    def capacity(self) -> int:
        """The number of its threads."""
        return len(self.consumers)

    @property
    def assigned_task_count(self) -> int:
        """The number of its assigned tasks, active and standby."""
        return len(self.active_tasks) + len(self.standby_tasks)

    @property
    def assigned_task_load(self) -> float:
        """Assigned tasks per thread, active and standby."""
        return self.assigned_task_count / self.capacity

    @property
    def active_task_load(self) -> float:
        """Active tasks per thread."""
        return len(self.active_tasks) / self.capacity

    def has_assigned_task(self, task: TaskId) -> bool:
        """True if the task is assigned to it, as active or standby."""
        return task in self.active_tasks or task in self.standby_tasks

    def assign_active(self, task: TaskId) -> None:
        """Assign an active task; raises ValueError if it already has the task."""
        self._require_unassigned(task)
        self.active_tasks.add(task)

    def assign_standby(self, task: TaskId) -> None:
        """Assign a standby task; raises ValueError if it already has the task."""
        self._require_unassigned(task)
        self.standby_tasks.add(task)

    def _require_unassigned(self, task: TaskId) -> None:
        if self.has_assigned_task(task):
            raise ValueError(f"task {task} is already assigned to client {self.process_id}; this is a bug")

    def compute_task_lags(self, end_offset_sums: Mapping[TaskId, int]) -> None:
        """Compute the lags of stateful tasks from their end offset sums."""
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
    return {client.process_id: client for client in sorted(clients, key=lambda client: client.order)}


def least_loaded(
    clients: Collection[ClientState],
    suits: Callable[[ClientState], bool],
    load: Callable[[ClientState], float] = lambda client: client.assigned_task_load,
) -> ClientState | None:
    """Return the suitable client with the least load, the first of equals (Kafka: ConstrainedPrioritySet)."""
    return min((client for client in clients if suits(client)), key=load, default=None)
