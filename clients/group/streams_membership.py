"""The streams group protocol (KIP-1071) without a connection: what a member says next, and what an answer means.

The broker assigns the tasks. The stream thread sees the same events as with the classic protocol:

- join() -> a heartbeat with what the thread owns -> its answer -> TasksAssigned.
- The broker changes its mind -> Rebalance; the thread commits and calls join(), which brings it TasksAssigned.
- The thread has closed tasks that were taken from it -> join(): only now may the broker give them to others.

Kafka: StreamsMembershipManager and StreamsGroupHeartbeatRequestManager.HeartbeatState.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import NamedTuple

from penstock.topology.errors import MissingSourceTopicError, StreamsError
from penstock.topology.records import TaskId

from ..errors import BrokerError
from ..log_context import PrefixedLogger
from .member_state import MemberState, member_states
from .membership import Event, Fatal, Lost, Rebalance
from .requests import GroupMemberConfig, Identity
from .streams_refusals import ends_membership, patience_ms, refusal_error
from .streams_values import (
    JOIN_GROUP_MEMBER_EPOCH,
    NOT_READY,
    Answer,
    Heartbeat,
    HostPartitions,
    Report,
    Status,
    TaskOffsets,
    Tasks,
    TasksAssigned,
)

#: Between two tries of what the coordinator refused, in ms.
REFUSAL_RETRY_MS = 250

#: In these the member heartbeats, or wants to.
HEARTBEATING = frozenset({MemberState.JOINING, MemberState.STABLE, MemberState.REBALANCE})

StreamsEvent = Event | TasksAssigned


#: These pass by themselves, in the ordinary course of a start or a rebalance.
_PASSING = frozenset({Status.ASSIGNMENT_DELAYED, Status.MISSING_INTERNAL_TOPICS})
#: Missing source topics are an error when they are still missing after this many heartbeat intervals; but not sooner
#: than this many ms, since a broker learns of a topic that was just made with a delay.
MISSING_TOPICS_HEARTBEATS = 2
MISSING_TOPICS_GRACE_MS = 3_000


class StreamsMembership:
    """One member. Time comes as an argument, in monotonic ms; events come as return values.

    member_id: made by the member, kept as long as its process lives. subtopologies: those of this member's topology.
    """

    def __init__(
        self, config: GroupMemberConfig, member_id: str, subtopologies: Collection[int], log: PrefixedLogger
    ) -> None:
        self.member_id = member_id
        self.identity = Identity(member_id=member_id)
        #: Tells a membership from the one before: how many were lost.
        self.losses = 0
        #: Whether the coordinator has ever taken it: then a member found in its place came later.
        self.has_been_member = False
        self.offsets = TaskOffsetReports()
        self._config = config
        self._subtopologies = frozenset(subtopologies)
        self._log = log
        self._machine = member_states(log)
        self._statuses = GroupStatuses(config.group_id, log)
        self._ended = False
        self._report: Report | None = None
        self._report_unsent = False
        self._shutdown_requested = False
        self._heartbeat_interval_ms = config.heartbeat_interval_ms
        self._next_ms = 0
        self._refused_since_ms: int | None = None
        self._forget()

    def _forget(self) -> None:
        """Start from nothing: no tasks, no epoch."""
        self._epoch = JOIN_GROUP_MEMBER_EPOCH
        self.identity = Identity(member_id=self.member_id)
        self._owned = Tasks()  # what the thread may have open
        self._acknowledged: Tasks | None = None  # what the coordinator knows of that
        self._target = Tasks()  # what the coordinator wants
        self._delivered = Tasks()  # the part of it that the thread has received
        self._endpoint_epoch = -1
        self._hosts = HostPartitions({}, {})
        self.offsets.resend()

    @property
    def state(self) -> MemberState:
        """The current state."""
        return self._machine.state

    # The stream thread

    def join(self, report: Report, losses_seen: int) -> None:
        """Take what the thread owns now; the answer to the next heartbeat brings TasksAssigned.

        losses_seen: how many Lost events the thread knew of. A report made without knowing of the last one names tasks
        that others own by now, so it is dropped; the thread finds Lost in its next poll and joins again.
        """
        if losses_seen != self.losses or self.state is MemberState.FATAL:
            return
        self._machine.transition_to(MemberState.JOINING)
        self._report = report
        self._report_unsent = True
        self._shutdown_requested |= report.requests_shutdown
        self.offsets.update_sums(report.task_offsets)
        if self._epoch > JOIN_GROUP_MEMBER_EPOCH:
            self._owned = self._by_role(report)

    def _by_role(self, report: Report) -> Tasks:
        """Tell warm-up from standby tasks, which the thread does not."""
        warmup = report.standby_tasks & (self._target.warmup | (self._owned.warmup - self._target.standby))
        return Tasks(report.active_tasks, report.standby_tasks - warmup, warmup)

    # The coordinator

    def ms_until_heartbeat(self, now_ms: int) -> int | None:
        """Return in how many ms the next heartbeat is due, None if none is."""
        if self.state not in HEARTBEATING or self._ended:
            return None
        return 0 if self._report_unsent else max(0, self._next_ms - now_ms)

    def next_heartbeat(self, now_ms: int) -> Heartbeat:
        """Return what to send now. Nothing else may be sent before it is answered, or known not to be."""
        joining = self._epoch == JOIN_GROUP_MEMBER_EPOCH
        news = joining or self._owned != self._acknowledged
        offsets = self.offsets.next(now_ms, news, self._owned.warmup)
        self._report_unsent = False
        self._next_ms = now_ms + self._heartbeat_interval_ms
        return Heartbeat(
            self.losses,
            self._epoch,
            self._endpoint_epoch,
            self._report if joining else None,
            self._owned if news else None,
            offsets.offsets,
            offsets.end_offsets,
            self._shutdown_requested,
        )

    def hurry(self) -> None:
        """Make the next heartbeat due now."""
        self._next_ms = 0

    def on_no_answer(self, heartbeat: Heartbeat) -> None:
        """The coordinator may or may not have got it: say it all again, at once."""
        if self._outdated(heartbeat):
            return
        self._acknowledged = None
        self.offsets.resend()
        self.hurry()

    def on_answer(self, heartbeat: Heartbeat, answer: Answer, now_ms: int) -> list[StreamsEvent]:
        """Return what the answer means to the stream thread."""
        if self._outdated(heartbeat):
            return []
        hosts, shutdown = self._hosts, self._statuses.shutdown_application
        self._take(heartbeat, answer)
        unknown = sorted({task.subtopology for tasks in self._target for task in tasks} - self._subtopologies)
        if unknown:
            return self.fail(self._unknown_subtopologies(unknown))
        error = self._statuses.update(answer.statuses, now_ms, answer.heartbeat_interval_ms)
        if error is not None:
            return self.fail(error)
        return self._events(news=self._hosts != hosts or self._statuses.shutdown_application > shutdown)

    def _take(self, heartbeat: Heartbeat, answer: Answer) -> None:
        self.has_been_member = True
        self._epoch = answer.epoch
        self.identity = Identity(answer.epoch, self.member_id)
        self._refused_since_ms = None
        self._next_ms += answer.heartbeat_interval_ms - self._heartbeat_interval_ms
        self._heartbeat_interval_ms = answer.heartbeat_interval_ms
        self._endpoint_epoch = answer.endpoint_epoch
        self.offsets.configure(answer.task_offset_interval_ms, answer.acceptable_recovery_lag)
        if heartbeat.joining is not None:
            self.offsets.resend()  # Kafka 4.4 forgets those that come with the heartbeat that makes a group
        if heartbeat.owned is not None:
            self._acknowledged = heartbeat.owned
        if answer.hosts is not None:
            self._hosts = answer.hosts
        if answer.tasks is not None:
            self._target = answer.tasks
            # It may have taken back what the thread has not heard of; it waits for a report all the same.
            self._acknowledged = None

    def _events(self, news: bool) -> list[StreamsEvent]:
        state = self.state
        if state is MemberState.JOINING:
            # A group that is not ready has nothing to give yet; the thread waits, as Kafka Streams' does.
            if self._report_unsent or not (self._statuses.ready or any(self._target)):
                return []
            self._machine.transition_to(MemberState.STABLE)
            return [self._assigned()]
        if state is MemberState.STABLE and self._target != self._delivered:
            self._machine.transition_to(MemberState.REBALANCE)
            return [Rebalance()]
        return [self._assigned()] if state is MemberState.STABLE and news else []

    def _assigned(self) -> TasksAssigned:
        """Deliver the target. From now on the thread may have open what it had and what it gets, until it reports."""
        before, target = self._owned, self._target
        taken = bool(before.active - target.active or before.replicas - target.replicas - target.active)
        self._owned = before.union(target)
        self._delivered = target
        self._log.info("Assigned tasks with member epoch %d: %s", self._epoch, target)
        return TasksAssigned(self._epoch, target, self._hosts, taken, self._statuses.shutdown_application)

    def on_refusal(self, heartbeat: Heartbeat, refusal: BrokerError, now_ms: int) -> list[StreamsEvent]:
        """Return what an error that is not worth a plain retry means to the stream thread."""
        if self._outdated(heartbeat):
            return []
        if ends_membership(refusal, joining=heartbeat.joining is not None):
            return self.lose(f"the coordinator answered {refusal}")
        if self._refused_since_ms is None:
            self._refused_since_ms = now_ms
            self._log.info("The coordinator refused a heartbeat: %s", refusal)
        if now_ms - self._refused_since_ms >= patience_ms(refusal):
            return self.fail(refusal_error(self._config, refusal))
        self._next_ms = now_ms + REFUSAL_RETRY_MS
        return []

    def _outdated(self, heartbeat: Heartbeat) -> bool:
        return heartbeat.membership != self.losses or self.state not in HEARTBEATING or self._ended

    def _unknown_subtopologies(self, unknown: Collection[int]) -> StreamsError:
        return StreamsError(
            f"Group {self._config.group_id} assigned tasks of sub-topologies {unknown}, but this program has "
            f"{sorted(self._subtopologies)}. All members must run the same topology: was a changed program deployed?"
        )

    # The end

    def end(self) -> bool:
        """Say nothing more. Returns True if the coordinator may know of this member."""
        self._ended = True
        return self.state in HEARTBEATING

    def lose(self, reason: str) -> list[StreamsEvent]:
        """End this membership: others may own the tasks by now."""
        if self.state not in HEARTBEATING:
            return []
        self.losses += 1
        self._forget()
        self._machine.transition_to(MemberState.LOST)
        return [Lost(reason)]

    def fail(self, error: StreamsError) -> list[StreamsEvent]:
        """End the membership for good."""
        if self.state is MemberState.FATAL:
            return []
        self._forget()
        self._machine.transition_to(MemberState.FATAL)
        return [Fatal(error)]


class GroupStatuses:
    """What the coordinator says of a streams group as a whole, and when that is the end.

    ready: the broker can assign tasks. shutdown_application: a member wants the whole application to end. Kafka:
    StreamThread.handleStreamsRebalanceData, StreamsGroupHeartbeatRequestManager.maybeLogStatuses.
    """

    def __init__(self, group_id: str, log: PrefixedLogger) -> None:
        self.ready = True
        self.shutdown_application = False
        self._group_id = group_id
        self._log = log
        self._last: Mapping[int, str] = {}
        self._missing_since_ms: int | None = None

    def update(self, statuses: Mapping[int, str], now_ms: int, heartbeat_interval_ms: int) -> StreamsError | None:
        """Take the statuses of an answer; returns the error by which the member must end, or None."""
        self._log_changes(statuses)
        self.ready = NOT_READY.isdisjoint(statuses)
        self.shutdown_application = Status.SHUTDOWN_APPLICATION in statuses
        if Status.INCORRECTLY_PARTITIONED_TOPICS in statuses:
            return StreamsError(
                f"The topics of group {self._group_id} do not fit together: "
                f"{statuses[Status.INCORRECTLY_PARTITIONED_TOPICS]} Joined topics need the same number of partitions: "
                "recreate one of them, or call repartition() on one of the streams before the join. An internal topic "
                "of an earlier topology has to be deleted."
            )
        timeout_ms = max(MISSING_TOPICS_HEARTBEATS * heartbeat_interval_ms, MISSING_TOPICS_GRACE_MS)
        return self._missing_source_topics(statuses, now_ms, timeout_ms)

    def _missing_source_topics(
        self, statuses: Mapping[int, str], now_ms: int, timeout_ms: int
    ) -> MissingSourceTopicError | None:
        if Status.MISSING_SOURCE_TOPICS not in statuses:
            self._missing_since_ms = None
            return None
        if self._missing_since_ms is None:
            self._missing_since_ms = now_ms
        missing_ms = now_ms - self._missing_since_ms
        if missing_ms < timeout_ms:
            return None
        return MissingSourceTopicError(
            f"{statuses[Status.MISSING_SOURCE_TOPICS]} Group {self._group_id} has waited {missing_ms} ms for them. "
            "Create the source topics before the application starts."
        )

    def _log_changes(self, statuses: Mapping[int, str]) -> None:
        for code, detail in statuses.items():
            if self._last.get(code) != detail:
                level = logging.INFO if code in _PASSING else logging.WARNING
                self._log.log(level, "The group is in status %s: %s", _name(code), detail)
        self._last = statuses


def _name(code: int) -> str:
    return Status(code).name if code in Status._value2member_map_ else str(code)


class NextOffsets(NamedTuple):
    """What a heartbeat says: None for unchanged."""

    offsets: Mapping[TaskId, int] | None
    end_offsets: Mapping[TaskId, int] | None


_UNCHANGED = NextOffsets(None, None)


class TaskOffsetReports:
    """When a member reports the positions of its tasks' state to the broker.

    The broker compares members by it: standby tasks go where most of the state is, a warm-up task becomes active when
    it has caught up. Kept: the sums as the stream thread last gave them, and those that the coordinator has received.
    """

    def __init__(self) -> None:
        self._sums = TaskOffsets({}, {})
        self._sent: Mapping[TaskId, int] | None = None
        self._sent_ends: Mapping[TaskId, int] | None = None
        self._sent_ms = 0
        self._interval_ms = 0
        self._acceptable_lag = -1

    def configure(self, interval_ms: int, acceptable_recovery_lag: int) -> None:
        """Take the broker's settings."""
        self._interval_ms = interval_ms
        self._acceptable_lag = acceptable_recovery_lag

    def update(self, sums: TaskOffsets) -> None:
        """Take sums of offsets and end offsets."""
        self._sums = sums

    def update_sums(self, sums: Mapping[TaskId, int]) -> None:
        """Take offset sums alone."""
        self._sums = TaskOffsets(sums, self._sums.end_offsets)

    def resend(self) -> None:
        """Forget what was sent: it may not have arrived."""
        self._sent = self._sent_ends = None
        self._sent_ms = -self._interval_ms

    def next(self, now_ms: int, news: bool, warmups: Collection[TaskId]) -> NextOffsets:
        """Return what the next heartbeat says. news: the member's tasks change, which is when offsets count."""
        if not (news or now_ms - self._sent_ms >= self._interval_ms or self._caught_up(warmups)):
            return _UNCHANGED
        offsets, ends = self._sums.offsets, self._sums.end_offsets
        changes = NextOffsets(offsets if offsets != self._sent else None, ends if ends != self._sent_ends else None)
        if changes != _UNCHANGED:
            self._sent, self._sent_ends, self._sent_ms = offsets, ends, now_ms
        return changes

    def _caught_up(self, warmups: Collection[TaskId]) -> bool:
        offsets, ends = self._sums.offsets, self._sums.end_offsets
        return any(
            task in offsets and task in ends and ends[task] - offsets[task] <= self._acceptable_lag for task in warmups
        )
