"""Descriptions of an application's activity: for the log, and for systemd's status line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.workers.control.messages import TaskStatus

from ..application_state import ApplicationState
from ..processes.worker import ThreadStatus, Worker


def summary(state: ApplicationState, workers: Iterable[Worker]) -> str:
    """Return one line for the whole application."""
    statuses = [worker.status for worker in workers]
    tasks = sum(len(status.tasks) for status in statuses)
    lag = sum(status.lag for status in statuses)
    wait = "".join(f"{text}; " for text in dict.fromkeys(text for status in statuses for text in status.waits))
    return f"{state.name}: {wait}{len(statuses)} stream threads, {tasks} tasks, {lag} records behind"


def description(threads: Iterable[ThreadStatus]) -> Iterator[str]:
    """Yield one line for each stream thread."""
    for thread in threads:
        tasks = (
            " ".join(f"{task.task_id}({task.kind} {task.state}{restore(task)}{waiting(task)})" for task in thread.tasks)
            or "no tasks"
        )
        yield (
            f"{thread.name}: process {thread.pid}, {thread.state}, {tasks}, {thread.records_processed} records, "
            f"{thread.records_per_second:.0f}/s, {thread.lag} behind, {thread.restore_remaining} to restore, "
            f"{thread.rss_bytes >> 20} MiB, {thread.restarts} restarts"
        )
        yield from (f"{thread.name}: {text}" for text in thread.waits)


def restore(task: TaskStatus) -> str:
    """Return a description of the restore progress of a task, empty if there is none."""
    if not task.restore_remaining:
        return ""
    eta = task.restore_eta_seconds
    when = "" if eta is None else f", {eta:.0f} s left"
    return f" {task.restore_remaining} of {task.restore_total} records to restore, {task.restore_rate:.0f}/s{when}"


def waiting(task: TaskStatus) -> str:
    """Describe the records that wait for async functions and batches, "" if there are none."""
    return f" {task.waiting} records wait for functions" if task.waiting else ""
