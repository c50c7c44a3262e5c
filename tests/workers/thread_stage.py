"""Stream threads that a test steps by hand, over the in-memory broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import NAMESPACE_DNS, uuid5

from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.control.messages import Command, Report, ThreadSpec
from penstock.workers.control.stream_thread_state import StreamThreadState
from penstock.workers.thread.stream_thread import StreamThread
from tests.direct_kafka import GROUP, DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.direct_clients import DirectClientSupplier
from tests.workers.direct_group import DirectMember
from tests.workers.direct_io import DirectReader, DirectWriter

APPLICATION_ID = GROUP
PROCESS_ID = str(uuid5(NAMESPACE_DNS, "stage"))
STEPS_MAX = 200


class Control:
    """ThreadControl in memory."""

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.reports: list[Report] = []

    def poll_commands(self) -> list[Command]:
        commands, self.commands = self.commands, []
        return commands

    def watched_by(self, watch: Callable[[int], None]) -> None:
        watch(-1)

    def report(self, report: Report) -> None:
        self.reports.append(report)


class Thread:
    """One stream thread and the clients it was given."""

    def __init__(self, thread: StreamThread, control: Control, supplier: DirectClientSupplier) -> None:
        self.thread = thread
        self.control = control
        self.supplier = supplier

    def __getattr__(self, name: str) -> Any:
        return getattr(self.thread, name)

    @property
    def consumer(self) -> DirectReader:
        found: DirectReader = self.supplier.made[f"{self.thread.name}-consumer"]
        return found

    @property
    def restore_consumer(self) -> DirectReader:
        found: DirectReader = self.supplier.made[f"{self.thread.name}-restore-consumer"]
        return found

    @property
    def producer(self) -> DirectWriter:
        found: DirectWriter = self.supplier.made[f"{self.thread.name}-producer"]
        return found

    @property
    def member(self) -> DirectMember:
        found: DirectMember = self.supplier.made[f"{self.thread.name}-member"]
        return found

    def start(self) -> Thread:
        self.thread.start()
        return self

    def step(self, times: int = 1) -> Thread:
        """Run one iteration of StreamThread.run."""
        for _ in range(times):
            self.thread.run_once_guarded()
        return self

    def until_running(self) -> Thread:
        return self.until(lambda: self.thread.state is StreamThreadState.RUNNING)

    def until(self, condition: Callable[[], Any]) -> Thread:
        for _ in range(STEPS_MAX):
            if condition():
                return self
            self.step()
        raise AssertionError(f"not reached in {STEPS_MAX} steps: state {self.thread.state}")

    def until_idle(self) -> Thread:
        """Step until all input has been processed."""
        return self.until_running().step(3)

    def commit(self) -> int:
        committed: int = self.thread.task_manager.commits.commit_all()
        return committed

    def close(self) -> None:
        self.thread.shutdown()
        self.thread.complete_shutdown(clean_run=True)

    def crash(self) -> None:
        """End like a killed process: nothing is committed, and the operating system releases locks and files.

        The session of its member has timed out.
        """
        manager = self.thread.task_manager
        for task in manager.all_tasks().values():
            task.state_manager.close()
        self.thread.task_manager.state_directory.close()
        self.thread._states.state = StreamThreadState.DEAD
        self.member.evict()


class Stage:
    """The environment of threads: one cluster, one clock, one state directory."""

    def __init__(self, state_dir: Path, cluster: DirectKafka, clock: ManualClock) -> None:
        self.state_dir = state_dir
        self.cluster = cluster
        self.clock = clock
        self.threads: list[Thread] = []

    def thread(
        self, topology: Any, config: dict[str, Any], slot: int = 1, process_id: str = PROCESS_ID, **overrides: Any
    ) -> Thread:
        settings = StreamsConfig(
            {
                "application.id": APPLICATION_ID,
                "bootstrap.servers": "memory:9092",
                "state.dir": str(self.state_dir),
                "penstock.static.membership": False,
                **config,
            }
        )
        control = Control()
        exactly_once = settings["processing.guarantee"] == "exactly_once_v2"
        supplier = DirectClientSupplier(self.cluster, exactly_once)
        spec = ThreadSpec(slot, "client", process_id, 1, settings)
        clients: dict[str, Any] = {"supplier": supplier, "clock": self.clock, "sleep": self.clock.sleep}
        made = StreamThread.create(topology, spec, control, **clients, **overrides)
        self.threads.append(Thread(made, control, supplier))
        return self.threads[-1]

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for thread in self.threads:
            if thread.thread.state is not StreamThreadState.DEAD:
                thread.thread.complete_shutdown(clean_run=False)


class Application:
    """One topology with its configuration, run by any number of threads one after another or side by side."""

    def __init__(self, stage: Stage, topology: Any, config: dict[str, Any]) -> None:
        self.stage = stage
        self.topology = topology
        self.config = {name.replace("_", "."): value for name, value in config.items()}

    def thread(self, slot: int = 1, **overrides: Any) -> Thread:
        """Return a new stream thread that has joined its group."""
        return self.stage.thread(self.topology, self.config, slot, **overrides).start()
