"""Metrics of one task, under Kafka Streams' names (TaskMetrics, ProcessorNodeMetrics; KIP-444, KIP-613).

Nothing is measured per record. A batch is timed as a whole. Counts are kept where they arise, and read with each beat
of the stream thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from penstock.topology.context.tallies import NODE_GROUP, TASK_GROUP, Tallies
from penstock.topology.graph.processor_topology import ProcessorTopology, SourceNode
from penstock.topology.records import TopicPartition

from .sensors import MetricGroup, Sensor, ThreadMetrics, rate_and_total
from .tally_metrics import TallyMetrics

if TYPE_CHECKING:
    from ..tasks.partition_group import PartitionGroup

TOPIC_GROUP = "stream-topic-metrics"
#: Penstock's own: written dead letters, by node, exception and topic.
DEAD_LETTER_GROUP = "penstock-dead-letter-metrics"


class Growth:
    """Records the growth of a count since it was last read. total: a sensor that sums over several counts."""

    def __init__(self, sensor: Sensor, total: Sensor | None = None) -> None:
        self.sensor, self._total = sensor, total
        self._seen = 0

    def look(self, count: int, now_ms: int) -> None:
        """Record by how much a count has grown. A count that is smaller than before has started again at 0."""
        grown = count if count < self._seen else count - self._seen
        self._seen = count
        for sensor in (self.sensor, self._total):
            if grown and sensor is not None:
                sensor.record(1, now_ms, grown)

    def begin_anew(self) -> None:
        """Expect a count that starts at 0."""
        self._seen = 0


class SourceMetrics:
    """One source node of a task. e2e_latency: ms from a record's timestamp to here, of one record of each batch."""

    def __init__(self, name: str, topics: frozenset[str], thread: ThreadMetrics) -> None:
        self.name = name
        self.topics = topics
        self.e2e_latency = thread.sensor()
        self.process = Growth(thread.sensor())
        #: Consumed records by topic.
        self.consumed = {topic: Growth(thread.sensor()) for topic in sorted(topics)}

    def look(self, group: PartitionGroup, now_ms: int) -> None:
        """Record how many records have left the queues."""
        counts = Counter(dict.fromkeys(self.topics, 0))
        for partition in group.partitions:
            if partition.topic in self.topics:
                counts[partition.topic] += group.processed(partition)
        self.process.look(counts.total(), now_ms)
        for topic, growth in self.consumed.items():
            growth.look(counts[topic], now_ms)

    def begin_anew(self) -> None:
        """Expect counts that start at 0."""
        for growth in (self.process, *self.consumed.values()):
            growth.begin_anew()

    def values(self, now_ms: int) -> Iterator[tuple[str, float]]:
        """Yield the metrics of the node."""
        yield from rate_and_total("process", self.process.sensor, now_ms)
        yield "record-e2e-latency-avg", self.e2e_latency.average(now_ms)
        yield "record-e2e-latency-min", self.e2e_latency.lowest(now_ms)
        yield "record-e2e-latency-max", self.e2e_latency.highest(now_ms)


