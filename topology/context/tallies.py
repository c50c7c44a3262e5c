"""What a task measures at metrics.recording.level DEBUG and TRACE only (Kafka: Sensor.RecordingLevel).

Operators and stores ask for a Tally when they are made, and add to it. At level INFO a task has no Tallies, and
operators and stores are made without what measures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from penstock.kernel.nodes import Tally

if TYPE_CHECKING:
    from ..processor_api import Statistic

NODE_GROUP = "stream-processor-node-metrics"
STORE_GROUP = "stream-state-metrics"
TASK_GROUP = "stream-task-metrics"
CACHE_GROUP = "stream-record-cache-metrics"


class TalliedMetrics(NamedTuple):
    """The metrics of one tally: their group, the tags beside those of the task, and a statistic for each name."""

    group: str
    tags: tuple[tuple[str, str], ...]
    names: tuple[tuple[str, Statistic], ...]


class Tallies:
    """The tallies of one task. traces: whether the level is TRACE."""

    def __init__(self, traces: bool = False) -> None:
        self.traces = traces
        self.by_metrics: dict[TalliedMetrics, Tally] = {}

    def add(self, group: str, tags: Mapping[str, str], names: Mapping[str, Statistic]) -> Tally:
        """Return the tally of metrics, the same for the same arguments: a task may make its operators again."""
        key = TalliedMetrics(group, tuple(tags.items()), tuple(names.items()))
        return self.by_metrics.setdefault(key, Tally())

    def of_node(self, node: str, names: Mapping[str, Statistic]) -> Tally:
        """Return the tally of an operator's metrics."""
        return self.add(NODE_GROUP, {"processor-node-id": node}, names)


def tallies_for(config: Mapping[str, object]) -> Tallies | None:
    """Return a task's tallies; None at level INFO."""
    level = config.get("metrics.recording.level", "INFO")
    return None if level == "INFO" else Tallies(level == "TRACE")


def rate_and_total(name: str) -> dict[str, Statistic]:
    """Return the names of a rate and a total."""
    return {f"{name}-rate": "rate", f"{name}-total": "total"}


def average_and_maximum(name: str) -> dict[str, Statistic]:
    """Return the names of an average and a maximum."""
    return {f"{name}-avg": "avg", f"{name}-max": "max"}


def extremes(name: str) -> dict[str, Statistic]:
    """Return the names of an average, a minimum and a maximum."""
    return {f"{name}-avg": "avg", f"{name}-min": "min", f"{name}-max": "max"}
