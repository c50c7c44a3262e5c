"""The sinks outside of Kafka of one task: who may write to them, and where the task begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from penstock.topology.context.sink_interfaces import Sink, SinkOffset
from penstock.topology.context.task_context import TaskContext
from penstock.topology.errors import LostOffsetsError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.operators.sink_operator import SinkOperator
from penstock.topology.records import TopicPartition


class TaskSinks:
    """Opens the sinks of a task and closes them. Sub-topologies other than those of to_sink() have none."""

    def __init__(self, topology: ProcessorTopology, task: TaskContext) -> None:
        self._nodes = topology.outside_sinks
        self._task = task

    def open(
        self, partitions: Collection[TopicPartition], topic_ids: Callable[[], Mapping[str, bytes]]
    ) -> dict[TopicPartition, int]:
        """Replace all other writers of these partitions. Returns the offsets that the sinks have stored.

        topic_ids: returns those that are known. Raises SinkUnavailableError if another attempt may succeed,
        StreamsError for a sink that cannot be used, LostOffsetsError if the topic is another one than at the last
        write.
        """
        self.close()
        ids = topic_ids() if self._nodes else {}
        starts: dict[TopicPartition, int] = {}
        for name, operator in self._nodes.items():
            writer = operator.sink.open(operator.context(name, self._task, self._task.application_id))
            self._task.sink_writers[name] = writer
            stored = writer.fence({p: ids[p.topic].hex() if p.topic in ids else "" for p in partitions})
            starts |= self._starts(name, operator, stored, ids)
        return starts

    def _starts(
        self, name: str, operator: SinkOperator, stored: Mapping[TopicPartition, SinkOffset], ids: Mapping[str, bytes]
    ) -> Iterator[tuple[TopicPartition, int]]:
        for partition, (offset, topic_id) in stored.items():
            current = ids.get(partition.topic)
            if topic_id and current is not None and topic_id != current.hex():
                if self._task.config["penstock.lost.offsets"] == "accept":
                    continue
                raise LostOffsetsError(
                    f"Sink {name} has rows of {partition} up to offset {offset} in {operator.sink}, but the topic "
                    f"{partition.topic} was deleted and created again: its offsets mean other records. To write all "
                    "of its records, run the application once with penstock.lost.offsets=accept, or `penstock reset "
                    "MODULE:TOPOLOGY --sinks --execute`"
                )
            yield partition, offset

    def start_over(self, partitions: Collection[TopicPartition]) -> None:
        """Open the sinks for topics that begin at offset 0: those of TopologyTestDriver.

        Offsets of an application with the same id are left alone.
        """
        application_id = f"TopologyTestDriver of {self._task.application_id}"
        for operator in self._nodes.values():
            operator.sink.forget(application_id)
        for name, operator in self._nodes.items():
            writer = operator.sink.open(operator.context(name, self._task, application_id))
            self._task.sink_writers[name] = writer
            writer.fence(dict.fromkeys(partitions, ""))

    def close(self) -> None:
        """Close all sinks."""
        writers = list(self._task.sink_writers.values())
        self._task.sink_writers.clear()
        for writer in writers:
            writer.close()


def sinks_of(topologies: Iterable[ProcessorTopology]) -> Iterator[tuple[str, Sink]]:
    """Yield the sinks of sub-topologies, with the names of their nodes."""
    for topology in topologies:
        yield from ((name, operator.sink) for name, operator in topology.outside_sinks.items())
