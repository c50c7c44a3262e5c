"""The built topology: plain values, one ProcessorTopology for each sub-topology (Kafka Streams: ProcessorTopology).

InternalTopologyBuilder creates it, compiled.py compiles it for a task, and workers and pipeline use it to determine
what to consume, create and restore. Names of internal topics do not have their ``<application.id>-`` prefix here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..common.durations import Duration, iso_8601_millis, non_negative_millis
from ..context.idle_time import IdleTimeout
from ..context.partitioners import Partitioner
from ..context.store_interfaces import StoreBuilder
from ..operators.operator import Operator
from ..operators.sink_operator import SinkOperator

#: The number of the topology of global stores, which has no tasks.
GLOBAL_SUBTOPOLOGY = -1


class AutoOffsetReset(Enum):
    """Where to start reading a source topic without committed offsets; None in SourceNode: as configured."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"

    @staticmethod
    def by_duration(duration: Duration) -> ResetByDuration:
        """Return the policy to start at the first record within the last duration (``timedelta`` or ms), KIP-1106.

        If there is no such record, it starts at the end. Raises TopologyError for a negative duration.
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
    """The result of AutoOffsetReset.by_duration."""

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
    """Processes records; see Operator."""

    name: str
    operator: Operator
    stores: tuple[str, ...]
    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Writes a topic: a name, or a function (key, value, RecordMetadata) -> name.

    partitioner: see Partitioner; also for windowed keys. None: the producer's.
    """

    name: str
    topic: str | Callable[..., str]
    key_serde: Any
    value_serde: Any
    partitioner: Partitioner | None = None


Node = SourceNode | ProcessorNode | SinkNode


@dataclass(frozen=True, slots=True)
class ProcessorTopology:
    """One sub-topology. nodes are in Kafka Streams' build order (parents before children)."""

    subtopology: int
    nodes: Mapping[str, Node]
    stores: Mapping[str, StoreBuilder]
    #: Changelog topic of each logged store; a source topic if reuse.ktable.source.topics applies.
    changelog_topics: Mapping[str, str]
    #: Repartition and foreign-key topics that are written or read here, with their partition count (None: derived).
    repartition_topics: Mapping[str, int | None] = field(default_factory=dict)
    #: Groups of source topics that must have the same number of partitions.
    copartition_groups: tuple[frozenset[str], ...] = ()
    #: Kafka Streams' input to these groups: the topics that each operation names; it omits some.
    listed_copartition: tuple[tuple[str, ...], ...] = ()
    #: Stores of the global topology, readable by every processor.
    global_stores: tuple[str, ...] = ()
    #: Global stores that are restored through their processor, because it may do more than copy records (KIP-813).
    reprocess_on_restore: frozenset[str] = frozenset()
    #: When stream time advances without records; None unless each source or a windowed operator has an idle timeout.
    idle_timeout: IdleTimeout | None = None
    #: The nodes and the idle timeout of each part that has one, if this is a topology of several sub-topologies.
    idle_parts: tuple[tuple[frozenset[str], IdleTimeout], ...] = ()

    @property
    def is_global(self) -> bool:
        """Whether it is the topology of global stores."""
        return self.subtopology == GLOBAL_SUBTOPOLOGY

    @property
    def source_topics(self) -> tuple[str, ...]:
        """All topics that this sub-topology reads, in node order."""
        return tuple(t for node in self.nodes.values() if isinstance(node, SourceNode) for t in node.topics)

    @property
    def outside_sinks(self) -> dict[str, SinkOperator]:
        """The sinks outside of Kafka, by the names of their nodes."""
        return {
            node.name: node.operator
            for node in self.nodes.values()
            if isinstance(node, ProcessorNode) and isinstance(node.operator, SinkOperator)
        }

    @property
    def sinks(self) -> tuple[SinkNode, ...]:
        """All sinks, in node order."""
        return tuple(node for node in self.nodes.values() if isinstance(node, SinkNode))
