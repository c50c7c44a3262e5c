"""A driver that commits only on request, and that can crash: uncommitted data is lost.

A crash ends the process and its memory. What remains are the topics, up to the last commit (later records belong to an
aborted transaction), and the stores on disk, if the machine still exists. ``Committed`` has exactly that. A new driver
that is given it restores its stores from the changelogs, as a stream thread does, and continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.statestore.cache.thread_cache import ThreadCache
from penstock.testing import TopologyTestDriver
from penstock.testing.driver_task import DriverTask, as_message
from penstock.topology.context.store_interfaces import StoreKind
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.graph.topology import Topology
from penstock.topology.records import RawRecord, SentRecord, TaskId
from penstock.topology.run.compiled import CompiledSource

#: Stores whose changelog topics are compacted: only the last record of each key needs to exist.
COMPACTED = frozenset(StoreKind) - {StoreKind.VERSIONED_KEY_VALUE}

Log = list[SentRecord]


@dataclass(slots=True)
class Committed:
    """The data that a commit leaves behind: topics by name, times, and the task's position."""

    produced: dict[str, Log] = field(default_factory=dict)
    consumed: dict[str, Log] = field(default_factory=dict)
    partition_times: dict[str, int] = field(default_factory=dict)
    stream_time_ms: int = -1
    wall_clock_ms: int = 0
    processor_metadata: dict[str, int] = field(default_factory=dict)


class CrashingTask(DriverTask):
    """Starts at the committed state, and commits only with commit_now(). compacts: restores from compacted
    changelogs.
    """

    def __init__(self, committed: Committed, compacts: bool, *arguments: Any) -> None:
        self._committed = committed
        self._compacts = compacts
        super().__init__(*arguments)

    def commit(self) -> None:
        """Do nothing: a stream thread does not commit after each record."""

    def commit_now(self) -> None:
        super().commit()

    def restore(self) -> None:
        self.processor_metadata.update(self._committed.processor_metadata)
        self.stream_time_ms = self._committed.stream_time_ms
        for name, topic in self.topology.changelog_topics.items():
            log, store = self._changelog(topic), self.stores[name]
            self.output.changelog_ends[name] = len(log)
            at_commit = store.committed_offset() in (None, len(log))
            assert at_commit or topic in self.topology.source_topics, f"{name} on disk is not what was committed"
            self._restore_store(store, log)

    def _changelog(self, topic: str) -> Log:
        if topic in self.topology.source_topics:
            return self._committed.consumed.get(topic, [])
        return self._committed.produced.get(self.internal_topic(topic), [])

    def _restore_store(self, store: Any, log: Log) -> None:
        """Restore in two batches the records that the store on disk does not have yet."""
        messages = [as_message(record, offset) for offset, record in enumerate(log)][store.committed_offset() or 0 :]
        if self._compacts and store.builder.kind in COMPACTED and not store.builder.retain_duplicates:
            messages = compacted(messages)
        middle = len(messages) // 2
        for batch in (messages[:middle], messages[middle:]):
            if batch:
                store.restore(batch, batch[-1].offset() + 1)

    def crash(self) -> None:
        """Release the handles; nothing is flushed or committed."""
        for store in self.stores.values():
            store.close()


def compacted(messages: Sequence[RawRecord]) -> list[RawRecord]:
    """Return the last message of each key, tombstones included."""
    last = {message.key(): message.offset() for message in messages}
    return [message for message in messages if last[message.key()] == message.offset()]


