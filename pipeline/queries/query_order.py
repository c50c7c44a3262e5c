"""The order of the sub-topologies in a bounded run, which processes one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.topology.graph.processor_topology import ProcessorTopology


def processing_order(built: Sequence[ProcessorTopology]) -> tuple[list[ProcessorTopology], bool]:
    """Return the sub-topologies, writers of topics before their readers; and whether one round may be insufficient.

    It may be if sub-topologies write to each other in a cycle, or one to itself, as in a foreign-key join.
    """
    left = {each.subtopology: each for each in built}
    written_by = {each.subtopology: {sink.topic for sink in each.sinks} for each in built}
    circular = any(written_by[number].intersection(each.source_topics) for number, each in left.items())
    ordered: list[ProcessorTopology] = []
    while left:
        ready = [each for each in left.values() if not _waits(each, left, written_by)]
        circular = circular or not ready
        following = ready or [next(iter(left.values()))]
        ordered += following
        for each in following:
            del left[each.subtopology]
    return ordered, circular


def _waits(
    topology: ProcessorTopology, left: Mapping[int, ProcessorTopology], written_by: Mapping[int, set[Any]]
) -> bool:
    others = (number for number in left if number != topology.subtopology)
    return any(topic in written_by[number] for number in others for topic in topology.source_topics)
