"""One case on both engines: Penstock's test driver, which is held against Kafka Streams' recordings, and Spark.

Both get the same records in the order in which a task takes them: of several topics, the record with the lowest
timestamp next. Compared are the rows of all stores, byte by byte, and the outputs: as multisets where the report says
identical, else the last record of each key.
"""

from __future__ import annotations

import uuid
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock import Record, Serdes, StreamsConfig, Topology
from penstock.pipeline.capabilities import Capability, CapabilityReport, report_capabilities
from penstock.pipeline.state_reader import read_stores
from penstock.spark import SparkStreams
from penstock.statestore.suppress_buffer import InMemoryTimeOrderedKeyValueChangeBuffer
from penstock.testing import TopologyTestDriver
from tests.goldens import interpreter
from tests.goldens.compare import _EMIT_INTERVALS, WALL_CLOCK_START_MS, case_config

Case = dict[str, Any]
#: Outputs by topic: (key, value, timestamp, headers) in order. Stores: rows by store.
Sent = tuple[bytes | None, bytes | None, int, tuple[Any, ...]]
TIMEOUT_SECONDS = 30.0


class Results(NamedTuple):
    """What one engine has made of a case."""

    outputs: Mapping[str, list[Sent]]
    stores: Mapping[str, dict[bytes, bytes]]


def not_comparable(case: Case) -> str | None:
    """Return why a case cannot run on both engines, None if it can."""
    if case["error"] is not None:
        return "it ends in an error"
    if any("advance_wall_clock_ms" in step for step in case["inputs"]):
        return "it moves the wall clock"
    text = str(case["topology"])
    if case["config"].get("emit.interval.ms"):
        return "it throttles by the wall clock"
    if "time_as_value" in text or "tally_wall_clock" in text:
        return "it reads the wall clock"
    if "topic_fn" in text:
        return "it chooses its topics, which all cases would share"
    return None


def own_topics(case: Case) -> Case:
    """Return the case with topics and an application.id of its own, so that cases do not meet on the broker."""
    case = deepcopy(case)
    mark = f"d{uuid.uuid4().hex[:8]}"
    for op in case["topology"]:
        if "topic" in op:
            topic = op["topic"]
            op["topic"] = f"{mark}-{topic}" if isinstance(topic, str) else [f"{mark}-{name}" for name in topic]
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
    """Return a case's records in the order in which a task that has all of them takes them."""
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


def run_locally(case: Case, topology: Topology, batches: list[list[Input]]) -> Results:
    """Run a case in the test driver, which commits where Spark does: at the end of each micro-batch."""
    prefix = case["config"]["application.id"] + "-"
    outputs: dict[str, list[Sent]] = {}
    with TopologyTestDriver(topology, case_config(case), WALL_CLOCK_START_MS) as driver:
        task: Any = driver._task
        commit, task.commit = task.commit, lambda: None
        for batch in batches:
            for each in batch:
                record = Record(each.key, each.value, each.timestamp, each.headers)  # type: ignore[arg-type]
                driver.create_input_topic(each.topic, Serdes.bytes(), Serdes.bytes()).pipe_input(record)
            for _ in topology.internal_builder.node_groups():  # what a flush sends on may change the next store
                commit()
                driver._complete_all_processable_work()
        task.commit = commit
        for topic in driver.produced_topic_names():
            if not topic.startswith(prefix):
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
        # The test driver does not throttle by the wall clock what leaves closed windows.
        config = {**dict.fromkeys(_EMIT_INTERVALS, 0), **case_config(case), "bootstrap.servers": self._servers}
        names = topics_of(topology, StreamsConfig(config))
        self._create(names)
        try:
            checkpoint = f"{self._checkpoints}/{config['application.id']}"
            streams = SparkStreams(topology, config, self._spark, checkpoint=checkpoint)
            for batch in batches:
                self._produce(batch)
                streams.process_available()
            return Results(dict(self._outputs(names)), read_stores(self._spark, checkpoint, streams.stateful))
        finally:
            prefix = config["application.id"] + "-"
            mine = [t for t in self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics if t.startswith(prefix)]
            for future in self._admin.delete_topics([*names, *mine]).values():
                future.result(TIMEOUT_SECONDS)

    def _create(self, names: set[str]) -> None:
        for future in self._admin.create_topics([NewTopic(name, 1, 1) for name in sorted(names)]).values():
            future.result(TIMEOUT_SECONDS)

    def _produce(self, inputs: list[Input]) -> None:
        producer = Producer({"bootstrap.servers": self._servers})
        for each in inputs:
            producer.produce(each.topic, each.value, each.key, 0, None, None, each.timestamp, list(each.headers or ()))
        producer.flush(TIMEOUT_SECONDS)

    def _outputs(self, names: set[str]) -> Iterator[tuple[str, list[Sent]]]:
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "none", "enable.auto.commit": False})
        try:
            for name in names:
                _, end = consumer.get_watermark_offsets(TopicPartition(name, 0), TIMEOUT_SECONDS)
                consumer.assign([TopicPartition(name, 0, 0)])
                found: list[Sent] = []
                while len(found) < end:
                    message = consumer.poll(TIMEOUT_SECONDS)
                    if message is None or message.error():
                        raise TimeoutError(f"{name}: {len(found)} of {end} records, then {message and message.error()}")
                    headers = tuple(message.headers() or ())
                    found.append((message.key(), message.value(), message.timestamp()[1], headers))
                yield name, found
        finally:
            consumer.close()


def topics_of(topology: Topology, config: StreamsConfig) -> set[str]:
    """Return the user's topics that a topology reads and writes."""
    built = topology.internal_builder.build_subtopologies(config, frozenset())
    internal = {name for each in built for name in each.repartition_topics}
    named = {topic for each in built for topic in each.source_topics}
    named |= {sink.topic for each in built for sink in each.sinks if isinstance(sink.topic, str)}
    return named - internal


def compare(case: Case, spark: SparkEngine, batches: int = 1) -> str | None:
    """Run a case on both engines, its records cut into micro-batches; return the first difference, None if none."""
    case = own_topics(case)
    # librdkafka takes timestamp 0 for "now".
    inputs = [each._replace(timestamp=each.timestamp or 1) for each in merged_inputs(case)]
    size = -(-len(inputs) // batches) or 1
    cut = [inputs[start : start + size] for start in range(0, len(inputs), size)]
    local = run_locally(case, interpreter.build(case), cut)
    topology = interpreter.build(case)
    report = report_capabilities(topology, StreamsConfig(case_config(case)))
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
