"""Nodes and stores as they were declared: what InternalTopologyBuilder holds until a topology is built."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..operators.operator import Operator
from ..serdes.serdes import Serde
from ..stores.materialized import StoreFactory
from .processor_topology import OffsetResetPolicy

TopicPattern = re.Pattern[str]


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
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    timestamp_extractor: Callable[..., int] | None = None
    offset_reset: OffsetResetPolicy | None = None


@dataclass(slots=True)
class ProcessorFactory(NodeFactory):
    """A processor; stores are in the order in which they were connected."""

    operator: Operator | None = None
    stores: list[str] = field(default_factory=list)


@dataclass(slots=True)
class SinkFactory(NodeFactory):
    """A sink to a topic, or to what a function says."""

    topic: str | Callable[..., str] = ""
    key_serde: Serde[Any] | None = None
    value_serde: Serde[Any] | None = None
    partitioner: Callable[..., int | None] | None = None


@dataclass(slots=True)
class DeclaredStore:
    """A store, the processors that use it, and whether its source topic serves as changelog."""

    factory: StoreFactory
    processors: list[str] = field(default_factory=list)
    source_topic: str | None = None
    reprocess_on_restore: bool = False
