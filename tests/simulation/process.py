"""One simulated process: a real StreamThread with its clients, killed, stopped and replaced like a real one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from penstock.clients.served_clock import STEP_MS
from penstock.clients.writing.sender import WAIT_MAX_MS
from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.control.messages import Command, Report, ThreadSpec
from penstock.workers.thread.stream_thread import StreamThread
from tests.futures import done, failed
from tests.simulation.async_calls import SimulatedCalls
from tests.simulation.broker import Broker
from tests.simulation.clients import SimulatedSupplier
from tests.simulation.coordinators import Coordinators
from tests.simulation.disk import Disk
from tests.simulation.faults import Killed, Points
from tests.simulation.strand import Strand
from tests.simulation.world import HostClock, World

T = TypeVar("T")
#: How long a poll without records waits, at most, in ms.
IDLE_MAX_MS = 100


@dataclass
class Host:
    """A machine: its disk, its clock, and where its processes keep their real state directories.

    on_java: whether its members behave as those of Kafka Streams on Java.
    """

    name: str
    process_id: str
    state_dir: Path
    config: StreamsConfig
    disk: Disk
    clock: HostClock
    on_java: bool = False


@dataclass(frozen=True)
class Roughness:
    """Probabilities of faults: lost exchanges, failed sends, early requests for commits.

    unanswered: requests for the ends of partitions that a broker does not answer.
    """

    lost: float = 0.0
    failed_sends: float = 0.0
    early_commits: float = 0.0
    unanswered: float = 0.0


class Control:
    """control.messages.ThreadControl without commands; reports are dropped."""

    def poll_commands(self) -> list[Command]:
        return []

    def watched_by(self, watch: Callable[[int], None]) -> None:
        pass

    def report(self, report: Report) -> None:
        pass


class AtOnce(Executor):
    """Runs tasks of other threads at once, on the calling thread."""

    def submit(self, function: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        try:
            return done(function(*arguments, **options))
        except Exception as error:  # noqa: BLE001  it is the future's
            return failed(error)


class Process:
    """A stream thread in a slot of a host. connection.Io for its clients.

    coordinators: of the brokers that its own producers write to, None where writers are simulated.
    """

    def __init__(
        self,
        world: World,
        broker: Broker,
        host: Host,
        slot: int,
        life: int,
        topology: Any,
        coordinators: Coordinators | None = None,
    ) -> None:
        self.world, self.broker, self.host, self.slot = world, broker, host, slot
        self._coordinators = coordinators
        self._paused_ms = 0
        self.client = f"{host.name}.{slot}#{life}"
        self.config = host.config
        self.roughness = Roughness()
        #: Called when it requests a topic's partitions in the middle of a record, before the brokers respond.
        self.on_count_asked: Callable[[], None] = _nothing
        #: Returns after how many ms the leaders answer where their partitions end.
        self.answer_ms: Callable[[], int] = _at_once
        self.points = Points(lambda kind: world.note(self.client, kind), world.happened)
        #: While a process is stopped (SIGSTOP), so is its IO thread; its events wait here meanwhile.
        self.stopped = False
        self.paused = False
        self.thread: StreamThread | None = None
        self.error: BaseException | None = None
        self.ended = False
        self.leaves = False
        self._supplier: SimulatedSupplier | None = None
        self._async_calls: SimulatedCalls | None = None
        self._waiting: list[Callable[[], None]] = []
        self._topology = topology
        self._strand: Strand | None = None
        self._resumed = False
        self._until_ms = 0
        self._awaited: Callable[[], object] | None = None

    @property
    def transaction_timeout_ms(self) -> int:
        timeout_ms: int = self.config["transaction.timeout.ms"]
        return timeout_ms

    @property
    def served_ms(self) -> int:
        """The ms since the start of the world in which it was neither stopped, slow nor asleep.

        Of a pause, the part counts that a client cannot distinguish from a long wait.
        """
        return self.world.now_ms - self._paused_ms

    # Its life: the loop of StreamThread.run, left at the end of each iteration and wherever it waits

    def ready(self) -> bool:
        """Whether it can continue now."""
        return not self.ended and (self.world.now_ms >= self._until_ms or bool(self._awaited and self._awaited()))

    def resume(self) -> None:
        """Let it continue until the end of its iteration, or until it waits."""
        self._awaited = None
        self._resumed = True
        if self._strand is None:
            self._strand = Strand(self._live)
        self._strand.resume()
        self._resumed = False

    def _park(self, until_ms: int, awaited: Callable[[], object] | None = None) -> None:
        assert self._strand is not None
        self._until_ms, self._awaited = until_ms, awaited
        self._strand.park()

    def _live(self) -> None:
        how = "closed"
        try:
            thread = self.thread = self._make_thread()
            thread.start()
            while thread.goes_on:
                self._end_iteration()
                thread.run_once_guarded()
            thread.complete_shutdown(clean_run=True)
        except Killed:
            how = "killed"
        except Exception as error:  # noqa: BLE001  what StreamThread.run does
            self.error = error
            how = f"died of {type(error).__name__}: {error}"
            with contextlib.suppress(Killed):
                if self.thread is not None:
                    self.thread.complete_shutdown(clean_run=False)
        self._end(how)

    def _end_iteration(self) -> None:
        self._park(self.world.now_ms)
        if not self.points.alive:
            raise Killed

    def _make_thread(self) -> StreamThread:
        self.world.note(self.client, "starts")
        self._supplier = SimulatedSupplier(
            self.config, self.host.clock, self.broker, self, self.host.on_java, self._coordinators
        )
        spec = ThreadSpec(self.slot, self.host.name, self.host.process_id, 1, self.config)
        rows = self.host.disk.open_rows(self.points, lambda: self._happens(self.roughness.early_commits))
        return StreamThread.create(
            self._topology,
            spec,
            Control(),
            supplier=self._supplier,
            clock=self.host.clock,
            sleep=self.host.clock.sleep,
            open_rows=rows,
            background=AtOnce(),
            make_async_calls=self._make_async_calls,
        )

    def _make_async_calls(self, name: str, on_ended: Callable[[], None]) -> SimulatedCalls:
        self._async_calls = SimulatedCalls(self.world, self, on_ended)
        return self._async_calls

    def shut_down(self, leave_group: bool) -> None:
        """Ask the stream thread to end."""
        self.leaves = True
        self.world.note(self.client, "is asked to shut down")
        if self.thread is None:
            self.kill()
        else:
            self.thread.shutdown(leave_group)

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        if not self.points.alive:
            return
        self.points.alive = False
        self.world.note(self.client, "KILLED")
        for writer in self._supplier.writers if self._supplier is not None else ():
            writer.lose_process()
        self.host.disk.crash(self.points)
        self._release_locks()
        if self._strand is None:
            self._end("killed before it started")
        elif not self._resumed:
            self.resume()  # its stack unwinds, without any effect

    def _end(self, how: str) -> None:
        self.world.note(self.client, how)
        self.ended = True
        if not self.points.alive:
            self._release_locks()  # what the unwinding took once more
        if self._async_calls is not None:
            self._async_calls.close()
        self.points.alive = False

    def _release_locks(self) -> None:
        """Release the locks of an ended process, as the operating system does."""
        if self.thread is not None:
            self.thread.task_manager.state_directory.close()

    def pause(self, ms: int, stopped: bool) -> None:
        """Called inside the process: continue only after ms. stopped: its IO thread stops too (SIGSTOP, SIGCONT)."""
        self.world.note(self.client, f"{'STOPPED' if stopped else 'SLOW'} for {ms} ms")
        self.stopped, self.paused = stopped, True
        before_ms = self.world.now_ms
        self._park(before_ms + ms)
        self._paused_ms += max(self.world.now_ms - before_ms - STEP_MS, 0)
        self.stopped = self.paused = False
        waiting, self._waiting = self._waiting, []
        for happen in waiting:
            self.later(0, happen)
        if not self.points.alive:
            raise Killed
        self.world.note(self.client, "continues")
        self.world.advance(0)

    def sleep_with_machine(self, ms: int) -> None:
        """Account for a suspend of its machine, perhaps in the middle of a wait of its producer."""
        self._paused_ms += max(ms - WAIT_MAX_MS - STEP_MS, 0)

    def wait(self, condition: Callable[[], object], timeout_ms: int) -> bool:
        """Called inside the process: continue when the condition holds; False if it does not within timeout_ms."""
        if not condition():
            self._park(self.world.now_ms + timeout_ms, condition)
        if not self.points.alive:
            raise Killed
        return bool(condition())

    # Calls of its clients

    def idle(self, ms: int) -> None:
        """Wait for a record that does not arrive."""
        self.points.call("wait", lambda: self.world.advance(min(ms, IDLE_MAX_MS)))

    def later(self, ms: int, happen: Callable[[], None]) -> None:
        """Schedule an event in this many milliseconds; if the process is stopped then, when it continues."""

        def run() -> None:
            if self.stopped:
                self._waiting.append(happen)
            elif self.points.alive:
                happen()

        self.world.after(ms, run)

    def loses(self) -> str | None:
        """Return the part of the next exchange that the network loses: "request", "answer" or None."""
        if self.world.brokers_away:
            self.world.happened("a request meets brokers that are away")
            return "request"
        if not self._happens(self.roughness.lost):
            return None
        lost: str = self.world.chance.choice(("request", "answer"))
        self.world.happened("a request is lost" if lost == "request" else "an answer is lost")
        return lost

    def leaves_unanswered(self) -> bool:
        """Return whether the broker becomes unreachable during a request for the end of a partition."""
        share = self.roughness.unanswered
        unanswered = share > 0 and self.world.further_chance.random() < share
        if unanswered:
            self.world.happened("the end of a partition is left unanswered")
        return unanswered

    def failing_send(self, count: int) -> int | None:
        """Return the index of the first of count records that cannot be sent, None if all can."""
        if not count or not self._happens(self.roughness.failed_sends):
            return None
        self.world.disturbed = True
        self.world.happened("a send fails")
        return self.world.chance.randrange(count)

    def part_of(self, count: int) -> int:
        """Return how many of count queued records are sent by now."""
        return self.world.chance.choice((0, count, self.world.chance.randint(0, count)))

    def fetch_size(self) -> int:
        """Return the maximum number of records in the next fetch of a partition."""
        return self.world.chance.choice((1, 3, 1000))

    def _happens(self, share: float) -> bool:
        return share > 0 and self.world.chance.random() < share


def _nothing() -> None:
    pass


def _at_once() -> int:
    return 0
