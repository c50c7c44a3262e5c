"""A task that is recreated from its state before each record gives Kafka Streams' recorded results. Without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import pytest

from penstock import FixedKeyProcessor, Serdes, StreamsBuilder, StreamsConfig, StreamsError
from penstock.pipeline.queries.capabilities import Capability, report_capabilities
from penstock.pipeline.tasks.spark_task import SparkTask, TaskPlan
from penstock.testing.driver_task import RecordQueues
from penstock.topology.graph.processor_topology import ProcessorTopology, SourceNode
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.records import RawRecord, SentRecord
from tests.examples import one_of
from tests.goldens import interpreter
from tests.goldens.case import Case, files, read
from tests.goldens.compare import _EMIT_INTERVALS, WALL_CLOCK_START_MS, _produced, case_config
from tests.goldens.compare import _bytes as from_json
from tests.goldens.compare import _headers as headers_of

CASES = [Path(__file__).resolve().parents[1] / "goldens" / "cases"]


class DictState:
    """The state of one task in a dict; bytes only, as Spark keeps it."""

    def __init__(self) -> None:
        self.blobs: dict[tuple[str, int], bytes] = {}
        self.reads = self.writes = 0
        self.directory = Path(mkdtemp())
        finalize(self, rmtree, self.directory)

    def read(self, store: str, numbers: Sequence[int]) -> list[bytes | None]:
        self.reads += len(numbers)
        return [self.blobs.get((store, number)) for number in numbers]

    def write(self, store: str, number: int, data: bytes) -> None:
        self.writes += 1
        self.blobs[store, number] = data

    def remove(self, store: str, number: int) -> None:
        del self.blobs[store, number]


class SleepyApplication:
    """Runs a whole topology in one task that is closed after each record, and recreated from its state."""

    def __init__(self, case: Case) -> None:
        self.config = StreamsConfig({**dict.fromkeys(_EMIT_INTERVALS, 0), **case_config(case)})
        topology = interpreter.build(case)
        self.built: ProcessorTopology = build_whole_topology(topology.internal_builder, self.config)
        self.plan = TaskPlan(self.built, self.config, _Ones())
        self.state = DictState()
        self.now_ms = WALL_CLOCK_START_MS
        self.queues = RecordQueues()
        self.offsets: dict[str, int] = {}
        self.outputs: dict[str, list[Any]] = {}

    @property
    def sources(self) -> set[str]:
        prefix = self.config["application.id"] + "-"
        internal = self.built.repartition_topics
        return {
            prefix + topic if topic in internal else topic
            for node in self.built.nodes.values()
            if isinstance(node, SourceNode)
            for topic in node.topics
        }

    def pipe(self, record: SentRecord, number: int) -> None:
        """Process an input record and all records that follow from it."""
        self._enqueue([record])
        self._drain(number)

    def advance_wall_clock(self, ms: int, number: int) -> None:
        """Advance the wall clock; process the records that punctuations have sent."""
        self.now_ms += ms
        self._keep(self._awake({}), number)
        self._drain(number)

    def _drain(self, number: int) -> None:
        for _, record in self.queues.drain():
            self._keep(self.process(record), number)  # type: ignore[arg-type]

    def _keep(self, sent_records: list[SentRecord], number: int) -> None:
        """Keep the sent records; process those that are read by a source."""
        for sent in sent_records:
            self.outputs.setdefault(sent.topic, []).append(_produced(_Record(sent), number))  # type: ignore[arg-type]
        self._enqueue([sent for sent in sent_records if sent.topic in self.sources])

    def _enqueue(self, records: list[SentRecord]) -> None:
        for record in records:
            source: Any = SimpleNamespace(topic=record.topic, stamp=lambda record: record)
            self.queues.next_offset(source)
            self.queues.add(source, record)  # type: ignore[arg-type]

    def process(self, record: SentRecord) -> list[SentRecord]:
        """Process one record in a new task."""
        offset = self.offsets.get(record.topic, 0)
        self.offsets[record.topic] = offset + 1
        headers = list(record.headers) if record.headers else None
        at = -1 if record.timestamp is None else record.timestamp
        message = RawRecord(record.topic, 0, offset, at, record.key, record.value, headers)
        return self._awake({record.topic: [message]})

    def _awake(self, batches: dict[str, list[RawRecord]]) -> list[SentRecord]:
        task = SparkTask(self.plan, 0, self.state, lambda: self.now_ms)
        task.process(batches)
        task.commit()
        task.close()
        return task.take_sent()


class _Ones(dict[str, int]):
    def __missing__(self, topic: str) -> int:
        return 1


class _Record:
    def __init__(self, sent: SentRecord) -> None:
        self.key, self.value, self.headers = sent.key, sent.value, sent.headers
        self.timestamp = -1 if sent.timestamp is None else sent.timestamp


def runs(case: Case) -> bool:
    """Return whether a case is not refused, and does not end in an error."""
    if case["error"] is not None:
        return False
    report = report_capabilities(interpreter.build(case), StreamsConfig(case_config(case)))
    return report.capability is not Capability.REFUSED


def differs(case: Case) -> str | None:
    application = SleepyApplication(case)
    for number, step in enumerate(case["inputs"]):
        if "advance_wall_clock_ms" in step:
            application.advance_wall_clock(step["advance_wall_clock_ms"], number)
            continue
        record = SentRecord(
            step["topic"], from_json(step["key"]), from_json(step["value"]), step["timestamp"], headers_of(step), None
        )
        application.pipe(record, number)
    got, expected = application.outputs, {**case["outputs"], **case["repartitions"]}
    for topic in sorted(expected.keys() | got.keys()):
        if expected.get(topic) != got.get(topic):
            return f"{topic}: expected {expected.get(topic)}, got {got.get(topic)}"
    return None


@pytest.mark.parametrize("path", one_of(4, [path for path in files(CASES) if runs(read(path))], attrgetter("stem")))
def test_a_task_recreated_between_all_records_gives_the_recorded_outputs(path: Path) -> None:
    case = read(path)
    assert differs(case) is None


@pytest.mark.parametrize("asked", ["state_dir", "metrics"])
def test_a_processor_cannot_use_features_that_outlive_a_micro_batch(asked: str) -> None:
    class Asks(FixedKeyProcessor[Any, Any, Any]):
        def init(self, context: Any) -> None:
            assert context.key_serde.serialize("", "k") == b"k"
            getattr(context, asked)

        def process(self, record: Any) -> None: ...

    builder = StreamsBuilder()
    builder.stream("in").process_values(Asks, name="ask")
    config = StreamsConfig(
        {"application.id": "app", "bootstrap.servers": "none:1", "default.key.serde": Serdes.string()}
    )
    built = build_whole_topology(builder.build().internal_builder, config)
    with pytest.raises(StreamsError, match=r"failed to initialize processor ask: A processor .* on Spark"):
        SparkTask(TaskPlan(built, config, _Ones()), 0, DictState(), lambda: 0)
