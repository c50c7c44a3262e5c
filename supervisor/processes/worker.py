"""The supervisor's view of a stream thread's process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess

import psutil

from penstock.workers.control.messages import (
    ApplicationShutdownRequested,
    Command,
    CommandResult,
    Failed,
    HostsChanged,
    ListenerCall,
    PartitionStalled,
    Report,
    StateChanged,
    Status,
    TaskStatus,
)
from penstock.workers.control.stream_thread_state import StreamThreadState

from ..channels.channel import Channel
from ..exit_codes import WorkerExitCode
from ..logs.log_floods import bounded_logger
from ..logs.worker_output import Note, WorkerOutput, ignore
from ..source import pickling
from . import worker_process
from .worker_process import ProcessEnds, ProcessStarted, SpareReady, TakeOver, WorkerSpec, WorkerTarget

logger = bounded_logger(__name__)

#: Up to this number of unprocessed records a stream thread does not count as behind.
FEW_RECORDS = 1_000
#: How long measurements of a process's memory and CPU are reused, in ms.
USAGE_MS = 1_000
#: Suffixes of main modules' files that only IPython can read.
NOT_PYTHON = (".ipy", ".ipynb")
#: Replaces an unknown exit code; no process can end with it.
UNKNOWN_EXIT = 256


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """The status of a stream thread and its process (Kafka Streams: ThreadMetadata, and more).

    lag, restore_remaining and restore_total in records; cpu_percent of one core, over a second or more; uptime in s.
    memory_share_bytes: the process's memory share, None in its first seconds. waits: see Status.
    """

    name: str
    slot: int
    pid: int
    state: str
    tasks: tuple[TaskStatus, ...]
    records_processed: int
    records_per_second: float
    lag: int
    restore_rate: float
    rss_bytes: int
    memory_share_bytes: int | None
    cpu_percent: float
    uptime_seconds: float
    restarts: int
    waits: tuple[str, ...] = ()

    @property
    def is_over_memory_share(self) -> bool:
        """True if the process uses more memory than its share of penstock.memory.bytes."""
        return self.memory_share_bytes is not None and self.rss_bytes > self.memory_share_bytes

    @property
    def restore_remaining(self) -> int:
        """Records left to restore, over all tasks."""
        return sum(task.restore_remaining for task in self.tasks)

    @property
    def restore_total(self) -> int:
        """Total records to restore, over all tasks."""
        return sum(task.restore_total for task in self.tasks)


class Worker:
    """A stream thread's process. Only the supervisor's thread may use it. Times in ms of its monotonic clock."""

    def __init__(
        self, spec: WorkerSpec, process: SpawnProcess, control: Channel, output: WorkerOutput, now: int
    ) -> None:
        self.spec = spec
        self.output = output
        self.control = control
        self.state = StreamThreadState.CREATED
        self.status = Status(self.state.name)
        #: The ids of its active tasks, as of its last report.
        self.active_tasks: frozenset[str] = frozenset()
        self.records_per_second = 0.0
        self.failure: Failed | None = None
        #: The stalled partition for which the process has closed itself.
        self.stalled: PartitionStalled | None = None
        self.has_started = False
        #: Its end of the pipe is closed; it has ended, or will soon.
        self.hung_up = False
        self.last_sign = now
        #: When it reported that its stream thread fails, and that it is DEAD.
        self.failed_at: int | None = None
        self.dead_at: int | None = None
        self.aborted_at: int | None = None
        self.killed = False
        self._started_at = now
        self._last_status: int | None = None
        self._process = process
        self._pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None
        self._stats = psutil.Process(self.pid)
        self._measured_at: int | None = None
        self._measured = 0, 0.0
        #: Its memory share, in bytes; None until memory_guard.py has checked.
        self.memory_share: int | None = None

    @classmethod
    def spawn(
        cls, context: SpawnContext, spec: WorkerSpec, target: WorkerTarget, now: int, note: Note = ignore
    ) -> Worker:
        """Start the process. The calling thread must live as long as the process: Linux ends it with its thread.

        note: called with each log record of the process. Raises OSError if it cannot be started or watched.
        """
        control, log, stdout, stderr = (context.Pipe(duplex=duplex) for duplex in (True, False, False, False))
        ends = ProcessEnds(control[1], log[1], stdout[1], stderr[1])
        arguments = (target, pickling.dumps(spec), ends, os.getpid())
        process = context.Process(target=worker_process.main, args=arguments, name=spec.name)
        with _without_main_file():
            process.start()
        for end in ends:
            end.close()
        output = WorkerOutput(spec.name, log[0], stdout[0], stderr[0], note)
        try:
            return cls(spec, process, Channel(control[0], blocking=False), output, now)
        except OSError:  # no descriptor to watch it with
            process.kill()
            process.join()
            raise

    def take_over(self, spec: WorkerSpec, now: int) -> bool:
        """Assign a spare process to the stream thread of a spec. False if it does not accept the command."""
        self.spec, self.output.name = spec, spec.name
        self._started_at = self.last_sign = now
        return self.control.offer(TakeOver(spec.slot, spec.num_threads, spec.listeners))

    @property
    def name(self) -> str:
        """The stream thread's name."""
        return self.spec.name

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_behind(self) -> bool:
        """True if there is work for more than a second."""
        return self.status.lag > max(FEW_RECORDS, self.records_per_second)

    @property
    def sentinel(self) -> int:
        """Becomes readable when the process has ended.

        multiprocessing's own sentinel is a pipe, which children of the process may hold open after its end.
        """
        return self._process.sentinel if self._pidfd is None else self._pidfd

    def send(self, command: Command) -> bool:
        """Send a command; False if the process does not read its pipe, or has ended."""
        return self.control.offer(command)

    def receive(self, now: int) -> list[Report | ProcessStarted | SpareReady]:
        """Return the arrived reports, after updating the status from them."""
        reports: list[Report | ProcessStarted | SpareReady] = []
        try:
            reports = self.control.receive()
        except EOFError:
            self.hung_up = True
        if reports:
            self.last_sign = now
        for report in reports:
            self._note(report, now)
        return reports

    def _note(self, report: Report | ProcessStarted | SpareReady, now: int) -> None:
        match report:
            case StateChanged():
                self.state = StreamThreadState[report.new]
                if self.state is StreamThreadState.DEAD:
                    self.dead_at = now
            case Status():
                if self._last_status is not None and now > self._last_status:
                    done = report.records_processed - self.status.records_processed
                    self.records_per_second = done * 1000 / (now - self._last_status)
                self._last_status = now
                self.status = report
                self.active_tasks = frozenset(task.task_id for task in report.tasks if task.kind == "active")
            case Failed():
                self.failure, self.failed_at = report, now
            case ProcessStarted():
                self.has_started = True
            case PartitionStalled():
                self.stalled = report if report.replaces_process else None
            case CommandResult() | ListenerCall() | HostsChanged() | ApplicationShutdownRequested():
                pass  # the supervisor's business
            case SpareReady():
                pass  # SpareProcess's

    def abort(self, now: int) -> None:
        """Send SIGABRT, which leaves the process's stacks in the log; a stopped process gets it when it continues."""
        self.aborted_at = now
        self._signal(signal.SIGABRT)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.killed = True
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if not self.has_ended():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def has_ended(self) -> bool:
        """Return True once the process has ended; it is then reaped."""
        if self._process.exitcode is not None:
            return True
        try:  # psutil.pid_exists would open a file, and no descriptor may be left for it
            if sys.platform == "linux" and self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, 0)
            else:
                os.kill(self.pid, 0)
        except ProcessLookupError:  # reaped by something else: see exit_code
            return True
        return False

    @property
    def exit_code(self) -> int:
        """The exit code, negative for a signal; only once it has ended.

        UNKNOWN_EXIT if other code in this program has reaped the process, e.g. ``os.wait`` in a library.
        """
        code = self._process.exitcode
        return UNKNOWN_EXIT if code is None else code

    def cause_of_death(self) -> str:
        """Return a description of the process's end and its possible cause."""
        code = self.exit_code
        if code == UNKNOWN_EXIT:
            return "its exit code is unknown: other code in this program has waited for it"
        if code == WorkerExitCode.STOPPED:
            if self.stalled is not None:
                return f"exit code 0, to be replaced: partition {self.stalled.partition} is stalled"
            return "exit code 0, although it was not asked to stop: does a function call os._exit?"
        if code >= 0:
            known = code in WorkerExitCode.__members__.values()
            return f"exit code {code}" + (f" ({WorkerExitCode(code).name})" if known else "")
        name = signal.Signals(-code).name if -code in signal.Signals.__members__.values() else f"signal {-code}"
        if code == -signal.SIGKILL and not self.killed:
            return f"{name}, possibly out of memory (the kernel's log says more)"
        return name

    def close(self) -> None:
        """Wait for the end of a process that has ended or was killed, and release all handles."""
        self._process.join()
        self.output.drain()
        self.output.close()
        self.control.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        with contextlib.suppress(ValueError):  # multiprocessing does not know that it ended: see exit_code
            self._process.close()

    def thread_status(self, now: int, restarts: int) -> ThreadStatus:
        """Return the current status. Memory and CPU are 0 for a process that has just ended."""
        rss, cpu = self.usage(now)
        status = self.status
        return ThreadStatus(
            name=self.name,
            slot=self.spec.slot,
            pid=self.pid,
            state=self.state.name,
            tasks=status.tasks,
            records_processed=status.records_processed,
            records_per_second=self.records_per_second,
            lag=status.lag,
            restore_rate=status.restore_rate,
            rss_bytes=rss,
            memory_share_bytes=self.memory_share,
            cpu_percent=cpu,
            uptime_seconds=(now - self._started_at) / 1000,
            restarts=restarts,
            waits=status.waits,
        )

    def usage(self, now: int) -> tuple[int, float]:
        """Return memory (bytes) and CPU (%), measured again only after a while: the kernel counts CPU in 10 ms.

        If /proc cannot be read now, the last values are returned.
        """
        if self._measured_at is None or now - self._measured_at >= USAGE_MS:
            self._measured_at = now
            try:
                with self._stats.oneshot():
                    self._measured = self._stats.memory_info().rss, self._stats.cpu_percent()
            except psutil.NoSuchProcess:
                self._measured = 0, 0.0
            except (psutil.Error, OSError) as error:
                logger.warning("Memory and CPU of process %d cannot be measured: %s", self.pid, error)
        return self._measured


@contextlib.contextmanager
def _without_main_file() -> Iterator[None]:
    """Prevent a new process from importing the main module if its file holds no Python, or does not exist.

    Those are ``<stdin>``, and IPython's scripts. Their definitions are sent by value.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    if file is None or (os.path.isfile(file) and not file.endswith(NOT_PYTHON)):
        yield
        return
    main.__file__ = None
    try:
        yield
    finally:
        main.__file__ = file
