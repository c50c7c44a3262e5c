"""A hold: a stream thread commits all of its tasks, and then neither processes nor commits for a short time.

While all threads of an application hold, its committed offsets, its changelogs and its repartition topics belong to the
same point in time: docs/decisions/12-branches.md. The thread stays in its group, and continues by itself when the time
is over, so that a caller that dies stops nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.clients.clock import Clock
from penstock.clients.group.group_member import GroupMember
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import TaskMigratedError
from penstock.topology.records import TaskId

from ..control.messages import CommandResult, EndHold, HeldTasks, HoldAtCommit, TopologyTopics
from ..group.source_topics import BuiltTopologies
from ..tasks.task_commits import NOT_COMMITTED
from ..tasks.task_manager import TaskManager
from ..tasks.task_sinks import sinks_of


@dataclass(frozen=True, slots=True)
class _Held:
    """A hold in progress. generation: the member's in its group."""

    number: int
    until_ms: int
    generation: int
    tasks: frozenset[TaskId]


class CommitHold:
    """The hold of one stream thread. Only this thread uses it."""

    def __init__(
        self,
        task_manager: TaskManager,
        membership: GroupMember,
        topologies: BuiltTopologies,
        clock: Clock,
        log: PrefixedLogger,
    ) -> None:
        self._manager, self._membership = task_manager, membership
        self._topologies, self._clock, self._log = topologies, clock, log
        self._held: _Held | None = None

    @property
    def is_active(self) -> bool:
        """Whether the thread must not process and commit now."""
        return self._held is not None and self._clock.monotonic_ms() < self._held.until_ms

    def begin(self, command: HoldAtCommit, is_settled: bool) -> CommandResult:
        """Commit all tasks and hold. is_settled: whether the thread has all of its tasks.

        Returns a HeldTasks, or an error if the thread does not hold. Raises as Commit.finish().
        """
        refused = self._refusal(is_settled)
        if refused is None and self._manager.commits.commit_every() == NOT_COMMITTED:
            refused = "The group rebalances, or the brokers did not accept the commit; try again"
        if refused is not None:
            return CommandResult(command.id, error=refused)
        until_ms = self._clock.monotonic_ms() + command.limit_ms
        generation = self._membership.group_metadata().generation
        self._held = _Held(command.hold, until_ms, generation, self._tasks)
        self._log.info("Holding at a commit for at most %d ms", command.limit_ms)
        tasks = tuple(str(task) for task in sorted(self._held.tasks))
        return CommandResult(command.id, HeldTasks(tasks, topics_of(self._topologies)))

    def _refusal(self, is_settled: bool) -> str | None:
        if self.is_active:
            return "The stream threads hold already, for another command; try again"
        if not is_settled or not self._manager.active.all_tasks_running():
            return "The tasks of a stream thread are being assigned or restored; try again"
        return None

    def end(self, command: EndHold) -> CommandResult:
        """Continue. Returns None if the thread has held all the time with the same tasks, otherwise why not."""
        held = self._held
        if held is None or held.number != command.hold:
            return CommandResult(command.id, "a stream thread was replaced during the hold")
        changed = self._change(held)
        self._held = None
        self._log.info("The hold has ended%s", "" if changed is None else f": {changed}")
        return CommandResult(command.id, changed)

    def _change(self, held: _Held) -> str | None:
        if not self.is_active:
            return "a stream thread has continued, because the time limit was over"
        if self._membership.in_doubt or self._tasks != held.tasks or self._generation != held.generation:
            return "the group has rebalanced during the hold"
        return None

    @property
    def _tasks(self) -> frozenset[TaskId]:
        return frozenset(self._manager.active.running)

    @property
    def _generation(self) -> int | None:
        try:
            return self._membership.group_metadata().generation
        except TaskMigratedError:  # not a member any more
            return None


def topics_of(topologies: BuiltTopologies) -> Mapping[int, TopologyTopics]:
    """Return the topics of all sub-topologies, by number."""
    infos = topologies.infos
    internal = {topic for info in infos.values() for topic in info.repartition_source_topics}
    outside = {built.subtopology: tuple(name for name, _ in sinks_of([built])) for built in topologies}
    return {
        number: TopologyTopics(
            tuple(sorted(info.source_topics)),
            tuple(sorted(info.repartition_source_topics)),
            tuple(sorted(info.changelog_topics.keys() - info.source_changelog_topics)),
            tuple(sorted(info.sink_topics - internal)),
            outside[number],
        )
        for number, info in infos.items()
    }
