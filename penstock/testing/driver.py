"""TopologyTestDriver: runs a topology on records that a test pipes in, without a broker."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.topology.common.durations import Duration, to_millis
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.store_facades import (
    KeyValueStoreFacade,
    SessionStoreFacade,
    WindowStoreFacade,
    for_readers,
)
from penstock.topology.context.store_interfaces import StoreBuilder, StoreKind
from penstock.topology.context.store_types import (
    KeyValueStore,
    SessionStore,
    SessionStoreWithHeaders,
    TimestampedKeyValueStore,
    TimestampedKeyValueStoreWithHeaders,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    VersionedKeyValueStore,
    WindowStore,
)
from penstock.topology.errors import PenstockError, TopologyError
from penstock.topology.graph.processor_topology import SinkNode, SourceNode
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.graph.topology import Topology
from penstock.topology.processor_api import S
from penstock.topology.records import Headers, RawRecord, SentRecord
from penstock.topology.run.compiled import CompiledSource
from penstock.topology.serdes.serdes import Serde, SerdeLike, Serdes, resolve_serde
from penstock.workers.metrics.sensors import Metric

from .driver_task import Clock, DriverTask, RecordQueues
from .driver_topics import K, TestInputTopic, TestOutputTopic, V
from .store_views import (
    AGGREGATION,
    AGGREGATION_WITH_HEADERS,
    PLAIN,
    PLAIN_OF_HEADERS,
    TIMESTAMPED_OF_HEADERS,
    WITH_HEADERS,
)

_DEFAULTS: Mapping[str, object] = {
    "application.id": "topology-test-driver",
    "bootstrap.servers": "localhost:0",
    # Emit results immediately instead of at most once per second of wall clock, as in Kafka Streams' driver.
    "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": 0,
    "__emit.interval.ms.kstreams.windowed.aggregation__": 0,
}


class TopologyTestDriver:
    """Runs a topology on records that a test pipes in, in the calling thread, record by record.

    config: as for KafkaStreams, but application.id and bootstrap.servers are optional. initial_wall_clock_ms:
    milliseconds since the epoch; the wall clock moves only by advance_wall_clock_time. Stores are real, in a
    temporary directory that close() removes; the driver commits after each record. All sub-topologies run as one task
    with one partition per topic, records for internal topics are looped back.

    batch_records: the number of records that map_batches collects at most. A batch ends with the call that piped its
    records in, so only the records of a list, and those that follow from one record, can be in one batch. Its results
    should be the same for any number.

    Raises ConfigError for a wrong configuration, TopologyError for a topology that cannot be built, ValueError for less
    than one record.
    """

    __test__ = False  # not a test class for pytest

    def __init__(
        self,
        topology: Topology,
        config: StreamsConfig | Mapping[str, object] | None = None,
        initial_wall_clock_ms: int = 0,
        *,
        batch_records: int = 512,
    ) -> None:
        if type(batch_records) is not int or batch_records < 1:
            raise ValueError(f"batch_records must be 1 or more, got {batch_records!r}")
        self._batch_records = batch_records
        self._pipes_list = False
        given = config.originals() if isinstance(config, StreamsConfig) else dict(config or {})
        self._config = StreamsConfig({**_DEFAULTS, **given})
        self._clock = Clock(initial_wall_clock_ms)
        self._directory = tempfile.TemporaryDirectory(prefix="penstock-test-")
        self._outputs: dict[str, deque[SentRecord]] = {}
        self._queues = RecordQueues()
        self._global_offsets: dict[str, int] = {}
        self._closed = False
        try:
            self._global_task = self._make_global_task(topology)
            #: The driver's task; for Penstock's own tests.
            self.task = self._make_task(topology)
        except BaseException:
            self._directory.cleanup()
            raise

    def _make_global_task(self, topology: Topology) -> DriverTask | None:
        built = topology.internal_builder.build_global_topology(self._config)
        if built is None:
            return None
        # As in Kafka Streams' driver, a record that a global table cannot read is logged and skipped.
        config = self._config.with_overrides({"deserialization.exception.handler": "continue"})
        return DriverTask(built, config, self._clock, Path(self._directory.name, "global"), self._new_cache())

    def _make_task(self, topology: Topology) -> DriverTask:
        built = build_whole_topology(topology.internal_builder, self._config)
        global_stores = {} if self._global_task is None else self._global_task.stores
        directory = Path(self._directory.name, "task")
        return DriverTask(built, self._config, self._clock, directory, self._new_cache(), global_stores)

    def _new_cache(self) -> ThreadCache:
        # Global stores have a separate one, as in Kafka Streams.
        return ThreadCache(self._config["statestore.cache.max.bytes"])

    def __enter__(self) -> TopologyTestDriver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_input_topic(
        self,
        name: str,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        *,
        start_timestamp: int | None = None,
        auto_advance: Duration = 0,
    ) -> TestInputTopic:
        """Return an input topic, which pipes records into a source topic; by default with the source's serdes.

        start_timestamp: of the first record (ms), by default the wall clock's; auto_advance: from one to the next.
        Raises TopologyError if no source reads the topic.
        """
        source = self._source_node(name)
        if source is None:
            raise TopologyError(f"Unknown topic: {name}. Source topics are {', '.join(self._source_topics())}")
        key = resolve_serde(key_serde or source.key_serde, self._config, True, f"input topic {name}")
        value = resolve_serde(value_serde or source.value_serde, self._config, False, f"input topic {name}")
        start = self._clock.now_ms if start_timestamp is None else start_timestamp
        advance_ms = to_millis(auto_advance, "auto_advance")
        return TestInputTopic(self._pipe, self._piping_list, name, key, value, start, advance_ms)

    @overload
    def create_output_topic(self, name: str, key_serde: Serde[K], value_serde: Serde[V]) -> TestOutputTopic[K, V]: ...
    @overload
    def create_output_topic(
        self, name: str, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> TestOutputTopic[Any, Any]: ...
    def create_output_topic(
        self, name: str, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> TestOutputTopic[Any, Any]:
        """Return an output topic, which reads the records written to a topic.

        By default with the serdes of its sink; a topic that no sink names (a changelog, dead letters, one chosen by a
        function) is read as bytes.
        """
        sink = self._sink_node(name)
        key = key_serde or (Serdes.bytes() if sink is None else sink.key_serde)
        value = value_serde or (Serdes.bytes() if sink is None else sink.value_serde)
        where = f"output topic {name}"
        return TestOutputTopic(
            self._outputs,
            name,
            resolve_serde(key, self._config, True, where),
            resolve_serde(value, self._config, False, where),
        )

    def advance_wall_clock_time(self, advance: Duration) -> None:
        """Move the wall clock forward (timedelta or ms) and run the punctuations that are due, each once."""
        self._clock.now_ms += to_millis(advance, "advance")
        self.task.punctuate_wall_clock()
        self._complete_all_processable_work()

    def produced_topic_names(self) -> set[str]:
        """Return all topics that records were written to, internal ones included."""
        return set(self._outputs)

    def dropped_records(self) -> dict[tuple[str, str], int]:
        """Return how many records were dropped, by node and reason, those of global stores too."""
        return dict(self.task.dropped if self._global_task is None else self.task.dropped + self._global_task.dropped)

    def metrics(self) -> list[Metric]:
        """Return the metrics that processors have added (``ProcessorContext.metrics``)."""
        tasks = [self.task] if self._global_task is None else [self.task, self._global_task]
        return [metric for task in tasks for metric in task.streams_metrics.metrics()]

    @overload
    def get_state_store(self, name: str) -> Any: ...
    @overload
    def get_state_store(self, name: StoreBuilder[S]) -> S: ...
    def get_state_store(self, name: str | StoreBuilder[Any]) -> Any:
        """Return a store unchanged, by its name or its StoreBuilder; None if there is none of this name."""
        return self.get_all_state_stores().get(name.name if isinstance(name, StoreBuilder) else name)

    def get_all_state_stores(self) -> dict[str, Any]:
        """Return all stores by name, global ones included."""
        return {name: for_readers(store.exposed) for name, store in self._opened().items()}

    def _opened(self) -> dict[str, Any]:
        return {**(self._global_task.stores if self._global_task else {}), **self.task.stores}

    def get_key_value_store(self, name: str) -> KeyValueStore[Any, Any] | Any:
        """Return a key-value store with plain values, None if there is none of this name and kind."""
        store = self._store(name, StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE)
        if store is None or store.builder.kind is StoreKind.KEY_VALUE:
            return store
        return KeyValueStoreFacade(store, PLAIN_OF_HEADERS if store.builder.keeps_headers else PLAIN)

    def get_timestamped_key_value_store(self, name: str) -> TimestampedKeyValueStore[Any, Any] | Any:
        """Return a key-value store with ValueAndTimestamp, None if there is none of this name and kind."""
        store = self._store(name, StoreKind.TIMESTAMPED_KEY_VALUE)
        return KeyValueStoreFacade(store, TIMESTAMPED_OF_HEADERS) if _keeps_headers(store) else store

    def get_timestamped_key_value_store_with_headers(
        self, name: str
    ) -> TimestampedKeyValueStoreWithHeaders[Any, Any] | Any:
        """Return a key-value store with ValueTimestampHeaders, None if there is none with headers of this name."""
        store = self._with_headers(name, StoreKind.TIMESTAMPED_KEY_VALUE)
        return store if store is None or _keeps_headers(store) else KeyValueStoreFacade(store, WITH_HEADERS)

    def get_versioned_key_value_store(self, name: str) -> VersionedKeyValueStore[Any, Any] | Any:
        """Return a versioned store, None if there is none of this name and kind."""
        return self._store(name, StoreKind.VERSIONED_KEY_VALUE)

    def get_window_store(self, name: str) -> WindowStore[Any, Any] | Any:
        """Return a window store with plain values, None if there is none of this name and kind."""
        store = self._store(name, StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW)
        if store is None or store.builder.kind is StoreKind.WINDOW:
            return store
        return WindowStoreFacade(store, PLAIN_OF_HEADERS if store.builder.keeps_headers else PLAIN)

    def get_timestamped_window_store(self, name: str) -> TimestampedWindowStore[Any, Any] | Any:
        """Return a window store with ValueAndTimestamp, None if there is none of this name and kind."""
        store = self._store(name, StoreKind.TIMESTAMPED_WINDOW)
        return WindowStoreFacade(store, TIMESTAMPED_OF_HEADERS) if _keeps_headers(store) else store

    def get_timestamped_window_store_with_headers(self, name: str) -> TimestampedWindowStoreWithHeaders[Any, Any] | Any:
        """Return a window store with ValueTimestampHeaders, None if there is none with headers of this name."""
        store = self._with_headers(name, StoreKind.TIMESTAMPED_WINDOW)
        return store if store is None or _keeps_headers(store) else WindowStoreFacade(store, WITH_HEADERS)

    def get_session_store(self, name: str) -> SessionStore[Any, Any] | Any:
        """Return a session store with plain aggregates, None if there is none of this name and kind."""
        store = self._store(name, StoreKind.SESSION)
        return SessionStoreFacade(store, AGGREGATION) if _keeps_headers(store) else store

    def get_session_store_with_headers(self, name: str) -> SessionStoreWithHeaders[Any, Any] | Any:
        """Return a session store with AggregationWithHeaders, None if there is none with headers of this name."""
        store = self._with_headers(name, StoreKind.SESSION)
        return store if store is None or _keeps_headers(store) else SessionStoreFacade(store, AGGREGATION_WITH_HEADERS)

    def _with_headers(self, name: str, kind: StoreKind) -> Any:
        store = self._store(name, kind)
        return store if store is not None and store.builder.headers_format else None

    def _store(self, name: str, *kinds: StoreKind) -> Any:
        store = self._opened().get(name)
        return for_readers(store) if store is not None and store.builder.kind in kinds else None

    def close(self) -> None:
        """Close processors and stores and remove their files. Outputs can still be read. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self.task.close()
            if self._global_task is not None:
                self._global_task.close()
            self._capture_outputs()
        finally:
            self._directory.cleanup()

    def _pipe(self, topic: str, key: bytes | None, value: bytes | None, timestamp: int, headers: Headers) -> None:
        if self._closed:
            raise PenstockError("The TopologyTestDriver is closed")
        source = self.task.compiled.source_matching(topic)
        global_source = self._global_source(topic)
        if source is None and global_source is None:
            raise TopologyError(f"Unknown topic: {topic}. Source topics are {', '.join(self._source_topics())}")
        record = SentRecord(topic, key, value, timestamp, headers)
        if source is not None:
            self._enqueue(source, record)
            self._complete_all_processable_work()
        if global_source is not None:
            self._process_global(global_source, record)

    @contextmanager
    def _piping_list(self) -> Iterator[None]:
        """Pipe records, of which batches may be made, then complete the last batches."""
        self._pipes_list = True
        try:
            yield
        finally:
            self._pipes_list = False
            if not self._closed:
                self._complete_all_processable_work()

    def _enqueue(self, source: CompiledSource, record: SentRecord) -> None:
        offset = self._queues.next_offset(source)
        self._queues.add(source, _message(record, offset))

    def _complete_all_processable_work(self) -> None:
        self._process_queued()
        while not self._pipes_list and self.task.batched_records:
            self.task.complete_batches()
            self._process_queued()

    def _process_queued(self) -> None:
        self._capture_outputs()
        try:
            for source, record in self._queues.drain():
                self.task.process(source, record)
                if self.task.batched_records >= self._batch_records:
                    self.task.complete_batches()
                self._capture_outputs()
        except BaseException:
            self._queues.clear()
            raise

    def _capture_outputs(self) -> None:
        """Keep produced records for reading, and pipe back those for a source or internal topic."""
        for record in self.task.take_produced():
            self._outputs.setdefault(record.topic, deque()).append(record)
            source = self.task.compiled.source_matching(record.topic)
            if source is not None and not self._closed:
                self._enqueue(source, record)
            global_source = self._global_source(record.topic)
            if global_source is not None and not self._closed:
                self._process_global(global_source, record)

    def _global_source(self, topic: str) -> CompiledSource | None:
        return None if self._global_task is None else self._global_task.compiled.source_of(topic)

    def _process_global(self, source: CompiledSource, record: SentRecord) -> None:
        offset = self._global_offsets.get(record.topic, 0)
        self._global_offsets[record.topic] = offset + 1
        source.process(_message(record, offset))
        if self._global_task is not None:
            self._global_task.commit()

    def _source_node(self, topic: str) -> SourceNode | None:
        topologies = [self.task.topology] + ([self._global_task.topology] if self._global_task else [])
        for node in (node for built in topologies for node in built.nodes.values()):
            if isinstance(node, SourceNode) and (
                topic in self._full_names(node) or (node.pattern is not None and node.pattern.fullmatch(topic))
            ):
                return node
        return None

    def _full_names(self, node: SourceNode) -> list[str]:
        internal = self.task.topology.repartition_topics
        return [self.task.internal_topic(topic) if topic in internal else topic for topic in node.topics]

    def _sink_node(self, topic: str) -> SinkNode | None:
        internal = self.task.topology.repartition_topics
        for node in self.task.topology.sinks:
            full = self.task.internal_topic(node.topic) if node.topic in internal else node.topic  # type: ignore[arg-type]
            if full == topic:
                return node
        return None

    def _source_topics(self) -> list[str]:
        global_topics = list(self._global_task.compiled.sources) if self._global_task else []
        nodes = self.task.topology.nodes.values()
        patterns = [node.pattern.pattern for node in nodes if isinstance(node, SourceNode) and node.pattern is not None]
        return [*self.task.compiled.sources, *patterns, *global_topics]


def _message(record: SentRecord, offset: int) -> RawRecord:
    timestamp = -1 if record.timestamp is None else record.timestamp
    headers = list(record.headers) if record.headers else None
    return RawRecord(record.topic, 0, offset, timestamp, record.key, record.value, headers)


def _keeps_headers(store: Any) -> bool:
    return store is not None and store.builder.keeps_headers
