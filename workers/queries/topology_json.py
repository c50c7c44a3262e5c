"""The running topology as JSON: sub-topologies, nodes and stores."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from penstock.topology.graph.processor_topology import Node, ProcessorTopology, SinkNode, SourceNode
from penstock.topology.graph.topology import Topology
from penstock.topology.serdes.serde_facts import serde_name

from ..group.topic_names import TopicNames


def topology_json(topology: Topology, built: Iterable[ProcessorTopology], names: TopicNames) -> bytes:
    """Return text (as Topology.describe), subtopologies and stores. topology: the user's; built: its sub-topologies."""
    built = tuple(built)
    return orjson.dumps(
        {
            "text": str(topology.describe()),
            "subtopologies": [
                {"id": one.subtopology, "nodes": [_node(node, names) for node in one.nodes.values()]} for one in built
            ],
            "stores": [store for one in built for store in _stores(one, names)],
            "global_stores": sorted({name for one in built for name in one.global_stores}),
        }
    )


def _node(node: Node, names: TopicNames) -> dict[str, object]:
    if isinstance(node, SourceNode):
        return {
            "name": node.name,
            "type": "source",
            "topics": [names.full(topic) for topic in node.topics],
            "stores": [],
            "successors": list(node.children),
        }
    if isinstance(node, SinkNode):
        topics = [names.full(node.topic)] if isinstance(node.topic, str) else []
        return {"name": node.name, "type": "sink", "topics": topics, "stores": [], "successors": []}
    return {
        "name": node.name,
        "type": "processor",
        "topics": [],
        "stores": list(node.stores),
        "successors": list(node.children),
    }


def _stores(topology: ProcessorTopology, names: TopicNames) -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "kind": builder.kind.value,
            "backend": builder.backend.value,
            "key_serde": serde_name(builder.key_serde),
            "value_serde": serde_name(builder.value_serde),
            "caching": builder.caching,
            "changelog": names.full(topology.changelog_topics[name]) if name in topology.changelog_topics else None,
            "subtopology": topology.subtopology,
        }
        for name, builder in topology.stores.items()
    ]
