"""The slot of a stream thread, and when its process counts as hanging."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.control.stream_thread_state import StreamThreadState

from .worker import Worker

#: How long the kernel may take to end a process after SIGKILL, before the loop checks again.
KILL_MS = 1_000
#: States in which a stream thread has had no task yet, so nothing can be lost.
WITHOUT_WORK = (StreamThreadState.CREATED, StreamThreadState.STARTING)
#: States in which a stream thread is a member of its group.
UP = (StreamThreadState.PARTITIONS_REVOKED, StreamThreadState.PARTITIONS_ASSIGNED, StreamThreadState.RUNNING)
#: How long a stream thread without work may take to close, in ms. It may be importing the user's module, or waiting for
#: a broker that does not answer, and would see the command only afterwards.
CLOSE_WITHOUT_WORK_MS = 3_000
#: How long a process may continue once its stream thread is DEAD, in ms: more than worker_process.py takes to end it by
#: force.
END_MS = 10_000


@dataclass(slots=True)
class Slot:
    """The slot of StreamThread-<number>. Its process may be replaced; number and group.instance.id stay.

    start_at: when to start a process while there is none; stopped_at: when it was requested to close, None if it was
    not (both monotonic ms). failed_starts: in a row, because the topology could not be loaded. gone: set with the
    thread's name when the slot is removed. again: the result of a restart, set when the old process has ended. added:
    of a slot that was added to a running application: set with the thread's name when it starts, None if it was removed
    before, or with the reason for which it could not start. tasks: active ones that its process had when it was
    requested to close, or has died.
    """

    number: int
    start_at: int
    worker: Worker | None = None
    restarts: int = 0
    failed_starts: int = 0
    stopped_at: int | None = None
    gone: Future[str | None] = field(default_factory=Future)
    again: Future[str | None] | None = None
    added: Future[str | None] | None = None
    tasks: frozenset[str] = frozenset()

    @property
    def is_new(self) -> bool:
        """True from the addition to a running application until its stream thread has started."""
        return self.added is not None and not self.added.done()

    def begin(self, name: str | None) -> None:
        """Its stream thread has started; None: it was removed before."""
        self.failed_starts = 0
        if self.added is not None and not self.added.done():
            self.added.set_result(name)

    def refuse(self, error: Exception) -> None:
        """Its stream thread cannot start."""
        if self.added is not None:
            self.added.set_exception(error)

    @property
    def is_restarting(self) -> bool:
        """True from the restart request until the old process has ended."""
        return self.again is not None and not self.again.done()

    def restart(self, name: str, now: int) -> None:
        """Schedule a new process: the old one has closed for a restart."""
        self.stopped_at, self.start_at = None, now
        if self.again is not None:
            self.again.set_result(name)

    def give_up_restart(self) -> None:
        """Do not replace the process that is closing."""
        if self.again is not None and not self.again.done():
            self.again.set_result(None)

    @property
    def state(self) -> StreamThreadState:
        """The stream thread's state; CREATED until a process is started."""
        return self.worker.state if self.worker else StreamThreadState.CREATED

    @property
    def has_begun(self) -> bool:
        """True once its stream thread has reported that it starts."""
        return self.state is not StreamThreadState.CREATED

    @property
    def is_up(self) -> bool:
        """True while its stream thread is a member of the group, or is joining, and has not failed."""
        return self.worker is not None and self.worker.failure is None and self.state in UP


class HangGuard:
    """Ends processes that hang or do not close in time: SIGABRT, then SIGKILL. Times in monotonic ms.

    The sign of life is a report by the stream thread's loop, so a stuck loop is detected. A thread that has reported a
    failure closes as if requested.
    """

    def __init__(self, config: StreamsConfig, log: PrefixedLogger) -> None:
        self._stall_timeout: int = config["penstock.worker.stall.timeout.ms"]
        self._shutdown_timeout: int = config["penstock.shutdown.timeout.ms"]
        self._grace: int = config["penstock.worker.abort.grace.ms"]
        self._log = log

    def acts_at(self, slot: Slot) -> int | None:
        """Return the time of the next action if the slot's process does not change; None if it has none."""
        worker = slot.worker
        if worker is None:
            return None
        if worker.aborted_at is not None:
            return worker.aborted_at + self._grace + (KILL_MS if worker.killed else 0)
        patience = self._shutdown_timeout
        if worker.state in WITHOUT_WORK:
            patience = min(CLOSE_WITHOUT_WORK_MS, patience)
        limits = (
            (slot.stopped_at, patience),
            (worker.failed_at, self._shutdown_timeout),
            (worker.dead_at, END_MS),
        )
        closing = [since + limit for since, limit in limits if since is not None]
        return min(closing, default=worker.last_sign + self._stall_timeout) + (KILL_MS if worker.killed else 0)

    def check(self, slot: Slot, now: int) -> bool:
        """Take due actions; returns True if the process was aborted because it did not close in time."""
        worker, due = slot.worker, self.acts_at(slot)
        if worker is None or due is None or now < due or worker.killed:
            return False
        if worker.aborted_at is not None:
            self._log.error("%s, process %d, survives SIGABRT: killing it", worker.name, worker.pid)
            worker.kill()
            return False
        if slot.stopped_at is not None and worker.state in WITHOUT_WORK:
            self._log.info("%s, process %d, has not started to work yet: not waiting for it", worker.name, worker.pid)
            worker.kill()
            return False
        reason = "did not close in time"
        if worker.dead_at is not None:
            reason = "has not ended although its stream thread is DEAD"
        elif slot.stopped_at is None and worker.failed_at is None:
            reason = f"has given no sign of life for {(now - worker.last_sign) / 1000:.0f} s"
        self._log.error("%s, process %d, %s: aborting it; its stacks follow", worker.name, worker.pid, reason)
        worker.abort(now)
        return slot.stopped_at is not None
