"""The identity of a checkpoint directory: a file in it names the topology, and another topology is refused.

Spark itself would run another query over old state and offsets until an error, or without ever noticing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError
from penstock.topology.graph.processor_topology import ProcessorTopology, SourceNode
from penstock.topology.graph.topology import Topology
from penstock.topology.serdes.serdes import PlainSerde, Serde, SerdeLike, UserSerde, as_serde, or_default

#: In the checkpoint directory, beside one folder for each sub-topology.
IDENTITY_FILE = "penstock-topology.json"
#: Of the stores in Spark's state; see tasks/sorted_runs.py. 1: pages of rows, which were written again as a whole.
FORMAT = 2
OTHER_FORMAT = (
    "Move the application to the local engine with the Penstock that has written it (`penstock handover --to local`), "
    "and back with this one; or start from the beginning with another --checkpoint."
)
#: Checkpoints of earlier versions lack them until their next start.
TOPIC_IDS = "topic ids"
PARTITIONS = "partitions"


class CheckpointError(StreamsError):
    """A checkpoint directory belongs to another topology, or cannot be read."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a topology. counts: their partitions. ids: the brokers' ids; a topic that is recreated has another.

    Brokers before 2.8 have no ids.
    """

    counts: Mapping[str, int]
    ids: Mapping[str, str]


def identity(
    topology: Topology, built: Iterable[ProcessorTopology], config: StreamsConfig, topics: Topics
) -> dict[str, Any]:
    """Return the identity that a checkpoint depends on.

    These are operators, stores with their serdes, topics with their ids and partitions, and the number of tasks that
    share the keys of a partition.
    """
    built, application_id = list(built), config["application.id"]
    names = sorted({name for each in built for name in full_source_topics(each, application_id)})
    return {
        "format": FORMAT,
        "application.id": application_id,
        "topology": str(topology.describe()),
        "stores": {
            name: f"{store.kind.value}, key {_serde(store.key_serde, config, True)}, "
            f"value {_serde(store.value_serde, config, False)}"
            for each in built
            for name, store in each.stores.items()
        },
        "buckets": config["penstock.spark.buckets"],
        PARTITIONS: {name: topics.counts[name] for name in names},
        TOPIC_IDS: {name: topics.ids[name] for name in names if name in topics.ids},
    }


def full_source_topics(topology: ProcessorTopology, application_id: str) -> list[str]:
    """Return the full names of the topics that a sub-topology reads."""
    return [
        f"{application_id}-{topic}" if topic in topology.repartition_topics else topic
        for node in topology.nodes.values()
        if isinstance(node, SourceNode)
        for topic in node.topics
    ]


def _serde(serde: SerdeLike | None, config: StreamsConfig, is_key: bool) -> str:
    found = or_default(as_serde(serde), config, is_key)
    return "none" if found is None else serde_name(found)


def serde_name(serde: Serde) -> str:
    """Return a serde's name, the same in every process: for the user's class its name, with the serdes it wraps."""
    if isinstance(serde, UserSerde):
        return type(serde.serde).__qualname__
    if isinstance(serde, PlainSerde):
        return serde.name
    wrapped = [serde_name(part) for part in vars(serde).values() if isinstance(part, Serde)]
    return f"{type(serde).__name__}({', '.join(wrapped)})" if wrapped else type(serde).__name__


def check(found: bytes, wanted: Mapping[str, Any], directory: str, accept: bool = False) -> None:
    """Raise CheckpointError, naming the difference, unless a directory's file is this identity.

    accept: partitions that were added are fine (``penstock.topology.changes=accept``).
    """
    try:
        old = orjson.loads(found)
    except orjson.JSONDecodeError as error:
        file = f"{directory}/{IDENTITY_FILE}"
        raise CheckpointError(f"{file} cannot be read: {error}. Use another --checkpoint.") from None
    if old.get("format") != FORMAT:
        raise CheckpointError(
            f"The checkpoint {directory} has its stores in format {old.get('format')}, and this Penstock reads format "
            f"{FORMAT}. {OTHER_FORMAT}"
        )
    added = added_partitions(old.get(PARTITIONS, {}), wanted[PARTITIONS])
    left_out = {PARTITIONS} if added else set()
    if TOPIC_IDS not in old:
        left_out.add(TOPIC_IDS)
    compared = {key: value for key, value in wanted.items() if key not in left_out}
    differences = [text for key, value in compared.items() for text in _differences(key, old.get(key), value)]
    if added and not accept and not differences:
        raise CheckpointError(
            f"Partitions were added: {'; '.join(added)}. The tasks of the new partitions begin without state, and keys "
            "move to other partitions, but not their state. `penstock run --accept-changes` accepts that; another "
            "--checkpoint starts from the beginning."
        )
    if differences:
        raise CheckpointError(
            f"The checkpoint {directory} belongs to another topology: {'; '.join(differences)}. Use another "
            "--checkpoint directory for this one, or run the topology that the checkpoint was made by."
        )


def with_known_ids(wanted: Mapping[str, Any], earlier: Mapping[str, Any]) -> dict[str, object]:
    """Return an identity, with an earlier one's ids for topics that the brokers have not described."""
    return {**wanted, TOPIC_IDS: {**earlier.get(TOPIC_IDS, {}), **wanted[TOPIC_IDS]}}


def added_partitions(old: Mapping[str, int], new: Mapping[str, int]) -> list[str]:
    """Return a description of topics with added partitions; none if others have fewer, or differ."""
    if old.keys() != new.keys() or any(new[name] < count for name, count in old.items()):
        return []
    return [f"{name} had {count}, and has {new[name]}" for name, count in sorted(old.items()) if new[name] > count]


def _differences(key: str, old: object, new: Any) -> list[str]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        if key == TOPIC_IDS:
            again = sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
            return [
                f"the topic {name} was deleted and created again, so its offsets belong to the deleted topic"
                for name in again
            ]
        names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
        return [f"{key} of {name}: there {old.get(name, 'none')}, here {new.get(name, 'none')}" for name in names]
    if key == "topology" and isinstance(old, str):
        changes = difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
        lines = [line for line in changes if line[:1] in "+-" and line[:3] not in ("+++", "---")]
        return [f"{'there' if line[0] == '-' else 'here'} {line[1:].strip()!r}" for line in lines[:4]]
    return [f"{key}: there {old!r}, here {new!r}"]
