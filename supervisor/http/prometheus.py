"""Metrics in Prometheus' text format, version 0.0.4.

Names are Kafka Streams', prefixed with the group, in Prometheus' spelling: ``process-rate`` of the group
``stream-task-metrics`` becomes ``kafka_stream_task_process_rate``, as the usual JMX exporters write it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.workers.metrics.sensors import Metric, only_grows

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


class Series(NamedTuple):
    """All metrics of a name, for Prometheus and OTLP.

    is_counter: whether values only grow. points: labels and values.
    """

    name: str
    help: str
    is_counter: bool
    points: list[tuple[dict[str, str], float]]


def series(metrics: Iterable[Metric], client_id: str = "") -> Iterator[Series]:
    """Yield the metrics by name. One that is not a number becomes 1 with the text as a label, as is usual.

    client_id: labels omit a UUID at its end. A generated UUID changes after the loss of the state directory, and each
    of its metrics would be a new time series. The scraper's own label distinguishes hosts.
    """
    by_name: dict[str, list[Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric_name(metric.group, metric.name), []).append(metric)
    shown_as = _GENERATED.sub("", client_id)
    for name, found in sorted(by_name.items()):
        points = [_point(metric.value, dict(_labels(metric.tags, client_id, shown_as))) for metric in found]
        yield Series(name, _help(found[0]), name.endswith("_total") and only_grows(found[0].name), points)


def exposition(metrics: Iterable[Metric], client_id: str = "") -> str:
    """Return the text; see series()."""
    return "".join(_blocks(series(metrics, client_id)))


def _blocks(found: Iterable[Series]) -> Iterator[str]:
    for name, text, is_counter, points in found:
        yield f"# HELP {name} {text}\n"
        yield f"# TYPE {name} {'counter' if is_counter else 'gauge'}\n"
        for labels, value in points:
            yield _line(name, labels, value)


def _labels(tags: Mapping[str, str], client_id: str, shown_as: str) -> Iterator[tuple[str, str]]:
    for key, tag in tags.items():
        yield key, shown_as + tag.removeprefix(client_id) if tag.startswith(client_id) else tag


def _help(metric: Metric) -> str:
    """Return Kafka Streams' name of a metric, and its unit if the name implies it."""
    unit = next((f", {unit}" for end, unit in UNITS if metric.name.endswith(end)), "")
    return f"{metric.name} of {metric.group}{unit}"


def _point(value: float | str, labels: dict[str, str]) -> tuple[dict[str, str], float]:
    named = {_NOT_IN_NAMES.sub("_", key): label for key, label in labels.items()}
    return (named | {"value": value}, 1.0) if isinstance(value, str) else (named, value)


def _line(name: str, labels: dict[str, str], value: float) -> str:
    text = ",".join(f'{key}="{label.translate(_ESCAPES)}"' for key, label in labels.items())
    return f"{name}{{{text}}} {value!r}\n"
