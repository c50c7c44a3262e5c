"""Responses of a stream thread to stalled partitions, which stall_watchdog.py finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.clients.log_context import PrefixedLogger

from ..control.messages import PartitionStalled, ThreadControl
from ..metrics.sensors import ThreadMetrics
from ..tasks.partition_consumer import PartitionConsumer
from .stall_watchdog import Stall, StallAction, StallWatchdog

if TYPE_CHECKING:
    from ..tasks.task_manager import TaskManager


@dataclass(eq=False)
class StallResponse:
    """Reports each stall, and reopens the task that reads the partition."""

    watchdog: StallWatchdog
    task_manager: TaskManager
    metrics: ThreadMetrics
    control: ThreadControl
    log: PrefixedLogger

    def check(self, now_ms: int) -> bool:
        """Check for stalls and respond to them, if it is time. Returns True if the process must be replaced."""
        if not self.watchdog.is_due(now_ms):
            return False
        active = self.task_manager.active
        owned = active.input_partitions()
        positions = {p: at for task in active.running.values() for p, at in task.fetch_positions().items()}
        stalls = self.watchdog.check(owned, positions, now_ms)
        self.metrics.stalled_partitions = self.watchdog.stalled
        for stall in stalls:
            self._report(stall, now_ms)
        if any(stall.action is StallAction.REPLACE_PROCESS for stall in stalls):
            self.log.error("Shutting down, so that another process reads the stalled partitions")
            return True
        stalled = {stall.partition for stall in stalls}
        again = {task_id for task_id, task in active.running.items() if task.input_partitions & stalled}
        if again:
            self.task_manager.reopen(again)
        return False

    def _report(self, stall: Stall, now_ms: int) -> None:
        self.metrics.partition_stall.record(1, now_ms)
        task = self.task_manager.active.running_task_for(stall.partition)
        task_id = "unknown" if task is None else str(task.task_id)
        self.control.report(
            PartitionStalled(task_id, str(stall.partition), stall.position, stall.end, stall.for_ms, stall.action.name)
        )


@dataclass(eq=False)
class RestoreStallResponse:
    """Makes the restore consumer fetch a stalled changelog again, without a limit on the attempts."""

    watchdog: StallWatchdog
    consumer: PartitionConsumer
    log: PrefixedLogger

    def check(self, now_ms: int) -> None:
        """Check for stalls and respond to them, if it is time. Call it only after a poll of the consumer."""
        if not self.watchdog.is_due(now_ms):
            return
        assigned = self.consumer.assignment()
        read = assigned - self.consumer.paused()
        positions = {p: at for p in read if (at := self.consumer.position(p)) is not None}
        stalls = self.watchdog.check(assigned, positions, now_ms)
        for stall in stalls:
            self.log.error(
                "The changelog %s is stalled: nothing was read from it for %d s, although it has records from offset "
                "%d to %d. It is read again from there.",
                stall.partition,
                stall.for_ms // 1000,
                stall.position,
                stall.end,
            )
        self.consumer.seek({stall.partition: stall.position for stall in stalls})
