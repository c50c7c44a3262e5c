"""Moves an application from the local engine to Spark and back: its stores, offsets and times. See docs/spark.md."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from penstock.statestore.directory.own_files import write_atomically
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.supervisor.offline.application_reset import ApplicationReset, Move
from penstock.supervisor.source.state_places import HANDED_OVER_FILE_NAME
from penstock.supervisor.source.topology_gate import FACTS_FILE_NAME, plain_facts, read_facts
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError, TopologyError
from penstock.topology.graph.processor_topology import ProcessorTopology
from penstock.topology.graph.topology_plan import Verdict, compare
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.topic_partition_metadata import UNKNOWN, TopicPartitionMetadata

from ..checkpoint.checkpoint import CheckpointError
from ..checkpoint.ownership import LOCAL, SPARK, require_engine
from ..queries.capabilities import report_capabilities
from ..session.spark_session import require_pyspark, session_for, stop_session
from ..session.spark_topics import make_topics_ready
from ..spark_streams import checkpoint_directory, checkpoint_lease, load_topology
from .engine_mark import Committed, is_spark, marked, marks_of, moves_to, new_mark, source_partitions
from .store_changelogs import check_portable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ..checkpoint.checkpoint_lease import CheckpointLease
    from .spark_side import Moved, SparkSide

#: Called with the progress: the last step, the number of finished parts, and their total.
Progress = Callable[[str, int, int], None]


BROKEN_OFF = "an earlier handover was interrupted near its end; the state is the local engine's"
KEPT = "Spark continues from the checkpoint; the offsets and state of the local run are dropped."
KEPT_BEFORE = "the application was Spark's with this checkpoint already."


@dataclass(frozen=True, slots=True)
class HandedOver:
    """The result of a handover. engine: the new owner of the application; note: a remark."""

    engine: str
    stores: Mapping[str, Moved] = field(default_factory=dict)
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    deleted_tasks: tuple[str, ...] = ()
    seconds: float = 0.0
    note: str = ""


class Handover:
    """One application between two engines. A context manager that closes its resources.

    topology: as for SparkStreams. spark: a session to use; by default one is created. checkpoint: see SparkStreams.
    Raises, before anything is changed, LockError or StreamsError if the application runs, TopologyError for a topology
    that cannot be moved, CheckpointError.
    """

    #: The owner of the state that to_local hands over; see pipeline.ownership.
    _engine = SPARK

    def __init__(
        self,
        topology: object,
        config: StreamsConfig,
        spark: SparkSession | None = None,
        *,
        master: str | None = None,
        checkpoint: str | None = None,
        packages: str | None = None,
        wait_seconds: float = 0.0,
        progress: Progress = lambda *_: None,
    ) -> None:
        require_pyspark()
        config.require("application.id", "bootstrap.servers")
        self._config = config
        self._application_id: str = config["application.id"]
        loaded = load_topology(topology, config)
        report_capabilities(loaded, config).check()
        if config["penstock.spark.buckets"] != 1:
            raise TopologyError("State is handed over by partition: penstock.spark.buckets has to be 1.")
        self._topology = loaded
        self._built: Sequence[ProcessorTopology] = loaded.internal_builder.build_subtopologies(config, frozenset())
        check_portable(self._built, config)
        self._checkpoint = checkpoint_directory(config, checkpoint)
        self._progress = progress
        self._directory = StateDirectory(config["state.dir"], self._application_id)
        self._marker = self._directory.path / HANDED_OVER_FILE_NAME
        self._group = ApplicationReset(config)
        self._own_session: SparkSession | None = None
        self._lease: CheckpointLease | None = None
        try:
            self._directory.lock_application()
            self._group.wait_until_empty(wait_seconds)
            self._spark = session_for(config, spark, master, packages)
            self._own_session = self._spark if spark is None else None
            self._lease = checkpoint_lease(self._spark, self._checkpoint)
            self._lease.acquire(str(self._directory.initialize_process_id()))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the clients, the lock and the created session."""
        self._group.close()
        if self._lease is not None:
            self._lease.release()
        self._directory.close()
        if self._own_session is not None:
            stop_session(self._own_session)
            self._own_session = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- to Spark

    def to_spark(self) -> HandedOver:
        """Hand over to Spark; see docs/spark.md for the effect of an interruption."""
        started = time.monotonic()
        side = self._side()
        committed = self._group.committed(source_partitions(self._built, self._config, self._counts))
        self._check_local(side, committed)
        self._check_facts()
        offsets: dict[str, dict[int, int]] = {}
        for partition, found in committed.items():
            if found is not None:
                offsets.setdefault(partition.topic, {})[partition.partition] = found.offset
        own = {topology.subtopology: self._own(side, topology, committed) for topology in side.stateful}
        mark = new_mark()
        with self._counting(len(side.stateful), "changelogs read") as done:
            moved = side.take_over(offsets, own, mark, done)
        self._group.move(marked(moves_to(committed), mark))  # from here on it belongs to Spark
        self._mark(side)
        return HandedOver(SPARK, moved, offsets, (), time.monotonic() - started)

    def keep_checkpoint(self) -> HandedOver:
        """Return an application that was started locally by mistake to Spark's checkpoint.

        Offsets and state of the local run are dropped. If it is interrupted, repeat it. Raises CheckpointError for a
        checkpoint without Spark's state, or of another topology.
        """
        started = time.monotonic()
        side = self._side()
        if side.owner is None:
            raise CheckpointError(f"The checkpoint {side.checkpoint} has no state for Spark to continue from.")
        require_engine(side.owner, SPARK, side.checkpoint)
        side.check_identity(self._topology)
        committed = self._group.committed(source_partitions(self._built, self._config, self._counts))
        if is_spark(side.owner, committed):
            self._mark(side)
            return HandedOver(SPARK, note=KEPT_BEFORE)
        self._refuse_other_checkpoint(side, committed)
        mark, offsets = new_mark(), side.offsets()
        side.keep(replace(side.owner, mark=mark))
        self._group.move(marked(self._moves(side, offsets, side.own()), mark))  # from here on it belongs to Spark
        self._mark(side)
        return HandedOver(SPARK, {}, offsets, (), time.monotonic() - started, KEPT)

    def _refuse_other_checkpoint(self, side: SparkSide, committed: Committed) -> None:
        if marks_of(committed):
            raise CheckpointError(
                f"The application was handed over to Spark with another checkpoint than {side.checkpoint}, says the "
                f"group {self._application_id}: give that one as --checkpoint."
            )

    def _check_local(self, side: SparkSide, committed: Committed) -> None:
        """Raise unless the application belongs to the local engine and has something to hand over."""
        owner = side.owner
        if owner is not None and owner.engine != LOCAL and (not owner.mark or is_spark(owner, committed)):
            raise CheckpointError(
                f"The checkpoint {side.checkpoint} has a state already that is Spark's. If that is this application's, "
                "run it there; after a local run by mistake repeat this command with --keep-checkpoint. Else use "
                "another --checkpoint."
            )
        self._refuse_other_checkpoint(side, committed)
        if not any(committed.values()):
            raise StreamsError(
                f"The group {self._application_id} has committed nothing: there is nothing to hand over. "
                "`penstock run --engine spark` starts from the beginning."
            )

    def _check_facts(self) -> None:
        """Refuse a topology that does not fit the local engine's state on this host."""
        file = self._directory.path / FACTS_FILE_NAME
        earlier = read_facts(file)
        if earlier is None:
            return
        plan = compare(earlier, plain_facts(self._topology, self._config))
        if plan.verdict is not Verdict.SAFE:
            raise TopologyError(
                f"The topology is not the one that the state is from, see `penstock plan`: {plan.summary()}. Run the "
                "new one locally first, or hand over the old one."
            )

    def _own(self, side: SparkSide, topology: ProcessorTopology, committed: Committed) -> dict[int, bytes]:
        """Return the times that the local engine has committed for the tasks of a sub-topology."""
        found = {}
        for task in range(side.tasks(topology)):
            times: dict[str, int] = {}
            metadata: dict[str, int] = {}
            for topic in side.source_topics(topology):
                at = committed.get(TopicPartition(topic, task))
                if at is not None:
                    known = TopicPartitionMetadata.decode(at.metadata)
                    times[topic] = known.partition_time
                    for key, value in known.processor_metadata.items():
                        metadata[key] = max(value, metadata.get(key, value))
            own = {
                "stream_time": max(times.values(), default=UNKNOWN),
                "processor_metadata": metadata,
                "partition_times": times,
                "due": {"stream_time": [], "wall_clock_time": []},
            }
            found[task] = json.dumps(own).encode()
        return found

    def _mark(self, side: SparkSide) -> None:
        """Make the local engine refuse to start on this host."""
        write_atomically(self._marker, json.dumps({"engine": self._engine, "checkpoint": side.checkpoint}) + "\n")

    # -- to the local engine

    def to_local(self) -> HandedOver:
        """Hand over to the local engine; see docs/spark.md for the effect of an interruption."""
        started = time.monotonic()
        side = self._side()
        owner = side.owner
        if owner is None or owner.engine == LOCAL:
            return self._still_local(side)
        require_engine(owner, self._engine, side.checkpoint)
        side.check_identity(self._topology)
        committed = self._group.committed(source_partitions(self._built, self._config, self._counts))
        if not is_spark(owner, committed):
            return self._end_earlier(side, committed)
        self._mark(side)  # from here on the changelogs are neither the old nor the new ones
        batches, offsets, own = side.last_batches(), side.offsets(), side.own()
        moves = self._moves(side, offsets, own)
        if owner.mark not in marks_of(committed):  # no handover to Spark, or the brokers have deleted its mark
            owner = replace(owner, mark=owner.mark or new_mark())
            side.keep(owner)
            self._group.move(marked(moves, owner.mark))  # other hosts must not start meanwhile
        with self._counting(len(side.stateful), "changelogs written") as done:
            moved = side.write_changelogs(own, done)
        if side.last_batches() != batches:
            raise StreamsError(
                f"The application runs on Spark: {side.checkpoint} has grown meanwhile. Stop it there, then repeat the "
                "command; Spark still has the application."
            )
        self._group.move(moves)  # from here on it belongs to the local engine
        return HandedOver(LOCAL, moved, offsets, self._end(side), time.monotonic() - started)

    def _end(self, side: SparkSide) -> tuple[str, ...]:
        """Do the remaining steps once the group has the offsets; return the tasks whose stale state was deleted."""
        tasks = self._directory.clean(older_than_ms=-1)
        side.give_up()
        self._marker.unlink(missing_ok=True)
        return tuple(map(str, tasks))

    def _end_earlier(self, side: SparkSide, committed: Committed) -> HandedOver:
        """Finish an earlier attempt whose last steps are missing."""
        self._refuse_other_checkpoint(side, committed)
        return HandedOver(LOCAL, deleted_tasks=self._end(side), note=BROKEN_OFF)

    def _still_local(self, side: SparkSide) -> HandedOver:
        """Finish an earlier attempt whose very last step is missing."""
        if not self._marker.exists():
            state = "has no state" if side.owner is None else "was handed over to the local engine already"
            raise CheckpointError(f"There is nothing to hand over: the checkpoint {side.checkpoint} {state}.")
        self._marker.unlink()
        return HandedOver(LOCAL, note=BROKEN_OFF)

    def _moves(
        self,
        side: SparkSide,
        offsets: Mapping[str, Mapping[int, int]],
        own: Mapping[int, Mapping[int, Mapping[str, Any]]],
    ) -> list[Move]:
        """Return the offsets for the group to commit, with the times of the tasks."""
        moves = []
        for topology in self._built:
            topics = side.source_topics(topology)
            for topic in topics:
                for partition, offset in sorted(offsets.get(topic, {}).items()):
                    known = own.get(topology.subtopology, {}).get(partition, {})
                    times = known.get("partition_times", {})
                    at = known.get("stream_time", UNKNOWN) if len(topics) == 1 else times.get(topic, UNKNOWN)
                    text = TopicPartitionMetadata(at, known.get("processor_metadata", {})).encode()
                    moves.append(Move(TopicPartition(topic, partition), None, offset, text))
        return moves

    # -- helpers

    def _side(self) -> SparkSide:
        from .spark_side import SparkSide

        topics = make_topics_ready(self._config, self._built, changelogs=True)
        self._counts = topics.counts
        return SparkSide(self._built, self._config, self._spark, self._checkpoint, topics)

    @contextmanager
    def _counting(self, total: int, what: str) -> Iterator[Callable[[int], None]]:
        done = 0

        def one_more(number: int) -> None:
            nonlocal done
            done += 1
            self._progress(f"{what}: sub-topology {number}", done, total)

        self._progress(what, 0, total)
        yield one_more
