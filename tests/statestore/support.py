"""A task for stand-alone stores, and helpers for tests of several stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings

from penstock.kernel.nodes import PythonNode
from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.statestore.store_factory import build_store
from penstock.statestore.stores.values import TIMESTAMPED
from penstock.topology.context.store_interfaces import StoreBuilder
from penstock.topology.context.task_context import TaskContext
from penstock.topology.context.task_output import NoOutput
from penstock.topology.records import Change, Headers, RawRecord, TaskId, ValueAndTimestamp
from tests.examples import examples

#: For state machines over real stores. No shrinking: each attempt opens databases, which takes minutes.
STATEFUL = settings(
    max_examples=examples(25),
    stateful_step_count=25,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow],
)


class StoreOutput(NoOutput):
    """Makes the changes of all stores records of one changelog."""

    def __init__(self) -> None:
        super().__init__("A store sends nothing")
        self.changelog: list[RawRecord] = []
        self.log_timestamps: list[int | None] = []

    def log_change(  # type: ignore[override]
        self, store_name: str, key: bytes, value: bytes | None, timestamp: int | None, headers: Headers = None
    ) -> None:
        at = -1 if timestamp is None else timestamp
        kept = None if headers is None else list(headers)
        self.changelog.append(RawRecord(f"app-{store_name}-changelog", 0, len(self.changelog), at, key, value, kept))
        self.log_timestamps.append(timestamp)


class StoreTask(TaskContext):
    """A TaskContext with the part that stores use."""

    def __init__(self) -> None:
        output = StoreOutput()
        super().__init__(TaskId(0, 0), {"application.id": "app"}, output)
        self.timestamp = 0
        self.changelog, self.log_timestamps = output.changelog, output.log_timestamps
        self.commits_requested = 0
        self.dropped: list[str] = []

    def request_commit(self) -> None:
        self.commits_requested += 1

    def record_dropped(self, node: str, reason: str) -> None:
        self.dropped.append(node)


class OpenStore:
    """A store with its task, as a task's state manager uses it; it can be closed and opened again.

    directory None: in memory. cache_bytes 0: no cache.
    """

    def __init__(self, builder: StoreBuilder, directory: Path | None = None, cache_bytes: int = 0) -> None:
        self.builder = builder
        self.directory = directory
        self.cache_bytes = cache_bytes
        self.task = StoreTask()
        self.committed = 0
        self.open()

    def open(self) -> None:
        self.cache = ThreadCache(self.cache_bytes)
        self.store = build_store(self.builder, self.task, self.directory, self.cache)

    def commit(self) -> None:
        """Flush, then commit with the changelog's end, as a task does."""
        self.store.flush()
        self.committed = len(self.task.changelog)
        self.store.commit(self.committed)

    def abort(self) -> None:
        """Abort the transaction: the changelog is truncated to its last commit."""
        self.store.rollback()
        del self.task.changelog[self.committed :]

    def reopen(self) -> None:
        """Close without a commit, reopen and restore missing rows."""
        self.store.close()
        del self.task.changelog[self.committed :]
        self.open()
        self.restore_missing()

    def restore_missing(self) -> None:
        have = self.store.committed_offset() or 0
        missing = self.task.changelog[have:]
        for batch in batches(missing, 7):
            have += len(batch)
            self.store.restore(batch, have)


def batches(records: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for start in range(0, len(records), size):
        yield records[start : start + size]


def listen(store: Any, listener: Callable[..., object], send_old_values: bool) -> bool:
    """Call listener(key, new row or value, old value, timestamp in ms, headers) for each change that a flush sends.

    Returns whether the store has a cache.
    """
    task, timestamped = store.task, store.builder.kind in TIMESTAMPED

    def changed(key: object, change: Change, timestamp: int, headers: Headers) -> None:
        new = change.new
        if timestamped and new is not None:
            new = ValueAndTimestamp(new, timestamp)
        listener(key, new, change.old, task.timestamp, headers)

    sends: bool = store.send_changes("table", PythonNode(task, "listener", changed), send_old_values)
    return sends
