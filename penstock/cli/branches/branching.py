"""Makes a branch of a running application; see docs/branches.md and docs/decisions/12-branches.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Self

from penstock.cli.progress import Progress
from penstock.cli.running_application import NotRunningError, find
from penstock.cli.status_view import counted
from penstock.clients.clock import SystemClock
from penstock.clients.cluster.offsets import LATEST
from penstock.clients.librdkafka import as_writer
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.supervisor.offline.application_reset import ApplicationReset, Move
from penstock.supervisor.queries.changelog_tail import ChangelogClients
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError, StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.branch_mark import BranchState, branch_states
from penstock.workers.tasks.topic_marks import marks
from penstock.workers.tasks.topic_partition_metadata import (
    BRANCH_MARK,
    EXCHANGE_MARK,
    TOPIC_MARK,
    TopicPartitionMetadata,
)
from penstock.workers.thread.client_supplier import configured_supplier

from .branch_brokers import BranchBrokers
from .branch_copy import BranchCopy
from .branch_layout import BranchLayout, once_assigned
from .branch_record import BranchRecord, BranchRecords, by_topic

#: How long attempts to cut are repeated, in seconds.
CUT_PATIENCE_SECONDS = 60.0
#: Between two attempts, in seconds.
AGAIN_SECONDS = 0.5
#: How long a command waits for the answer to a hold, beyond its limit.
ANSWER_SECONDS = 30.0

Offsets = Mapping[TopicPartition, int]


class CutGivenUpError(StreamsError):
    """The stream threads have not held long enough, or their tasks have moved; another attempt may succeed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A point of an application. inputs: the committed offsets; outputs: the ends of output topics.

    held_ms: how long the stream threads have held; records: those that were copied meanwhile.
    """

    wall_clock_ms: int
    inputs: Mapping[TopicPartition, OffsetAndMetadata]
    outputs: Offsets
    held_ms: float
    records: int


@dataclass(frozen=True, slots=True)
class Branched:
    """A complete branch. records: all that were copied."""

    record: BranchRecord
    cut: Cut
    records: int


class Branching:
    """Makes one branch. A context manager that closes its clients.

    config: of the application that runs on this host. limit_seconds: the longest time for which its stream threads may
    hold; wait_seconds: how long to wait for members of the branch to leave its group. report: prints a line about a
    step. All errors are PenstockErrors; those of a branch that cannot be made come before any change.
    """

    def __init__(
        self,
        config: StreamsConfig,
        name: str,
        sink_prefix: str,
        limit_seconds: float,
        wait_seconds: float,
        report: Callable[[str], None],
        progress: Progress,
    ) -> None:
        config.require("application.id", "bootstrap.servers")
        self._config, self._name, self._sink_prefix = config, name, sink_prefix
        self._application_id: str = config["application.id"]
        if name == self._application_id:
            raise ConfigError(f"{name} is the application itself: choose another name for its branch.")
        self._limit_seconds, self._wait_seconds = limit_seconds, wait_seconds
        self._report, self._progress = report, progress
        self._records = BranchRecords(config)
        self._clients = ChangelogClients(config, f"{name}-branch")
        self._brokers = BranchBrokers(config, self._clients)
        self._original = ApplicationReset(config)
        self._branch = ApplicationReset(branch_config(config, name))

    def close(self) -> None:
        """Close the clients."""
        self._brokers.close()
        self._original.close()
        self._branch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def make(self) -> Branched:
        """Make the branch, and return it."""
        layout, counts = self._check()
        record = self._prepare(layout)
        inputs = layout.partitions(layout.sources, counts)
        routes = self._routes(layout, counts)
        self._commit_unfinished(layout, inputs)
        with self._copying(routes, layout.partitions(layout.repartition, counts)) as copy:
            copy.begin(self._starts(layout, inputs))
            copy.run(self._brokers.offsets(routes.keys(), LATEST, committed_only=True))
            self._report(f"Copied {copy.records:,} records while {self._application_id} runs.")
            cut = self._cut(layout, counts, copy, list(routes))
            self._report(
                f"Cut: {self._application_id} has stopped for {cut.held_ms:.0f} ms at a commit, in which "
                f"{cut.records:,} more records were copied."
            )
            copy.finish()
            self._branch.move(self._moves(layout, cut, copy))
            records = copy.records
        record = replace(record, cut_ms=cut.wall_clock_ms, outputs=by_topic(cut.outputs))
        self._records.save(record)
        return Branched(record, cut, records)

    # -- before any change

    def _check(self) -> tuple[BranchLayout, dict[str, int]]:
        """Return the layout, and the partition counts of its topics; raises if no branch can be made."""
        layout, counts = once_assigned(self._look, self._progress)
        layout.check(counts)
        self._refuse_branch(layout, counts)
        self._branch.wait_until_empty(self._wait_seconds)
        self._check_name(layout, counts)
        parts = (
            f"{counted(sum(counts[topic] for topic in topics), f'{kind} partition')}"
            for kind, topics in (("changelog", layout.changelogs), ("repartition", layout.repartition))
        )
        self._report(f"{self._application_id}: {counted(len(layout.tasks), 'task')}, {' and '.join(parts)} to copy.")
        return layout, counts

    def _look(self) -> tuple[BranchLayout, dict[str, int]]:
        """Let the application commit once; raises StreamsError if it cannot, or if tasks are missing."""
        held = self._ask("hold", {"seconds": self._limit_seconds})
        self._ask("end_hold", {"hold": held["hold"]})
        layout = BranchLayout.of(self._application_id, self._name, self._sink_prefix, held)
        described = self._brokers.describe(layout.sources | layout.internal | layout.sinks)
        counts = {name: len(topic.partitions) for name, topic in described.items()}
        layout.check_tasks(counts)
        return layout, counts

    def _refuse_branch(self, layout: BranchLayout, counts: Mapping[str, int]) -> None:
        inputs = layout.partitions(layout.sources, counts)
        if branch_states(self._original.committed(inputs).values()) - {BranchState.WRITER}:
            raise StreamsError(
                f"{self._application_id} is a branch itself, or was replaced by one: make a branch of the other "
                "application"
            )

    def _check_name(self, layout: BranchLayout, counts: Mapping[str, int]) -> None:
        """Refuse the name of another application, and of a branch that is complete."""
        record = self._records.get(self._name)
        inputs = layout.partitions(
            map(layout.renamed, layout.sources), {layout.renamed(t): n for t, n in counts.items()}
        )
        committed = [at for at in self._branch.committed(inputs).values() if at is not None]
        ready = f"There is a branch {self._name} already. `penstock branch delete {self._name} --execute` removes it"
        if record is not None and record.is_ready:
            raise StreamsError(ready)
        if committed and branch_states(committed) != {BranchState.UNFINISHED}:
            raise StreamsError(
                f"The group {self._name} has committed offsets: there is an application with this name. Choose another "
                "name for the branch"
            )
        made = set() if record is None else set(record.topics)
        wanted = {*map(layout.renamed, layout.internal), *map(layout.renamed_sink, layout.sinks & counts.keys())}
        others = self._brokers.describe(wanted - made).keys() if wanted - made else ()
        if others:
            raise StreamsError(
                f"These topics exist, and are not those of an unfinished branch {self._name}: "
                f"{', '.join(sorted(others))}. Choose another name, or another --sink-prefix"
            )
        if record is None and self._branch.local_tasks():
            raise StreamsError(
                f"There is state of an application {self._name} in {self._branch.state}: choose another name, or "
                "delete it"
            )

    # -- steps

    def _prepare(self, layout: BranchLayout) -> BranchRecord:
        """Write the branch's file and make its topics, after those of an interrupted attempt are deleted."""
        earlier = self._records.get(self._name)
        if earlier is not None:
            self._report(f"Deleting the unfinished branch {self._name}.")
            self._branch.delete_topics(earlier.topics)
            self._branch.delete_state()
        sinks = {topic: layout.renamed_sink(topic) for topic in self._brokers.describe(layout.sinks)}
        internal = {topic: layout.renamed(topic) for topic in layout.internal}
        topics = (*sorted(internal.values()), *sorted(sinks.values()))
        inputs = {
            self._application_id: sorted(layout.sources),
            self._name: sorted(map(layout.renamed, layout.sources)),
        }
        record = BranchRecord(self._name, self._sink_prefix, time.time_ns() // 1_000_000, topics, inputs)
        self._records.save(record)
        self._brokers.create_like(internal | sinks)
        made = f"{counted(len(internal), 'internal topic')} and {counted(len(sinks), 'output topic')}"
        self._report(f"Created {made}.")
        return record

    def _routes(self, layout: BranchLayout, counts: Mapping[str, int]) -> dict[TopicPartition, TopicPartition]:
        partitions = layout.partitions(layout.internal, counts)
        return {
            partition: TopicPartition(layout.renamed(partition.topic), partition.partition) for partition in partitions
        }

    def _commit_unfinished(self, layout: BranchLayout, inputs: list[TopicPartition]) -> None:
        """Commit offsets with which no stream thread starts."""
        text = TopicPartitionMetadata(processor_metadata={BRANCH_MARK: BranchState.UNFINISHED}).encode()
        self._branch.move(Move(TopicPartition(layout.renamed(p.topic), p.partition), None, 0, text) for p in inputs)

    def _starts(self, layout: BranchLayout, inputs: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where copies of repartition topics begin: earlier records have been processed."""
        internal = [partition for partition in inputs if partition.topic in layout.repartition]
        return {p: at.offset for p, at in self._original.committed(internal).items() if at is not None}

    @contextmanager
    def _copying(
        self, routes: Mapping[TopicPartition, TopicPartition], numbered: Collection[TopicPartition]
    ) -> Iterator[BranchCopy]:
        supplier = configured_supplier(self._config, SystemClock())
        writer = as_writer(supplier.get_producer(f"{self._name}-branch-producer"))
        consumer = self._clients.consumer()
        with closing(BranchCopy(routes, numbered, consumer, writer, self._brokers, self._progress)) as copy:
            yield copy

    # -- the cut

    def _cut(
        self, layout: BranchLayout, counts: Mapping[str, int], copy: BranchCopy, copied: list[TopicPartition]
    ) -> Cut:
        """Cut, again and again until it succeeds or CUT_PATIENCE_SECONDS are over."""
        deadline, pace = time.monotonic() + CUT_PATIENCE_SECONDS, threading.Event()
        while True:
            copy.run(self._brokers.offsets(copied, LATEST, committed_only=True))  # so that little is left
            try:
                return self._try_to_cut(layout, counts, copy, copied)
            except NotRunningError:
                raise
            except (StreamsError, TimeoutError) as error:
                if time.monotonic() > deadline:
                    raise CutGivenUpError(
                        f"{self._application_id} could not be cut within {CUT_PATIENCE_SECONDS:.0f} s: {error}. "
                        "Nothing has changed for it. Run the command again, perhaps with a higher --stop-at-most"
                    ) from error
                self._report(f"No cut: {str(error).rstrip('.')}. Trying again.")
            pace.wait(AGAIN_SECONDS)

    def _try_to_cut(
        self, layout: BranchLayout, counts: Mapping[str, int], copy: BranchCopy, copied: list[TopicPartition]
    ) -> Cut:
        """Make all stream threads hold, copy the rest, and let them continue.

        Raises CutGivenUpError if they have not held all the time: what was read may then be of different moments.
        """
        began, before = time.monotonic(), copy.records

        def in_time() -> bool:
            return time.monotonic() - began < self._limit_seconds

        held = self._ask("hold", {"seconds": self._limit_seconds})
        try:
            now = BranchLayout.of(self._application_id, self._name, self._sink_prefix, held)
            found = self._read(layout, counts, copy, copied, in_time) if now == layout else None
        finally:
            changed = self._ask("end_hold", {"hold": held["hold"]})["changed"]
        held_ms = (time.monotonic() - began) * 1000
        if changed is not None:
            raise CutGivenUpError(f"the stream threads have not held: {changed}")
        if found is None:
            raise CutGivenUpError(f"tasks have moved, or the rest could not be copied within {self._limit_seconds:g} s")
        inputs, outputs = found
        return Cut(time.time_ns() // 1_000_000, inputs, outputs, held_ms, copy.records - before)

    def _read(
        self,
        layout: BranchLayout,
        counts: Mapping[str, int],
        copy: BranchCopy,
        copied: list[TopicPartition],
        in_time: Callable[[], bool],
    ) -> tuple[dict[TopicPartition, OffsetAndMetadata], Offsets] | None:
        """Return the committed offsets and the ends of outputs, after the rest is copied; None if the time is over."""
        outputs = layout.partitions(layout.sinks & counts.keys(), counts)
        ends = self._brokers.settled_ends([*copied, *outputs], in_time)
        if ends is None or not copy.run({partition: ends[partition] for partition in copied}, in_time):
            return None
        inputs = self._original.committed(layout.partitions(layout.sources, counts))
        missing = [str(partition) for partition, at in inputs.items() if at is None]
        if missing:
            raise CutGivenUpError(f"{self._application_id} has no committed offset of {', '.join(missing)}")
        return {p: at for p, at in inputs.items() if at is not None}, {p: ends[p] for p in outputs}

    def _moves(self, layout: BranchLayout, cut: Cut, copy: BranchCopy) -> list[Move]:
        """Return the branch's offsets, with its own topics in the marks."""
        known = {p: TopicPartitionMetadata.decode(at.metadata) for p, at in cut.inputs.items()}
        named = {name for metadata in known.values() for name in _marked(metadata)}
        described = self._brokers.describe({layout.renamed(name) for name in named}) if named else {}
        moves = []
        for partition, at in cut.inputs.items():
            own = TopicPartition(layout.renamed(partition.topic), partition.partition)
            offset = copy.offset_of(partition, at.offset) if partition.topic in layout.repartition else at.offset
            ids = {name: described[name].id for name in map(layout.renamed, _marked(known[partition]))}
            moves.append(Move(own, None, offset, _as_ready(known[partition], ids).encode()))
        return moves

    def _ask(self, command: str, arguments: Mapping[str, object]) -> dict[str, object]:
        """Ask the application; each time over a new connection, because an idle one is closed."""
        with find(self._config) as running:
            answer: dict[str, object] = running.ask(command, arguments, timeout=self._limit_seconds + ANSWER_SECONDS)
            return answer


def _marked(metadata: TopicPartitionMetadata) -> list[str]:
    """Return the names of the topics that a committed offset is marked with."""
    return [key.removeprefix(TOPIC_MARK) for key in metadata.processor_metadata if key.startswith(TOPIC_MARK)]


def _as_ready(metadata: TopicPartitionMetadata, ids: Mapping[str, bytes]) -> TopicPartitionMetadata:
    """Return the metadata of a complete branch: the times of the original, and the ids of the branch's topics."""
    others = (TOPIC_MARK, EXCHANGE_MARK)
    times = {key: value for key, value in metadata.processor_metadata.items() if not key.startswith(others)}
    return TopicPartitionMetadata(metadata.partition_time, {**times, **marks(ids), BRANCH_MARK: BranchState.SHADOW})


def branch_config(config: StreamsConfig, name: str) -> StreamsConfig:
    """Return the configuration of a branch; its name must be valid as an application.id."""
    return config.with_overrides({"application.id": name}, "the name of the branch")


def delete_branch(config: StreamsConfig, record: BranchRecord, wait_seconds: float) -> None:
    """Delete the topics, the group and the state on this host of a branch that does not run, and its file.

    Raises StreamsError if its group still has members after wait_seconds, or if it writes the real outputs; LockError
    if it runs on this host.
    """
    clients = ChangelogClients(config, f"{record.name}-branch")
    with (
        ApplicationReset(branch_config(config, record.name)) as branch,
        closing(BranchBrokers(config, clients)) as brokers,
    ):
        branch.wait_until_empty(wait_seconds)
        _refuse_writer(record, branch.committed(brokers.partitions(record.inputs[record.name])))
        branch.delete_state()
        branch.delete_group()
        branch.delete_topics(record.topics)
    BranchRecords(config).remove(record.name)


def _refuse_writer(record: BranchRecord, committed: Mapping[TopicPartition, OffsetAndMetadata | None]) -> None:
    if branch_states(committed.values()) & {BranchState.HALTED, BranchState.WRITER}:
        raise StreamsError(
            f"{record.name} writes the real outputs, or is about to. Let its original write them again before: "
            f"`penstock branch rollback {record.name}`"
        )
