"""Metrics in Prometheus' text format, version 0.0.4.

Names are Kafka Streams', prefixed with the group, in Prometheus' spelling: ``process-rate`` of the group
``stream-task-metrics`` becomes ``kafka_stream_task_process_rate``, as the usual JMX exporters write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from penstock.workers.metrics.sensors import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Units by suffix of a metric's name.
UNITS = (
    *(("-rate", "per second"), ("-ratio", "from 0 to 1"), ("-percent", "percent"), ("-per-second", "per second")),
    *(("-bytes", "bytes"), ("-bytes-total", "bytes"), ("-ns-total", "ns"), ("-seconds", "seconds")),
    *(("-latency-avg", "ms"), ("-latency-max", "ms"), ("-latency-min", "ms"), ("-age-avg", "ms")),
    *(("-latency-p50", "ms"), ("-latency-p99", "ms")),
    ("-start-time", "ms since 1970"),
)
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
#: The suffix that Kafka Streams adds to the application's id without a client.id.
_GENERATED = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def metric_name(group: str, name: str) -> str:
    """Return Prometheus' name of a metric."""
    prefix = "" if group.startswith("penstock-") else "kafka_"
    return _NOT_IN_NAMES.sub("_", f"{prefix}{group.removesuffix('-metrics')}_{name}")


def exposition(metrics: Iterable[Metric], client_id: str = "") -> str:
    """Return the text. A metric that is not a number becomes 1 with the text as a label, as is usual.

    client_id: labels omit a UUID at its end. A generated UUID changes after the loss of the state directory, and each
    of its metrics would be a new time series. The scraper's own label distinguishes hosts.
    """
    by_name: dict[str, list[Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric_name(metric.group, metric.name), []).append(metric)
    return "".join(_blocks(by_name, client_id, _GENERATED.sub("", client_id)))


def _blocks(by_name: dict[str, list[Metric]], client_id: str, shown_as: str) -> Iterator[str]:
    for name, metrics in sorted(by_name.items()):
        yield f"# HELP {name} {_help(metrics[0])}\n"
        yield f"# TYPE {name} {'counter' if name.endswith('_total') and _only_grows(name) else 'gauge'}\n"
        for metric in metrics:
            yield _line(name, dict(_labels(metric.tags, client_id, shown_as)), metric.value)


def _labels(tags: Mapping[str, str], client_id: str, shown_as: str) -> Iterator[tuple[str, str]]:
    for key, tag in tags.items():
        yield key, shown_as + tag.removeprefix(client_id) if tag.startswith(client_id) else tag


def _help(metric: Metric) -> str:
    """Return Kafka Streams' name of a metric, and its unit if the name implies it."""
    unit = next((f", {unit}" for end, unit in UNITS if metric.name.endswith(end)), "")
    return f"{metric.name} of {metric.group}{unit}"


def _only_grows(name: str) -> bool:
    """Mark totals as counters; three of Kafka Streams' metrics are named totals but are gauges."""
    return not name.endswith(("_remaining_records_total", "_bytes_total"))


def _line(name: str, labels: dict[str, str], value: float | str) -> str:
    if isinstance(value, str):
        labels["value"], value = value, 1.0
    text = ",".join(f'{_NOT_IN_NAMES.sub("_", key)}="{label.translate(_ESCAPES)}"' for key, label in labels.items())
    return f"{name}{{{text}}} {value!r}\n"
