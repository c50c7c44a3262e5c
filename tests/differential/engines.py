"""One case on both engines: Penstock's test driver, which is compared with Kafka Streams' recordings, and Spark.

Both get the same records in the order in which a task processes them: of several topics, the record with the lowest
timestamp next. The rows of all stores are compared byte by byte, and the outputs: as multisets where the report says
identical, otherwise by the last record of each key.
"""

from __future__ import annotations

import uuid
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock import Serdes, StreamsConfig, Topology
from penstock.pipeline import SparkStreams
from penstock.pipeline.checkpoint.checkpoint import full_source_topics
from penstock.pipeline.handover.spark_side import blobs
from penstock.pipeline.queries.capabilities import Capability, CapabilityReport, report_capabilities
from penstock.pipeline.queries.streaming_queries import processing_order
from penstock.pipeline.tasks.sorted_runs import stored_rows
from penstock.pipeline.tasks.spark_task import OWN_STORE
from penstock.statestore.buffers.time_ordered_buffers import InMemoryTimeOrderedKeyValueChangeBuffer
from penstock.testing import TopologyTestDriver
from penstock.topology.records import Message, SentRecord
from penstock.topology.run.compiled import CompiledSource, StampedRecord
from tests.goldens import interpreter
from tests.goldens.compare import _EMIT_INTERVALS, WALL_CLOCK_START_MS, case_config
from tests.read_to_end import read_to_end
from tests.topics import create_topics, delete_topics, delete_topics_of

Case = dict[str, Any]
#: Outputs by topic: (key, value, timestamp, headers) in order. Stores: rows by store.
Sent = tuple[bytes | None, bytes | None, int, tuple[Any, ...]]


class Results(NamedTuple):
    """The results of one engine for a case."""

    outputs: Mapping[str, list[Sent]]
    stores: Mapping[str, dict[bytes, bytes]]


def not_comparable(case: Case) -> str | None:
    """Return why a case cannot run on both engines, None if it can.

    Many cases move the wall clock, but no operator in them reads it after _without_throttling.
    """
    if case["error"] is not None:
        return "it ends in an error"
    text = str(case["topology"])
    if "time_as_value" in text or "tally_wall_clock" in text:
        return "it reads the wall clock"
    if "topic_fn" in text:
        return "it chooses its topics, which all cases would share"
    return None


def _without_throttling(case: Case) -> dict[str, Any]:
    """Return a case's configuration in which closed windows and joins do not wait for the wall clock."""
    return {**case_config(case), **dict.fromkeys(_EMIT_INTERVALS, 0)}


def in_buckets(case: Case, buckets: int) -> Case:
    """Return the case with penstock.spark.buckets, which the local engine ignores."""
    return {**case, "config": {**case["config"], "penstock.spark.buckets": buckets}}


def depends_on_buckets(case: Case, buckets: int) -> bool:
    """Return True if the report says that buckets change a case's results: each bucket has its own stream time."""
    case = in_buckets(case, buckets)
    report = report_capabilities(interpreter.build(case), StreamsConfig(case_config(case)))
    return any("(penstock.spark.buckets)" in finding.text for finding in report.findings)


def own_topics(case: Case) -> Case:
    """Return the case with its own topics and application.id, so that cases do not share topics on the broker."""
    case = deepcopy(case)
    mark = f"d{uuid.uuid4().hex[:8]}"
    for op in case["topology"]:
        if "topic" in op:
            topic = op["topic"]
            op["topic"] = f"{mark}-{topic}" if isinstance(topic, str) else [f"{mark}-{name}" for name in topic]
    case["inputs"] = [step for step in case["inputs"] if "advance_wall_clock_ms" not in step]
    for step in case["inputs"]:
        step["topic"] = f"{mark}-{step['topic']}"
    case["config"]["application.id"] = f"{mark}-app"
    return case


class Input(NamedTuple):
    """One input record."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, str | bytes | None]] | None


def merged_inputs(case: Case) -> list[Input]:
    """Return a case's records in the order in which a task with all of them processes them."""
    waiting: dict[str, list[Input]] = {}
    for step in case["inputs"]:
        headers: list[tuple[str, str | bytes | None]] = [
            (name, None if value is None else b64decode(value)) for name, value in step.get("headers", ())
        ]
        record = Input(step["topic"], _bytes(step["key"]), _bytes(step["value"]), step["timestamp"], headers or None)
        waiting.setdefault(record.topic, []).append(record)
    order: list[Input] = []
    turns = {topic: turn for turn, topic in enumerate(sorted(waiting))}
    while waiting:
        topic = min(waiting, key=lambda name: (waiting[name][0].timestamp, turns[name]))
        order.append(waiting[topic].pop(0))
        turns[topic] = len(turns) + len(order)
        if not waiting[topic]:
            del waiting[topic]
    return order


