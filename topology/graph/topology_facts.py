"""A canonical, JSON-compatible description of the parts of a topology that must match existing state."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..context.store_interfaces import StoreBuilder, Ttl
from ..serdes.serde_facts import serde_code, serde_name, serde_settings, serde_shape
from .processor_topology import ProcessorTopology, SinkNode, SourceNode
from .topology import Topology

#: The version of the description; other versions are not compared.
FACTS_VERSION = 1

Facts = Mapping[str, Any]

#: The maximum size of the packed description that each member sends, in bytes: the broker stores the metadata of all
#: members in a single record (1 MB by default). A hundred stores take 1.5 KiB.
PACKED_BYTES_MAX = 4 << 10
#: The maximum size of an unpacked description, in bytes; needed because it is received from the network.
UNPACKED_BYTES_MAX = 1 << 20

#: The parts of a serde's description.
_OF_SERDES: tuple[tuple[str, Callable[[Any], object]], ...] = (
    ("", serde_name),
    ("_settings", serde_settings),
    ("_code", serde_code),
    ("_shape", serde_shape),
)
#: The fields of a description.
_PARTS = ("subtopologies", "stores", "internal_topics")


def facts_of(topology: Topology, config: Mapping[str, object]) -> dict[str, object]:
    """Return the description of a topology under a configuration. Equal topologies have equal ones.

    Topics do not have the application's prefix; sub-topologies are identified by the number in their task ids.
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
        "sinks": {name: fact for part in parts for name, fact in _sinks(part)},
    }


def _subtopology(part: ProcessorTopology) -> dict[str, object]:
    return {
        "sources": _sources(part),
        "patterns": _patterns(part),
        "stores": sorted(part.stores),
        "operators": list(part.nodes),
    }


def _sources(part: ProcessorTopology) -> list[str]:
    sources = (node for node in part.nodes.values() if isinstance(node, SourceNode) and node.pattern is None)
    return sorted({topic for node in sources for topic in node.topics})


def _patterns(part: ProcessorTopology) -> list[str]:
    sources = (node for node in part.nodes.values() if isinstance(node, SourceNode))
    return sorted(node.pattern.pattern for node in sources if node.pattern is not None)


def _sinks(part: ProcessorTopology) -> Iterable[tuple[str, dict[str, object]]]:
    topics = [*_sources(part), *_patterns(part)]
    for name, operator in part.outside_sinks.items():
        yield name, {"place": str(operator.sink), "topics": topics}


def _stores(part: ProcessorTopology) -> Iterable[tuple[str, dict[str, object]]]:
    for name, store in part.stores.items():
        if name not in part.global_stores or part.is_global:
            yield name, _store(part, store)


def _store(part: ProcessorTopology, store: StoreBuilder) -> dict[str, object]:
    return {
        "subtopology": part.subtopology,
        "kind": store.kind.value,
        "backend": store.backend.value,
        **_serdes(store),
        "changelog": part.changelog_topics.get(store.name),
        "window_size_ms": store.window_size_ms,
        "retention_ms": store.retention_ms,
        "history_retention_ms": store.history_retention_ms,
        "segment_interval_ms": store.segment_interval_ms,
        "retain_duplicates": store.retain_duplicates,
        "time_ordered": store.time_ordered,
        "headers_format": store.headers_format,
        "keeps_headers": store.keeps_headers,
        "plain_values": store.plain_values,
        "ttl": _ttl(store.ttl),
        "is_dated": store.is_dated,
    }


def _ttl(ttl: Ttl | None) -> str | None:
    if ttl is None:
        return None
    refreshed = ", refreshed on read" if ttl.refreshed_on_read else ""
    return f"{ttl.duration_ms} ms of {ttl.clock.value}{refreshed}"


def _serdes(owner: StoreBuilder | SinkNode) -> dict[str, object]:
    serdes = {"key_serde": owner.key_serde, "value_serde": owner.value_serde}
    return {f"{field}{suffix}": describe(serde) for field, serde in serdes.items() for suffix, describe in _OF_SERDES}


def _internal_topics(part: ProcessorTopology) -> Iterable[tuple[str, dict[str, object]]]:
    writers = {node.topic: node for node in part.nodes.values() if isinstance(node, SinkNode)}
    for topic, partitions in part.repartition_topics.items():
        if topic in writers:
            sink = writers[topic]
            yield topic, {"partitions": partitions, **_serdes(sink)}


# What members of a group send each other


def pack_facts(facts: Facts) -> bytes:
    """Return a compressed description, empty if it is too large for each member of a group to send.

    Shapes of serdes are left out if it would be.
    """
    for sent in (facts, _without_shapes(facts)):
        packed = zlib.compress(json.dumps(sent, separators=(",", ":")).encode(), 9)
        if len(packed) <= PACKED_BYTES_MAX:
            return packed
    return b""


def _without_shapes(facts: object) -> object:
    if not isinstance(facts, Mapping):
        return facts
    return {key: _without_shapes(value) for key, value in facts.items() if not key.endswith("_serde_shape")}


def unpack_facts(packed: bytes) -> Facts | None:
    """Return the description, None for empty bytes. Raises ValueError for invalid bytes."""
    if not packed:
        return None
    try:
        inflating = zlib.decompressobj()
        data = inflating.decompress(packed, UNPACKED_BYTES_MAX)
        facts = json.loads(data) if inflating.eof else None
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"not a description of a topology: {error}") from error
    if not isinstance(facts, dict) or not all(isinstance(facts.get(part), dict) for part in _PARTS):
        raise ValueError("not a description of a topology")
    return facts


def internal_names(facts: Facts, application_id: str) -> dict[str, dict[str, list[str]]]:
    """Return the full names of each sub-topology's topics, which is all that a streams group's broker knows."""
    internal = facts["internal_topics"].keys()
    found = {}
    for number, part in facts["subtopologies"].items():
        stores = [facts["stores"][name]["changelog"] for name in part["stores"] if name in facts["stores"]]
        found[number] = {
            "sources": sorted(topic for topic in part["sources"] if topic not in internal),
            "changelogs": sorted(
                f"{application_id}-{topic}" for topic in stores if topic and topic not in part["sources"]
            ),
            "repartitions": sorted(f"{application_id}-{topic}" for topic in part["sources"] if topic in internal),
        }
    return found
