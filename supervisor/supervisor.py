"""The supervisor: one loop that owns all decisions about the processes of the stream threads."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from penstock.clients.clock import Clock, SystemClock
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import InvalidStateStoreError, StreamsError
from penstock.topology.type_variables import R
from penstock.workers.control.messages import (
    ApplicationShutdownRequested,
    Command,
    CommandResult,
    HostsChanged,
    ListenerCall,
    PartitionStalled,
    Pause,
    Query,
    ReleaseHost,
    Resume,
    Shutdown,
    ShutDownApplication,
    StateChanged,
    numbered,
)
from penstock.workers.control.stream_thread_state import StreamThreadState
from penstock.workers.metrics.host_memory import host_bytes

from .application_state import ApplicationState, ApplicationStates, state_after
from .channels.inbox import Inbox, set_answer
from .channels.readiness import Readiness
from .control.description import description, summary
from .exit_codes import ExitCode, WorkerExitCode
from .logs.recent_errors import NotingLogger, RecentErrors
from .logs.worker_output import STDOUT
from .processes.endings import FROM_OUTSIDE, could_not_boot, explanation, is_hopeless, reason
from .processes.memory_guard import MemoryGuard
from .processes.restart_policy import RestartLimits, RestartPolicy
from .processes.restore_listeners import RestoreListeners
from .processes.slot import UP, WITHOUT_WORK, HangGuard, Slot
from .processes.spare_process import NO_SLOT, WorkerStarter
from .processes.stream_threads import StreamThreads
from .processes.uncaught_exception import (
    StreamsUncaughtExceptionHandlerResponse,
    StreamThreadError,
    UncaughtExceptionHandler,
    ask,
    shut_down_client,
)
from .processes.worker import ThreadStatus, Worker
from .processes.worker_process import Prepare, WorkerSpec, WorkerTarget
from .queries.queries import Answers, Queries, Question, others_of
from .service.signals import HANDLED_SIGNALS, STOP_SIGNALS, Request, StopRequests
from .service.systemd import SystemdNotifier
from .source.topology_source import TopologySource

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

#: Longest wait of the loop, and so the maximum delay of a status line.
TURN_MS = 1_000
#: Seconds between two wake-ups of join: only then the main thread handles a signal that hit another thread.
SIGNALS_SECONDS = 0.5


class Supervisor:
    """Spawns, watches, replaces and stops one process for each stream thread.

    Methods without an underscore may be called from any thread; ``signal`` from a signal handler too. They pass their
    work to the loop. Only the loop changes processes, slots and the application's state.
    """

    def __init__(
        self,
        config: StreamsConfig,
        topology: TopologySource,
        target: WorkerTarget,
        *,
        client_id: str,
        process_id: str,
        clock: Clock | None = None,
        notifier: SystemdNotifier | None = None,
        at_end: Callable[[], None] = lambda: None,
        prepare: Prepare | None = None,
    ) -> None:
        self.exit_code = ExitCode.OK
        self.exception_handler: UncaughtExceptionHandler = shut_down_client
        self.failed_stream_threads = 0
        #: The reason if exit_code is not OK, in one line; "" if it explains itself.
        self.reason = ""
        self.paused = False
        self._config = config
        self.client_id = client_id
        self.process_id = process_id
        self._clock = clock or SystemClock()
        self._notifier = notifier or SystemdNotifier()
        self._at_end = at_end
        #: Errors logged by the supervisor and the stream threads.
        self.errors = RecentErrors()
        self._log = NotingLogger(__name__, f"stream-client [{client_id}] ", self.errors, self._clock)
        self.states = ApplicationStates(self._log)
        self._slots: dict[int, Slot] = {}
        self._policy = RestartPolicy(RestartLimits.of(config))
        self._guard = HangGuard(config, self._log)
        self.threads = StreamThreads(self._slots, client_id, self.states, self._stop, self._now, self._log)
        self.memory = MemoryGuard(config, host_bytes(), self.threads.restart, self._log)
        self.queries = Queries(config["application.server"], self._slots, self._now)
        self.restore_listeners = RestoreListeners(self._log)
        spec = WorkerSpec(NO_SLOT, client_id, process_id, config["num.stream.threads"], config, topology)
        note, listeners = self.errors.note_record, self.restore_listeners
        self._starter = WorkerStarter(spec, target, prepare, listeners, note, self._now, self._log)
        self._inbox = Inbox()
        #: Set once the loop has started its first processes, or has ended.
        self._begun = threading.Event()
        self._readiness = Readiness()
        self._stopping = False
        self._stop_requests = StopRequests()
        #: When to end without the group's response to the request to shut down the application; None: no such request.
        self._give_up_at: int | None = None
        self._ready = False
        self._any_has_run = False
        self._next_notice = 0
        self._ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="penstock-supervisor", daemon=True)

    # -- for other threads

    def start(self) -> None:
        """Start the loop and with it the stream threads."""
        self.states.transition_to(ApplicationState.REBALANCING)
        for number in range(1, self._config["num.stream.threads"] + 1):
            self._slots[number] = Slot(number, start_at=self._now())
        self._thread.start()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until everything has ended; False if timeout (seconds) passes first, or from a listener or handler."""
        if threading.current_thread() is self._thread:
            return False
        while timeout is None and self._thread.is_alive():
            self._thread.join(SIGNALS_SECONDS)
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def signal(self, number: int) -> None:
        """Make the loop handle a signal."""
        self._inbox.put(partial(self._on_signal, number, self._now()))

    def call(self, function: Callable[[], R], timeout: float | None = None) -> R | None:
        """Run a function in the loop's thread and return its result; None if the loop does not run or ends before.

        Raises TimeoutError after timeout (s).
        """
        if self._thread.ident is None:
            return None
        if threading.current_thread() is self._thread:
            return function()
        answer: Future[R] = Future()
        self._inbox.put(lambda: set_answer(answer, function))
        return self.wait_for(answer, timeout)

    def wait_for(self, answer: Future[R], timeout: float | None = None) -> R | None:
        """Return the result of a future that the loop sets; None if the loop ends before. Raises TimeoutError."""
        either: tuple[Future[Any], ...] = (answer, self._ended)
        if not wait(either, timeout, FIRST_COMPLETED).done:
            raise TimeoutError
        return answer.result() if answer.done() else None

    def shut_down(self, leave_group: bool = False) -> None:
        """Stop everything cleanly. leave_group: leave the group, so that other members take over at once."""
        if self._thread.ident is None:
            self.states.transition_to(ApplicationState.PENDING_SHUTDOWN)
            self.states.transition_to(ApplicationState.NOT_RUNNING)
        call = self._inbox.put if threading.current_thread() is self._thread else self.call
        call(partial(self._shut_down, ExitCode.OK, leave_group=leave_group))  # done when close() returns

    def add_thread(self, timeout: float | None = None) -> str | None:
        """Add a stream thread and wait until it starts; from a listener or handler do not wait.

        Returns its name, None if the application does not run. Raises StreamsError with the reason if it cannot start:
        it is removed again, and the others continue. Raises TimeoutError after timeout (seconds); it still starts.
        """
        slot: Slot | None = self.call(self.threads.add)
        if slot is None or threading.current_thread() is self._thread:
            return None if slot is None else self.threads.name(slot)
        return self._wait_for_thread(slot.added, timeout)

    def remove_thread(self, timeout: float | None = None, name: str | None = None) -> str | None:
        """Remove a stream thread, by default the one with the highest number, and wait for its end.

        Returns its name, None if there is none or the application does not run. Raises TimeoutError after timeout
        (seconds); it is removed in any case.
        """
        return self._wait_for_thread(self.call(lambda: self.threads.remove(name)), timeout)

    def restart_thread(self, name: str, timeout: float | None = None) -> str | None:
        """Close a stream thread cleanly and replace its process; wait for the old one's end.

        Returns and raises as remove_thread does.
        """
        return self._wait_for_thread(self.call(lambda: self.threads.restart(name)), timeout)

    def _wait_for_thread(self, answer: Future[str | None] | None, timeout: float | None) -> str | None:
        name: str | None = self.wait_for(answer, timeout) if answer is not None else None
        return name

    def pause(self) -> None:
        """Stop processing in all stream threads, and in later ones (KIP-834); see wait_until_heard()."""
        self.paused = True
        self._inbox.put(partial(self._send_to_all, Pause()))

    def resume(self) -> None:
        """Resume processing."""
        self.paused = False
        self._inbox.put(partial(self._send_to_all, Resume()))

    def release_host(self, endpoint: str) -> None:
        """Make the group release the tasks of a lost host, before its session times out; endpoint: host:port."""
        self._inbox.put(partial(self._send_to_all, ReleaseHost(endpoint)))

    @property
    def alive_stream_threads(self) -> int:
        """The number of stream threads that have a process; any thread may read it, also after the loop's end."""
        return self.threads.alive

    def thread_status(self) -> list[ThreadStatus]:
        """Return the current status of each stream thread, by number."""
        return list(self.call(self.threads.status) or ())

    def metrics(self) -> dict[str, dict[str, Any]]:
        """Return the last reported metrics of each stream thread, by its name."""
        found = self.call(lambda: {worker.name: dict(worker.status.metrics) for worker in self._workers()})
        return found or {}

    def wait_until_heard(self, timeout: float | None) -> None:
        """Wait until all stream threads have executed earlier commands; raises TimeoutError after timeout (s)."""
        answers = Answers()
        question = partial(Query, store="", method="")  # they respond in order
        self._inbox.put(partial(self.queries.ask, question, answers))  # behind commands that are to be sent
        self._wait_for_answers(answers, timeout)

    def query(
        self, store: str, method: str, arguments: tuple[object, ...], timeout: float | None
    ) -> list[CommandResult]:
        """Query all stream threads; return the responses that exist. Raises TimeoutError after timeout (s)."""
        return self.ask(lambda number: Query(number, store, method, arguments), Answers(), timeout)

    def read(self, query: Query, timeout: float | None) -> list[CommandResult]:
        """Query all stream threads as query(); a missing response is one with an error, unless it may be stale."""
        answers = Answers()
        results = self.ask(partial(numbered, query), answers, timeout)
        found = {task for result in results for task in result.value or ()}
        if found & answers.away:
            self.queries.return_to(found)
        if query.stale or not (answers.has_gaps or (query.partition is None and others_of(found, answers.away))):
            return results
        error = "a stream thread was replaced or removed, and its tasks are away for a moment; try again"
        return [*results, CommandResult(0, error=error, kind=InvalidStateStoreError)]

    def ask(self, question: Question, answers: Answers, timeout: float | None) -> list[CommandResult]:
        """Query all stream threads and return their responses; see Answers. Raises TimeoutError after timeout (s).

        Right after start() it also reaches the processes that are about to be started.
        """
        if self._thread.is_alive():
            self._begun.wait(timeout)
        self.queries.ask(question, answers)
        return self._wait_for_answers(answers, timeout)

    def _wait_for_answers(self, answers: Answers, timeout: float | None) -> list[CommandResult]:
        try:
            return self.wait_for(answers.done, timeout) or []
        finally:
            answers.done.cancel()

    # -- the loop

    def _run(self) -> None:
        try:
            resource_tracker.ensure_running()  # it would unblock signals in this thread if the first spawn started it
            signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
            while self._slots or not self._stopping:
                self._turn()
        except BaseException as error:  # noqa: BLE001  logged; it must not leave processes behind
            self._log.critical("The supervisor failed; all stream threads are killed", exc_info=True)
            self.exit_code, self.reason = ExitCode.INTERNAL, f"the supervisor failed: {type(error).__name__}: {error}"
            self.states.transition_to(ApplicationState.PENDING_ERROR)
            for worker in self._workers():
                worker.kill()
                worker.close()
        finally:
            self._starter.spare.end()
            STDOUT.drain()
            self._at_end()
            ok = self.states.state is ApplicationState.PENDING_SHUTDOWN
            self.states.transition_to(ApplicationState.NOT_RUNNING if ok else ApplicationState.ERROR)
            self._begun.set()
            self._ended.set_result(None)

    def _turn(self) -> None:
        self._start_due(self._now())
        self._begun.set()
        running = self.states.state is ApplicationState.RUNNING and not self._stopping
        self._starter.look(running, self._workers(), len(self._slots))
        sources = dict(self._sources())
        ready = self._readiness.wait(sources, self._timeout_ms(self._now()))
        for source, act in sources.items():
            if source in ready:
                act()
        self._check_hanging(self._now())
        self.memory.check(self._slots.values(), self._now())
        self._tell_systemd(self._now())

    def _now(self) -> int:
        return self._clock.monotonic_ms()

    def _sources(self) -> Iterator[tuple[FileDescriptorLike, Callable[[], object]]]:
        """Yield objects to wait for, with their callbacks. Ends of processes are last: messages are read first."""
        yield self._inbox, self._empty_inbox
        slots = [(slot, slot.worker) for slot in self._slots.values() if slot.worker is not None]
        for _, worker in slots:
            for reader in worker.output.readers:
                yield reader, partial(worker.output.read, reader)
            if not worker.hung_up:
                yield worker.control, partial(self._read_reports, worker)
        for slot, worker in slots:
            yield worker.sentinel, partial(self._on_end, slot, worker)
        yield from self._starter.spare.sources()

    def _timeout_ms(self, now: int) -> int:
        """Return how long the loop may wait."""
        moments = [now + min(TURN_MS, self._notifier.watchdog_interval_ms or TURN_MS)]
        for slot in self._slots.values():
            acts_at = self._guard.acts_at(slot)
            moments.append(slot.start_at if acts_at is None else acts_at)
        return max(0, min(moments) - now)

    def _empty_inbox(self) -> None:
        for action in self._inbox.take():
            action()

    def _workers(self) -> list[Worker]:
        return [slot.worker for slot in self._slots.values() if slot.worker is not None]

    def _send_to_all(self, command: Command) -> None:
        for worker in self._workers():
            self._send(worker, command)

    def _send(self, worker: Worker, command: Command) -> None:
        if not worker.send(command):
            self._log.debug("%s does not take %s: it hangs or has ended", worker.name, command)

    # -- starting

    def _start_due(self, now: int) -> None:
        for slot in list(self._slots.values()):
            if slot.worker is None and slot.start_at <= now and not self._stopping:
                self._start(slot, now)

    def _start(self, slot: Slot, now: int) -> None:
        try:
            slot.worker = self._starter.start(slot.number, len(self._slots))
        except OSError as error:
            self._log.error("The process of %s cannot be started: %s", self.threads.name(slot), error)
            self._replace(slot, now)
            return
        if self.paused:
            self._send(slot.worker, Pause())
        if self._give_up_at is not None:
            self._send(slot.worker, ShutDownApplication())

    # -- messages from processes

    def _read_reports(self, worker: Worker) -> bool:
        reports = worker.receive(self._now())
        for report in reports:
            if isinstance(report, StateChanged):
                self._note_state(worker, StreamThreadState[report.new])
                state = state_after(StreamThreadState[report.new], [slot.state for slot in self._slots.values()])
                if state is not None:
                    self.states.transition_to(state)
            elif isinstance(report, CommandResult | HostsChanged):
                self.queries.on_report(worker, report)
            elif isinstance(report, ListenerCall):
                self.restore_listeners.call(report)
            elif isinstance(report, PartitionStalled):
                self._log.error("%s: %s", worker.name, report)
            elif isinstance(report, ApplicationShutdownRequested):
                self._log.error("%s: a member of the group requested to shut down the application", worker.name)
                self._shut_down(ExitCode.FAILED, "a member of the group requested to shut down the application")
        return bool(reports)

    def _note_state(self, worker: Worker, state: StreamThreadState) -> None:
        self._any_has_run |= state in UP
        if state is StreamThreadState.RUNNING:
            self.queries.return_to(None)
        slot = self._slots.get(worker.spec.slot)
        if slot is not None:
            slot.begin(worker.name)

    # -- ends of processes

    def _on_end(self, slot: Slot, worker: Worker) -> None:
        if not worker.has_ended():
            return
        while self._read_reports(worker):  # for its last output
            pass
        worker.output.drain()
        slot.worker = None
        if slot.stopped_at is None:
            slot.tasks = worker.active_tasks
        self.queries.on_gone(worker)
        self._decide(slot, worker, self._now())
        worker.close()

    def _decide(self, slot: Slot, worker: Worker, now: int) -> None:
        """Decide the consequence of the end of a process."""
        failure, cause = worker.failure, worker.cause_of_death()
        if slot.stopped_at is not None:
            self._on_stopped(slot, worker, cause)
        elif slot.is_new and worker.exit_code not in FROM_OUTSIDE:
            self._refuse(slot, worker)
        elif is_hopeless(worker, self._any_has_run):
            why = explanation(worker)
            self._log.error("%s cannot start, and another attempt would fail too: %s", worker.name, why)
            self._shut_down(ExitCode.TOPOLOGY, reason(worker))
        elif could_not_boot(worker):
            self.failed_stream_threads += 1
            self._log.error("%s cannot start now; the others continue: %s", worker.name, explanation(worker))
            slot.failed_starts += 1  # no limit: what has run is not ended by a deployment that takes long
            self._start_later(slot, now, self._policy.backoff_ms(slot.failed_starts))
        elif failure is not None and not failure.replaces_process:
            self.failed_stream_threads += 1
            error = StreamThreadError(worker.name, failure.kind, failure.message, failure.traceback)
            self._on_uncaught(slot, error, explanation(worker), now)
        else:
            self.failed_stream_threads += 1
            why = "" if failure is None else f": {explanation(worker)}"
            self._log.error("%s, process %d, died: %s%s", worker.name, worker.pid, cause, why)
            self._replace(slot, now)

    def _refuse(self, slot: Slot, worker: Worker) -> None:
        """Remove a stream thread that was added and cannot start."""
        self._log.error("%s cannot start and is removed; the others continue: %s", worker.name, explanation(worker))
        slot.refuse(StreamsError(f"{worker.name} cannot start, and was removed again: {reason(worker)}"))
        self._forget(slot, worker.name)

    def _on_stopped(self, slot: Slot, worker: Worker, cause: str) -> None:
        if worker.exit_code == WorkerExitCode.STOPPED or (worker.killed and worker.state in WITHOUT_WORK):
            self._log.info("%s, process %d, has closed", worker.name, worker.pid)
        else:
            why = reason(worker) if self.reason == reason(worker) else explanation(worker)  # reported once
            text = f": {why}" if worker.failure else ""
            self._log.error("%s, process %d, died while it closed: %s%s", worker.name, worker.pid, cause, text)
            if self._stopping and self.exit_code is ExitCode.OK:
                self.exit_code, self.reason = ExitCode.FAILED, reason(worker)
        if slot.is_restarting and not self._stopping:
            slot.restart(worker.name, self._now())
        else:
            self._forget(slot, worker.name)

    def _forget(self, slot: Slot, name: str) -> None:
        del self._slots[slot.number]
        self.queries.leave(slot.tasks, self._now() + self._config["session.timeout.ms"])
        slot.give_up_restart()
        slot.begin(None)
        slot.gone.set_result(name)

    def _on_uncaught(self, slot: Slot, error: StreamThreadError, why: str, now: int) -> None:
        """Kafka Streams: KafkaStreams.handleStreamsUncaughtException."""
        response = ask(self.exception_handler, error, self._log)
        self._log.error(
            "%s died of an exception, and the uncaught exception handler opted to %s: %s",
            error.thread_name,
            response.name,
            why,
        )
        if response is StreamsUncaughtExceptionHandlerResponse.REPLACE_THREAD:
            self._replace(slot, now)
        elif response is StreamsUncaughtExceptionHandlerResponse.SHUTDOWN_CLIENT:
            self._shut_down(ExitCode.FAILED, str(error))
        else:
            self._shut_down_application(slot, now)

    def _shut_down_application(self, slot: Slot, now: int) -> None:
        """Make the live stream threads ask the whole group to stop; they report the group's response.

        If none is alive, a new process only sends the request, as a new thread does in Kafka Streams.
        """
        if self._give_up_at is None:
            self._give_up_at = now + int(self._config["penstock.shutdown.timeout.ms"])
        if self._workers():
            self._send_to_all(ShutDownApplication())
            self._forget(slot, self.threads.name(slot))
        else:
            self._log.warning("Starting a process to tell the application's other hosts to shut down")
            slot.start_at = now

    def _replace(self, slot: Slot, now: int) -> None:
        delay = self._policy.delay_ms(now)
        if delay is None:
            limits = self._policy.limits
            self._log.error(
                "More than %d stream threads died within %d s: giving up. See the reasons above; "
                "penstock.worker.restart.max and penstock.worker.restart.window.ms set the limit.",
                limits.max_restarts,
                limits.window_ms // 1000,
            )
            self._shut_down(ExitCode.RESTART_LIMIT, "stream threads died repeatedly: the log has the reasons")
            return
        self._start_later(slot, now, delay)

    def _start_later(self, slot: Slot, now: int, delay: int) -> None:
        slot.restarts += 1
        slot.start_at = now + delay
        self._log.warning("StreamThread-%d is replaced %s", slot.number, f"in {delay} ms" if delay else "at once")

    def _check_hanging(self, now: int) -> None:
        for slot in self._slots.values():
            if self._guard.check(slot, now) and self._stopping:
                self.exit_code = ExitCode.SHUTDOWN_TIMEOUT
        if self._give_up_at is not None and now >= self._give_up_at and not self._stopping:
            why = "The group did not respond to the request to shut down the application; other hosts may continue"
            self._log.error("%s", why)
            self._shut_down(ExitCode.FAILED, why)

    # -- commands

    def _on_signal(self, number: int, at: int) -> None:
        if number in (*STOP_SIGNALS, signal.SIGQUIT):
            self._on_stop_request(signal.Signals(number).name, self._stop_requests.next(number, at))
        elif number == signal.SIGTTIN:
            self.threads.add()
        elif number == signal.SIGTTOU:
            self.threads.remove()
        elif number == signal.SIGUSR1:
            for line in (summary(self.states.state, self._workers()), *description(self.threads.status())):
                self._log.info("%s", line)

    def _on_stop_request(self, name: str, request: Request) -> None:
        if request is Request.STOP:
            self._log.info("Received %s: shutting down (again: kill)", name)
            self._shut_down(ExitCode.OK)
        elif request is Request.KILL:
            self._log.warning("Received %s: killing all stream threads", name)
            self._shut_down(ExitCode.OK)
            self.exit_code = ExitCode.FORCED
            for worker in self._workers():
                worker.kill()

    def _shut_down(self, code: ExitCode, why: str = "", leave_group: bool = False) -> None:
        """Stop all stream threads together: each finishes its batch, commits and closes. The first call counts."""
        if self._stopping:
            return
        self._stopping = True
        self.exit_code, self.reason = code, why
        error = code is not ExitCode.OK
        self.states.transition_to(ApplicationState.PENDING_ERROR if error else ApplicationState.PENDING_SHUTDOWN)
        self._notifier.stopping()
        self._starter.spare.end()
        for slot in list(self._slots.values()):
            self._stop(slot, Shutdown(leave_group))

    def _stop(self, slot: Slot, command: Shutdown) -> None:
        if slot.worker is None:
            self._forget(slot, self.threads.name(slot))
        elif slot.stopped_at is None:
            slot.stopped_at, slot.tasks = self._now(), slot.worker.active_tasks
            self._send(slot.worker, command)

    # -- reports

    def _tell_systemd(self, now: int) -> None:
        self._notifier.watchdog(now)
        if not self._ready and self._slots and all(slot.has_begun for slot in self._slots.values()):
            self._ready = True
            self._notifier.ready()
        if now >= self._next_notice:
            self._next_notice = now + TURN_MS
            self._notifier.status(summary(self.states.state, self._workers()))
