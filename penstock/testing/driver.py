"""TopologyTestDriver: runs a topology on records that a test pipes in, without a broker."""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
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
from penstock.topology.graph.processor_topology import ProcessorTopology, SinkNode, SourceNode
from penstock.topology.graph.subtopologies import build_whole_topology
from penstock.topology.graph.topology import Topology
from penstock.topology.processor_api import S
from penstock.topology.records import SentRecord, TaskId
from penstock.topology.run.compiled import CompiledSource
from penstock.topology.serdes.serdes import Serde, SerdeLike, Serdes, resolve_serde
from penstock.topology.type_variables import K, V
from penstock.workers.metrics.sensors import Metric

from .driver_partitions import DriverPartitions, no_such_partition
from .driver_task import TASK_ID, Clock, DriverTask, as_message
from .driver_topics import TestInputTopic, TestOutputTopic
from .store_views import (
    AGGREGATION,
    AGGREGATION_WITH_HEADERS,
    PLAIN,
    PLAIN_OF_HEADERS,
    TIMESTAMPED_OF_HEADERS,
    WITH_HEADERS,
)

#: Emit results immediately instead of at most once per second of wall clock, as in Kafka Streams' driver.
EMIT_AT_ONCE: Mapping[str, object] = {
    "__emit.interval.ms.kstreams.outer.join.spurious.results.fix__": 0,
    "__emit.interval.ms.kstreams.windowed.aggregation__": 0,
}
_DEFAULTS: Mapping[str, object] = {
    "application.id": "topology-test-driver",
    "bootstrap.servers": "localhost:0",
    **EMIT_AT_ONCE,
}


