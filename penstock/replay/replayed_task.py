"""The tasks of an application as a replay runs them: with their input, and without sinks outside of Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.sink_interfaces import (
    Sink,
    SinkContext,
    SinkOffset,
    SinkRecord,
    SinkWriter,
    StoredSinkOffset,
)
from penstock.topology.context.store_interfaces import StoreBackend, StoreKind
from penstock.topology.errors import ConfigError, MissingSourceTopicError
from penstock.topology.graph.processor_topology import Node, ProcessorNode, ProcessorTopology
from penstock.topology.graph.topology import Topology
from penstock.topology.operators.sink_operator import SinkOperator
from penstock.topology.records import TaskId, TopicPartition
from penstock.workers.group.assignment.topics_info import partition_groups, topics_infos


@dataclass(frozen=True, slots=True)
class ReplayedTask:
    """A task. inputs: its input partitions, sorted."""

    task_id: TaskId
    topology: ProcessorTopology
    inputs: Sequence[TopicPartition]


def replayed_tasks(topology: Topology, config: StreamsConfig, counts: Mapping[str, int]) -> dict[TaskId, ReplayedTask]:
    """Return the tasks of an application. counts: the partitions of all topics of its cluster.

    Raises MissingSourceTopicError for an input topic that does not exist, ConfigError for a store that a replay would
    write to.
    """
    built = topology.internal_builder.build_subtopologies(config, counts)
    infos = topics_infos(config["application.id"], built)
    read = {topic for info in infos.values() for topic in info.source_topics}
    missing = sorted((read | {*topology.internal_builder.global_topics}) - counts.keys())
    if missing:
        raise MissingSourceTopicError(
            f"There is no topic {', '.join(missing)} on {config['bootstrap.servers']}: check the cluster and the "
            "application.id."
        )
    replayable = {each.subtopology: without_sinks(each) for each in built}
    return {
        task_id: ReplayedTask(task_id, replayable[task_id.subtopology], tuple(sorted(inputs)))
        for task_id, inputs in sorted(partition_groups(infos, counts).items())
    }


def check_stores(subject: str, topology: ProcessorTopology) -> None:
    """Raise ConfigError for a store whose class is the user's: it may write anywhere. subject: begins the message."""
    for builder in topology.stores.values():
        if builder.kind is StoreKind.CUSTOM or builder.backend is StoreBackend.CUSTOM:
            raise ConfigError(
                f"{subject} has the store {builder.name} of your own class, which may write outside of this process: a "
                "replay would write its rows again. Replay another task, or give the store a backend of Penstock."
            )


def without_sinks(topology: ProcessorTopology) -> ProcessorTopology:
    """Return a sub-topology whose sinks outside of Kafka drop what they get."""
    return replace(topology, nodes={name: _without_sink(node) for name, node in topology.nodes.items()})


def _without_sink(node: Node) -> Node:
    if isinstance(node, ProcessorNode) and isinstance(node.operator, SinkOperator):
        return replace(node, operator=replace(node.operator, sink=DroppingSink()))
    return node


class DroppingSink(Sink):
    """A sink that drops its rows."""

    @override
    def open(self, context: SinkContext) -> SinkWriter:
        return _DroppingWriter()

    @override
    def stored(self, application_id: str) -> Sequence[StoredSinkOffset]:
        return ()

    @override
    def forget(self, application_id: str) -> None:
        """Nothing is stored."""

    def __str__(self) -> str:
        return "nothing: a replay drops the rows"


class _DroppingWriter(SinkWriter):
    @override
    def fence(self, topic_ids: Mapping[TopicPartition, str]) -> Mapping[TopicPartition, SinkOffset]:
        return {}

    @override
    def write(self, records: Sequence[SinkRecord], offsets: Mapping[TopicPartition, int]) -> None:
        """Drop them."""

    @override
    def offsets(self) -> Mapping[TopicPartition, int]:
        return {}

    @override
    def close(self) -> None:
        """There is no connection."""
