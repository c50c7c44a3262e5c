"""Operator access to a running application, as plain values: for the control socket and HTTP."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import psutil

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import InvalidStateStoreError, StreamsError
from penstock.topology.records import TaskId
from penstock.workers.control.messages import LIST_STORES, CheckpointStatus, ReadStore, SinkStatus, TaskStatus
from penstock.workers.queries.store_answers import Row
from penstock_distribution import version

from ..processes.worker import ThreadStatus
from ..queries.holds import AllHosts, CommandedHosts, ThisHost
from ..queries.snapshots import create
from ..queries.store_routing import Found, QueryError, StoreQueries
from ..supervisor import Supervisor
from .control_actions import HOST_COMMANDS, actions
from .status_json import (
    ApplicationJson,
    CheckpointJson,
    LagJson,
    ProcessJson,
    SinkJson,
    TaskJson,
    ThreadJson,
    TotalsJson,
)

#: Default time limit for removing or restarting a stream thread: it commits and closes first.
THREAD_TIMEOUT_SECONDS = 60.0

#: Default time limit for the start of a new one: it imports the topology. Commands wait 30 s for an answer.
START_TIMEOUT_SECONDS = 25.0

#: Rows per page of a store: the stream thread processes nothing meanwhile.
PAGE_ROWS = 1_000
#: Rows of one key: its windows or sessions.
KEY_ROWS = 1_000_000
#: Time limit of a stream thread between two batches, while a caller waits for it to receive a command.
HEARD_SECONDS = 20.0


class Administration:
    """Thread-safe: the supervisor's loop decides everything, through its inbox.

    Results are dicts, lists, strings, numbers, booleans and None, so that JSON can hold them. An operation that is not
    possible raises a StreamsError that gives the reason and the fix. remote: the application's other hosts; without it
    commands for all hosts reach only this one.
    """

    def __init__(self, supervisor: Supervisor, config: StreamsConfig, remote: CommandedHosts | None = None) -> None:
        #: What the application's other hosts may ask of this one.
        self.host_actions = actions(ThisHost(supervisor), HOST_COMMANDS)
        self._all_hosts = AllHosts(supervisor, remote)
        self._supervisor = supervisor
        self._config = config
        self._stores = StoreQueries(supervisor)
        self._process = psutil.Process()
        self._started = time.monotonic()

    # -- queries

    def status(self) -> ApplicationJson:
        """Return the application, its stream threads, their tasks, and its latest logged errors.

        See status_json.py for the units. Unknown values are None.
        """
        supervisor = self._supervisor
        threads = supervisor.thread_status()
        return {
            "application_id": self._config["application.id"],
            "client_id": supervisor.client_id,
            "bootstrap_servers": self._config["bootstrap.servers"],
            "state": supervisor.states.state.name,
            "reason": supervisor.reason or None,
            "paused": supervisor.paused,
            "version": version(),
            "processing_guarantee": self._config["processing.guarantee"],
            "state_dir": str(self._config["state.dir"]),
            "uptime_seconds": time.monotonic() - self._started,
            "supervisor": self._own_process(),
            "threads": [_thread(thread) for thread in threads],
            "totals": _totals(threads),
            "memory_budget_bytes": supervisor.memory.budget,
            "failed_stream_threads": supervisor.failed_stream_threads,
            "errors_total": supervisor.errors.total,
            "errors": [
                {"time_ms": error.time_ms, "logger": error.logger, "message": error.message}
                for error in supervisor.errors.all()
            ],
        }

    def lag(self) -> list[LagJson]:
        """Return topic, partition, task, thread and lag of each input partition, by topic and partition.

        lag: records that are not processed yet, on the broker and in the task, None if unknown; buffered: the number of
        them that the task has fetched, over all its partitions.
        """
        rows = [row for thread in self._supervisor.thread_status() for row in _lags(thread)]
        return sorted(rows, key=lambda row: (row["topic"], row["partition"]))

    def metrics(self) -> dict[str, dict[str, object]]:
        """Return the metrics of each stream thread by its name, under Kafka Streams' names."""
        return self._supervisor.metrics()

    def stores(self) -> list[dict[str, Any]]:
        """Return the stores of each task on this host, by name and task.

        store, task_id, task_kind, task_state; of an open one kind, backend, entries (about), changelog_offset.
        """
        self._check_running("list the stores")
        found = [row for result in self._ask("", LIST_STORES) for rows in result.values() for row in rows]
        return sorted(found, key=lambda row: (row["store"], row["task_kind"], row["task_id"]))

    def store_get(self, store: str, key: str) -> list[dict[str, object]]:
        """Return the rows of a key on this host, each with its task_id; more than one for windows and sessions.

        key: as text; JSON for other types than strings. Rows: see workers/queries/store_reads.py.
        """
        found = self._read(ReadStore(0, store, key=key, limit=KEY_ROWS, everywhere=True))
        return [_row(row) for row in found.rows]

    def store_page(
        self,
        store: str,
        task_id: str,
        key_from: str | None = None,
        key_to: str | None = None,
        after: str | None = None,
        limit: int = PAGE_ROWS,
    ) -> dict[str, object]:
        """Return some ``rows`` of one task's part of a store, and ``after`` for the next call, None at the end.

        Bounds are inclusive. A stream thread processes nothing while it reads a page, so pages are short.
        """
        limit, partition = min(limit, PAGE_ROWS), TaskId.parse(task_id).partition
        page = ReadStore(
            0, store, key_from=key_from, key_to=key_to, limit=limit, partition=partition, after=after or ""
        )
        found = self._read(page)
        return {"rows": [_row(row) for row in found.rows[:limit]], "after": found.after}

    def _read(self, request: ReadStore) -> Found:
        self._check_running(f"query {request.store}")
        try:
            found = self._stores.read(request, HEARD_SECONDS, local=True)
        except QueryError as error:
            raise InvalidStateStoreError(error.message) from None
        if not found.tasks:
            raise InvalidStateStoreError(
                f"The task of the store {request.store} is moving to another thread; try again."
            )
        return found

    # -- changes

    def add_thread(self, timeout: float = START_TIMEOUT_SECONDS) -> dict[str, object]:
        """Start one more stream thread (KIP-663), and return its name as ``thread`` once it starts.

        Raises StreamsError with the reason if it cannot start; the others continue.
        """
        try:
            name = self._supervisor.add_thread(timeout)
        except TimeoutError:
            raise StreamsError(
                f"The new stream thread has not started within {timeout:.0f} s; it is still importing the topology. "
                "`penstock status` and the log show when it starts, or why it cannot."
            ) from None
        if name is None:
            raise self._refused("add a stream thread")
        return {"thread": name}

    def remove_thread(self, name: str | None = None, timeout: float = THREAD_TIMEOUT_SECONDS) -> dict[str, object]:
        """Stop a stream thread, the last one if none is named, and wait for its end (KIP-663).

        name: as in ``status``, or only its number. Returns its name as ``thread``. The last thread may be removed too:
        the application then continues to run without processing.
        """
        full = self._name(name, "remove")
        return {"thread": self._done(self._supervisor.remove_thread, "remove", full, timeout)}

    def restart_thread(self, name: str, timeout: float = THREAD_TIMEOUT_SECONDS) -> dict[str, object]:
        """Make a stream thread commit and close, and replace its process, which resumes the tasks.

        name: as in ``status``, or only its number. Returns ``thread``, and the process ids ``old_pid`` and ``pid``
        (None if there was or is none).
        """
        full = self._name(name, "restart")
        assert full is not None
        old_pid = self._pid(full)
        thread = self._done(self._supervisor.restart_thread, "restart", full, timeout)
        return {"thread": thread, "old_pid": old_pid, "pid": self._pid(full)}

    def pause(self) -> dict[str, object]:
        """Make all stream threads stop processing without leaving the group (KIP-834); wait until they have."""
        self._check_running("pause")
        self._supervisor.pause()
        self._wait_until_heard()
        return {"paused": True}

    def resume(self) -> dict[str, object]:
        """Resume processing."""
        self._check_running("resume")
        self._supervisor.resume()
        self._wait_until_heard()
        return {"paused": False}

    def snapshot(self, directory: str, name: str | None = None) -> dict[str, object]:
        """Copy all stores on this host into ``<directory>/<name>``, by default named by the time; see snapshots.py.

        Returns its ``path``, and ``tasks``: the changelog offsets by store by task.
        """
        self._check_running("take a snapshot")
        return create(self._supervisor, self._config, Path(directory), name)

    def hold(self, seconds: float) -> dict[str, Any]:
        """Make all stream threads of all hosts commit, and process nothing for this time (s) or until end_hold.

        Returns ``hold``, ``tasks``, ``topics``; see holds.py.
        """
        self._check_running("hold")
        return self._all_hosts.hold(seconds)

    def end_hold(self, hold: int) -> dict[str, Any]:
        """Continue after a hold. Returns as ``changed`` why the tasks may have changed meanwhile, None if not."""
        return self._all_hosts.end_hold(hold)

    def limit_input(self, offsets: dict[str, list[int]], seconds: float) -> dict[str, Any]:
        """Make all stream threads of all hosts read no further than these offsets for this time (s); see holds.py."""
        self._check_running("limit the input")
        return self._all_hosts.limit_input(offsets, seconds)

    def stop(self) -> dict[str, Any]:
        """Begin to stop the application on all hosts cleanly; its members leave the group."""
        return self._all_hosts.stop()

    # -- helpers

    def _ask(self, store: str, method: str, *arguments: object) -> list[dict[str, Any]]:
        """Return the response of each stream thread; raises InvalidStateStoreError."""
        try:
            results = self._supervisor.query(store, method, arguments, HEARD_SECONDS)
        except TimeoutError:
            raise InvalidStateStoreError(
                f"Not all stream threads have answered within {HEARD_SECONDS:.0f} s; try again"
            ) from None
        errors = sorted({result.error for result in results if result.error is not None})
        if errors:
            raise InvalidStateStoreError("; ".join(errors))
        return [result.value for result in results]

    def _wait_until_heard(self) -> None:
        try:
            self._supervisor.wait_until_heard(HEARD_SECONDS)
        except TimeoutError:
            raise StreamsError(
                f"Not all stream threads have received it within {HEARD_SECONDS:.0f} s: they will receive it between "
                "two batches."
            ) from None

    def _own_process(self) -> ProcessJson:
        with self._process.oneshot():
            rss, times = self._process.memory_info().rss, self._process.cpu_times()
        return {"pid": os.getpid(), "rss_bytes": rss, "cpu_seconds": times.user + times.system}

    def _names(self) -> dict[str, str]:
        """Return the full name of each stream thread by that and by its number."""
        threads = self._supervisor.thread_status()
        return {key: thread.name for thread in threads for key in (thread.name, str(thread.slot))}

    def _name(self, name: str | None, what: str) -> str | None:
        self._check_running(f"{what} a stream thread")
        names = self._names()
        if name is not None and name not in names:
            there = ", ".join(sorted(set(names.values()))) or "none"
            raise StreamsError(f"Cannot {what} stream thread {name}: it does not exist. Existing ones: {there}.")
        return None if name is None else names[name]

    def _done(self, act: Callable[..., str | None], what: str, name: str | None, timeout: float) -> str:
        shown = name or "the last stream thread"
        try:
            done = act(name=name, timeout=timeout)
        except TimeoutError:
            raise StreamsError(
                f"{shown} has not closed within {timeout:.0f} s; it is still closing, see its state in the status. If "
                "it hangs, it is killed after penstock.shutdown.timeout.ms."
            ) from None
        if done is None:
            raise StreamsError(f"Cannot {what} {shown}: it no longer exists, or the application is stopping.")
        return done

    def _pid(self, name: str) -> int | None:
        return next((thread.pid for thread in self._supervisor.thread_status() if thread.name == name), None)

    def _check_running(self, what: str) -> None:
        if not self._supervisor.states.state.is_running_or_rebalancing:
            raise self._refused(what)

    def _refused(self, what: str) -> StreamsError:
        state = self._supervisor.states.state.name
        return StreamsError(f"Cannot {what}: the application is {state}; it must be RUNNING or REBALANCING.")


