"""A changelog that is read into a store (Kafka Streams: StoreChangelogReader.ChangelogMetadata)."""

from __future__ import annotations

from concurrent.futures import Future
from enum import Enum

from penstock.clients.log_context import PrefixedLogger
from penstock.clients.state_machine import StateMachine, Transitions
from penstock.topology.records import TaskId, TopicPartition

from ..tasks.changelog_bounds import Bounds
from ..tasks.processor_state_manager import ProcessorStateManager
from ..tasks.task import Task


class ChangelogState(Enum):
    """The progress of a changelog.

    ::

        REGISTERED -> PROBING, WAITING
        PROBING ----> WAITING
        WAITING ----> RESTORING, COMPLETED
        RESTORING --> COMPLETED
        COMPLETED -->

    PROBING: its newest records are read, to find out where those begin whose rows have not expired.
    WAITING: its bounds are known, but it is not being read yet. Standby tasks never complete.
    """

    REGISTERED = "REGISTERED"
    PROBING = "PROBING"
    WAITING = "WAITING"
    RESTORING = "RESTORING"
    COMPLETED = "COMPLETED"


CHANGELOG_TRANSITIONS: Transitions[ChangelogState] = {
    ChangelogState.REGISTERED: (ChangelogState.PROBING, ChangelogState.WAITING),
    ChangelogState.PROBING: (ChangelogState.WAITING,),
    ChangelogState.WAITING: (ChangelogState.RESTORING, ChangelogState.COMPLETED),
    ChangelogState.RESTORING: (ChangelogState.COMPLETED,),
    ChangelogState.COMPLETED: (),
}


#: The number of offsets before the end that are probed first. All may be transaction markers and aborted records.
PROBED_OFFSETS = 100
#: Changelogs with fewer offsets to read are not probed: that would take as long.
PROBE_FROM_OFFSETS = 1_000


class Changelog:
    """limit: offset up to which it may be applied; None: no limit."""

    def __init__(self, task: Task, partition: TopicPartition, log: PrefixedLogger) -> None:
        self.task_id: TaskId = task.task_id
        self.active = task.kind == "task"
        self.manager: ProcessorStateManager = task.state_manager
        self.partition = partition
        self.store = task.state_manager.changelogs[partition]
        self.is_source = partition in task.state_manager.source_changelogs
        self.states = StateMachine(ChangelogState.REGISTERED, CHANGELOG_TRANSITIONS, log, level=5)
        self.limit: int | None = None
        self.start = 0
        self.position = 0
        self.total_restored = 0
        #: The end when its bounds were requested, and the pending offset of the first record that is not skipped.
        self.end = 0
        self.first_alive: Future[int] | None = None
        self._probed_offsets = PROBED_OFFSETS

    @property
    def state(self) -> ChangelogState:
        """Its state."""
        return self.states.state

    @property
    def follows(self) -> bool:
        """Whether it is read without a limit: a standby task's, unless the topic is also an input."""
        return not self.active and not self.is_source

    def begin(self, bounds: Bounds, stored: int | None, committed: int) -> None:
        """Set start and limit from the bounds. stored: the store's offset; committed: the group's, of source topics."""
        end = min(bounds.end, committed) if self.is_source else bounds.end
        self.limit = None if self.follows else end
        self.start = self.position = bounds.first if stored is None else stored
        self.end = bounds.end
        expires = self.manager.stores[self.store].builder.logged_in_window
        probes = expires and self.end - self.position >= PROBE_FROM_OFFSETS
        self.states.transition_to(ChangelogState.PROBING if probes else ChangelogState.WAITING)

    @property
    def probed_from(self) -> int:
        """The offset from which it is probed."""
        return max(self.position, self.end - self._probed_offsets)

    def probe_more(self) -> bool:
        """Double the number of offsets that are probed; returns False if all were."""
        if self.probed_from == self.position:
            return False
        self._probed_offsets *= 2
        return True

    def skip_to(self, offset: int) -> None:
        """Begin at this offset, or at the store's if that is higher: rows of earlier records have expired."""
        self.start = self.position = max(self.position, offset)
        self.states.transition_to(ChangelogState.WAITING)

    @property
    def remaining(self) -> int:
        """Number of offsets left to read; 0 for standby tasks, which have no end."""
        return max((self.limit or 0) - self.position, 0) if self.active else 0

    @property
    def total(self) -> int:
        """Total number of offsets to read."""
        return max((self.limit or 0) - self.start, 0) if self.active else 0
