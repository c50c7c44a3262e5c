"""Decides when a stream thread's active tasks are committed, and which; committer.py carries it out."""

from __future__ import annotations

from collections.abc import Callable, Collection

from penstock.clients.group.membership import GroupMembership, RetriableCommitError
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.errors import BrokerUnavailableError

from .assigned_streams_tasks import AssignedStreamsTasks
from .committer import Commit, Committer
from .stream_task import StreamTask

#: Returned by commit_all during a rebalance (Kafka: TaskManager.commit).
NOT_COMMITTED = -1


class TaskCommits:
    """Commits nothing during a rebalance, and retries commits that the brokers did not accept."""

    def __init__(
        self, active: AssignedStreamsTasks, committer: Committer, membership: GroupMembership, log: PrefixedLogger
    ) -> None:
        self._active = active
        self._committer = committer
        self._membership = membership
        self._log = log
        #: Whether a commit includes all tasks, because they share a transaction.
        self.all_together = committer.all_together
        #: Abandons the pending commit; see Committer.forget.
        self.forget = committer.forget

    @property
    def rebalance_in_progress(self) -> bool:
        """Whether this member waits for an assignment, or to learn whether it still is a member. Nothing is committed
        then.
        """
        return self._membership.join_pending or self._membership.in_doubt

    def commit_all(self, enforce_checkpoint: bool = False) -> int:
        """Commit all active tasks that need it. Returns how many, or NOT_COMMITTED during a rebalance.

        enforce_checkpoint: the tasks are about to be closed, so store the changelog offsets.
        """
        if self.rebalance_in_progress:
            return NOT_COMMITTED
        return self._tried(lambda: self._committer.finish(self._commit_of_all(enforce_checkpoint)))

    def start_commit_all(self) -> int:
        """As commit_all(), but where possible let the tasks continue until the group has accepted the offsets."""
        if self.rebalance_in_progress:
            return NOT_COMMITTED
        return self._tried(lambda: self._committer.start(self._commit_of_all()))

    def take_answer(self) -> None:
        """Complete the pending commit if the group has answered."""
        if self._committer.is_answered:
            self.wait()

    def wait(self) -> None:
        """Wait for the pending commit, if any. If it fails, the next commit covers its work."""
        self._tried(self._committer.wait)

    def _commit_of_all(self, enforce_checkpoint: bool = False) -> Commit:
        commit = self._committer.begin(enforce_checkpoint)
        self._active.apply_to_running_tasks(commit.add)
        return commit

    def _tried(self, commit: Callable[[], int]) -> int:
        try:
            return commit()
        except (RetriableCommitError, BrokerUnavailableError) as error:
            self._log.warning("Commit failed, will try again: %s", error)
            return NOT_COMMITTED

    def commit_requested(self) -> int:
        """Commit the active tasks whose code requested it. Returns how many."""
        if self.rebalance_in_progress or self._committer.is_under_way:
            return 0
        try:
            return self._active.maybe_commit_per_user_requested(self.commit)
        except (RetriableCommitError, BrokerUnavailableError) as error:
            self._log.warning("Commit that was requested failed, will try again: %s", error)
            return 0

    def commit(self, tasks: Collection[StreamTask], enforce_checkpoint: bool = False) -> int:
        """Commit these tasks. Returns how many were committed; raises RetriableCommitError if they were not."""
        if self._membership.in_doubt:
            raise RetriableCommitError(
                "The session of this member may have ended, and the group has not confirmed yet that it still owns "
                "its tasks. Commit again later."
            )
        commit = self._committer.begin(enforce_checkpoint)
        for task in self._active.running.values() if self.all_together and tasks else tasks:
            commit.add(task)
        return self._committer.finish(commit)
