"""The built topology: plain values, one ProcessorTopology for each sub-topology (Kafka Streams: ProcessorTopology).

InternalTopologyBuilder makes it, compiled.py compiles it for a task, workers and pipeline read it to know what to
consume, create and restore. Names of internal topics stand here without their ``<application.id>-`` prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..common.durations import Duration, iso_8601_millis, non_negative_millis
from ..context.store_interfaces import StoreBuilder
from ..operators.operator import Operator


class AutoOffsetReset(Enum):
    """Where a source topic without committed offsets is read from; None in SourceNode means by configuration."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"

    @staticmethod
    def by_duration(duration: Duration) -> ResetByDuration:
        """Return the policy to begin with the first record of the last duration (``timedelta`` or ms), KIP-1106.

        Where no record is that young, it begins at the end. Raises TopologyError for a negative duration.
        """
        return ResetByDuration(non_negative_millis(duration, "The duration of AutoOffsetReset.by_duration()"))

    @staticmethod
    def of(text: str) -> OffsetResetPolicy:
        """Return the policy that a configuration names: earliest, latest, none, by_duration:P1DT12H (KIP-1106).

        Raises ValueError for any other text.
        """
        kind, _, duration = text.partition(":")
        return ResetByDuration(iso_8601_millis(duration)) if kind == "by_duration" else AutoOffsetReset(text)


@dataclass(frozen=True, slots=True)
class ResetByDuration:
    """What AutoOffsetReset.by_duration returns."""

    duration_ms: int


OffsetResetPolicy = AutoOffsetReset | ResetByDuration


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Reads topics. timestamp_extractor(raw message, key, value, partition time in ms) -> ms, or None for the record's.

    With a pattern, topics are those of the known topics that match it.
    """

    name: str
    topics: tuple[str, ...]
    key_serde: Any
    value_serde: Any
    children: tuple[str, ...]
    timestamp_extractor: Callable[..., int] | None = None
    auto_offset_reset: OffsetResetPolicy | None = None
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    """Does something: see Operator."""

    name: str
    operator: Operator
    stores: tuple[str, ...]
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Writes a topic: a name, or a function (key, value, RecordMetadata) -> name.

    partitioner(topic, key, value, partition count) -> partition or None, for StreamPartitioner and windowed keys.
    """

    name: str
    topic: str | Callable[..., str]
    key_serde: Any
    value_serde: Any
    partitioner: Callable[[str, Any, Any, int], int | None] | None = None


Node = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True, slots=True)
class ProcessorTopology:
    """One sub-topology. nodes are in Kafka Streams' build order (parents before children)."""

    subtopology: int
    nodes: Mapping[str, Node]
    stores: Mapping[str, StoreBuilder]
    #: Changelog topic of each logged store. A source topic where reuse.ktable.source.topics applies.
    changelog_topics: Mapping[str, str]
    #: Repartition and foreign-key topics that are written or read here, with their partition count (None: derived).
    repartition_topics: Mapping[str, int | None] = field(default_factory=dict)
    #: Groups of source topics that must have the same number of partitions.
    copartition_groups: tuple[frozenset[str], ...] = ()
    #: What Kafka Streams makes these groups of: the topics that each operation names; it overlooks some.
    listed_copartition: tuple[tuple[str, ...], ...] = ()
    #: Stores of the global topology, which every processor may read.
    global_stores: tuple[str, ...] = ()
    #: Global stores that are restored through their processor, because it may do more than copy records (KIP-813).
    reprocess_on_restore: frozenset[str] = frozenset()

    @property
    def source_topics(self) -> tuple[str, ...]:
        """All topics that this sub-topology reads, in node order."""
        return tuple(t for node in self.nodes.values() if isinstance(node, SourceNode) for t in node.topics)

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """All sinks, in node order."""
        return tuple(node for node in self.nodes.values() if isinstance(node, SinkNode))
