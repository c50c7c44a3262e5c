"""Decides when a stream thread's active tasks are committed, and which; committer.py has the steps of a commit."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import CommitTimeoutError, RetriableCommitError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError

from ..metrics.spans import Spans
from .assigned_streams_tasks import AssignedStreamsTasks
from .committer import Commit
from .stream_task import StreamTask

#: Returned by commit_all during a rebalance (Kafka: TaskManager.commit).
NOT_COMMITTED = -1


@dataclass(eq=False)
class TaskCommits:
    """Makes one commit after the other, none during a rebalance, and retries those that the brokers did not accept.

    all_together: whether a commit includes all tasks, because they share a transaction. new_commit(enforce_checkpoint,
    began): returns a commit without tasks. Raises TaskTimeoutError once the brokers have not accepted a commit for
    task.timeout.ms.
    """

    active: AssignedStreamsTasks
    membership: GroupMember
    all_together: bool
    new_commit: Callable[[bool, int], Commit]
    spans: Spans
    log: PrefixedLogger

    def __post_init__(self) -> None:
        #: Waits for the group's response.
        self._pending: Commit | None = None

    @property
    def rebalance_in_progress(self) -> bool:
        """Whether this member waits for an assignment, or to learn whether it still is a member. Nothing is committed
        then.
        """
        return self.membership.join_pending or self.membership.in_doubt

    @property
    def is_pending(self) -> bool:
        """Whether a commit waits for the group's response."""
        return self._pending is not None

    def commit_all(self, enforce_checkpoint: bool = False) -> int:
        """Commit all active tasks that need it. Returns how many, or NOT_COMMITTED during a rebalance.

        enforce_checkpoint: the tasks are about to be closed, so store the changelog offsets.
        """
        return self._commit_all(enforce_checkpoint=enforce_checkpoint)

    def start_commit_all(self) -> int:
        """As commit_all(), but where possible let the tasks continue until the group has accepted the offsets."""
        return self._commit_all(wait=False)

    def commit_every(self) -> int:
        """Commit all running tasks, those without new work too: then the group has the position of every input.

        Returns how many, or NOT_COMMITTED.
        """
        return self._commit_all(unchanged=True)

    def _commit_all(self, enforce_checkpoint: bool = False, wait: bool = True, unchanged: bool = False) -> int:
        if self.rebalance_in_progress:
            return NOT_COMMITTED
        try:
            commit = self._begin(enforce_checkpoint)
            self.active.apply_to_running_tasks(commit.include if unchanged else commit.add)
            return self._carry_out(commit, wait)
        except (RetriableCommitError, BrokerUnavailableError) as error:
            self.log.warning("Commit failed, will try again: %s", error)
            return NOT_COMMITTED

    def take_answer(self) -> None:
        """Complete the pending commit if the group has answered."""
        if self._pending is not None and self._pending.is_answered:
            self.wait()

    def wait(self) -> None:
        """Wait for the pending commit, if any. If it fails, the next commit covers its work."""
        try:
            self._complete_pending()
        except (RetriableCommitError, BrokerUnavailableError) as error:
            self.log.warning("Commit failed, will try again: %s", error)

    def forget(self) -> None:
        """Abandon the pending commit: its tasks are closed, and restart from whichever offsets are committed."""
        self._pending = None

    def commit_requested(self) -> int:
        """Commit the active tasks whose code requested it. Returns how many."""
        if self.rebalance_in_progress or self.is_pending:
            return 0
        try:
            return self.active.maybe_commit_per_user_requested(self.commit)
        except (RetriableCommitError, BrokerUnavailableError) as error:
            self.log.warning("Commit that was requested failed, will try again: %s", error)
            return 0

    def commit(self, tasks: Collection[StreamTask], enforce_checkpoint: bool = False) -> int:
        """Commit these tasks. Returns how many were committed; raises RetriableCommitError if they were not."""
        if self.membership.in_doubt:
            raise RetriableCommitError(
                "The session of this member may have ended, and the group has not confirmed yet that it still owns "
                "its tasks. Commit again later."
            )
        commit = self._begin(enforce_checkpoint)
        for task in self.active.running.values() if self.all_together and tasks else tasks:
            commit.add(task)
        return self._carry_out(commit)

    def _begin(self, enforce_checkpoint: bool) -> Commit:
        """Complete the pending commit and return a new one; raises as Commit.finish() if the pending one fails."""
        self._complete_pending()
        return self.new_commit(enforce_checkpoint, self.spans.began())

    def _complete_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            self._carry_out(pending)

    def _carry_out(self, commit: Commit, wait: bool = True) -> int:
        """Carry out a commit. Returns how many tasks were committed; raises as Commit.finish().

        wait: for the group's response. Otherwise, where the commit allows it, it is pending, and wait() does the rest.
        A completed commit has a span, from its first flush to the group's response.
        """
        task_ids = [task.task_id for task in commit.tasks]
        try:
            if wait:
                commit.finish()
            elif not commit.start():
                self._pending = commit
                return len(task_ids)
        except Exception as error:
            self.spans.record("commit", commit.began, commit.attributes, error)
            if isinstance(error, CommitTimeoutError | BrokerUnavailableError):
                self.active.timeouts.failed(task_ids, "committing", error)
            raise
        self.active.timeouts.succeeded(task_ids)
        if task_ids:
            self.spans.record("commit", commit.began, commit.attributes)
        return len(task_ids)
