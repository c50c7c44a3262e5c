"""Metrics in Prometheus' text format, version 0.0.4.

Names are Kafka Streams' with the group before them, in Prometheus' spelling: ``process-rate`` of the group
``stream-task-metrics`` becomes ``kafka_stream_task_process_rate``, as the usual JMX exporters write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from penstock.workers.metrics import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


def metric_name(group: str, name: str) -> str:
    """Return Prometheus' name of a metric."""
    prefix = "" if group.startswith("penstock-") else "kafka_"
    return _NOT_IN_NAMES.sub("_", f"{prefix}{group.removesuffix('-metrics')}_{name}")


def exposition(metrics: Iterable[Metric]) -> str:
    """Return the text. A metric that is no number becomes 1 with the text as a label, as is usual."""
    by_name: dict[str, list[str]] = {}
    for metric in metrics:
        name = metric_name(metric.group, metric.name)
        by_name.setdefault(name, []).append(_line(name, metric))
    return "".join(_blocks(by_name))


def _blocks(by_name: dict[str, list[str]]) -> Iterator[str]:
    for name, lines in sorted(by_name.items()):
        yield f"# TYPE {name} {'counter' if name.endswith('_total') and _only_grows(name) else 'gauge'}\n"
        yield from lines


def _only_grows(name: str) -> bool:
    """Say so of totals; three of Kafka Streams' that are called totals are levels."""
    return not name.endswith(("_remaining_records_total", "_bytes_total"))


def _line(name: str, metric: Metric) -> str:
    labels = dict(metric.tags)
    value = metric.value
    if isinstance(value, str):
        labels["value"], value = value, 1.0
    text = ",".join(f'{_NOT_IN_NAMES.sub("_", key)}="{label.translate(_ESCAPES)}"' for key, label in labels.items())
    return f"{name}{{{text}}} {value!r}\n"
