"""Sampled metrics of a task's nodes: records per second on each edge, time, age of the records.

Within the stream thread's SamplingBudget, a few records are traced (node_tracer.py): some at the head of a batch, and
the first ones that a store's cache sends downstream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import InitVar, dataclass
from time import perf_counter_ns
from typing import TypeVar

from penstock.topology.context.task_context import TaskContext
from penstock.topology.graph.processor_topology import ProcessorNode, ProcessorTopology, SourceNode
from penstock.topology.operators.stateless import PassThrough
from penstock.topology.operators.table import KTablePassThrough

from .loop_time import LoopTime
from .node_tracer import NodeTracer, Trace
from .sensors import MetricGroup, SamplingBudget, Sensor, ThreadMetrics

#: Penstock's own groups; their values are estimates.
NODE_GROUP, EDGE_GROUP = "penstock-node-metrics", "penstock-edge-metrics"
#: Records traced at once, which delays the rest of the batch by about 1 ms.
RECORDS = 16
#: Minimum time between two samples of a task, in ms, so that others get their samples.
TASK_INTERVAL_MS = 2_000

Edge = tuple[str, str]
T = TypeVar("T")


class _Input:
    """A source of calls of a task's nodes: its input, or a store's cache. rate: per second."""

    def __init__(self, nodes: Iterable[str], edges: Iterable[Edge], thread: ThreadMetrics) -> None:
        self._records = {edge: thread.sensor() for edge in edges}
        self._busy_ns = {name: thread.sensor() for name in nodes}

    def take(self, passed: Mapping[Edge, int], spent_ns: Mapping[str, int], count: int, now_ms: int) -> None:
        """Add the trace of count records of this input."""
        for edge, sensor in self._records.items():
            sensor.record(passed.get(edge, 0) / count, now_ms, count)
        for name, sensor in self._busy_ns.items():
            sensor.record(spent_ns.get(name, 0) / count, now_ms, count)

    def records(self, edge: Edge, rate: float, now_ms: int) -> float:
        """Return records per second."""
        return self._records[edge].average(now_ms) * rate

    def time_ratio(self, name: str, rate: float, measured_ns: float, now_ms: int) -> float:
        """Return a node's share of the time.

        measured_ns: per record over all nodes, 0 if unknown. Samples take longer, and a few much longer; then only the
        proportions between nodes are taken from them.
        """
        whole = sum(sensor.average(now_ms) for sensor in self._busy_ns.values())
        scale = measured_ns / whole if 0 < measured_ns < whole else 1.0
        return self._busy_ns[name].average(now_ms) * scale * rate / 1e9


class _Turns:
    """When a task is sampled next."""

    def __init__(self, budget: SamplingBudget, time: LoopTime) -> None:
        self._budget = budget
        self._time = time
        self._due_ms = 0

    def due(self, now_ms: int) -> bool:
        return now_ms >= self._due_ms and self._budget.allows(now_ms)

    def taken(self, began_ms: int) -> None:
        ended_ms = self._time.read_ms()
        self._budget.spent(began_ms, ended_ms)
        self._due_ms = ended_ms + TASK_INTERVAL_MS


@dataclass(eq=False)
class NodeSamples:
    """The samples of one task while it runs. process: the task's sensor of processed records."""

    topology: InitVar[ProcessorTopology]
    task: TaskContext
    thread: InitVar[ThreadMetrics]
    process: Sensor
    time: LoopTime
    clock_ns: Callable[[], int] = perf_counter_ns

    def __post_init__(self, topology: ProcessorTopology, thread: ThreadMetrics) -> None:
        self._record_turns = _Turns(thread.record_sampling, self.time)
        self._flush_turns = _Turns(thread.flush_sampling, self.time)
        self._children = {name: tuple(getattr(node, "children", ())) for name, node in topology.nodes.items()}
        self._sources = {name for name, node in topology.nodes.items() if isinstance(node, SourceNode)}
        self._silent = {
            name
            for name, node in topology.nodes.items()
            if isinstance(node, ProcessorNode) and isinstance(node.operator, PassThrough | KTablePassThrough)
        }
        edges = [(name, child) for name, children in self._children.items() for child in children]
        self._following: NodeTracer | None = None
        self._parents = {name: [parent for parent, child in edges if child == name] for name in self._children}
        self._edges = edges
        self._input = _Input(self._children, edges, thread)
        self._flushes = {name: (thread.sensor(), _Input(self._children, edges, thread)) for name in topology.stores}
        self._ages = {name: thread.sensor() for name in self._children if name not in self._sources}

    def due(self, now_ms: int) -> bool:
        """Return whether records should be traced now."""
        return self._record_turns.due(now_ms)

    def of_records(self, process: Callable[[], int], source: str) -> int:
        """Trace the records that process() processes, and return its result, their number."""
        trace, records = self._take(process, source, self._record_turns)
        if records:
            self._take_in(trace, source, self._input, records)
        return records

    def of_changes(self, store: str, changes: int, send: Callable[[int], None]) -> int:
        """Trace the first changes of a flush, if it is time; see caching_store.Follower."""
        now_ms = self.time.now_ms
        sent, flushed = self._flushes[store]
        if not changes:
            return 0
        sent.record(1, now_ms, changes)
        if self._following:  # the cache was full: its changes do not result from the traced records
            with self._following.paused():
                send(changes)
            return changes
        if not self._flush_turns.due(now_ms):
            return 0
        count = min(changes, RECORDS)
        trace, _ = self._take(lambda: send(count), None, self._flush_turns)
        self._take_in(trace, None, flushed, count)
        return count

    def _take(self, call: Callable[[], T], source: str | None, turns: _Turns) -> tuple[Trace, T]:
        began_ms = self.time.read_ms()
        self._following = tracer = NodeTracer(self.task, source, self.clock_ns)
        try:
            result = tracer.run(call)
        finally:
            self._following = None
            turns.taken(began_ms)
        return tracer.trace, result

    def _take_in(self, trace: Trace, source: str | None, moved: _Input, count: int) -> None:
        """Add the trace of count records or changes."""
        now_ms, timestamps = self.time.now_ms, dict(trace.timestamps)
        passed: Counter[Edge] = Counter()
        for (before, name), records in trace.passed.items():
            for edge in self._way(before, source, name):
                passed[edge] += records
                if name in timestamps:  # nodes that only forward were not traced
                    timestamps.setdefault(edge[1], timestamps[name])
        moved.take(passed, trace.spent_ns, count, now_ms)
        for name, timestamp in timestamps.items():
            self._ages[name].record(self.time.wall_clock_ms - timestamp, now_ms)

    def _way(self, before: str | None, source: str | None, name: str) -> list[Edge]:
        """Return the edges by which a record reached a node: from the node that ran before, if there is a path.

        Otherwise the record comes from the source, or from the only parent.
        """
        for start in (before, source):
            way = self._silent_way(start, name)
            if way:
                return way
        parents = self._parents[name]
        if len(parents) != 1:
            return []
        further = self._way(before, source, parents[0]) if parents[0] in self._silent else []
        return [*further, (parents[0], name)]

    def _silent_way(self, start: str | None, end: str) -> list[Edge]:
        ways = [[start]] if start is not None else []
        for way in ways:
            for child in self._children.get(way[-1], ()):
                if child == end:
                    return list(zip(way, [*way[1:], end], strict=True))
                if child in self._silent:
                    ways.append([*way, child])
        return []

    def groups(self, tags: Mapping[str, str], now_ms: int) -> Iterator[MetricGroup]:
        """Yield the metrics of all nodes and edges: records/s, ms, and the share of the time of one core."""
        inputs = [(self._input, self.process.rate(now_ms), self.process.average(now_ms) * 1e6)]
        inputs += [(flushed, sent.rate(now_ms), 0.0) for sent, flushed in self._flushes.values()]
        came = dict.fromkeys(self._children, 0.0)
        for edge in self._edges:
            rate = sum(one.records(edge, pace, now_ms) for one, pace, _ in inputs)
            came[edge[1]] += rate
            yield MetricGroup(EDGE_GROUP, {**tags, "from": edge[0], "to": edge[1]}, {"records-rate": rate})
        for name, records in came.items():
            values = {"time-ratio": sum(one.time_ratio(name, pace, taken_ns, now_ms) for one, pace, taken_ns in inputs)}
            if name in self._ages:
                values |= {"process-rate": records, "record-age-avg": self._ages[name].average(now_ms)}
            yield MetricGroup(NODE_GROUP, {**tags, "processor-node-id": name}, values)
