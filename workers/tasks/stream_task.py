"""An active task: it processes the records of its input partitions (Kafka Streams: StreamTask)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from typing_extensions import override

from penstock.clients.log_context import listed
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.clients.writing.writer import Source
from penstock.statestore.cache.caching_store import CachingStore
from penstock.statestore.stores.custom_store import CustomStore
from penstock.topology.context.exception_handlers import SINK_PREFIX
from penstock.topology.context.punctuation_queue import PunctuationQueue, first_due_ms
from penstock.topology.context.task_context import Cancellable
from penstock.topology.errors import HandedOverError, LostOffsetsError, StreamsError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.processor_api import Punctuation
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position
from penstock.topology.records import Message, TaskId, TopicPartition
from penstock.topology.run.compiled import CompiledTopology, compile_topology

from ..group.assignment.subscription_info import LATEST_OFFSET
from ..metrics.function_metrics import FunctionMetrics
from ..metrics.node_samples import RECORDS, NodeSamples
from .branch_mark import check_branch
from .idle_inputs import IdleInputs
from .partition_consumer import PartitionConsumer
from .partition_group import PartitionGroup, ProcessRun
from .partition_offsets import OFFSET_END
from .record_sends import task_output
from .streams_producer import StreamsProducer
from .task import Task, TaskEnvironment
from .task_sinks import TaskSinks
from .task_state import TaskState
from .topic_marks import changed_topic, marks
from .topic_partition_metadata import SPARK_MARK, TOPIC_MARK, UNKNOWN, TopicPartitionMetadata

#: Returns the start offset of a partition without a committed offset: a number, OFFSET_BEGINNING or OFFSET_END.
StartOffset = Callable[[TopicPartition], int]
#: Returns the group's committed offsets: GroupMember.committed.
Committed = Callable[[Collection[TopicPartition]], Mapping[TopicPartition, OffsetAndMetadata | None]]


@dataclass(frozen=True, slots=True)
class TaskClients:
    """The clients of the thread that an active task uses."""

    consumer: PartitionConsumer
    producer: StreamsProducer
    committed: Committed
    start_offset: StartOffset


@dataclass(frozen=True, slots=True)
class TaskRun:
    """What a task has while it runs: the compiled sub-topology, the buffered input, and who observes them."""

    compiled: CompiledTopology
    group: PartitionGroup
    samples: NodeSamples
    functions: Sequence[FunctionMetrics]
    #: None unless each source has an idle timeout.
    idle: IdleInputs | None
    custom_stores: Sequence[CustomStore]


class StreamTask(Task):
    """Processes the records of one partition with one sub-topology."""

    kind = "task"

    def __init__(
        self,
        task_id: TaskId,
        input_partitions: Collection[TopicPartition],
        topology: ProcessorTopology,
        environment: TaskEnvironment,
        clients: TaskClients,
    ) -> None:
        written = {
            store: TopicPartition(environment.topics.full(topic), task_id.partition)
            for store, topic in topology.changelog_topics.items()
            if topic not in topology.source_topics
        }
        source = self.source if clients.producer.keeps_sources else None
        output = task_output(clients.producer, written, task_id, source)
        super().__init__(task_id, input_partitions, topology, environment, output)
        self._clients = clients
        self._repartition_topics = {environment.topics.full(name) for name in topology.repartition_topics}
        self.holds_removals = not clients.producer.transactional
        clients.producer.collector.register_writer(
            task_id, {*self._sink_topics(), *(p.topic for p in written.values())}
        )
        self._sinks = TaskSinks(topology, self)
        #: None before it runs, and when it is suspended.
        self.run: TaskRun | None = None
        self._stream_time_queue = PunctuationQueue()
        self._system_time_queue = PunctuationQueue()
        #: Units of work done and commits requested: so far, as of the commit in progress, as of the last commit.
        self._work = self._commit_requests = 0
        self._committing = self._committed_work = (0, 0)
        self._committed: dict[TopicPartition, int] = {}
        #: The next offsets of the commit in progress; the position of each store's committed rows.
        self._committing_offsets: Mapping[TopicPartition, int] = {}
        self._prepared: Mapping[TopicPartition, OffsetAndMetadata] = {}
        self._stored: dict[str, Position] = {}
        self._changelog_ids: Mapping[str, bytes] = {}
        self._dropped_reasons: set[tuple[str, str]] = set()

    def source(self) -> Source | None:
        """Return the source of the record that is written now, None in a punctuation; see Writer.produce."""
        return None if self.message is None else (self.task_id, self.message)

    def _sink_topics(self) -> set[str]:
        """Return the topics of sinks whose names are known before records arrive."""
        names = {sink.topic for sink in self.topology.sinks if isinstance(sink.topic, str)}
        internal = names & self.topology.repartition_topics.keys()
        prefix = self.config[SINK_PREFIX]
        return {self.environment.topics.full(name) for name in internal} | {prefix + name for name in names - internal}

    # -- life cycle

    def initialize_state_stores(self) -> bool:
        """Open the stores. Returns True if none of them has a changelog.

        With exactly-once, waits until no transaction with offsets of the input is open: records of a former owner must
        be committed or aborted before the ends of the changelogs are requested. Raises LostOffsetsError if the topics
        are others than at the last commit, before the state on disk is compared with its changelog.
        Raises LoadingError while a checkpoint is being loaded.
        """
        self._load_checkpoint()
        ids = self.environment.topic_ids() if self.topology.stores else {}
        if self._clients.producer.transactional or ids:
            self._check_topics(self._clients.committed(self.input_partitions), ids)
        self._open_stores(self.environment.cache)
        return not self.changelog_partitions

    def _check_topics(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None], ids: Mapping[str, bytes]
    ) -> None:
        check_branch(self.application_id, committed.values(), self.config)
        self._changelog_ids = {p.topic: ids[p.topic] for p in self.changelog_partitions if p.topic in ids}
        if self.config["penstock.lost.offsets"] == "accept":
            return
        changed = changed_topic(committed, [p.topic for p in self.changelog_partitions], ids)
        if changed is not None:
            raise LostOffsetsError(
                f"Task {self.task_id} has committed offsets of {listed(sorted(self.input_partitions))} in the group "
                f"{self.application_id}, but {changed}. Records would be counted twice, or be missing in the state. To "
                "start over, run `penstock reset MODULE:TOPOLOGY --execute`. To go on with what there is, run the "
                "application once with penstock.lost.offsets=accept"
            )

    @override
    def offset_sum(self) -> int | None:
        """As for any task, but LATEST_OFFSET while it runs: its stores have no lag."""
        running = self.state is TaskState.RUNNING and self.changelog_partitions
        return LATEST_OFFSET if running else super().offset_sum()

    def initialize_topology(self) -> None:
        """Compile the sub-topology, start its processors, and start to read the input at the committed offsets."""
        committed = self._clients.committed(self.input_partitions)
        check_branch(self.application_id, committed.values(), self.config)
        written = self._sinks.open(self.input_partitions, self.environment.topic_ids)
        self._read_from(committed, written)  # the last step that may fail because of a broker, and be retried
        times = self._initialize_processor_metadata(committed)
        compiled = compile_topology(self.topology, self)
        group = PartitionGroup(
            self.input_partitions,
            compiled.sources,
            self._clients.consumer.lag,
            self._count_enforced,
            self.config["max.task.idle.ms"],
            self.log,
            self._traced,
        )
        for partition, time_ms in times.items():
            group.set_partition_time(partition, time_ms)
        samples = NodeSamples(
            self.topology, self, self.environment.metrics, self.metrics.process, self.environment.time
        )
        functions = [FunctionMetrics(records, self.environment.metrics) for records in compiled.waiting.operators]
        idle: IdleInputs | None = None
        if self.topology.idle_timeout is not None:
            asks = self.environment.topic_times
            idle = IdleInputs(self.topology.idle_timeout, asks, self.wall_clock_ms(), self.log)
        custom_stores = [store for store in self.state_manager.stores.values() if isinstance(store, CustomStore)]
        self.run = TaskRun(compiled, group, samples, functions, idle, custom_stores)
        compiled.init()
        for store in self.state_manager.stores.values():
            if isinstance(store, CachingStore):
                store.follower = samples.of_changes
        self._states.transition_to(TaskState.RUNNING)
        if self._restorable_stores:
            self.environment.checkpoints.started(self.task_id)
        self.log.info("Restored and ready to run")

    def _count_enforced(self) -> None:
        self.metrics.enforced_processing += 1

    def _traced(self, partition: TopicPartition, process: ProcessRun, stamped: bool) -> ProcessRun:
        where = {"messaging.destination.name": partition.topic, "kafka.streams.task_id": str(self.task_id)}
        return self.environment.spans.of_batches(process, where, stamped)

    def _initialize_processor_metadata(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None]
    ) -> dict[TopicPartition, int]:
        """Restore the committed times: partition times (returned, in ms) and the operators' times."""
        times = {}
        for partition, offset in committed.items():
            if offset is None:
                self.log.debug("No committed offset for partition %s, therefore no timestamp can be found", partition)
                continue
            metadata = TopicPartitionMetadata.decode(offset.metadata)
            times[partition] = metadata.partition_time
            if SPARK_MARK in metadata.processor_metadata:
                raise HandedOverError(
                    f"The application was handed over to Spark, says the group {self.application_id}: offsets and "
                    "changelogs are old. Run it with --engine spark, or move it back with `penstock handover --to "
                    "local`; if it is a backfill that was broken off, run `penstock backfill` again"
                )
            for key, value in metadata.processor_metadata.items():
                if key.startswith(TOPIC_MARK):
                    continue  # checked before
                self.processor_metadata[key] = max(value, self.processor_metadata.get(key, value))
        self.stream_time_ms = max((self.stream_time_ms, *times.values()))
        return times

    def _read_from(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata | None], written: Mapping[TopicPartition, int]
    ) -> None:
        """Read at the committed offsets, or where a sink says that its rows end: only that is certain."""
        start = self._clients.start_offset
        consumer = self._clients.consumer
        starts = {p: start(p) if at is None else at.offset for p, at in sorted(committed.items()) if p not in written}
        starts |= written
        if not any(committed.values()) and any(offset != OFFSET_END for offset in starts.values()):
            self._begin_without_offsets(starts.keys())
        consumer.assign(starts)
        consumer.set_epochs({p: at.leader_epoch for p, at in committed.items() if at is not None and p not in written})
        # Start offsets need not be committed: nothing was processed yet.
        self._committed = {p: offset for p in committed if (offset := consumer.position(p)) is not None}
        self._stored = dict.fromkeys(self.state_manager.stores, Position.before(self._committed))

    def _begin_without_offsets(self, inputs: Collection[TopicPartition]) -> None:
        """Refuse to process records again that the state contains already: raise LostOffsetsError.

        With at-least-once a task may also have crashed before its first commit. Its changelog then has records,
        although no store has been committed. So rows that may come from there are only reported, and processing
        continues. Kafka Streams reports nothing.
        """
        filled = self.state_manager.stores_with_rows()
        if not filled or self.config["penstock.lost.offsets"] == "accept":
            return
        what = (
            f"Task {self.task_id} has state in {listed(sorted(filled))}, but the group {self.application_id} has no "
            f"committed offset of its input {listed(sorted(inputs))}"
        )
        if self._clients.producer.transactional or any(filled.values()):
            raise LostOffsetsError(
                f"{what}: they have expired, or the group or the topics were deleted. The records would be processed "
                "again, on top of the state that contains them. To start over, run `penstock reset MODULE:TOPOLOGY "
                "--execute`. If the input has only new records, run the application once with "
                "penstock.lost.offsets=accept"
            )
        self.log.warning(
            "%s. If the application did not crash before its first commit, these offsets have expired, or the group or "
            "the topics were deleted: records that the state contains are processed again",
            what,
        )

    def suspend(self) -> None:
        """Stop reading and processing, and close the users' processors; buffered records will be read again."""
        if self.state is TaskState.SUSPENDED:
            self.log.info("Skip suspending since state is %s", self.state.name)
            return
        before = self.state
        self.metrics.leave(None if self.run is None else self.run.group, self.environment.time.now_ms)
        try:
            self._clients.consumer.unassign(self.input_partitions)
            if self.run is not None:
                self.run.compiled.waiting.cancel()
                self.run.compiled.close()
        finally:
            self.run = None
            self._sinks.close()
            self._stream_time_queue.close()
            self._system_time_queue.close()
            self.log.info("Suspended from %s", before.name)
            self._states.transition_to(TaskState.SUSPENDED)

    @property
    def _running(self) -> TaskRun:
        if self.run is None:
            raise StreamsError(f"{self.log.prefix}Illegal state {self.state.name}: the task does not run")
        return self.run

    # -- records

    def add_records(self, partition: TopicPartition, messages: Sequence[Message]) -> None:
        """Buffer records."""
        self._running.group.add_raw_records(partition, messages)

    def full_partitions(self, limit: int) -> list[TopicPartition]:
        """Return the partitions with more than limit buffered records, which should be paused."""
        group = self._running.group
        return [partition for partition in group.partitions if group.num_buffered(partition) > limit]

    @property
    def has_work(self) -> bool:
        """True if process() has something to do; of many tasks few do at any time."""
        run = self._running
        return not run.group.is_idle or len(run.compiled.waiting) > 0

    def process(self, max_records: int) -> int:
        """Process up to max_records buffered records, unless the task must wait for others. Returns how many.

        Completed async calls make room only once their results are forwarded: see ``pass_on``.

        Raises StreamsError naming operator, topic, partition and offset of the record that failed.
        """
        run, time = self._running, self.environment.time
        group, now_ms = run.group, time.now_ms
        max_records = max(min(max_records, run.compiled.waiting.room(max_records)), 0)
        head = group.head()
        began_ms = time.read_ms() if head is not None else now_ms
        left = max_records
        if head is not None and run.samples.due(now_ms):
            left -= self._process_followed(run, head[0].topic, min(left, RECORDS))
        while left > 0 and group.ready_to_process(now_ms):
            processed = group.process_next(left)
            if processed is None:
                break
            left -= processed.records
        if left < max_records and head is not None:
            self._work += 1
            for store in run.custom_stores:
                store.limit_uncommitted()
            if run.idle is not None:
                run.idle.record_came(self.wall_clock_ms())
            ended_ms = time.read_ms()
            self.metrics.batch(head, time.wall_clock_ms, max_records - left, ended_ms - began_ms, ended_ms)
        return max_records - left

    def pass_on(self) -> int:
        """Forward the records whose async calls have completed. Returns how many."""
        passed = self._running.compiled.waiting.advance()
        if passed:
            self._work += 1
        return passed

    @property
    def records_waiting(self) -> int:
        """Number of records that wait for async functions or batches."""
        return 0 if self.run is None else len(self.run.compiled.waiting)

    @property
    def batch_due_ms(self) -> int | None:
        """The wall-clock time at which a waiting batch must be processed, in ms; None without one."""
        return None if self.run is None else self.run.compiled.waiting.due_ms()

    def _process_followed(self, run: TaskRun, topic: str, limit: int) -> int:
        """Process some records as a sample for the nodes' metrics."""
        if not run.group.ready_to_process(self.environment.time.now_ms):
            return 0

        def process() -> int:
            processed = run.group.process_next(limit)
            return 0 if processed is None else processed.records

        source = run.compiled.source_of(topic)
        return run.samples.of_records(process, source.name if source is not None else topic)

    @override
    def look(self, restored: int) -> None:
        """Update the metrics, including those of queues and functions."""
        run, now_ms = self.run, self.environment.time.now_ms
        self.metrics.look(None if run is None else run.group, restored, now_ms)
        for function in () if run is None else run.functions:
            function.look(now_ms)

    def load(self) -> int | None:
        """Return the share of the thread's time that this task uses, in thousandths; None if it processed nothing."""
        return self.metrics.load(self.environment.time.now_ms)

    def num_buffered(self, partition: TopicPartition | None = None) -> int:
        """Return the number of buffered records, of one partition or of all."""
        run = self.run
        if run is None or (partition is not None and partition not in run.group.partitions):
            return 0
        return run.group.num_buffered(partition)

    def fetch_positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition without buffered records, which waits for the broker."""
        group, position = self._running.group, self._clients.consumer.position
        empty = {p: position(p) for p in group.partitions if not group.num_buffered(p)}
        return {partition: offset for partition, offset in empty.items() if offset is not None}

    # -- punctuation

    @override
    def schedule(
        self, interval_ms: int, punctuation: Punctuation, callback: Callable[[int], None], start_ms: int | None = None
    ) -> Cancellable:
        """Schedule it; see punctuation_queue.first_due_ms."""
        if punctuation is Punctuation.STREAM_TIME:
            queue, now_ms = self._stream_time_queue, self.stream_time_ms
        else:
            queue, now_ms = self._system_time_queue, self.wall_clock_ms()
        return queue.schedule(first_due_ms(punctuation, interval_ms, now_ms, start_ms), interval_ms, callback)

    @property
    def has_punctuations(self) -> bool:
        """Whether any punctuation is scheduled, or time matters in another way."""
        idles = self.run is not None and self.run.idle is not None
        return idles or bool(self._stream_time_queue or self._system_time_queue or self.timers)

    def maybe_punctuate_stream_time(self) -> int:
        """Run due punctuations by stream time, which only records advance. Returns how many ran."""
        self._advance_if_idle()
        stream_time_ms = self.stream_time_ms
        if self.run is not None and (passed_on_ms := self.run.compiled.waiting.passed_on_ms()) is not None:
            stream_time_ms = passed_on_ms  # not before the waiting records that it must follow
        if stream_time_ms == UNKNOWN:
            return 0
        return self._punctuate(self._stream_time_queue, Punctuation.STREAM_TIME, stream_time_ms)

    def _advance_if_idle(self) -> None:
        """Advance stream time without records, if the task has none and its sources have an idle timeout."""
        run, now_ms = self.run, self.wall_clock_ms()
        if run is None or run.idle is None or not run.idle.is_due(now_ms):
            return
        positions = self.fetch_positions()
        if len(positions) < len(run.group.partitions) or run.compiled.waiting:
            run.idle.record_came(now_ms)
            return
        time_ms = run.idle.advanced(positions, self.stream_time_ms, now_ms)
        if time_ms > self.stream_time_ms:
            self._flush(run.compiled)  # changes in caches precede the windows' end: suppress() would send them after it
            run.compiled.advance_time(time_ms)
            self._work += 1
            for partition in run.group.partitions:
                run.group.set_partition_time(partition, time_ms)

    def maybe_punctuate_system_time(self) -> int:
        """Run due punctuations by wall clock. Returns how many ran."""
        return self._punctuate(self._system_time_queue, Punctuation.WALL_CLOCK_TIME, self.wall_clock_ms())

    def _punctuate(self, queue: PunctuationQueue, clock: Punctuation, now_ms: int) -> int:
        began_ms = self.environment.time.read_ms()
        fired = self.timers.fire(clock, now_ms) + queue.maybe_punctuate(now_ms)
        if fired:
            self._work += 1
            ended_ms = self.environment.time.read_ms()
            self.metrics.punctuate.record((ended_ms - began_ms) / fired, ended_ms, fired)
        return fired

    # -- commit: see committer.py for the order

    @override
    def request_commit(self) -> None:
        self._commit_requests += 1

    @property
    def commit_requested(self) -> bool:
        """Whether the user's code requested a commit since the last one."""
        return self._commit_requests != self._committed_work[1]

    @property
    def commit_needed(self) -> bool:
        """Whether there was work since the last commit, positions moved (past transaction markers), or changelog
        offsets are due.
        """
        if self._work != self._committed_work[0] or self.checkpoint_needed(enforced=False):
            return True
        return self.state is TaskState.RUNNING and any(
            offset != self._committed.get(partition) for partition, offset in self._next_offsets().items()
        )

    @property
    def checkpoint_due(self) -> bool:
        """Whether the next commit should also store the changelog offsets."""
        return self.state_manager.checkpoint_due(self.environment.time.now_ms) or self._upload_due

    def checkpoint_needed(self, enforced: bool) -> bool:
        """Whether a commit is needed only to store the changelog offsets, e.g. for a checkpoint in object storage."""
        return self.state_manager.checkpoint_needed(self.environment.time.now_ms, enforced) or self._upload_due

    @property
    def _upload_due(self) -> bool:
        return self.environment.checkpoints.is_due(self.task_id, self._work)

    def prepare_commit(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Flush the stores, so that all records resulting from the input so far have been passed to the producer.

        Returns the offsets to commit: the next record to read of each partition. Unchanged offsets are included,
        because only a commit with offsets fails for a process that has lost its tasks: punctuations must not be
        committed then, either.
        """
        self._flush(self._running.compiled)
        self._committing = self._work, self._commit_requests
        offsets = self._committing_offsets = self._next_offsets()
        metadata = self.processor_metadata | self._topic_marks(offsets)
        prepared = self._prepared = {
            partition: OffsetAndMetadata(
                offset,
                TopicPartitionMetadata(self._partition_time(partition), metadata).encode(),
                self._clients.consumer.epoch_before(partition, offset),
            )
            for partition, offset in offsets.items()
        }
        return dict(prepared)

    def _flush(self, compiled: CompiledTopology) -> None:
        """Forward the records that wait for functions, and the changes in the stores' caches."""
        waiting = compiled.waiting
        waiting.drain()
        self.state_manager.flush(compiled.errors.raise_flush_failure)
        while not waiting.settled():  # records forwarded by the caches
            waiting.drain()
            self.state_manager.flush(compiled.errors.raise_flush_failure)

    def _topic_marks(self, offsets: Collection[TopicPartition]) -> dict[str, int]:
        if not self.topology.stores:
            return {}
        read = {p.topic: self._clients.consumer.topic_id(p) for p in offsets}
        return marks({**self._changelog_ids, **{topic: found for topic, found in read.items() if found is not None}})

    def commit_stores(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:
        """Write the stores to disk, with the known offsets of their changelogs."""
        written = self.state_manager.commit(changelog_offsets, self.environment.time.now_ms)
        self._stored |= dict.fromkeys(written, Position.before(self._committing_offsets))
        checkpoints = self.environment.checkpoints
        work, _ = self._committing
        if checkpoints.is_due(self.task_id, work) and changelog_offsets.keys() >= set(self._restorable_stores.values()):
            checkpoints.take(
                self._restorable(), self.state_manager.stores, self._prepared, self.environment.topic_ids(), work
            )

    def post_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Note that these offsets are committed, with all work done before prepare_commit()."""
        own = {partition: at.offset for partition, at in offsets.items() if partition in self.input_partitions}
        self._committed |= own
        self._committed_work = self._committing
        self.metrics.commit.record(1, self.environment.time.now_ms)
        if self.run is not None and not self.commit_requested:
            self.run.compiled.waiting.committed(own)

    @override
    def position(self, store: str, isolation: IsolationLevel) -> Position | None:
        """Return it; None while the task does not run, because its rows may be behind or ahead of the input."""
        if self.state is not TaskState.RUNNING:
            return None
        if isolation is IsolationLevel.READ_COMMITTED:
            return self._stored.get(store)
        return Position.before(self._next_offsets())

    @override
    def changelog_offset(self, store: str) -> int | None:
        if self.state is not TaskState.RUNNING:
            return None
        offset = self.state_manager.offset_of_rows(store, self.environment.time.now_ms)
        if offset is None:
            self.request_commit()
        return offset

    def source_changelog_offsets(self) -> dict[TopicPartition, int]:
        """Return the positions of input partitions that serve as changelogs."""
        return {p: offset for p, offset in self._next_offsets().items() if p in self.state_manager.source_changelogs}

    def committed_source_changelog_offsets(self) -> dict[TopicPartition, int]:
        """Return the committed offsets of input partitions that serve as changelogs."""
        return {p: offset for p, offset in self._committed.items() if p in self.state_manager.source_changelogs}

    def purgeable_offsets(self) -> dict[TopicPartition, int]:
        """Return the committed offsets of partitions of repartition topics."""
        return {p: offset for p, offset in self._committed.items() if p.topic in self._repartition_topics}

    def _next_offsets(self) -> dict[TopicPartition, int]:
        """Return the offset of the next record to process of each partition that has been read."""
        run, position = self._running, self._clients.consumer.position
        group = run.group
        heads = {p: offset if (offset := group.head_offset(p)) is not None else position(p) for p in group.partitions}
        heads |= run.compiled.waiting.offsets()
        return {partition: offset for partition, offset in heads.items() if offset is not None}

    def _partition_time(self, partition: TopicPartition) -> int:
        run = self._running
        group = run.group
        time_ms = self.stream_time_ms if len(group.partitions) == 1 else group.partition_time(partition)
        oldest_ms = run.compiled.waiting.stream_time_ms()
        return time_ms if oldest_ms is None else min(time_ms, oldest_ms)

    # -- the rest of TaskContext

    @override
    def partition_count(self, topic: str) -> int:
        return self._clients.producer.partition_count(topic)

    @override
    def record_dropped(self, node: str, reason: str) -> None:
        """Count a dropped record; the first one of its kind is logged with its source."""
        self.metrics.dropped_records += 1
        if (node, reason) in self._dropped_reasons:
            return
        self._dropped_reasons.add((node, reason))
        message = self.message
        where = "" if message is None else f", first {message.topic()}-{message.partition()} offset {message.offset()}"
        self.log.warning("Skipping records at %s: %s%s", node, reason, where)

    @override
    def record_dead_letter(self, node: str, error: Exception, topic: str) -> None:
        self.metrics.dead_letter(node, error, topic)
        if self.run is not None:
            self.run.compiled.waiting.dead_letter_sent()

    def describe(self, indent: str = "") -> str:
        """Return a description of several lines."""
        functions = () if self.run is None else self.run.functions
        described = "".join(f"{indent}\tFunction {function.describe()}\n" for function in functions)
        return super().describe(indent) + f"{indent}\tBuffered records {self.num_buffered()}\n" + described
