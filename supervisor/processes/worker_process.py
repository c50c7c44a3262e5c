"""Inside the process of a stream thread: its entry point, and its end of the pipe to the supervisor."""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import io
import logging
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import NamedTuple, NoReturn

from setproctitle import setproctitle

from penstock.kernel.buffers import keep_buffers
from penstock.topology.errors import ConfigError, HandedOverError, LostOffsetsError, PenstockError
from penstock.topology.shadowing import ShadowedModuleError
from penstock.workers.control.messages import (
    Command,
    CommandResult,
    Failed,
    Report,
    Shutdown,
    ThreadControl,
    ThreadSpec,
)

from ..channels.channel import Channel
from ..exit_codes import WorkerExitCode
from ..logs.output_stream import open_standard_streams
from ..logs.worker_logging import set_up_logging
from ..service.signals import HANDLED_SIGNALS, let_in
from ..source import pickling
from ..source.topology_source import TopologyLoadError, TopologySource

#: prctl(2): the signal that a process gets when the thread that created it ends.
PR_SET_PDEATHSIG = 1
#: Time limit for the last reports of an ending process; the supervisor reads them at once.
FLUSH_SECONDS = 5.0
#: How long the stream thread may not look for commands before another thread receives them, in seconds.
AWAY_SECONDS = 1.0
#: A result of a query is written at once up to this many bytes: a pipe that accepts anything has room for them.
AT_ONCE_BYTES = 16 << 10


logger = logging.getLogger(__name__)

#: How long a process may take to end once its stream thread is done, in seconds. An exiting interpreter waits for
#: non-daemon threads and for children of multiprocessing, without a limit.
END_SECONDS = 5.0


def end_process(code: int) -> NoReturn:
    """End this process with an exit code: cleanly within END_SECONDS, otherwise by force.

    Threads, processes and atexit functions of the user's code get that time. Processes that multiprocessing or
    concurrent.futures has started are killed after it; others, e.g. of subprocess, continue.
    """
    _ending.append(code)
    threading.Thread(target=_end_by_force, args=(code,), name="penstock-end", daemon=True).start()
    sys.exit(code)


#: The exit code, once the process is to end.
_ending: list[int] = []


def _leave() -> None:
    """End before the interpreter collects all objects, which takes seconds on a busy machine.

    It is the first atexit function, so it is called after those of the user's code.
    """
    if _ending:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(_ending[0])


def _end_by_force(code: int) -> None:
    time.sleep(END_SECONDS)
    children = multiprocessing.active_children()
    logger.warning(
        "Process %d ends by force: its stream thread is done, but %s of the user's code still ran after %g s",
        os.getpid(),
        " and ".join(_left_running()) or "something",
        END_SECONDS,
    )
    for child in children:
        child.kill()
    os._exit(code)


def _left_running() -> list[str]:
    threads = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    children = [str(child.pid) for child in multiprocessing.active_children()]
    named = (("thread", threads), ("process", children))
    return [f"{kind} {', '.join(names)}" for kind, names in named if names]


@dataclass(frozen=True, slots=True)
class WorkerSpec(ThreadSpec):
    """The arguments of a stream thread's process. slot 0: it waits for a slot, see spare_process.

    listeners: the calls to report, "restore" and "standby".
    """

    topology: TopologySource
    listeners: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The thread's name, which is also its client's id: ``<client id>-StreamThread-<slot>``."""
        return f"{self.client_id}-StreamThread-{self.slot}" if self.slot else f"{self.client_id}-spare"


#: The main function of the process: the stream thread, or in tests something smaller. Returns on a shutdown request.
WorkerTarget = Callable[[WorkerSpec, ThreadControl], None]
#: The preparation of a spare process without a slot; it must not open anything that only a slot's process may hold.
Prepare = Callable[[WorkerSpec], None]


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """The first message of a process: the interpreter is up, and failures from now on are reported."""


@dataclass(frozen=True, slots=True)
class SpareReady:
    """A spare process has prepared and waits for TakeOver."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """To a spare process: be this stream thread from now on. The fields are WorkerSpec's."""

    slot: int
    num_threads: int
    listeners: tuple[str, ...]


class ProcessEnds(NamedTuple):
    """The process's ends of its pipes."""

    control: Connection[object, object]
    log: Connection[object, object]
    stdout: Connection[object, object]
    stderr: Connection[object, object]