class TopologyTestDriver:
    """Runs a topology on records that a test pipes in, in the calling thread, record by record.

    config: as for KafkaStreams, but application.id and bootstrap.servers are optional. initial_wall_clock_ms:
    milliseconds since the epoch; the wall clock moves only by advance_wall_clock_time. Stores are real, in a
    temporary directory that close() removes; the driver commits after each record. All sub-topologies run as one task
    with one partition per topic, records for internal topics are looped back.

    partitions: the number of partitions of the user's topics, or of each by name, where others have one (KIP-1238).
    Then there is a task for each sub-topology and partition, and each record goes to the partition that its key, a
    partitioner or pipe_input chooses; internal topics and co-partitioning are as in an application.

    batch_records: the number of records that map_batches collects at most. A batch ends with the call that piped its
    records in, so only the records of a list, and those that follow from one record, can be in one batch. Its results
    should be the same for any number.

    Raises ConfigError for a wrong configuration, TopologyError for a topology that cannot be built, or not with these
    partitions, ValueError for less than one record or partition.
    """

    __test__ = False  # not a test class for pytest

    def __init__(
        self,
        topology: Topology,
        config: StreamsConfig | Mapping[str, object] | None = None,
        initial_wall_clock_ms: int = 0,
        *,
        batch_records: int = 512,
        partitions: int | Mapping[str, int] | None = None,
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
        self._global_offsets = Counter[tuple[str, int]]()
        self._closed = False
        try:
            self._partitions = None if partitions is None else DriverPartitions(topology, self._config, partitions)
            self._global_task = self._make_global_task(topology)
            self._tasks = self._make_tasks(topology)
            if self._partitions is None:
                #: The only task; for Penstock's own tests.
                self.task = self._tasks[0]
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

    def _make_tasks(self, topology: Topology) -> list[DriverTask]:
        if self._partitions is None:
            return [self._make_task(TASK_ID, build_whole_topology(topology.internal_builder, self._config))]
        tasks = [self._make_task(*planned) for planned in self._partitions.tasks()]
        for task in tasks:
            task.others = [each for each in tasks if each.topology is task.topology and each is not task]
        return tasks

    def _make_task(self, task_id: TaskId, topology: ProcessorTopology) -> DriverTask:
        global_stores = {} if self._global_task is None else self._global_task.stores
        directory, cache = Path(self._directory.name, str(task_id)), self._new_cache()
        count = self._partition_count
        return DriverTask(topology, self._config, self._clock, directory, cache, global_stores, task_id, count)

    def _partition_count(self, topic: str) -> int:
        return 1 if self._partitions is None else self._partitions.count(topic)

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
    ) -> TestOutputTopic: ...
    def create_output_topic(
        self, name: str, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> TestOutputTopic:
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
        for task in self._tasks:
            task.punctuate_wall_clock()
        self._complete_all_processable_work()

    def produced_topic_names(self) -> set[str]:
        """Return all topics that records were written to, internal ones included."""
        return set(self._outputs)

    def dropped_records(self) -> dict[tuple[str, str], int]:
        """Return how many records were dropped, by node and reason, those of global stores too."""
        return dict(sum((task.dropped for task in self._all_tasks()), Counter()))

    def metrics(self) -> list[Metric]:
        """Return the metrics that processors have added (``ProcessorContext.metrics``)."""
        return [metric for task in self._all_tasks() for metric in task.streams_metrics.metrics()]

    @overload
    def get_state_store(self, name: str, partition: int | None = None) -> Any: ...
    @overload
    def get_state_store(self, name: StoreBuilder[S], partition: int | None = None) -> S: ...
    def get_state_store(self, name: str | StoreBuilder, partition: int | None = None) -> Any:
        """Return a store unchanged, by its name or its StoreBuilder; None if there is none of this name.

        partition: with partitions=, a store has a part for each of its tasks. This and all following methods raise
        ValueError for a partition that a store does not have, and for None if it has several; global stores have none.
        """
        found = self._opened(name.name if isinstance(name, StoreBuilder) else name, partition)
        return None if found is None else for_readers(found.exposed)

    def get_all_state_stores(self, partition: int | None = None) -> dict[str, Any]:
        """Return all stores of a partition by name, global ones included."""
        tasks = [task for task in self._tasks if partition is None or task.task_id.partition == partition]
        names = dict.fromkeys(name for task in (*self._all_tasks()[len(self._tasks) :], *tasks) for name in task.stores)
        return {name: self.get_state_store(name, partition) for name in names}

    def _all_tasks(self) -> list[DriverTask]:
        return self._tasks if self._global_task is None else [*self._tasks, self._global_task]

    def _opened(self, name: str, partition: int | None) -> Any:
        """Return the open store of a task, or a global one; None if there is none of this name."""
        if self._global_task is not None and name in self._global_task.stores:
            return self._global_task.stores[name]
        found = {task.task_id.partition: task.stores[name] for task in self._tasks if name in task.stores}
        if not found or (partition is None and len(found) == 1):
            return next(iter(found.values()), None)
        if partition not in found:
            raise ValueError(f"Store {name} has the partitions 0 to {len(found) - 1}, got partition={partition}")
        return found[partition]

    def get_key_value_store(self, name: str, partition: int | None = None) -> KeyValueStore | Any:
        """Return a key-value store with plain values, None if there is none of this name and kind."""
        store = self._store(name, partition, StoreKind.KEY_VALUE, StoreKind.TIMESTAMPED_KEY_VALUE)
        if store is None or store.builder.kind is StoreKind.KEY_VALUE:
            return store
        return KeyValueStoreFacade(store, PLAIN_OF_HEADERS if store.builder.keeps_headers else PLAIN)

    def get_timestamped_key_value_store(
        self, name: str, partition: int | None = None
    ) -> TimestampedKeyValueStore | Any:
        """Return a key-value store with ValueAndTimestamp, None if there is none of this name and kind."""
        store = self._store(name, partition, StoreKind.TIMESTAMPED_KEY_VALUE)
        return KeyValueStoreFacade(store, TIMESTAMPED_OF_HEADERS) if _keeps_headers(store) else store

    def get_timestamped_key_value_store_with_headers(
        self, name: str, partition: int | None = None
    ) -> TimestampedKeyValueStoreWithHeaders | Any:
        """Return a key-value store with ValueTimestampHeaders, None if there is none with headers of this name."""
        store = self._with_headers(name, partition, StoreKind.TIMESTAMPED_KEY_VALUE)
        return store if store is None or _keeps_headers(store) else KeyValueStoreFacade(store, WITH_HEADERS)

    def get_versioned_key_value_store(self, name: str, partition: int | None = None) -> VersionedKeyValueStore | Any:
        """Return a versioned store, None if there is none of this name and kind."""
        return self._store(name, partition, StoreKind.VERSIONED_KEY_VALUE)

    def get_window_store(self, name: str, partition: int | None = None) -> WindowStore | Any:
        """Return a window store with plain values, None if there is none of this name and kind."""
        store = self._store(name, partition, StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW)
        if store is None or store.builder.kind is StoreKind.WINDOW:
            return store
        return WindowStoreFacade(store, PLAIN_OF_HEADERS if store.builder.keeps_headers else PLAIN)

    def get_timestamped_window_store(self, name: str, partition: int | None = None) -> TimestampedWindowStore | Any:
        """Return a window store with ValueAndTimestamp, None if there is none of this name and kind."""
        store = self._store(name, partition, StoreKind.TIMESTAMPED_WINDOW)
        return WindowStoreFacade(store, TIMESTAMPED_OF_HEADERS) if _keeps_headers(store) else store

    def get_timestamped_window_store_with_headers(
        self, name: str, partition: int | None = None
    ) -> TimestampedWindowStoreWithHeaders | Any:
        """Return a window store with ValueTimestampHeaders, None if there is none with headers of this name."""
        store = self._with_headers(name, partition, StoreKind.TIMESTAMPED_WINDOW)
        return store if store is None or _keeps_headers(store) else WindowStoreFacade(store, WITH_HEADERS)

    def get_session_store(self, name: str, partition: int | None = None) -> SessionStore | Any:
        """Return a session store with plain aggregates, None if there is none of this name and kind."""
        store = self._store(name, partition, StoreKind.SESSION)
        return SessionStoreFacade(store, AGGREGATION) if _keeps_headers(store) else store

    def get_session_store_with_headers(self, name: str, partition: int | None = None) -> SessionStoreWithHeaders | Any:
        """Return a session store with AggregationWithHeaders, None if there is none with headers of this name."""
        store = self._with_headers(name, partition, StoreKind.SESSION)
        return store if store is None or _keeps_headers(store) else SessionStoreFacade(store, AGGREGATION_WITH_HEADERS)

    def _with_headers(self, name: str, partition: int | None, kind: StoreKind) -> Any:
        store = self._store(name, partition, kind)
        return store if store is not None and store.builder.headers_format else None

    def _store(self, name: str, partition: int | None, *kinds: StoreKind) -> Any:
        store = self._opened(name, partition)
        return for_readers(store) if store is not None and store.builder.kind in kinds else None

    def close(self) -> None:
        """Close processors and stores and remove their files. Outputs can still be read. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        with ExitStack() as closing:
            closing.callback(self._directory.cleanup)
            closing.callback(self._capture_outputs)
            for task in reversed(self._all_tasks()):
                closing.callback(task.close)

    def _pipe(self, record: SentRecord) -> None:
        if self._closed:
            raise PenstockError("The TopologyTestDriver is closed")
        if self._partitions is None and record.partition not in (None, 0):
            raise no_such_partition(record, 1)
        placed = self._placed(record)
        global_source = self._global_source(record.topic)
        if self._enqueue(placed):
            self._complete_all_processable_work()
        elif global_source is None:
            raise TopologyError(f"Unknown topic: {record.topic}. Source topics are {', '.join(self._source_topics())}")
        if global_source is not None:
            self._process_global(global_source, placed)

    def _placed(self, record: SentRecord) -> SentRecord:
        """Return a record with the partition that it goes to. With a single task there are no partitions."""
        return record if self._partitions is None else self._partitions.place(record)

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

    def _enqueue(self, record: SentRecord) -> bool:
        """Let a record wait in the task that reads its partition; return whether there is one."""
        for task in self._tasks:
            if self._partitions is None or task.task_id.partition == record.partition:
                source = task.compiled.source_matching(record.topic)
                if source is not None:
                    task.enqueue(source, record)
                    return True
        return False

    def _complete_all_processable_work(self) -> None:
        self._process_queued()
        while not self._pipes_list and any(task.batched_records for task in self._tasks):
            for task in self._tasks:
                if task.batched_records:
                    task.complete_batches()
            self._process_queued()

    def _process_queued(self) -> None:
        self._capture_outputs()
        try:
            while any(self._process_queued_of(task) for task in self._tasks):
                pass  # what one task has written may wait in another now
        except BaseException:
            for task in self._tasks:
                task.queues.clear()
            raise

    def _process_queued_of(self, task: DriverTask) -> int:
        """Process the records that wait in a task, and those that follow from them; return how many these were."""
        processed = 0
        for source, record in task.queues.drain():
            task.process(source, record)
            if task.batched_records >= self._batch_records:
                task.complete_batches()
            self._capture_outputs()
            processed += 1
        return processed

    def _capture_outputs(self) -> None:
        """Keep produced records for reading, and pipe back those for a source or internal topic."""
        for record in [record for task in self._tasks for record in task.take_produced()]:
            placed = self._placed(record)
            self._outputs.setdefault(record.topic, deque()).append(placed)
            if self._closed:
                continue
            self._enqueue(placed)
            global_source = self._global_source(record.topic)
            if global_source is not None:
                self._process_global(global_source, placed)

    def _global_source(self, topic: str) -> CompiledSource | None:
        return None if self._global_task is None else self._global_task.compiled.source_of(topic)

    def _process_global(self, source: CompiledSource, record: SentRecord) -> None:
        place = record.topic, record.partition or 0
        source.process(as_message(record, self._global_offsets[place]))
        self._global_offsets[place] += 1
        if self._global_task is not None:
            self._global_task.commit()

    def _source_node(self, topic: str) -> SourceNode | None:
        for task in self._all_tasks():
            for node in _sources(task.topology):
                if topic in _full_names(task, node) or (node.pattern is not None and node.pattern.fullmatch(topic)):
                    return node
        return None

    def _sink_node(self, topic: str) -> SinkNode | None:
        for task in self._tasks:
            for node in task.topology.sinks:
                if isinstance(node.topic, str) and _full_name(task, node.topic) == topic:
                    return node
        return None

    def _source_topics(self) -> list[str]:
        nodes = [node for task in self._tasks for node in _sources(task.topology)]
        patterns = [node.pattern.pattern for node in nodes if node.pattern is not None]
        global_topics = list(self._global_task.compiled.sources) if self._global_task else []
        topics = [topic for task in self._tasks for topic in task.compiled.sources]
        return list(dict.fromkeys([*topics, *patterns, *global_topics]))


def _sources(topology: ProcessorTopology) -> list[SourceNode]:
    return [node for node in topology.nodes.values() if isinstance(node, SourceNode)]


def _full_names(task: DriverTask, node: SourceNode) -> list[str]:
    return [_full_name(task, topic) for topic in node.topics]


def _full_name(task: DriverTask, topic: str) -> str:
    return task.internal_topic(topic) if topic in task.topology.repartition_topics else topic


def _keeps_headers(store: Any) -> bool:
    return store is not None and store.builder.keeps_headers
