"""The data about an application that HTTP shows, as plain values."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import orjson
from anyio import to_thread

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.tallies import NODE_GROUP
from penstock.workers.control.messages import DescribeTopology, ReadStore
from penstock.workers.metrics import function_metrics, node_samples, task_metrics
from penstock.workers.metrics.sensors import Metric
from penstock.workers.tasks.task_state import TaskState

from ..application_state import ApplicationState
from ..control.administration import Administration
from ..control.status_json import TaskOfThreadJson
from ..queries.metric import metrics
from ..queries.queries import Answers
from ..queries.state_query import HostedQueries, QueriedHosts
from ..queries.store_changes import StoreChanges
from ..queries.store_routing import (
    RETRY_SECONDS,
    Asking,
    Found,
    QueryError,
    RemoteHosts,
    Step,
    StoreQueries,
    busy,
    followed,
)
from ..queries.store_scans import StoreScans
from ..sql.sql_queries import SqlQueries
from ..supervisor import Supervisor
from .prometheus import exposition

#: Time limit for a response of the supervisor's loop before it counts as stuck.
LIVE_SECONDS = 5.0
#: Time limit for stream threads to return their topology: they may still be importing it.
DESCRIBE_SECONDS = 5.0


Tags = tuple[str, ...]


class OtherHosts(RemoteHosts, QueriedHosts, Protocol):
    """The application's other hosts."""


class HttpView:
    """Any thread may use it; it may wait for the supervisor's loop."""

    def __init__(
        self, supervisor: Supervisor, administration: Administration, config: StreamsConfig, remote: OtherHosts
    ) -> None:
        self.administration = administration
        self.queries = StoreQueries(supervisor, remote)
        self.hosted_queries = HostedQueries(supervisor, self.queries, remote)
        self.scans = StoreScans(supervisor, self.queries)
        self.sql = SqlQueries(self.scans, config)
        self.changes = StoreChanges(supervisor, self.queries, config)
        self._supervisor = supervisor
        self._config = config
        self._topology: dict[str, object] | None = None
        self._lock = threading.Lock()

    async def read(self, request: ReadStore, timeout: float, local: bool, wait: float) -> Found:
        """Return the rows of a request as StoreQueries.read, without blocking the event loop. Raises QueryError."""

        async def done(step: Step) -> object:
            if not isinstance(step, Asking):
                return await to_thread.run_sync(step)
            self._supervisor.queries.ask(*step)
            try:
                async with asyncio.timeout(timeout):
                    return await asyncio.wrap_future(step.answers.done)
            except TimeoutError:
                raise busy(timeout) from None

        return await followed(self.queries.steps(request, timeout, local, wait), done)

    def live(self) -> tuple[bool, str]:
        """Return whether the supervisor's loop runs and has not failed, and the reason if not."""
        state = self._supervisor.states.state
        if state in (ApplicationState.ERROR, ApplicationState.PENDING_ERROR):
            return False, self._supervisor.reason or state.name
        try:
            self._supervisor.call(lambda: None, LIVE_SECONDS)
        except TimeoutError:
            return False, f"the supervisor's loop has not responded for {LIVE_SECONDS:g} s"
        return True, ""

    def ready(self) -> tuple[bool, str]:
        """Return whether the application is RUNNING, with all threads and all its state, and the reason if not."""
        status = self.administration.status()
        why = ". It is paused, and restores no task before `penstock resume`" if status["paused"] else ""
        if status["state"] != ApplicationState.RUNNING.name:
            return False, f"the application is {status['state']}{why}"
        if down := self._supervisor.call(self._supervisor.threads.down):
            return False, f"{len(down)} stream threads do not run ({', '.join(down)})"
        if not status["threads"]:  # Kafka Streams' state stays RUNNING
            return False, "no stream thread runs"
        tasks = [task for thread in status["threads"] for task in thread["tasks"] if task["kind"] == "active"]
        waiting = [task for task in tasks if task["state"] != TaskState.RUNNING.name or task["restore_remaining"]]
        if waiting:
            remaining = sum(task["restore_remaining"] for task in waiting)
            ids = ", ".join(task["task_id"] for task in waiting[:5])
            return False, f"{len(waiting)} tasks are not restored ({ids} …): {remaining} records remain{why}"
        return True, ""

    def metrics(self) -> list[Metric]:
        """Return all metrics."""
        return metrics(self._supervisor, self._config)

    def exposition(self) -> str:
        """Return all metrics in Prometheus' format, without the generated part of the client's id."""
        return exposition(self.metrics(), self._supervisor.client_id)

    def tasks(self) -> list[TaskOfThreadJson]:
        """Return all tasks on this host, each with its stream thread."""
        threads = self.administration.status()["threads"]
        found: list[TaskOfThreadJson] = [
            {**task, "thread": thread["name"]} for thread in threads for task in thread["tasks"]
        ]
        return sorted(found, key=lambda task: (task["kind"], *map(int, task["task_id"].split("_"))))

    def topology(self) -> dict[str, Any]:
        """Return sub-topologies, nodes and stores, as reported by a stream thread; they do not change at run time.

        Raises QueryError while no stream thread can report them.
        """
        with self._lock:
            if self._topology is None:
                self._topology = self._ask_for_topology()
            return self._topology

    def _ask_for_topology(self) -> dict[str, object]:
        answers = Answers(enough=lambda result: result.value is not None)
        try:
            results = self._supervisor.ask(DescribeTopology, answers, DESCRIBE_SECONDS)
        except TimeoutError:
            results = []
        found = next((result.value for result in results if result.value is not None), None)
        if found is None:
            text = (
                f"No stream thread has reported its topology; the application is {self._supervisor.states.state.name}."
            )
            raise QueryError(503, "NOT_RUNNING", text, RETRY_SECONDS)
        topology: dict[str, object] = orjson.loads(found)
        return topology

    def stores(self) -> list[dict[str, Any]]:
        """Return the queryable stores, each with its tasks on this host."""
        topology, tasks = self.topology(), self.tasks()
        here: dict[int, list[dict[str, object]]] = {}
        for task in tasks:
            shown: dict[str, object] = {
                "task_id": task["task_id"],
                "kind": task["kind"],
                "state": task["state"],
                "restore_remaining": task["restore_remaining"],
                "thread": task["thread"],
            }
            here.setdefault(int(task["task_id"].split("_")[0]), []).append(shown)
        named = [{**store, "tasks": here.get(store["subtopology"], [])} for store in topology["stores"]]
        return [*named, *({"name": name, "kind": "global", "tasks": []} for name in topology["global_stores"])]

    def dashboard(self) -> dict[str, object]:
        """Return the data of the page: status, topology if known, and figures of operators."""
        try:
            topology = self.topology()
        except QueryError:
            topology = None
        return {"status": self.administration.status(), "topology": topology, **figures(self.metrics())}


