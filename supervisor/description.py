"""Words for what an application does: for the log, and for systemd's status line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .application_state import ApplicationState
from .worker import ThreadStatus, Worker


def summary(state: ApplicationState, workers: Iterable[Worker]) -> str:
    """Return one line for the whole application."""
    statuses = [worker.status for worker in workers]
    tasks = sum(len(status.tasks) for status in statuses)
    lag = sum(status.lag for status in statuses)
    return f"{state.name}: {len(statuses)} stream threads, {tasks} tasks, {lag} records behind"


def description(threads: Iterable[ThreadStatus]) -> Iterator[str]:
    """Yield one line for each stream thread."""
    for thread in threads:
        tasks = " ".join(f"{task.task_id}({task.kind} {task.state})" for task in thread.tasks) or "no tasks"
        yield (
            f"{thread.name}: process {thread.pid}, {thread.state}, {tasks}, {thread.records_processed} records, "
            f"{thread.records_per_second:.0f}/s, {thread.lag} behind, {thread.restore_remaining} to restore, "
            f"{thread.rss_bytes >> 20} MiB, {thread.restarts} restarts"
        )