class PipeControl:
    """ThreadControl over the pipe. The stream thread never waits for a full pipe, and the supervisor hardly does.

    The stream thread itself receives commands and writes results of queries, if the pipe has room for them: to wake
    another thread for a read takes longer than the read. One thread writes everything else. Another one receives
    before the stream thread does, and while it is busy for long: then the pipe does not fill up, and the end of the
    supervisor is noticed.
    """

    def __init__(self, channel: Channel) -> None:
        self.failed = False
        self._channel = channel
        self._commands: SimpleQueue[Command | TakeOver] = SimpleQueue()  # its put may interrupt its get: see SIGTERM
        self._reports: SimpleQueue[Report | SpareReady | None] = SimpleQueue()
        self._polls = 0
        self._receiving = threading.Lock()
        self._sending = threading.Lock()
        self._enqueued = 0  # messages that the writer has not sent yet
        self._writer = threading.Thread(target=self._write, name="supervisor-writer", daemon=True)
        self._reader = threading.Thread(target=self._read, name="supervisor-reader", daemon=True)
        self._writer.start()
        self._reader.start()

    def poll_commands(self) -> list[Command]:
        """Return the commands that have arrived since the last call."""
        self._polls += 1
        self._receive()
        found = [self._commands.get() for _ in range(self._commands.qsize())]
        return [command for command in found if not isinstance(command, TakeOver)]

    def watched_by(self, watch: Callable[[int], None]) -> None:
        """Pass on the descriptor of the pipe."""
        watch(self._channel.fileno())

    def wait_for_command(self) -> Command | TakeOver:
        """Wait for a command and return it."""
        return self._commands.get()

    def report(self, report: Report) -> None:
        """Enqueue a report; it is sent as soon as the pipe accepts it."""
        self.failed = self.failed or isinstance(report, Failed)
        self.send(report)

    def send(self, message: Report | SpareReady) -> None:
        """Enqueue a message; it is sent as soon as the pipe accepts it."""
        with self._sending:
            if (
                isinstance(message, CommandResult)
                and not self._enqueued
                and self._channel.offer(message, AT_ONCE_BYTES)
            ):
                return
            self._enqueued += 1
        self._reports.put(message)

    def shut_down(self) -> None:
        """Act as if the supervisor had sent Shutdown: what SIGTERM does to this process alone."""
        self._commands.put(Shutdown())

    def close(self) -> None:
        """Send all enqueued messages."""
        self._reports.put(None)
        self._writer.join(FLUSH_SECONDS)

    def _write(self) -> None:
        while (report := self._reports.get()) is not None:
            try:
                self._channel.send(report)
            except OSError:  # the supervisor is gone; the reader ends the process
                return
            with self._sending:
                self._enqueued -= 1

    def _receive(self) -> None:
        try:
            with self._receiving:  # the order of the commands
                for command in self._channel.receive():
                    self._commands.put(command)
        except (EOFError, OSError):
            os._exit(WorkerExitCode.ORPHANED)

    def _read(self) -> None:
        readable = select.poll()
        readable.register(self._channel, select.POLLIN)
        away = 0  # the number of polls after which the stream thread does something else
        while True:
            readable.poll()
            polls = self._polls
            if polls != away:
                time.sleep(AWAY_SECONDS)
            if polls == self._polls:
                away = polls
                self._receive()


def main(target: WorkerTarget, spec_bytes: bytes, ends: ProcessEnds, supervisor_pid: int) -> None:
    """Run a stream thread in this new process; never returns. spec_bytes: a pickled WorkerSpec."""
    atexit.register(_leave)
    _write_to(ends)
    faulthandler.enable(file=2, all_threads=True)  # SIGABRT from the supervisor leaves all stacks
    _die_with(supervisor_pid)
    keep_buffers()  # before there are other threads
    channel = Channel(ends.control, blocking=False)
    channel.send(ProcessStarted())
    control = PipeControl(channel)
    _handle_signals(control)
    code = _run(target, spec_bytes, control, Channel(ends.log, blocking=True))
    control.close()
    end_process(code)


def _write_to(ends: ProcessEnds) -> None:
    """Send this process's output to the supervisor: by lines and in UTF-8, whatever the environment."""
    open_standard_streams()
    for stream in (sys.__stdout__, sys.__stderr__):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    os.dup2(ends.stdout.fileno(), 1)
    os.dup2(ends.stderr.fileno(), 2)


def _run(target: WorkerTarget, spec_bytes: bytes, control: PipeControl, log: Channel) -> WorkerExitCode:
    try:
        spec = _load_spec(spec_bytes)
        show_in_ps(spec)
        set_up_logging(log, spec.config["penstock.log.level"])
        target(spec, control)
    except (TopologyLoadError, HandedOverError, LostOffsetsError, ConfigError, ShadowedModuleError) as error:
        _report_failure(control, error)
        return WorkerExitCode.BOOT_FAILED
    except BaseException as error:  # noqa: BLE001  reported, SystemExit of a user's function too
        _report_failure(control, error)
        return WorkerExitCode.FAILED
    return WorkerExitCode.FAILED if control.failed else WorkerExitCode.STOPPED


def show_in_ps(spec: WorkerSpec) -> None:
    """Make ps, top and similar tools show the stream thread of this process."""
    thread = f"StreamThread-{spec.slot}" if spec.slot else "spare"
    setproctitle(f"penstock: {spec.config['application.id']} {thread}")


def _load_spec(spec_bytes: bytes) -> WorkerSpec:
    try:
        spec: WorkerSpec = pickling.loads(spec_bytes)
    except Exception as error:
        raise ConfigError(f"An object of the configuration cannot be created in another process: {error}") from error
    return spec


def _report_failure(control: PipeControl, error: BaseException) -> None:
    if control.failed:
        return
    match error:
        case TopologyLoadError():
            text = error.explained()
        case PenstockError() | ShadowedModuleError():
            text = str(error)  # the message names the problem and the fix: our traceback does not help
        case _:
            text = "".join(traceback.format_exception(error))
    control.report(Failed.of(error, text))


def _handle_signals(control: PipeControl) -> None:
    """Leave the terminal's signals to the supervisor; take SIGTERM as a request to end; then let signals in."""
    for number in HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda _number, _frame: control.shut_down())
    os.register_at_fork(before=_hold_sigterm, after_in_parent=_let_sigterm_in, after_in_child=_end_at_sigterm)
    let_in()


def _hold_sigterm() -> None:
    """Before a fork: Python forgets a signal that arrives before the new process has its own handler."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _let_sigterm_in() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end_at_sigterm() -> None:
    """In a process forked by the user's code, e.g. one of a pool: multiprocessing ends it with SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _let_sigterm_in()


def _die_with(supervisor_pid: int) -> None:
    """Ask Linux to kill this process when the supervisor's thread ends; elsewhere the closed pipe must suffice."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor_pid:  # it ended before the request
        os._exit(WorkerExitCode.ORPHANED)