def _bytes(encoded: Any) -> bytes | None:
    return None if encoded is None else b64decode(encoded["b64"])


class Turns:
    """Replaces the driver's queues: each sub-topology in turn processes all its waiting records, as in micro-batches.

    order: the sub-topologies' topics. end_turn: commits. Each sub-topology has its own stream time, as its task.
    """

    def __init__(self, task: Any, order: list[list[str]], end_turn: Callable[[], None]) -> None:
        self._task = task
        self._waiting: list[dict[str, list[tuple[CompiledSource, Message]]]] = [
            {topic: [] for topic in topics} for topics in order
        ]
        self._stream_times = [-1] * len(order)
        self._end_turn = end_turn
        self._offsets: Counter[str] = Counter()

    def next_offset(self, source: CompiledSource) -> int:
        """Return the offset for the next record of a topic."""
        self._offsets[source.topic] += 1
        return self._offsets[source.topic] - 1

    def add(self, source: CompiledSource, message: Message) -> None:
        """Queue a record for the next turn of its sub-topology."""
        next(waiting[source.topic] for waiting in self._waiting if source.topic in waiting).append((source, message))

    def drain(self) -> Iterator[tuple[CompiledSource, StampedRecord]]:
        """Yield records until none is left; records sent to a sub-topology during its turn wait for the next one."""
        while any(records for waiting in self._waiting for records in waiting.values()):
            for number, waiting in enumerate(self._waiting):
                taken = {topic: records[:] for topic, records in sorted(waiting.items()) if records}
                for topic in taken:
                    waiting[topic].clear()
                if taken:
                    self._task.stream_time_ms = self._stream_times[number]
                    yield from _lowest_first(taken)
                    self._end_turn()
                    self._stream_times[number] = self._task.stream_time_ms

    def clear(self) -> None:
        """Forget what waits."""
        for waiting in self._waiting:
            for records in waiting.values():
                records.clear()


def _lowest_first(
    taken: Mapping[str, list[tuple[CompiledSource, Message]]],
) -> Iterator[tuple[CompiledSource, StampedRecord]]:
    """Yield records of several topics: the lowest timestamp next; among equal ones the topic that has waited
    longest.
    """

    def stamped(records: list[tuple[CompiledSource, Message]]) -> Iterator[tuple[CompiledSource, StampedRecord]]:
        for source, message in records:
            record = source.stamp(message)
            if record is not None:
                yield source, record

    left = [stamped(records) for records in taken.values()]
    heads = [(head, records) for records in left if (head := next(records, None)) is not None]
    while heads:
        first = min(heads, key=lambda waiting: waiting[0][1].timestamp)
        heads.remove(first)
        yield first[0]
        following = next(first[1], None)
        if following is not None:
            heads.append((following, first[1]))


def run_locally(case: Case, topology: Topology, batches: list[list[Input]]) -> Results:
    """Run a case in the test driver, with turns and commits as in Spark's micro-batches."""
    config, application_id = _without_throttling(case), case["config"]["application.id"]
    outputs: dict[str, list[Sent]] = {}
    order, _ = processing_order(topology.internal_builder.build_subtopologies(StreamsConfig(config), frozenset()))
    with TopologyTestDriver(topology, config, WALL_CLOCK_START_MS) as driver:
        task: Any = driver.task
        commit, task.commit = task.commit, lambda: None

        def end_turn() -> None:
            commit()
            driver._capture_outputs()

        turns: Any = Turns(task, [full_source_topics(each, application_id) for each in order], end_turn)
        task.queues = turns
        for batch in batches:
            for each in batch:
                headers: Any = each.headers
                record = SentRecord(each.topic, each.key, each.value, each.timestamp, headers)
                driver._enqueue(record)
            driver._complete_all_processable_work()
        task.commit = commit
        for topic in driver.produced_topic_names():
            if not topic.startswith(f"{application_id}-"):
                found = driver.create_output_topic(topic, Serdes.bytes(), Serdes.bytes()).read_records_to_list()
                outputs[topic] = [(r.key, r.value, r.timestamp, tuple(r.headers or ())) for r in found]
        stores = {
            name: dict(store.rows.rows(None, None))
            for name, store in driver.get_all_state_stores().items()
            if not isinstance(store, InMemoryTimeOrderedKeyValueChangeBuffer)  # it has no rows here
        }
    return Results(outputs, stores)


