"""Declared nodes and stores, kept by InternalTopologyBuilder until a topology is built."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from ..context.idle_time import IdleTimeout
from ..context.partitioners import Partitioner
from ..context.timestamp_extractors import TimestampExtractor
from ..operators.operator import Operator
from ..serdes.serdes import Serde
from ..stores.materialized import StoreFactory
from .processor_topology import OffsetResetPolicy

TopicPattern = re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Consumed:
    """How a topic is read."""

    key_serde: Serde | None = None
    value_serde: Serde | None = None
    timestamp_extractor: TimestampExtractor | None = None
    offset_reset: OffsetResetPolicy | None = None
    idle_timeout: IdleTimeout | None = None


@dataclass(frozen=True, slots=True)
class Produced:
    """How a topic is written."""

    key_serde: Serde | None = None
    value_serde: Serde | None = None
    partitioner: Partitioner | None = None


@dataclass(slots=True)
class NodeFactory:
    """A declared node; predecessors are names of nodes."""

    name: str
    predecessors: tuple[str, ...] = ()


@dataclass(slots=True)
class SourceFactory(NodeFactory):
    """A source of topics, or of all topics that match a pattern."""

    topics: tuple[str, ...] = ()
    pattern: TopicPattern | None = None
    consumed: Consumed = Consumed()


@dataclass(slots=True)
class ProcessorFactory(NodeFactory):
    """A processor; stores are in the order in which they were connected."""

    operator: Operator | None = None
    stores: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SinkFactory(NodeFactory):
    """A sink to a topic, or to the topic that a function returns."""

    topic: str | Callable[..., str] = ""
    produced: Produced = Produced()


@dataclass(slots=True)
class DeclaredStore:
    """A store, the processors that use it, and whether its source topic serves as changelog."""

    factory: StoreFactory
    processors: list[str] = field(default_factory=list)
    source_topic: str | None = None
    reprocess_on_restore: bool = False