def _thread(thread: ThreadStatus) -> ThreadJson:
    return {
        "name": thread.name,
        "number": thread.slot,
        "pid": thread.pid,
        "state": thread.state,
        "records_processed": thread.records_processed,
        "records_per_second": thread.records_per_second,
        "lag": thread.lag,
        "restore_remaining": thread.restore_remaining,
        "restore_total": thread.restore_total,
        "restore_rate": thread.restore_rate,
        "rss_bytes": thread.rss_bytes,
        "memory_share_bytes": thread.memory_share_bytes,
        "over_memory_share": thread.is_over_memory_share,
        "cpu_percent": thread.cpu_percent,
        "uptime_seconds": thread.uptime_seconds,
        "restarts": thread.restarts,
        "waits": list(thread.waits),
        "tasks": [_task(task) for task in thread.tasks],
    }


def _task(task: TaskStatus) -> TaskJson:
    known = [lag for lag in task.lags.values() if lag is not None]
    lag = sum(known) if len(known) == len(task.lags) and task.kind == "active" else None
    return {
        "task_id": task.task_id,
        "kind": task.kind,
        "state": task.state,
        "lag": lag,
        "buffered": task.buffered,
        "waiting": task.waiting,
        "restore_remaining": task.restore_remaining,
        "restore_total": task.restore_total,
        "restore_rate": task.restore_rate,
        "restore_eta_seconds": task.restore_eta_seconds,
        "partitions": [
            {"topic": partition.topic, "partition": partition.partition, "lag": lag}
            for partition, lag in sorted(task.lags.items())
        ],
        "sinks": [_sink(sink, lag) for sink in task.sinks],
        "checkpoint": None if task.checkpoint is None else _checkpoint(task.checkpoint),
    }


