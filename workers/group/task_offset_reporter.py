"""Reports the positions of the local tasks' state to the broker of a streams group (KIP-1071).

The broker uses them to place standby tasks, and to see when a warm-up task has caught up. The leader of a classic group
does not need them between rebalances, because it gets the same sums with each join.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.clients.clock import Clock
from penstock.clients.group.streams_values import NO_LAG
from penstock.topology.records import TaskId

from ..restore.store_changelog_reader import StoreChangelogReader
from ..tasks.task_manager import TaskManager
from .assignment.subscription_info import LATEST_OFFSET, UNKNOWN_OFFSET_SUM

#: How often the sums are computed; they are sent at the broker's interval. Computing them reads the checkpoint files of
#: closed tasks.
INTERVAL_MS = 10_000

#: Accepts sums of offsets and of end offsets by task: StreamsGroupMember.report_task_offsets.
Report = Callable[[Mapping[TaskId, int], Mapping[TaskId, int]], None]


class TaskOffsetReporter:
    """Called once in each iteration."""

    def __init__(
        self, report: Report, task_manager: TaskManager, changelog_reader: StoreChangelogReader, clock: Clock
    ) -> None:
        self._report = report
        self._task_manager = task_manager
        self._changelog_reader = changelog_reader
        self._clock = clock
        self._last_ms = clock.monotonic_ms()

    def maybe_report(self) -> None:
        """Report, if the interval has passed."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._last_ms < INTERVAL_MS:
            return
        self._last_ms = now_ms
        sums = self._task_manager.task_offset_sums()
        known = {task_id: at for task_id, at in sums.items() if at not in (LATEST_OFFSET, UNKNOWN_OFFSET_SUM)}
        tasks = self._task_manager.all_tasks()
        ends = {
            task_id: at + self._changelog_reader.progress(tasks[task_id])[0]
            for task_id, at in known.items()
            if task_id in tasks
        }
        running = {task_id: NO_LAG for task_id, at in sums.items() if at == LATEST_OFFSET}
        self._report({**known, **running}, ends)
