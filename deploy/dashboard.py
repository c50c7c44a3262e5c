"""The dashboard for Grafana: ``python -m deploy.dashboard > deploy/grafana/penstock.json``.

Panels name metrics as ``KafkaStreams.metrics()`` does, by group and name; tests hold them against a stream thread.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from penstock.supervisor.http.prometheus import metric_name
from penstock.supervisor.queries.metric import CLIENT_GROUP, DISK_GROUP, PROCESS_GROUP
from penstock.topology.context.tallies import NODE_GROUP, STORE_GROUP, TASK_GROUP
from penstock.workers.metrics.client_health import FETCH_GROUP
from penstock.workers.metrics.task_metrics import DEAD_LETTER_GROUP
from penstock.workers.thread.thread_status import THREAD_GROUP, TRANSACTION_GROUP, UPDATER_GROUP

#: Grafana's grid has 24 columns.
WIDTH, HEIGHT, COLUMNS = 8, 7, 24


@dataclass(frozen=True, slots=True)
class Query:
    """A line of a panel. promql has ``{metric}`` for the metric with its selector."""

    group: str
    name: str
    promql: str
    legend: str

    @property
    def expression(self) -> str:
        """The PromQL expression."""
        return self.promql.replace("{metric}", f'{metric_name(self.group, self.name)}{{job=~"$job"}}')


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph; unit is one of Grafana's."""

    title: str
    unit: str
    queries: tuple[Query, ...]


THREAD = "{{instance}} {{thread_id}}"
ROWS: dict[str, tuple[Panel, ...]] = {
    "Application": (
        Panel(
            "Records behind", "short", (Query(FETCH_GROUP, "records-lag", "sum by (topic) ({metric})", "{{topic}}"),)
        ),
        Panel(
            "Records processed per second",
            "ops",
            (
                Query(
                    THREAD_GROUP,
                    "process-total",
                    "sum by (instance) (rate({metric}[$__rate_interval]))",
                    "{{instance}}",
                ),
            ),
        ),
        Panel(
            "Age of records when they are read",
            "ms",
            (
                Query(
                    NODE_GROUP,
                    "record-e2e-latency-max",
                    "max by (processor_node_id) ({metric})",
                    "{{processor_node_id}}",
                ),
            ),
        ),
        Panel(
            "Stream threads",
            "short",
            (
                Query(CLIENT_GROUP, "alive-stream-threads", "sum({metric})", "alive"),
                Query(CLIENT_GROUP, "failed-stream-threads", "sum({metric})", "died since the start"),
            ),
        ),
        Panel(
            "Dead letters per second",
            "ops",
            (
                Query(
                    DEAD_LETTER_GROUP,
                    "dead-letters-total",
                    "sum by (processor_node_id, exception) (rate({metric}[$__rate_interval]))",
                    "{{processor_node_id}} {{exception}}",
                ),
            ),
        ),
        Panel(
            "Dropped records per second",
            "ops",
            (
                Query(
                    TASK_GROUP,
                    "dropped-records-total",
                    "sum by (task_id) (rate({metric}[$__rate_interval]))",
                    "{{task_id}}",
                ),
            ),
        ),
    ),
    "Stream threads": (
        Panel(
            "Share of the loop",
            "percentunit",
            tuple(
                Query(THREAD_GROUP, f"{part}-ratio", "avg({metric})", part)
                for part in ("process", "poll", "commit", "punctuate")
            ),
        ),
        Panel("Longest commit", "ms", (Query(THREAD_GROUP, "commit-latency-max", "{metric}", THREAD),)),
        Panel(
            "Waiting for brokers",
            "percentunit",
            (Query(THREAD_GROUP, "blocked-time-ns-total", "rate({metric}[$__rate_interval]) / 1e9", THREAD),),
        ),
        Panel(
            "Aborted transactions",
            "short",
            (
                Query(
                    TRANSACTION_GROUP,
                    "aborted-total",
                    "sum by (instance) (increase({metric}[$__rate_interval]))",
                    "{{instance}}",
                ),
            ),
        ),
        Panel("Stalled partitions", "short", (Query(THREAD_GROUP, "stalled-partitions", "{metric}", THREAD),)),
        Panel(
            "Tasks that own most of a thread",
            "percentunit",
            (Query(TASK_GROUP, "active-process-ratio", "topk(5, {metric})", "{{task_id}}"),),
        ),
    ),
    "State": (
        Panel(
            "Records still to be restored",
            "short",
            (Query(THREAD_GROUP, "restore-remaining-records-total", "sum by (instance) ({metric})", "{{instance}}"),),
        ),
        Panel(
            "Records restored per second",
            "ops",
            (Query(UPDATER_GROUP, "restore-records-rate", "sum by (instance) ({metric})", "{{instance}}"),),
        ),
        Panel(
            "Tasks: restoring and standby",
            "short",
            (
                Query(UPDATER_GROUP, "active-restoring-tasks", "sum({metric})", "restoring"),
                Query(UPDATER_GROUP, "standby-updating-tasks", "sum({metric})", "standby"),
            ),
        ),
        Panel(
            "Stores on disk",
            "bytes",
            (
                Query(
                    STORE_GROUP,
                    "total-sst-files-size",
                    "sum by (rocksdb_state_id, rocksdb_window_state_id, rocksdb_session_state_id) ({metric})",
                    "{{rocksdb_state_id}}{{rocksdb_window_state_id}}{{rocksdb_session_state_id}}",
                ),
            ),
        ),
        Panel("Free disk", "bytes", (Query(DISK_GROUP, "free-bytes", "{metric}", "{{instance}} {{state_dir}}"),)),
        Panel(
            "Compaction behind",
            "bytes",
            (Query(STORE_GROUP, "estimate-pending-compaction-bytes", "sum by (instance) ({metric})", "{{instance}}"),),
        ),
    ),
    "Processes": (
        Panel("Memory", "bytes", (Query(PROCESS_GROUP, "rss-bytes", "{metric}", "{{instance}} {{process}}"),)),
        Panel(
            "CPU, percent of one core",
            "percent",
            (Query(PROCESS_GROUP, "cpu-percent", "{metric}", "{{instance}} {{process}}"),),
        ),
        Panel(
            "Restarts",
            "short",
            (Query(PROCESS_GROUP, "restarts-total", "sum by (instance) ({metric})", "{{instance}}"),),
        ),
    ),
}


