"""The data about an application that HTTP shows, as plain values."""

from __future__ import annotations

import threading
from typing import Any

import orjson

from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.control.messages import DescribeTopology
from penstock.workers.metrics.sensors import Metric
from penstock.workers.tasks.task_state import TaskState

from ..application_state import ApplicationState
from ..control.administration import Administration
from ..queries.metric import metrics
from ..queries.queries import Answers
from ..queries.store_routing import RETRY_SECONDS, QueryError, RemoteHosts, StoreQueries
from ..supervisor import Supervisor
from .dashboard_figures import figures
from .prometheus import exposition

#: Time limit for a response of the supervisor's loop before it counts as stuck.
LIVE_SECONDS = 5.0
#: Time limit for stream threads to return their topology: they may still be importing it.
DESCRIBE_SECONDS = 5.0


class HttpView:
    """Any thread may use it; it may wait for the supervisor's loop."""

    def __init__(
        self, supervisor: Supervisor, administration: Administration, config: StreamsConfig, remote: RemoteHosts
    ) -> None:
        self.administration = administration
        self.queries = StoreQueries(supervisor, config["application.server"], remote)
        self._supervisor = supervisor
        self._config = config
        self._topology: dict[str, Any] | None = None
        self._lock = threading.Lock()

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

    def tasks(self) -> list[dict[str, Any]]:
        """Return all tasks on this host, each with its stream thread."""
        threads = self.administration.status()["threads"]
        found = [{**task, "thread": thread["name"]} for thread in threads for task in thread["tasks"]]
        return sorted(found, key=lambda task: (task["kind"], *map(int, task["task_id"].split("_"))))

    def topology(self) -> dict[str, Any]:
        """Return sub-topologies, nodes and stores, as reported by a stream thread; they do not change at run time.

        Raises QueryError while no stream thread can report them.
        """
        with self._lock:
            if self._topology is None:
                self._topology = self._ask_for_topology()
            return self._topology

    def _ask_for_topology(self) -> dict[str, Any]:
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
        topology: dict[str, Any] = orjson.loads(found)
        return topology

    def stores(self) -> list[dict[str, Any]]:
        """Return the queryable stores, each with its tasks on this host."""
        topology, tasks = self.topology(), self.tasks()
        here: dict[int, list[dict[str, Any]]] = {}
        for task in tasks:
            shown = {name: task[name] for name in ("task_id", "kind", "state", "restore_remaining", "thread")}
            here.setdefault(int(task["task_id"].split("_")[0]), []).append(shown)
        named = [{**store, "tasks": here.get(store["subtopology"], [])} for store in topology["stores"]]
        return [*named, *({"name": name, "kind": "global", "tasks": []} for name in topology["global_stores"])]

    def dashboard(self) -> dict[str, Any]:
        """Return the data of the page: status, topology if known, and figures of operators."""
        try:
            topology = self.topology()
        except QueryError:
            topology = None
        return {"status": self.administration.status(), "topology": topology, **figures(self.metrics())}
