"""The dashboard's data about operators: the metrics of all tasks here, summed by node and by edge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.workers.metrics import function_metrics, node_samples, task_metrics
from penstock.workers.metrics.sensors import Metric

Tags = tuple[str, ...]


def figures(found: Iterable[Metric]) -> dict[str, Any]:
    """Return ``sources``, ``nodes``, ``edges``, ``functions`` and ``dead_letters``.

    sources: by node, measured: rate (records/s), total, latency_avg and latency_max (ms, the age of records when they
    are read). nodes: by node, from samples: rate, time_ratio (share of a core), age (ms). edges: from, to, rate.
    functions: by node: rate (calls/s), in_flight, waiting (records), p50 and p99 (ms; of several tasks p50 is the mean,
    p99 the highest), retries (total). dead_letters: node, exception, topic, count, the most first.
    """
    by_group: dict[str, list[Metric]] = {}
    for metric in found:
        by_group.setdefault(metric.group, []).append(metric)
    return {
        "sources": _sources(by_group.get(task_metrics.NODE_GROUP, [])),
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


def _edges(found: Iterable[Metric]) -> list[dict[str, Any]]:
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
