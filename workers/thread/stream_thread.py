"""The stream thread: the loop that polls, restores, processes, punctuates and commits (Kafka Streams: StreamThread).

In Penstock each stream thread is the main thread of a separate process.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from penstock.clients.log_context import listed
from penstock.clients.reading.reader import Records
from penstock.topology.errors import HandedOverError, StreamsError, TaskCorruptedError, TaskMigratedError
from penstock.topology.graph.topology import Topology

from ..control.messages import Failed, ThreadControl, ThreadSpec
from ..control.stream_thread_state import StreamThreadState
from ..tasks.partition_consumer import InvalidOffsetError
from ..tasks.task_commits import NOT_COMMITTED
from .batch_sizer import BatchSizer
from .garbage_collection import tuned_garbage_collection
from .stream_thread_parts import StreamThreadParts, create_parts
from .thread_commands import ThreadCommands

_S = StreamThreadState


class RestoreBudget(NamedTuple):
    """The time limit in ms, of opening stores and of one restore call, and its batch size in changelog records.

    A larger batch makes a larger write, which costs less per row, and merges several records of a key into one row. But
    running tasks wait for it. A batch never exceeds the prefetched records.
    """

    ms: int
    batch_records: int


#: While other tasks run, and while none run.
RESTORE_BUDGET = RestoreBudget(50, 10_000)
RESTORE_ALONE_BUDGET = RestoreBudget(200, 50_000)

#: How long a poll waits for records while an assignment is pending, in ms: the response arrives on another connection,
#: which cannot wake the poll.
REBALANCE_POLL_MS = 10
#: How long a restore waits for records while other tasks run but have nothing to process, in ms.
RESTORE_IDLE_WAIT_MS = 5
#: How often to check for a task whose stores are due to be persisted, in ms.
PERSIST_CHECK_MS = 250
#: How long a poll waits while another process here still holds the lock of a task's directory, in ms.
LOCK_POLL_MS = 10
#: How long a thread that shuts down waits for a pending assignment, in ms; without it the last commit is refused. Other
#: members may take much longer to rejoin.
SHUTDOWN_REBALANCE_WAIT_MS = 10_000


class StreamThread:
    """Runs the tasks that its group assigns, until it is shut down or fails for good."""

    def __init__(self, parts: StreamThreadParts) -> None:
        context, tasks = parts.context, parts.tasks
        self.name = context.name
        self.task_manager = tasks.manager
        self.metrics = context.metrics
        self.num_iterations = 1
        self.paused = False
        self._parts = parts
        self._log = context.log
        self.time = context.time
        self._clock = context.clock
        self._states = context.states
        self._consumer = tasks.consumer
        self.group = parts.group
        self.producer = tasks.producer
        self.changelog_reader = tasks.changelog_reader
        self.global_state = tasks.global_state
        self.status = parts.status
        self.hold = parts.hold
        self.input_limit = parts.input_limit
        self.commands = ThreadCommands(context.control, self, parts.answers, parts.telemetry)
        context.control.watched_by(partial(self._consumer.watch, serve=self.commands.answer_reads))
        self._batches = BatchSizer()
        config = context.config
        self.poll_ms: int = config["poll.ms"]
        self._poll_records: int = config["max.poll.records"]
        self._commit_interval_ms: int = config["commit.interval.ms"]
        self._purge_interval_ms: int = config["repartition.purge.interval.ms"]
        self._max_poll_interval_ms: int = config["max.poll.interval.ms"]
        self._buffer_limit = max(config["buffered.records.per.partition"], config["max.poll.records"])
        self._last_poll_ms = self._last_commit_ms = self._last_purge_ms = self._last_persist_ms = self.time.now_ms
        self._leave_group = context.instance_id is None
        self._shutdown_deadline_ms = 0

    @classmethod
    def create(cls, topology: Topology, spec: ThreadSpec, control: ThreadControl, **overrides: Any) -> StreamThread:
        """Create a stream thread with its clients; overrides: see create_parts."""
        return cls(create_parts(topology, spec, control, **overrides))

    # -- state

    @property
    def state(self) -> StreamThreadState:
        """The thread's state."""
        return self._states.state

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive: starting, between assignments, or running."""
        return self.state.is_alive

    # -- life

    def run(self) -> None:
        """Run until the thread is DEAD. Raises the error that ended it, if any."""
        self._log.info("Starting")
        if self.state is not _S.CREATED:
            self._log.info("StreamThread already shutdown. Not running")
            return
        clean_run = False
        try:
            with tuned_garbage_collection():
                self.start()
                while self.goes_on:
                    self.run_once_guarded()
            clean_run = True
        except BaseException as error:
            self._log.exception("Encountered the following error during processing: %s", error)
            self._report(error)
            if isinstance(error, HandedOverError):
                self._leave_group = True  # it is not replaced, and a handover waits until the group is empty
            raise
        finally:
            self.complete_shutdown(clean_run)

    def start(self) -> None:
        """Initialize transactions, read the global tables and join the group, before the first iteration.

        The supervisor and systemd already know that the process is up: from now on it may wait for its brokers.
        """
        self._states.transition_to(_S.STARTING)
        self.metrics.thread_start_time_ms = self._clock.wall_clock_ms()
        self.status.wait_for(f"a broker of {self._parts.context.config['bootstrap.servers']} to answer")
        self._until(self.producer.initialize)
        self.global_state.start()
        self._until(self.global_state.catch_up)
        self.group.subscribe()

    def _until(self, step: Callable[[], bool]) -> None:
        """Repeat a step until it returns True or the thread is stopped; execute commands and report in between."""
        while self.is_running and not step():
            self.time.advance()
            self.commands.poll()
            self._parts.telemetry.advance()
            self.status.report()

    @property
    def goes_on(self) -> bool:
        """True while another iteration follows, until the thread is stopped.

        A pending rebalance is completed first, because nothing can be committed during it.
        """
        return self.is_running or (
            self.group.rebalance_in_progress and self._clock.monotonic_ms() < self._shutdown_deadline_ms
        )

    def run_once_guarded(self) -> None:
        """Run one iteration; handle tasks that have migrated or whose state is corrupted."""
        try:
            self.run_once()
        except TaskCorruptedError as error:
            if not error.task_ids:  # a global store: the next start reads it again
                raise
            self._handle_corruption(error)
        except TaskMigratedError as error:
            self._handle_migration(error)

    def _handle_corruption(self, error: TaskCorruptedError) -> None:
        self._log.warning(
            "Detected the states of tasks %s are corrupted. "
            "Will close the task as dirty and re-create and bootstrap from scratch. %s",
            listed(error.task_ids),
            str(error),  # a kept error would keep the cursor of its frames, and so the damaged files, open
        )
        try:
            self.task_manager.handle_corruption(error.task_ids)
        except TaskMigratedError as migrated:
            self._handle_migration(migrated)

    def _handle_migration(self, error: TaskMigratedError) -> None:
        task = error.task
        self._log.warning(
            "Detected task %s that got migrated to another thread. "
            "This implies that this thread missed a rebalance and dropped out of the consumer group. "
            "Will try to rejoin the consumer group. Below is the detailed description of the task:\n%s\n%s",
            "(unknown)" if task is None else task.task_id,
            "" if task is None else task.describe(">"),
            error,
        )
        self.group.lose()

    def shutdown(self, leave_group: bool = False) -> None:
        """Request the thread to end; it first commits and closes its tasks. leave_group: even as a static member."""
        self._log.info("Informed to shut down")
        self._leave_group = self._leave_group or leave_group
        self.group.closing = True
        self._shutdown_deadline_ms = self._clock.monotonic_ms() + SHUTDOWN_REBALANCE_WAIT_MS
        if self._states.transition_to(_S.PENDING_SHUTDOWN) is _S.CREATED:
            self.complete_shutdown(clean_run=True)  # it was never started, so there is no loop to do it

    def complete_shutdown(self, clean_run: bool) -> None:
        """Close everything: first the tasks, while this member still owns them, then the clients.

        With clean_run False the tasks are closed without a commit. A failed step does not prevent the following ones.
        """
        self._states.transition_to(_S.PENDING_SHUTDOWN)
        self._log.info("Shutting down %s", "clean" if clean_run else "unclean")
        parts = self._parts
        unclosed = self._close("task manager", lambda: parts.tasks.manager.shutdown(clean_run))
        if unclosed is not None and clean_run:
            self._report(unclosed)
        self._close("telemetry", parts.telemetry.close)  # with the last totals, while the clients are connected
        self._close("producer", self.producer.close)
        # Leaving lets others take over immediately; a static member's tasks wait for its replacement.
        self._close("group membership", lambda: parts.group.close(self._leave_group))
        self._close("changelog reader", parts.tasks.changelog_reader.close)
        self._close("event loop", parts.tasks.async_calls.close)  # it wakes the consumer
        self._close("consumer", parts.tasks.consumer.close)
        self._close("global state", parts.tasks.global_state.close)
        for name, close in parts.close_last.items():
            self._close(name, close)
        self._states.transition_to(_S.DEAD)
        self._log.info("Shutdown complete")

    def _close(self, what: str, close: Callable[[], None]) -> Exception | None:
        """Run a step and return its error, which is logged; the caller continues."""
        try:
            close()
        except Exception as error:  # noqa: BLE001  see above
            self._log.exception("Failed to close %s due to the following error:", what)
            return error
        return None

    def _report(self, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self._parts.context.control.report(Failed.of(error, text, logged=True))

    # -- one iteration

    def run_once(self) -> None:
        """Run one iteration: commands, group, poll, restore, process, punctuate, commit, standby tasks, status."""
        self.time.advance()
        start_ms = self.time.now_ms
        self.commands.poll()
        self.input_limit.poll()
        self.group.poll()
        if self.status.waiting_for:
            self.status.wait_for("")  # the first join needs responses of brokers
        poll_ms = self._poll_phase()
        if not self.group.in_doubt:  # otherwise changelogs that others own by now could get buffered records
            self.producer.poll()
        if not self.is_running:
            self._log.debug(
                "Thread state is already %s, skipping the run once call after poll request", self.state.name
            )
            return
        self.initialize_and_restore_phase()
        self.global_state.update()
        self.time.advance()
        self.process_and_maybe_commit(start_ms, poll_ms)
        self.maybe_update_standby_tasks()
        self._maybe_persist()
        self._parts.open_transactions.poll()
        if self._parts.stalls.check(self.time.now_ms):
            self.shutdown()  # the supervisor replaces a process that ends without a request
        self._parts.telemetry.advance()
        self.status.report()

    def _poll_phase(self) -> int:
        """Take fetched records and pass them to the tasks. Returns the latency in ms."""
        self.task_manager.balance_fetching(self._buffer_limit)
        before_ms = self.time.now_ms
        wait_ms = self.poll_time_ms()
        if not self.group.in_doubt:
            self.producer.send_due()  # due batches must not wait for records
            wait_ms = self.producer.wait_ms(wait_ms)
        records = self.poll_requests(wait_ms)
        self.time.advance()
        latency_ms = self.time.now_ms - before_ms
        self.metrics.poll.record(latency_ms, self.time.now_ms)
        if records:
            self.metrics.poll_records.record(sum(map(len, records.values())), self.time.now_ms)
            self.task_manager.add_records_to_tasks(records)
        return latency_ms

    def poll_time_ms(self) -> int:
        """Return how long the next poll may block, in ms."""
        if self.group.rebalance_in_progress:
            return min(REBALANCE_POLL_MS, self.poll_ms)
        if self.state is _S.PENDING_SHUTDOWN:
            return 0
        if self.paused:
            return self.poll_ms  # nothing is restored
        if self.state is _S.PARTITIONS_ASSIGNED:
            # Restoring should start or continue immediately, unless all tasks only wait for a lock.
            return min(LOCK_POLL_MS, self.poll_ms) if self.task_manager.waits_for_locks() else 0
        if self.state is _S.RUNNING and self.task_manager.opening:
            return 0
        if self.state in (_S.PARTITIONS_REVOKED, _S.STARTING, _S.RUNNING):
            due_ms = self.task_manager.batch_due_ms()
            return self.poll_ms if due_ms is None else min(max(due_ms - self.time.wall_clock_ms, 1), self.poll_ms)
        self._log.error("Unexpected state %s during normal iteration", self.state.name)
        raise StreamsError(f"{self._log.prefix}Unexpected state {self.state.name} during normal iteration")

    def poll_requests(self, poll_time_ms: int) -> Records:
        """Return the next batch by partition; block up to poll_time_ms for its first record."""
        self._last_poll_ms = self.time.now_ms
        records: Records = {}
        try:
            records = self._consumer.poll(self._poll_records, poll_time_ms / 1000)
        except InvalidOffsetError as error:
            self._parts.tasks.invalid_positions.add(error)
        self._parts.tasks.invalid_positions.reset()
        return records

    def initialize_and_restore_phase(self) -> int:
        """Open new tasks and restore them for a bounded time. Returns the number of restored records."""
        state = self.state
        if state is not _S.PARTITIONS_ASSIGNED and not (
            state is _S.RUNNING and self.task_manager.needs_initialization_or_restoration()
        ):
            return 0
        self._log.debug("State is %s; initializing tasks if necessary", state.name)
        clock = self._clock
        deadline_ms = clock.monotonic_ms() + self._restore_budget.ms
        if self.task_manager.update_new_and_restoring_tasks(lambda: clock.monotonic_ms() < deadline_ms):
            took_ms = clock.monotonic_ms() - self.group.listener.last_partition_assigned_ms
            active = listed(self.task_manager.active.all_assigned_task_ids())
            self._log.info("Restoration took %s ms for all active tasks %s", took_ms, active)
            self._states.transition_to(_S.RUNNING)
            return 0
        if self.paused:
            self.changelog_reader.initialize_changelogs()
            return 0
        if self.task_manager.opening:  # which changelog is read first depends on all of them
            return 0
        self._log.debug("Idempotently invoking restoration logic in state %s", self.state.name)
        wait_ms = RESTORE_IDLE_WAIT_MS if self.task_manager.active.running else self.poll_ms
        if self.task_manager.has_buffered_records():
            wait_ms = 0
        restored = self._restore(wait_ms, self._restore_budget)
        self._log.debug("Idempotent restore call done. Thread state has not changed.")
        return restored

    @property
    def _restore_budget(self) -> RestoreBudget:
        return RESTORE_BUDGET if self.task_manager.active.running else RESTORE_ALONE_BUDGET

    def _restore(self, wait_ms: int, budget: RestoreBudget) -> int:
        """Read the changelogs of active and standby tasks. Returns the number of applied records."""
        reader, metrics, now_ms = self.changelog_reader, self.metrics, self.time.now_ms
        restored, updated = reader.total_restored, reader.total_updated
        applied = reader.restore(wait_ms / 1000, budget.ms, budget.batch_records)
        if applied:
            metrics.restore.record(1, now_ms, reader.total_restored - restored)
            metrics.update.record(1, now_ms, reader.total_updated - updated)
        return applied

    def process_and_maybe_commit(self, start_ms: int, poll_ms: int) -> int:
        """Process buffered records, with punctuation and commits in between. Returns the number of processed records.

        num_iterations follows Kafka Streams: it grows by one per round, and is halved after a punctuation or commit. It
        is also halved, and this call ends, when half of max.poll.interval.ms has passed since the last poll. A command
        ends it, too, between two rounds, but reads are answered there.
        """
        if self.paused or self.hold.is_active or self.state not in (_S.RUNNING, _S.PARTITIONS_ASSIGNED):
            return 0
        total = process_ms = punctuate_ms = commit_ms = 0
        while not self.group.in_doubt:
            processed, latency_ms = self._process()
            self.producer.send_due()
            total += processed
            process_ms += latency_ms
            punctuated, latency_ms = self.maybe_punctuate()
            punctuate_ms += latency_ms
            before_ms = self.time.now_ms
            committed = self.maybe_commit()
            commit_ms += max(self.time.now_ms - before_ms, 0)
            self.status.count(processed, punctuated, max(committed, 0))
            if not processed or not self.commands.answer_reads():
                break
            if self.time.now_ms - self._last_poll_ms > self._max_poll_interval_ms / 2:
                self.num_iterations = max(self.num_iterations // 2, 1)
                break
            self.num_iterations = (
                max(self.num_iterations // 2, 1) if punctuated or committed > 0 else self.num_iterations + 1
            )
        self.metrics.process_records.record(total, self.time.now_ms)
        self.metrics.record_ratios(
            self.time.now_ms,
            self.time.now_ms - start_ms,
            process=process_ms,
            punctuate=punctuate_ms,
            poll=poll_ms,
            commit=commit_ms,
        )
        return total

    def _process(self) -> tuple[int, int]:
        """Process once. Returns the number of processed records and the latency in ms."""
        iterations = self.num_iterations
        self._log.debug("Processing tasks with %s iterations.", iterations)
        processed = self.task_manager.process(self._batches.max_records(iterations))
        latency_ms = self.time.advance()
        if processed:
            self.metrics.process.record(latency_ms / processed, self.time.now_ms, processed)
            self._batches.record(iterations, processed, latency_ms)
        self._log.debug(
            "Processed %s records with %s iterations; invoking punctuators if necessary", processed, iterations
        )
        return processed, latency_ms

    def maybe_punctuate(self) -> tuple[int, int]:
        """Run due punctuations. Returns how many ran, and the latency in ms."""
        punctuated = self.task_manager.punctuate()
        if not punctuated:
            return 0, 0
        latency_ms = self.time.advance()
        self.metrics.punctuate.record(latency_ms / punctuated, self.time.now_ms, punctuated)
        self._log.debug("%s punctuators ran.", punctuated)
        return punctuated, latency_ms

    def maybe_commit(self) -> int:
        """Commit all tasks if commit.interval.ms has passed, otherwise those whose code requested it.

        Returns how many were committed, or NOT_COMMITTED during a rebalance.
        """
        self.task_manager.commits.take_answer()
        since_ms = self.time.now_ms - self._last_commit_ms
        before_ms = self.time.now_ms
        if since_ms > self._commit_interval_ms:
            committed = self._commit_all(since_ms)
        else:
            committed = self.task_manager.commits.commit_requested()
        if committed > 0:
            self.time.advance()
            latency_ms = max(self.time.now_ms - before_ms, 0)
            self.metrics.commit.record(latency_ms / committed, self.time.now_ms, committed)
            self.metrics.blocked_time_ns_total += latency_ms * 1_000_000
            self._log.debug(
                "Committed all active tasks %s and standby tasks %s in %sms",
                listed(self.task_manager.active.running),
                listed(self.task_manager.standby.running),
                latency_ms,
            )
        return committed

    def _commit_all(self, since_ms: int) -> int:
        self._log.debug(
            "Committing all active tasks %s and standby tasks %s since %sms has elapsed (commit interval is %sms)",
            listed(self.task_manager.active.running),
            listed(self.task_manager.standby.running),
            since_ms,
            self._commit_interval_ms,
        )
        committed = self.task_manager.commits.start_commit_all()
        if committed == NOT_COMMITTED:
            self._log.debug(
                "Unable to commit as we are in the middle of a rebalance, will try again when it completes."
            )
            return committed
        if self.time.now_ms - self._last_purge_ms > self._purge_interval_ms:
            self.task_manager.maybe_purge_committed_records()
            self._last_purge_ms = self.time.now_ms
        self._last_commit_ms = self._clock.monotonic_ms()
        return committed

    def maybe_update_standby_tasks(self) -> int:
        """Apply changelog records to standby tasks for a bounded time. Returns the number of applied records."""
        if self.state is not _S.RUNNING or self.paused or not self.task_manager.standby.running:
            return 0
        updated = self._restore(0, RESTORE_BUDGET)
        self.time.advance()
        return updated

    def _maybe_persist(self) -> None:
        if self.time.now_ms - self._last_persist_ms >= PERSIST_CHECK_MS:
            self._last_persist_ms = self.time.now_ms
            self.task_manager.persist_one(self.time.now_ms)

    def describe(self, indent: str = "") -> str:
        """Return a description of several lines (Kafka Streams: toString)."""
        return f"{indent}\tStreamsThread threadId: {self.name}\n{self.task_manager.describe(indent)}"

    def __str__(self) -> str:
        return self.describe()