class SparkEngine:
    """Runs cases on Spark. spark: one session for all of them; checkpoints: a folder."""

    def __init__(self, spark: Any, bootstrap_servers: str, checkpoints: str) -> None:
        self._spark = spark
        self._servers = bootstrap_servers
        self._checkpoints = checkpoints
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers})

    def run(self, case: Case, topology: Topology, batches: list[list[Input]]) -> Results:
        """Run a case, one micro-batch after the other."""
        config = {**_without_throttling(case), "bootstrap.servers": self._servers}
        names = topics_of(topology, StreamsConfig(config))
        self._create(names)
        try:
            checkpoint = f"{self._checkpoints}/{config['application.id']}"
            streams = SparkStreams(topology, config, self._spark, checkpoint=checkpoint)
            for batch in batches:
                self._produce(batch)
                streams.process_available()
            return Results(self._outputs(names), _read_stores(self._spark, checkpoint, streams.stateful))
        finally:
            delete_topics(self._admin, *names)
            delete_topics_of(self._admin, config["application.id"] + "-")

    def _create(self, names: set[str]) -> None:
        create_topics(self._admin, *(NewTopic(name, 1, 1) for name in sorted(names)))

    def _produce(self, inputs: list[Input]) -> None:
        producer = Producer({"bootstrap.servers": self._servers})
        for each in inputs:
            producer.produce(each.topic, each.value, each.key, 0, None, None, each.timestamp, list(each.headers or ()))
        producer.flush()

    def _outputs(self, names: set[str]) -> dict[str, list[Sent]]:
        found: dict[str, list[Sent]] = {name: [] for name in names}
        for message in read_to_end(self._servers, *names):
            headers = tuple(message.headers() or ())
            found[message.topic() or ""].append((message.key(), message.value(), message.timestamp()[1], headers))
        return found


def _read_stores(spark: Any, checkpoint: str, subtopologies: Iterable[int]) -> dict[str, dict[bytes, bytes]]:
    """Return the rows of all stores by name, as of the last finished micro-batch of each query.

    subtopologies: the numbers of those that have state. Rows of different tasks have different keys, except for windows
    and sessions of keys that are equal in two partitions.
    """
    stores: dict[str, dict[bytes, bytes]] = {}
    for number in subtopologies:
        found = sorted(blobs(spark, f"{checkpoint}/subtopology-{number}").where(f"store != '{OWN_STORE}'").collect())
        for (store, _), group in groupby(found, key=attrgetter("store", "task")):
            stores.setdefault(store, {}).update(stored_rows((blob.number, bytes(blob.data)) for blob in group))
    return stores


def topics_of(topology: Topology, config: StreamsConfig) -> set[str]:
    """Return the user's topics that a topology reads and writes."""
    built = topology.internal_builder.build_subtopologies(config, frozenset())
    internal = {name for each in built for name in each.repartition_topics}
    named = {topic for each in built for topic in each.source_topics}
    named |= {sink.topic for each in built for sink in each.sinks if isinstance(sink.topic, str)}
    return named - internal


def compare(case: Case, spark: SparkEngine, batches: int = 1, buckets: int = 1) -> str | None:
    """Run a case on both engines, split into micro-batches; return the first difference, None if none.

    buckets: the number of tasks over which Spark spreads the keys of a partition.
    """
    case = in_buckets(own_topics(case), buckets)
    # librdkafka takes timestamp 0 for "now".
    inputs = [each._replace(timestamp=each.timestamp or 1) for each in merged_inputs(case)]
    size = -(-len(inputs) // batches) or 1
    cut = [inputs[start : start + size] for start in range(0, len(inputs), size)]
    local = run_locally(case, interpreter.build(case), cut)
    topology = interpreter.build(case)
    report = report_capabilities(topology, StreamsConfig(_without_throttling(case)))
    return first_difference(local, spark.run(case, topology, cut), inputs, report)


def first_difference(local: Results, spark: Results, inputs: list[Input], report: CapabilityReport) -> str | None:
    """Return the first difference between the engines' results, None if there is none."""
    for name, rows in local.stores.items():
        if rows != spark.stores.get(name, {}):
            return f"store {name}: locally {rows}, on Spark {spark.stores.get(name, {})}"
    given = Counter(each.topic for each in inputs)
    view: Any = Counter if report.capability is Capability.IDENTICAL else _last_by_key
    for topic in sorted(local.outputs.keys() | spark.outputs.keys()):
        expected, got = local.outputs.get(topic, []), spark.outputs.get(topic, [])[given[topic] :]
        if view(expected) != view(got):
            return f"output {topic}: locally {expected}, on Spark {got}"
    return None


def _last_by_key(sent: list[Sent]) -> dict[bytes | None, Any]:
    return {key: value for key, value, _, _ in sent}