def figures(found: Iterable[Metric]) -> dict[str, object]:
    """Return ``sources``, ``nodes``, ``edges``, ``functions`` and ``dead_letters``.

    sources: by node, measured: rate (records/s), total, latency_avg and latency_max (ms, the age of records when they
    are read). nodes: by node, from samples: rate, time_ratio (share of a core), age (ms). edges: from, to, rate.
    functions: by node: rate (calls/s), in_flight, waiting (records), p50 and p99 (ms; of several tasks p50 is the mean,
    p99 the highest), retries (total); without sinks, which are in the status. dead_letters: node, exception, topic,
    count, the most first.
    """
    by_group: dict[str, list[Metric]] = {}
    for metric in found:
        by_group.setdefault(metric.group, []).append(metric)
    return {
        "sources": _sources(by_group.get(NODE_GROUP, [])),
        "nodes": _nodes(by_group.get(node_samples.NODE_GROUP, [])),
        "edges": _edges(by_group.get(node_samples.EDGE_GROUP, [])),
        "functions": _functions(by_group.get(function_metrics.FUNCTION_GROUP, [])),
        "dead_letters": _dead_letters(by_group.get(task_metrics.DEAD_LETTER_GROUP, [])),
    }


def _by_tags(found: Iterable[Metric], *names: str) -> Mapping[Tags, dict[str, list[float]]]:
    """Return the values of all tasks by name, for each value of the tags."""
    values: dict[Tags, dict[str, list[float]]] = {}
    for metric in found:
        assert not isinstance(metric.value, str)
        tags = tuple(metric.tags[name] for name in names)
        values.setdefault(tags, {}).setdefault(metric.name, []).append(metric.value)
    return values


def _sources(found: Iterable[Metric]) -> dict[str, dict[str, float]]:
    return {
        node: {
            "rate": sum(values["process-rate"]),
            "total": sum(values["process-total"]),
            "latency_avg": _mean_of_busy(values["record-e2e-latency-avg"], values["process-rate"]),
            "latency_max": max(values["record-e2e-latency-max"]),
        }
        for (node,), values in _by_tags(found, "processor-node-id").items()
        if "process-rate" in values  # at level DEBUG other operators have metrics of this group, too
    }


def _nodes(found: Iterable[Metric]) -> dict[str, dict[str, float]]:
    return {
        node: {
            "rate": sum(values.get("process-rate", [])),
            "time_ratio": sum(values["time-ratio"]),
            "age": _mean_of_busy(values.get("record-age-avg", []), values.get("process-rate", [])),
        }
        for (node,), values in _by_tags(found, "processor-node-id").items()
    }


def _edges(found: Iterable[Metric]) -> list[dict[str, object]]:
    return [
        {"from": start, "to": end, "rate": sum(values["records-rate"])}
        for (start, end), values in _by_tags(found, "from", "to").items()
    ]


def _functions(found: Iterable[Metric]) -> dict[str, dict[str, float]]:
    return {
        node: {
            "rate": sum(values["call-rate"]),
            "in_flight": sum(values["calls-in-flight"]),
            "waiting": sum(values["records-waiting"]),
            "p50": _mean_of_busy(values["call-latency-p50"], values["call-rate"]),
            "p99": max(values["call-latency-p99"]),
            "retries": sum(values["retry-total"]),
        }
        for (node,), values in _by_tags(found, "processor-node-id").items()
        if "row-rate" not in values
    }


def _dead_letters(found: Iterable[Metric]) -> list[dict[str, Any]]:
    letters = [
        {"node": node, "exception": exception, "topic": topic, "count": int(sum(values["dead-letters-total"]))}
        for (node, exception, topic), values in _by_tags(found, "processor-node-id", "exception", "topic").items()
    ]
    return sorted(letters, key=lambda letter: (-letter["count"], letter["node"], letter["exception"]))


def _mean_of_busy(values: list[float], weights: list[float]) -> float:
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0