def _sink(sink: SinkStatus, lag: int | None) -> SinkJson:
    return {
        "name": sink.name,
        "lag": None if lag is None else lag + sink.waiting,
        "waiting": sink.waiting,
        "rows_per_second": sink.rows_per_second,
        "batch_ms": sink.batch_ms,
        "retries": sink.retries,
    }


def _checkpoint(checkpoint: CheckpointStatus) -> CheckpointJson:
    return {
        "age_seconds": checkpoint.age_seconds,
        "uploads": checkpoint.uploads,
        "bytes": checkpoint.bytes,
        "upload_seconds": checkpoint.upload_seconds,
        "failures": checkpoint.failures,
        "loading_bytes": checkpoint.loading_bytes,
        "loading_total_bytes": checkpoint.loading_total_bytes,
    }


def _totals(threads: list[ThreadStatus]) -> TotalsJson:
    return {
        "threads": len(threads),
        "tasks": sum(task.kind == "active" for thread in threads for task in thread.tasks),
        "standby_tasks": sum(task.kind == "standby" for thread in threads for task in thread.tasks),
        "records_processed": sum(thread.records_processed for thread in threads),
        "records_per_second": sum(thread.records_per_second for thread in threads),
        "lag": sum(thread.lag for thread in threads),
        "restore_remaining": sum(thread.restore_remaining for thread in threads),
        "rss_bytes": sum(thread.rss_bytes for thread in threads),
        "cpu_percent": sum(thread.cpu_percent for thread in threads),
    }


def _lags(thread: ThreadStatus) -> Iterator[LagJson]:
    for task in thread.tasks:
        for partition, lag in task.lags.items():
            yield {
                "topic": partition.topic,
                "partition": partition.partition,
                "lag": lag,
                "buffered": task.buffered,
                "task_id": task.task_id,
                "task_state": task.state,
                "thread": thread.name,
            }


def _row(row: Row) -> dict[str, object]:
    return {**orjson.loads(row.json), "task_id": row.task}