class TaskMetrics:
    """The sensors of one task.

    thread: the sensors of its stream thread, which sum over its tasks. tallies: None at metrics.recording.level=INFO.
    """

    def __init__(
        self,
        thread: ThreadMetrics,
        topology: ProcessorTopology,
        full_name: Callable[[str], str],
        tallies: Tallies | None = None,
    ) -> None:
        self.process, self.punctuate, self.commit = thread.sensor(), thread.sensor(), thread.sensor()
        self.active_process_ratio = thread.sensor()
        #: Counts kept where they arise.
        self.dropped_records = self.enforced_processing = 0
        self._dead_letters: Counter[tuple[str, str, str]] = Counter()  # by node, exception and topic
        self._dropped = Growth(thread.sensor(), thread.dropped_records)
        self._enforced = Growth(thread.sensor(), thread.enforced_processing)
        self._restored = Growth(thread.sensor())
        self._process_ms = 0
        self._last_look_ms: int | None = None
        self._sources = [
            SourceMetrics(node.name, frozenset(map(full_name, node.topics)), thread)
            for node in topology.nodes.values()
            if isinstance(node, SourceNode)
        ]
        self._tallied = TallyMetrics(tallies, thread)
        self._by_topic = {topic: source for source in self._sources for topic in source.topics}

    def dead_letter(self, node: str, error: Exception, topic: str) -> None:
        """Count a record that was written to a dead-letter topic."""
        self._dead_letters[node, type(error).__qualname__, topic] += 1

    def batch(self, head: tuple[TopicPartition, int], wall_clock_ms: int, records: int, ms: int, now_ms: int) -> None:
        """Record a batch: its first record's partition and timestamp, its number of records, and its time."""
        partition, timestamp = head
        self._by_topic[partition.topic].e2e_latency.record(wall_clock_ms - timestamp, now_ms)
        self.process.record(ms / records, now_ms, records)
        self._process_ms += ms

    def look(self, group: PartitionGroup | None, restored: int, now_ms: int) -> None:
        """Record the counts, and the number of restored records. Called with each beat."""
        self._restored.look(restored, now_ms)
        if self._last_look_ms is not None and now_ms > self._last_look_ms:
            self.active_process_ratio.record(self._process_ms / (now_ms - self._last_look_ms), now_ms)
        self._last_look_ms, self._process_ms = now_ms, 0
        self._look_at_counts(group, now_ms)

    def load(self, now_ms: int) -> int | None:
        """Return the active-process-ratio in thousandths, None if no record was processed."""
        return round(self.active_process_ratio.average(now_ms) * 1000) if self.process.total else None

    def _look_at_counts(self, group: PartitionGroup | None, now_ms: int) -> None:
        self._dropped.look(self.dropped_records, now_ms)
        self._enforced.look(self.enforced_processing, now_ms)
        self._tallied.look(now_ms)
        if group is None:
            return
        for source in self._sources:
            source.look(group, now_ms)

    def leave(self, group: PartitionGroup | None, now_ms: int) -> None:
        """Record the counts since the last beat, before the task is suspended. group: its queues, if it has any."""
        self._look_at_counts(group, now_ms)
        for source in self._sources:
            source.begin_anew()

    def groups(
        self, tags: Mapping[str, str], active: bool, gauges: Mapping[str, float], now_ms: int
    ) -> Iterator[MetricGroup]:
        """Yield the metrics of the task and of its source nodes. gauges: further ones of the task."""
        yield MetricGroup(TASK_GROUP, dict(tags), dict(self._task_values(active, now_ms)) | dict(gauges))
        yield from self._tallied.groups(tags, now_ms)
        for source in self._sources if active else ():
            node = {**tags, "processor-node-id": source.name}
            yield MetricGroup(NODE_GROUP, node, dict(source.values(now_ms)))
            for topic, growth in source.consumed.items():
                consumed = {"records-consumed-total": float(growth.sensor.total)}
                yield MetricGroup(TOPIC_GROUP, {**node, "topic": topic}, consumed)
        for (name, exception, topic), count in self._dead_letters.items():
            letter = {**tags, "processor-node-id": name, "exception": exception, "topic": topic}
            yield MetricGroup(DEAD_LETTER_GROUP, letter, {"dead-letters-total": float(count)})

    def _task_values(self, active: bool, now_ms: int) -> Iterator[tuple[str, float]]:
        yield from rate_and_total("restore" if active else "update", self._restored.sensor, now_ms)
        yield from rate_and_total("dropped-records", self._dropped.sensor, now_ms)
        if not active:
            return
        for name, sensor in (("process", self.process), ("punctuate", self.punctuate)):
            yield f"{name}-latency-avg", sensor.average(now_ms)
            yield f"{name}-latency-max", sensor.highest(now_ms)
            yield from rate_and_total(name, sensor, now_ms)
        yield from rate_and_total("commit", self.commit, now_ms)
        yield from rate_and_total("enforced-processing", self._enforced.sensor, now_ms)
        yield "active-process-ratio", self.active_process_ratio.average(now_ms)
