"""What of a topology must fit the state that an earlier version has left: a canonical description, plain for JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from .processor_topology import ProcessorTopology, SinkNode, SourceNode
from .store_interfaces import StoreBuilder
from .subtopologies import GLOBAL_SUBTOPOLOGY
from .topology import Topology

#: Of the description; one of another version is not compared.
FACTS_VERSION = 1

Facts = Mapping[str, Any]

#: Where an object is in memory says nothing of what it is.
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def facts_of(topology: Topology, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a topology under a configuration. Equal topologies have equal ones.

    Topics stand without the application's prefix; sub-topologies by the number that their tasks have.
    """
    builder = topology.internal_builder
    parts = builder.build_subtopologies(config)
    whole = builder.build_global_topology(config)
    everything = [*parts, *([whole] if whole is not None else [])]
    return {
        "version": FACTS_VERSION,
        "subtopologies": {str(part.subtopology): _subtopology(part) for part in parts},
        "stores": {name: fact for part in everything for name, fact in _stores(part)},
        "internal_topics": {name: fact for part in parts for name, fact in sorted(_internal_topics(part))},
    }


def _subtopology(part: ProcessorTopology) -> dict[str, Any]:
    sources = [node for node in part.nodes.values() if isinstance(node, SourceNode)]
    return {
        "sources": sorted({topic for node in sources for topic in node.topics if node.pattern is None}),
        "patterns": sorted(node.pattern.pattern for node in sources if node.pattern is not None),
        "stores": sorted(part.stores),
        "operators": list(part.nodes),
    }


def _stores(part: ProcessorTopology) -> Iterable[tuple[str, dict[str, Any]]]:
    for name, store in part.stores.items():
        if name not in part.global_stores or part.subtopology == GLOBAL_SUBTOPOLOGY:
            yield name, _store(part, store)


def _store(part: ProcessorTopology, store: StoreBuilder) -> dict[str, Any]:
    return {
        "subtopology": part.subtopology,
        "kind": store.kind.value,
        "backend": store.backend.value,
        "key_serde": serde_name(store.key_serde),
        "value_serde": serde_name(store.value_serde),
        "changelog": part.changelog_topics.get(store.name),
        "window_size_ms": store.window_size_ms,
        "retention_ms": store.retention_ms,
        "history_retention_ms": store.history_retention_ms,
        "segment_interval_ms": store.segment_interval_ms,
        "retain_duplicates": store.retain_duplicates,
        "time_ordered": store.time_ordered,
        "headers_format": store.headers_format,
        "plain_values": store.plain_values,
    }


def _internal_topics(part: ProcessorTopology) -> Iterable[tuple[str, dict[str, Any]]]:
    writers = {node.topic: node for node in part.nodes.values() if isinstance(node, SinkNode)}
    for topic, partitions in part.repartition_topics.items():
        if topic in writers:
            sink = writers[topic]
            serdes = {"key_serde": serde_name(sink.key_serde), "value_serde": serde_name(sink.value_serde)}
            yield topic, {"partitions": partitions, **serdes}


def serde_name(serde: Any) -> str:
    """Return a name that is the same in each process and for equal serdes."""
    return _ADDRESS.sub("", repr(serde))
