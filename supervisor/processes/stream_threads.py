"""The slots of the stream threads: adds, removes and restarts them. Only the supervisor's loop may use it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from penstock.clients.log_context import PrefixedLogger
from penstock.workers.control.messages import Shutdown

from ..application_state import ApplicationStates
from .slot import Slot
from .worker import ThreadStatus

#: Requests a slot's stream thread to close.
Stop = Callable[[Slot, Shutdown], None]
#: The name of a stream thread, None if its slot was removed; the outer None: it was refused.
Answer = Future[str | None] | None


@dataclass(eq=False)
class StreamThreads:
    """Requests to the running application. slots: by number, shared with the supervisor."""

    slots: dict[int, Slot]
    client_id: str
    states: ApplicationStates
    stop: Stop
    now: Callable[[], int]
    log: PrefixedLogger

    def name(self, slot: Slot) -> str:
        """Return the name of the stream thread in a slot."""
        return f"{self.client_id}-StreamThread-{slot.number}"

    def add(self) -> Slot | None:
        """Add one and return its slot, None if the application does not run (KafkaStreams.addStreamThread)."""
        if not self.states.state.is_running_or_rebalancing:
            self.log.warning("Cannot add a stream thread when the client is in state %s", self.states.state.name)
            return None
        number = next(n for n in range(1, len(self.slots) + 2) if n not in self.slots)
        slot = self.slots[number] = Slot(number, start_at=self.now(), added=Future())
        self.log.info("Adding StreamThread-%d, there will now be %d live threads", number, len(self.slots))
        return slot

    def remove(self, name: str | None = None) -> Answer:
        """Stop a stream thread, by default the last one; it leaves the group and is not replaced.

        Returns when it has ended. Returns None if there is none of this name, or the application does not run (Kafka
        Streams: KafkaStreams.removeStreamThread).
        """
        slot = self._find(name)
        if slot is None:
            self.log.warning("Cannot remove a stream thread: there is none, or the client does not run")
            return None
        self.log.info("Removing StreamThread-%d", slot.number)
        slot.give_up_restart()
        self.stop(slot, Shutdown(leave_group=True))
        return slot.gone

    def restart(self, name: str) -> Answer:
        """Close a stream thread cleanly, and start another process in its slot, which resumes its tasks.

        Returns when the old process has ended: the name, or None if the slot was removed in the meantime. Returns None
        immediately if there is none of this name, or the application does not run. It does not count for
        penstock.worker.restart.max.
        """
        slot = self._find(name)
        if slot is None:
            self.log.warning("Cannot restart %s: there is no such stream thread, or the client does not run", name)
            return None
        self.log.info("Restarting StreamThread-%d", slot.number)
        if slot.worker is None:
            slot.start_at = self.now()
            slot.again = Future()
            slot.again.set_result(name)
        elif not slot.is_restarting:
            slot.again = Future()
            self.stop(slot, Shutdown())
        return slot.again

    def _find(self, name: str | None) -> Slot | None:
        """Return a slot whose stream thread was not requested to leave; the last one without a name."""
        if not self.states.state.is_running_or_rebalancing:
            return None
        slots = self._staying()
        if name is None:
            staying = [slot for slot in slots if slot.stopped_at is None]
            return max(staying, key=lambda slot: slot.number, default=None)
        return next((slot for slot in slots if name in (self.name(slot), str(slot.number))), None)

    def _staying(self) -> list[Slot]:
        return [slot for slot in self.slots.values() if slot.stopped_at is None or slot.is_restarting]

    def down(self) -> list[str]:
        """Return the names of the stream threads that should run but do not: without a process, starting, or failed."""
        return [self.name(slot) for slot in self._staying() if not slot.is_up]

    @property
    def alive(self) -> int:
        """The number of stream threads that have a process; any thread may read it."""
        return sum(slot.worker is not None for slot in tuple(self.slots.values()))

    def status(self) -> list[ThreadStatus]:
        """Return the status of each stream thread that has a process, by number."""
        now = self.now()
        slots = sorted(self.slots.values(), key=lambda slot: slot.number)
        return [slot.worker.thread_status(now, slot.restarts) for slot in slots if slot.worker is not None]