def metrics() -> set[tuple[str, str]]:
    """Return group and name of each metric that the dashboard shows."""
    return {(query.group, query.name) for panels in ROWS.values() for panel in panels for query in panel.queries}


def dashboard() -> dict[str, Any]:
    """Return what Grafana imports."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1}, "panels": []})
        for number, panel in enumerate(row):
            place = {"x": number * WIDTH % COLUMNS, "y": y + 1 + number * WIDTH // COLUMNS * HEIGHT}
            panels.append(_graph(panel) | {"gridPos": {**place, "w": WIDTH, "h": HEIGHT}})
        y += 1 + (len(row) * WIDTH + COLUMNS - 1) // COLUMNS * HEIGHT
    numbered = [{"id": number, **panel} for number, panel in enumerate(panels, start=1)]
    return {
        "title": "Penstock",
        "uid": "penstock-streams",
        "tags": ["kafka", "penstock"],
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "panels": numbered,
    }


def _variables() -> list[dict[str, Any]]:
    client = metric_name(CLIENT_GROUP, "alive-stream-threads")
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"},
        {
            "name": "job",
            "type": "query",
            "label": "Application",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "query": {"query": f"label_values({client}, job)", "refId": "job"},
            "refresh": 2,
            "includeAll": True,
            "multi": True,
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _graph(panel: Panel) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query.expression, "legendFormat": query.legend}
            for number, query in enumerate(panel.queries)
        ],
    }


if __name__ == "__main__":
    json.dump(dashboard(), sys.stdout, indent=2)
    sys.stdout.write("\n")
