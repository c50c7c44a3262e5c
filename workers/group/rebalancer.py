"""A stream thread's part in its group: joins with its tasks, and passes assignments to the RebalanceListener.

Rebalances are cooperative: a member continues to run the tasks that it keeps. The old owner commits and closes tasks
that move, then joins again; only this follow-up rebalance gives them to the new owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from penstock.clients.clock import Clock
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assigned, Event, Fatal, Lost, Rebalance
from penstock.clients.log_context import PrefixedLogger, listed
from penstock.topology.errors import BrokerUnavailableError

from ..metrics.spans import Spans
from ..tasks.task_manager import TaskManager
from .assignment.streams_partition_assignor import Assignment, StreamsPartitionAssignor
from .assignment.subscription_info import AssignorError
from .internal_topic_manager import InternalTopicManager
from .rebalance_listener import RebalanceListener
from .source_topics import BuiltTopologies
from .streams_metadata import HostReporter
from .task_offset_reporter import TaskOffsetReporter

#: How long a rebalance may block the tasks to prepare topics, and the pause before the next attempt, in ms.
JOIN_PATIENCE_MS = 500
JOIN_RETRY_MS = 1_000
#: The name of the operation in messages.
MAKING_READY = "making topics ready for a rebalance"


@dataclass(eq=False)
class Rebalancer:
    """Takes the stream thread through the rebalances of its group.

    offset_reporter: reports the tasks' positions to a broker that assigns tasks. hosts: reports the tasks' hosts to the
    supervisor. gate: called before the first join; raises if this member does not fit the group.
    """

    membership: GroupMember
    assignor: StreamsPartitionAssignor
    topologies: BuiltTopologies
    topic_manager: InternalTopicManager
    task_manager: TaskManager
    listener: RebalanceListener
    clock: Clock
    log: PrefixedLogger
    offset_reporter: TaskOffsetReporter | None = None
    hosts: HostReporter | None = None
    gate: Callable[[], None] | None = None
    spans: Spans = field(default_factory=Spans)

    def __post_init__(self) -> None:
        #: Set when the thread shuts down; it then ignores rebalances.
        self.closing = False
        #: Start time and reason of the pending rebalance.
        self._rebalance: tuple[int, str] | None = None
        #: Monotonic, because setting back the wall clock would delay the rebalance.
        self._next_rebalance_ms: int | None = None
        self._rejoin: str | None = None
        self._error = AssignorError.NONE
        self._has_joined = False
        self._retry_join_ms: int | None = None

    @property
    def rebalance_in_progress(self) -> bool:
        """Whether an assignment is pending."""
        return self.membership.join_pending

    @property
    def in_doubt(self) -> bool:
        """True if processing must stop until the group has answered.

        Others may own the tasks by now. Or this member has requested a shutdown of all members because a record cannot
        be processed; processing it again would end this member before it has sent the request.
        """
        return self.membership.in_doubt or self._error is AssignorError.SHUTDOWN_REQUESTED

    def subscribe(self) -> None:
        """Join the group for the first time; raises OtherTopologyError if it runs another topology."""
        if self.gate is not None:
            self.gate()
        self._join("joining")

    def poll(self) -> None:
        """Handle the group's events. The call is also the sign of life that keeps this thread a member.

        Raises TaskMigratedError, MissingSourceTopicError, TaskAssignmentError, or the error that ended the membership.
        """
        for event in self.membership.poll():
            self._handle(event)
        if self.membership.join_pending or self.closing:
            return
        if self.offset_reporter is not None:
            self.offset_reporter.maybe_report()
        if self._retry_join_ms is not None and self.clock.monotonic_ms() < self._retry_join_ms:
            return
        if self._rejoin is not None:
            self._join(self._rejoin)
        elif self._next_rebalance_ms is not None and self.clock.monotonic_ms() >= self._next_rebalance_ms:
            self.log.info("Triggering the followup rebalance that was scheduled.")
            self._join("triggered the scheduled followup rebalance")
        elif self.topologies.changed():
            self._join("the topics that are read have changed")

    def enforce_rebalance(self, reason: str) -> None:
        """Trigger a rebalance once none is pending."""
        self._rejoin = self._rejoin or reason

    def request_application_shutdown(self) -> None:
        """Request all members of the group to shut down."""
        self._error = AssignorError.SHUTDOWN_REQUESTED
        self.enforce_rebalance("Shutdown requested")

    def release_host(self, endpoint: str) -> None:
        """Make the group release the tasks of a lost host; endpoint: its application.server."""
        self.membership.release_host(endpoint)

    def lose(self) -> None:
        """Close all active tasks without a commit, and join again, because this thread has missed a rebalance."""
        self.listener.on_partitions_lost(self.task_manager.active.input_partitions())
        self.enforce_rebalance("the tasks of this thread have moved")

    def close(self, leave: bool) -> None:
        """End the membership."""
        self.membership.close(leave)

    def _handle(self, event: Event) -> None:
        match event:
            case Rebalance():
                self.task_manager.commits.commit_all()
                self.enforce_rebalance("the group rebalances")
            case Assigned():
                with self._traced():
                    self.apply(self.assignor.on_assignment(event))
            case Lost():
                self.log.warning("This thread is no longer a member of its group: %s", event.reason)
                self.lose()
            case Fatal():
                raise event.error

    @contextmanager
    def _traced(self) -> Iterator[None]:
        """Record a span of a rebalance: from the join request, if the protocol has one, to the assigned tasks."""
        began, reason = self._rebalance or (self.spans.began(), "the broker has assigned tasks")
        self._rebalance, failed = None, None
        try:
            yield
        except Exception as error:
            failed = error
            raise
        finally:
            attributes = {
                "kafka.streams.rebalance.reason": reason,
                "kafka.streams.rebalance.active": listed(self.task_manager.assigned_active_tasks),
                "kafka.streams.rebalance.standby": listed(self.task_manager.assigned_standby_tasks),
            }
            self.spans.record("rebalance", began, attributes, failed)

    def apply(self, assignment: Assignment) -> None:
        """Revoke the tasks that leave, then assign; task_state.py has the table of what happens to the tasks here."""
        tasks, listener = self.task_manager, self.listener
        if assignment.error is AssignorError.NONE:
            tasks.partitions_by_host = assignment.partitions_by_host
            if self.hosts is not None:
                by_host = assignment.partitions_by_host, assignment.standby_partitions_by_host
                self.hosts.on_assignment(*by_host, self.topologies.counts)
            active, standby = tasks.set_assignment_metadata(assignment.active, assignment.standby)
            if active or standby:
                listener.on_partitions_revoked(tasks.active.input_partitions(active), active, standby)
            if active:
                self.enforce_rebalance("tasks that moved away are closed")
            if assignment.active:  # the internal topics exist; look at all before a record is read or written
                self.topic_manager.look(self.topologies.infos)
        listener.on_partitions_assigned({p for inputs in assignment.active.values() for p in inputs}, assignment.error)
        if assignment.next_rebalance_in_ms is not None:
            self._next_rebalance_ms = self.clock.monotonic_ms() + assignment.next_rebalance_in_ms

    def _join(self, reason: str) -> None:
        began = self.spans.began()
        if self._retry_join_ms is None:
            self.log.info("(Re-)joining the group: %s", reason)
        if not self._prepare_topics():
            self.enforce_rebalance(reason)
            return
        self.task_manager.commits.wait()  # the group would refuse a commit after the new generation
        self._rejoin = self._next_rebalance_ms = None
        self._has_joined = True
        joining = self.assignor.joining(
            self.task_manager.active.all_assigned_task_ids(),
            self.task_manager.standby.all_assigned_task_ids(),
            self.task_manager.task_offset_sums(),
            self._error,
            self.task_manager.task_loads(),
        )
        self.membership.join(joining, reason)
        self._rebalance = self._rebalance or (began, reason)

    def _prepare_topics(self) -> bool:
        """Prepare the topics; False if the brokers do not answer. The tasks then continue until the next attempt.

        Raises TaskTimeoutError after failures for task.timeout.ms.
        """
        task_ids, timeouts = self.task_manager.active.all_assigned_task_ids(), self.task_manager.active.timeouts
        patience_ms = JOIN_PATIENCE_MS if self._has_joined else None
        try:
            self.topologies.refresh()
            counts = self.topic_manager.make_ready(self.topologies.infos, patience_ms)
        except BrokerUnavailableError as error:
            if not self._has_joined:
                raise
            timeouts.failed(task_ids, MAKING_READY, error)
            self._retry_join_ms = self.clock.monotonic_ms() + JOIN_RETRY_MS
            return False
        self.assignor.update_topics(self.topologies.infos, counts, self.topic_manager.partition_racks)
        self.topologies.note(counts)
        timeouts.succeeded(task_ids, MAKING_READY)
        self._retry_join_ms = None
        return True
