"""The topology of a streams group: its topics, their partition counts, and its numbers of tasks.

Kafka: StreamsTopology, InternalTopicManager, RepartitionTopics, CopartitionedTopicsEnforcer, ChangelogTopics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TypedDict

from penstock.clients.group.streams_values import Status

#: The maximum number of names in a message, which also has the number of the others.
_SHOWN_TOPICS = 3


class WrongTopicsError(Exception):
    """The topics do not fit the topology. status: the code in responses."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class TopicConfigFields(TypedDict):
    """One setting of a topic, in the form of messages."""

    key: str
    value: str


class InternalTopicFields(TypedDict):
    """An internal topic, in the form of messages. partitions, replication_factor: 0 lets the broker decide."""

    name: str
    partitions: int
    replication_factor: int
    topic_configs: list[TopicConfigFields]


@dataclass(frozen=True)
class Subtopology:
    """One sub-topology, as members describe it; internal topics by name."""

    id: str
    source_topics: tuple[str, ...]
    sink_topics: tuple[str, ...]
    repartition_topics: Mapping[str, InternalTopicFields]
    changelog_topics: Mapping[str, InternalTopicFields]
    copartition_groups: tuple[frozenset[str], ...]

    @property
    def read_topics(self) -> tuple[str, ...]:
        """The topics that its tasks read."""
        return (*self.source_topics, *self.repartition_topics)

    @property
    def is_stateful(self) -> bool:
        """Whether its tasks have state to restore."""
        return bool(self.changelog_topics)


@dataclass(frozen=True)
class Topology:
    """subtopologies: in the order of their ids."""

    epoch: int
    subtopologies: tuple[Subtopology, ...]

    @property
    def internal_topics(self) -> dict[str, InternalTopicFields]:
        """The topics that the broker creates, by name."""
        return {
            name: topic
            for found in self.subtopologies
            for name, topic in (*found.repartition_topics.items(), *found.changelog_topics.items())
        }

    @property
    def topics(self) -> frozenset[str]:
        """All topics that it reads and its internal ones."""
        return (
            frozenset(name for found in self.subtopologies for name in found.read_topics) | self.internal_topics.keys()
        )


@dataclass(frozen=True)
class Configured:
    """A topology with known topics. partitions: of internal topics; tasks: the number for each sub-topology."""

    partitions: Mapping[str, int]
    tasks: Mapping[str, int]
    #: The internal topics that do not exist yet.
    missing: tuple[str, ...]


def topology_of(said: SimpleNamespace) -> Topology:
    """Return the topology of a heartbeat."""
    return Topology(said.epoch, tuple(sorted(map(_subtopology, said.subtopologies), key=lambda found: found.id)))


def _subtopology(said: SimpleNamespace) -> Subtopology:
    repartition = {topic.name: _topic(topic) for topic in said.repartition_source_topics}
    names = list(repartition)
    return Subtopology(
        said.subtopology_id,
        tuple(said.source_topics),
        tuple(said.repartition_sink_topics),
        repartition,
        {topic.name: _topic(topic) for topic in said.state_changelog_topics},
        tuple(
            frozenset(
                (
                    *(said.source_topics[index] for index in group.source_topics),
                    *(names[index] for index in group.repartition_source_topics),
                )
            )
            for group in said.copartition_groups
        ),
    )


def _topic(said: SimpleNamespace) -> InternalTopicFields:
    return {
        "name": said.name,
        "partitions": said.partitions,
        "replication_factor": said.replication_factor,
        "topic_configs": [{"key": config.key, "value": config.value} for config in said.topic_configs],
    }


def configure(topology: Topology, counts: Mapping[str, int]) -> Configured:
    """Determine the partition counts of internal topics. counts: those of existing topics. Raises WrongTopicsError."""
    sources = {name for found in topology.subtopologies for name in found.source_topics}
    if missing := sorted(sources - counts.keys()):
        raise WrongTopicsError(Status.MISSING_SOURCE_TOPICS, f"Source topics {_listed(missing)} are missing.")
    decided = _repartition_counts(topology, counts)
    for found in topology.subtopologies:
        for group in found.copartition_groups:
            decided |= _copartitioned(group, topology, counts, decided)
    tasks = {
        found.id: max((decided.get(name, counts.get(name, 0)) for name in found.read_topics), default=0)
        for found in topology.subtopologies
    }
    for found in topology.subtopologies:
        decided |= dict.fromkeys(found.changelog_topics, tasks[found.id])
    for name, count in sorted(decided.items()):
        if counts.get(name, count) != count:
            raise WrongTopicsError(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Existing topic {name} has different number of partitions: expected {count}, found {counts[name]}",
            )
    return Configured(decided, tasks, tuple(name for name in topology.internal_topics if name not in counts))


def _repartition_counts(topology: Topology, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the partition counts of repartition topics: the declared ones, otherwise those of the largest topic of the
    writers.
    """
    topics = {name: topic for found in topology.subtopologies for name, topic in found.repartition_topics.items()}
    decided = {name: topic["partitions"] for name, topic in topics.items() if topic["partitions"]}
    while open_ := topics.keys() - decided.keys():
        found = {name: count for name in open_ if (count := _written_count(name, topology, {**counts, **decided}))}
        if not found:
            raise WrongTopicsError(
                Status.MISSING_SOURCE_TOPICS,
                "Failed to compute number of partitions for all repartition topics, make sure all user input topics "
                "are created and all Pattern subscriptions match at least one topic in the cluster",
            )
        decided |= found
    return decided


def _written_count(name: str, topology: Topology, counts: Mapping[str, int]) -> int:
    """Return the partition count of a topic from the topics that its writers read, 0 while none of them is known."""
    read = (topic for found in topology.subtopologies if name in found.sink_topics for topic in found.read_topics)
    return max((counts.get(topic, 0) for topic in read), default=0)


def _copartitioned(
    group: Iterable[str], topology: Topology, counts: Mapping[str, int], decided: Mapping[str, int]
) -> dict[str, int]:
    """Return the equal partition counts of the repartition topics in a co-partition group."""
    topics = topology.internal_topics
    flexible = {name for name in group if name in decided and not topics[name]["partitions"]}
    fixed = {name: decided[name] for name in sorted(group) if name in decided and name not in flexible}
    others = {name: counts[name] for name in sorted(group) if name not in decided}
    given = others or fixed
    if len(set(given.values())) > 1:
        said = ", ".join(f"{name}={count}" for name, count in given.items())
        raise WrongTopicsError(
            Status.INCORRECTLY_PARTITIONED_TOPICS,
            f"Following topics do not have the same number of partitions: [{{{said}}}]",
        )
    count = next(iter(given.values())) if given else max(decided[name] for name in flexible)
    for name, has in fixed.items():
        if has != count:
            raise WrongTopicsError(
                Status.INCORRECTLY_PARTITIONED_TOPICS,
                f"Number of partitions [{has}] of repartition topic [{name}] doesn't match number of partitions "
                f"[{count}] of the source topic.",
            )
    return dict.fromkeys(flexible, count)


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN_TOPICS
    return ", ".join(names[:_SHOWN_TOPICS]) + (f" and {more} additional topics" if more > 0 else "")


def missing_status(configured: Configured) -> tuple[Status, str] | None:
    """Return the status about internal topics that do not exist yet, None if all do."""
    if not configured.missing:
        return None
    return Status.MISSING_INTERNAL_TOPICS, f"Internal topics are missing: {_listed(list(configured.missing))}"
