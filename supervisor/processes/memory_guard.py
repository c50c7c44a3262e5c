"""Enforces the memory shares of the stream threads' processes: warns about excess, and restarts the process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.control.stream_thread_state import StreamThreadState
from penstock.workers.metrics.host_memory import budget_bytes

from .slot import Slot
from .worker import Worker

#: Interval of the checks, in ms; memory rarely grows faster.
CHECK_MS = 2_000
#: A process over its share counts as within it again only below this percentage, to avoid repeated messages.
WITHIN_PERCENT = 90
#: Minimum time between two restarts of the same stream thread, in ms. One that exceeds its share again that soon would
#: do so after the next restart too, and only keep restoring.
AGAIN_MS = 600_000
MIB = 1 << 20


@dataclass(slots=True)
class _Excess:
    """The excess of one process: whether a warning was logged, and since when it exceeds the limit (monotonic ms, or
    None).
    """

    was_logged: bool = False
    since: int | None = None


class MemoryGuard:
    """Only the supervisor's loop may use it. Times in monotonic ms.

    host: the host's memory, in bytes. restart: closes a stream thread cleanly and replaces its process
    (StreamThreads.restart). The compared value is the resident memory of a process, with all its contents.

    A process is replaced only if ``penstock.memory.bytes`` is given, and if it has exceeded
    ``penstock.memory.replace.percent`` of its share for ``penstock.memory.replace.after.ms``; one at a time, while all
    others run.
    """

    def __init__(self, config: StreamsConfig, host: int, restart: Callable[[str], object], log: PrefixedLogger) -> None:
        self.budget = budget_bytes(config, host)
        self._is_given = config["penstock.memory.bytes"] is not None
        self._percent: int = config["penstock.memory.replace.percent"]
        self._after_ms: int = config["penstock.memory.replace.after.ms"]
        self._restart = restart
        self._log = log
        self._next = 0
        self._excess: dict[int, _Excess] = {}  # by process id
        self._replaced_at: dict[int, int] = {}  # by slot

    def check(self, slots: Collection[Slot], now: int) -> None:
        """Check all processes at the interval."""
        if now < self._next:
            return
        self._next = now + CHECK_MS
        workers = {slot.worker.pid: (slot, slot.worker) for slot in slots if slot.worker is not None}
        self._excess = {pid: self._excess.get(pid, _Excess()) for pid in workers}
        for pid, (_, worker) in workers.items():
            self._look(worker, self._excess[pid], now)
        if all(slot.state is StreamThreadState.RUNNING and slot.stopped_at is None for slot in slots):
            due = (slot for pid, (slot, _) in workers.items() if self._is_due(slot, self._excess[pid], now))
            slot = next(due, None)
            if slot is not None and slot.worker is not None:
                self._replace(slot, slot.worker, now)

    def _look(self, worker: Worker, excess: _Excess, now: int) -> None:
        rss, _ = worker.usage(now)
        worker.memory_share = share = self.budget // max(worker.spec.num_threads, 1)
        over = rss > share
        if over and not excess.was_logged:
            excess.was_logged = True
            self._log.warning(
                "%s, process %d, uses %d MiB; its share of the memory is %d MiB (%s). %s",
                worker.name,
                worker.pid,
                rss // MIB,
                share // MIB,
                "penstock.memory.bytes" if self._is_given else "half of the host's, by the number of stream threads",
                self._outlook(),
            )
        elif excess.was_logged and rss < share * WITHIN_PERCENT // 100:
            excess.was_logged = False
            self._log.info("%s, process %d, is within its share of the memory again", worker.name, worker.pid)
        if not self._percent or rss <= share * self._percent // 100:
            excess.since = None
        elif excess.since is None:
            excess.since = now

    def _outlook(self) -> str:
        if not self._is_given:
            return "Set penstock.memory.bytes to restart processes that exceed their share"
        if not self._percent:
            return "It is not replaced: penstock.memory.replace.percent is 0"
        return f"Over {self._percent} % of it for {self._after_ms / 1000:.0f} s, it is replaced"

    def _is_due(self, slot: Slot, excess: _Excess, now: int) -> bool:
        if not self._is_given or excess.since is None or now - excess.since < self._after_ms:
            return False
        replaced_at = self._replaced_at.get(slot.number)
        return replaced_at is None or now - replaced_at >= AGAIN_MS

    def _replace(self, slot: Slot, worker: Worker, now: int) -> None:
        self._log.warning(
            "%s, process %d, uses %d MiB, over %d %% of its share of the memory: it commits, closes and is replaced",
            worker.name,
            worker.pid,
            worker.usage(now)[0] // MIB,
            self._percent,
        )
        if slot.number in self._replaced_at:
            self._log.error(
                "It was replaced for its memory before: raise penstock.memory.bytes, or find what grows in its "
                "functions and in-memory stores"
            )
        self._replaced_at[slot.number] = now
        self._restart(worker.name)