class CrashingDriver(TopologyTestDriver):
    """A TopologyTestDriver that starts with committed data; only the test calls commit() and crash().

    directory: of the stores, None for in memory. compacts: restore from compacted changelogs.
    """

    task: CrashingTask

    def __init__(
        self,
        topology: Topology,
        config: Mapping[str, Any],
        directory: Path | None,
        committed: Committed | None = None,
        compacts: bool = False,
    ) -> None:
        self._state = directory
        self._committed = committed or Committed()
        self._compacts = compacts
        self._consumed: dict[str, Log] = {topic: list(log) for topic, log in self._committed.consumed.items()}
        super().__init__(topology, config, self._committed.wall_clock_ms)
        self._outputs = {topic: deque(log) for topic, log in self._committed.produced.items()}
        for topic, source in self.task.compiled.sources.items():
            source.partition_time_ms = self._committed.partition_times.get(topic, -1)
            for _ in self._consumed.get(topic, ()):
                self.task.queues.next_offset(source)

    def _make_global_task(self, topology: Topology) -> DriverTask | None:
        """Global stores are restored by reading their topics from the beginning."""
        task = super()._make_global_task(topology)
        for topic, source in (task.compiled.sources if task else {}).items():
            for offset, record in enumerate(self._consumed.get(topic, ())):
                source.process(as_message(record, offset))
            self._global_offsets[topic, 0] = len(self._consumed.get(topic, ()))
        if task is not None:
            task.commit()
        return task

    def _make_task(self, task_id: TaskId, topology: ProcessorTopology) -> DriverTask:
        cache = ThreadCache(self._config["statestore.cache.max.bytes"])
        global_stores = {} if self._global_task is None else self._global_task.stores
        return CrashingTask(
            self._committed, self._compacts, topology, self._config, self._clock, self._state, cache, global_stores
        )

    def _enqueue(self, record: SentRecord) -> bool:
        is_read = super()._enqueue(record)
        if is_read:
            self._consumed.setdefault(record.topic, []).append(record)
        return is_read

    def _process_global(self, source: CompiledSource, record: SentRecord) -> None:
        self._consumed.setdefault(record.topic, []).append(record)
        super()._process_global(source, record)

    def commit(self) -> Committed:
        """Flush, process the records sent to internal topics, and repeat until there are none; return the committed
        data.
        """
        self.task.commit_now()
        while self.task.output.produced:
            self._complete_all_processable_work()
            self.task.commit_now()
        return Committed(
            self.topics(),
            {topic: list(log) for topic, log in self._consumed.items()},
            {topic: source.partition_time_ms for topic, source in self.task.compiled.sources.items()},
            self.task.stream_time_ms,
            self._clock.now_ms,
            dict(self.task.processor_metadata),
        )

    def topics(self) -> dict[str, Log]:
        """Return all produced records by topic, from this driver and the earlier ones."""
        return {topic: list(log) for topic, log in self._outputs.items()}

    def crash(self) -> None:
        """End without flushing or committing anything."""
        self._closed = True
        self.task.crash()
        if self._global_task is not None:
            for store in self._global_task.stores.values():
                store.close()
        self._directory.cleanup()


def rows(driver: TopologyTestDriver) -> dict[str, Any]:
    """Return the readable rows of each store."""
    return {name: _rows(store) for name, store in driver.get_all_state_stores().items()}


def _rows(store: Any) -> Any:
    kind = store.builder.kind
    if kind in (StoreKind.SUPPRESS_BUFFER, StoreKind.JOIN_BUFFER):
        return store.num_records(), store.buffer_size(), store.min_timestamp()
    if kind is StoreKind.VERSIONED_KEY_VALUE:
        return [store.rows.get(key) for key, _ in store.rows.scan(None, None) if key.startswith(b"\xfe")]
    if kind in (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW):
        # A cache shows rows that have expired below it; and a store with duplicates learns the time of a null value
        # only from its changelog. Both are so in Kafka Streams.
        expired = store.task.stream_time_ms - store.builder.retention_ms if store.builder.retain_duplicates else -1
        return [(key, row) for key, row in store.all() if key.start >= max(store.segments.visible_from, expired + 1)]
    if kind is StoreKind.SESSION:
        return [(key, row) for key, row in store.all() if key.end >= store.segments.visible_from]
    return list(store.all())
