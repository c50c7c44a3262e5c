"""The partitions of TopologyTestDriver: how many each topic has, and the tasks that read them (KIP-1238)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.partitioners import partition_for_key
from penstock.topology.errors import TopologyError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.graph.topology import Topology
from penstock.topology.records import SentRecord, TaskId
from penstock.workers.group.assignment.repartition_topics import repartition_topic_counts
from penstock.workers.group.assignment.topics_info import TopicsInfo, partition_groups, topics_infos


class DriverPartitions:
    """The partition counts of all topics, and the tasks, as an application has them.

    partitions: the number for all topics of the user, or by topic; topics that are not named have 1. Raises
    TopologyError for topics that must have the same number, for one that the topology does not know, and for a pattern
    without a topic; ValueError for less than one partition.
    """

    def __init__(self, topology: Topology, config: StreamsConfig, partitions: int | Mapping[str, int]) -> None:
        by_topic = dict(partitions) if isinstance(partitions, Mapping) else {}
        self._default = 1 if isinstance(partitions, Mapping) else partitions
        for topic, count in {**by_topic, "all topics": self._default}.items():
            if type(count) is not int or count < 1:
                raise ValueError(f"The number of partitions of {topic} must be 1 or more, got {count!r}")
        builder = topology.internal_builder
        self._topologies = builder.build_subtopologies(config, by_topic)
        infos = topics_infos(config["application.id"], self._topologies)
        self._check_patterns()
        self._check_names(by_topic, {*_topics_of_users(infos), *builder.global_topics}, config)
        sources = {topic: by_topic.get(topic, self._default) for topic in _sources_of_users(infos)}
        self._counts = {**by_topic, **sources, **repartition_topic_counts(infos, sources)}
        self._tasks = partition_groups(infos, self._counts)
        for info in infos.values():
            count = sum(task.subtopology == info.subtopology for task in self._tasks)
            self._counts |= dict.fromkeys(info.changelog_topics.keys() - info.source_changelog_topics, count)
        self._without_key = Counter[str]()

    def count(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        return self._counts.get(topic, self._default)

    def tasks(self) -> Iterator[tuple[TaskId, ProcessorTopology]]:
        """Yield all tasks with their sub-topologies."""
        for topology in self._topologies:
            yield from ((task, topology) for task in self._tasks if task.subtopology == topology.subtopology)

    def place(self, record: SentRecord) -> SentRecord:
        """Return the record with its partition, chosen by the key if it has none.

        Records without key go to the partitions in turn. Raises ValueError for a partition that does not exist.
        """
        count = self.count(record.topic)
        if record.partition is not None:
            if not 0 <= record.partition < count:
                raise no_such_partition(record, count)
            return record
        if record.key is not None:
            return record._replace(partition=partition_for_key(record.key, count))
        self._without_key[record.topic] += 1
        return record._replace(partition=(self._without_key[record.topic] - 1) % count)

    def _check_patterns(self) -> None:
        for topology in self._topologies:
            if not topology.source_topics:
                patterns = ", ".join(topology.nodes)
                raise TopologyError(
                    f"No topic matches the pattern of {patterns}: name the topics, as in partitions={{'orders-eu': 4}}"
                )

    def _check_names(self, named: Iterable[str], known: set[str], config: StreamsConfig) -> None:
        """Raise TopologyError for a topic that nothing reads or writes, unless a function chooses topics."""
        if any(callable(sink.topic) for topology in self._topologies for sink in topology.sinks):
            return
        known.add(config["errors.dead.letter.queue.topic.name"])
        for topic in named:
            if topic not in known:
                raise TopologyError(
                    f"partitions= names topic {topic}, which the topology neither reads nor writes; its topics are "
                    f"{', '.join(sorted(filter(None, known)))}. Internal topics get their number from repartition()"
                )


def no_such_partition(record: SentRecord, count: int) -> ValueError:
    """Return the error for a record of a partition that its topic does not have."""
    return ValueError(f"Topic {record.topic} has no partition {record.partition}: it has {count}, see partitions=")


def _sources_of_users(infos: Mapping[int, TopicsInfo]) -> set[str]:
    return {topic for info in infos.values() for topic in info.user_source_topics}


def _topics_of_users(infos: Mapping[int, TopicsInfo]) -> set[str]:
    internal = {topic for info in infos.values() for topic in info.repartition_source_topics}
    return _sources_of_users(infos) | {topic for info in infos.values() for topic in info.sink_topics} - internal
