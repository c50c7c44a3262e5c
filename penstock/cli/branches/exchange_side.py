"""One of the two applications of an exchange, with its group, and its stream threads while it runs on this host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from penstock.cli.running_application import NotRunningError, find
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.statestore.directory.state_directory import StateDirectory
from penstock.supervisor.offline.application_reset import ApplicationReset, Move
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import LockError, StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.tasks.branch_mark import BranchMark, branch_marks, marked

from .branch_brokers import BranchBrokers
from .branch_layout import BranchLayout
from .branch_record import by_topic

#: How long a command waits for an answer beyond the time that the stream threads may take, in seconds.
ANSWER_SECONDS = 30.0
#: How long the process of an application may take to end after its members have left, in seconds.
END_SECONDS = 20.0
#: Between two looks whether it has, in seconds.
LOOK_SECONDS = 0.1


class ExchangeSide:
    """An application. A context manager that closes its clients.

    sources: the input topics of both applications; internal: the repartition topics of this one. Raises StreamsError
    and BrokerUnavailableError if brokers refuse a request or do not answer.
    """

    def __init__(self, config: StreamsConfig, sources: Collection[str], internal: Collection[str]) -> None:
        self._config = config
        self.name: str = config["application.id"]
        self.sources, self._internal = sorted(sources), sorted(internal)
        self._group = ApplicationReset(config)
        #: Whether stop() was called.
        self.is_stopping = False

    def close(self) -> None:
        """Close the clients."""
        self._group.close()

    def read(self, layout: BranchLayout) -> None:
        """Take its topics from what its stream threads hold."""
        self.sources, self._internal = sorted(layout.sources - layout.repartition), sorted(layout.repartition)

    # -- its group

    def mark(self, brokers: BranchBrokers) -> BranchMark | None:
        """Return the mark of its committed offsets, None without one."""
        marks = branch_marks(self._committed(brokers.partitions(self.sources)).values())
        if len(marks) > 1:
            raise StreamsError(
                f"The committed offsets of {self.name} have different marks "
                f"({', '.join(mark.state.name for mark in sorted(marks))}): another program has changed them"
            )
        return next(iter(marks), None)

    def _committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {p: at for p, at in self._group.committed(partitions).items() if at is not None}

    def positions(self, brokers: BranchBrokers) -> dict[TopicPartition, int]:
        """Return the committed offsets of the sources; raises StreamsError if one is missing."""
        partitions = brokers.partitions(self.sources)
        found = self._committed(partitions)
        missing = [str(partition) for partition in partitions if partition not in found]
        if missing:
            raise StreamsError(f"{self.name} has no committed offset of {', '.join(missing)}")
        return {partition: at.offset for partition, at in found.items()}

    def unprocessed(self, brokers: BranchBrokers, in_time: Callable[[], bool]) -> list[TopicPartition]:
        """Return the partitions of its repartition topics that have, or may have, unprocessed records."""
        partitions = brokers.partitions(self._internal)
        ends = brokers.settled_ends(partitions, in_time)
        if ends is None:
            return partitions
        found = self._committed(partitions)
        done = {p: found[p].offset if p in found else 0 for p in partitions}
        return [partition for partition in partitions if done[partition] != ends[partition]]

    def set_mark(self, mark: BranchMark, brokers: BranchBrokers) -> None:
        """Commit its offsets again with another mark, in one request, which brokers refuse while it has members."""
        self.wait_until_gone()
        found = self._committed(brokers.partitions([*self.sources, *self._internal]))
        self._group.move(Move(p, at.offset, at.offset, marked(at.metadata, mark)) for p, at in found.items())

    def wait_until_gone(self) -> None:
        """Wait until its group is empty; members that were killed stay for session.timeout.ms."""
        self._group.wait_until_empty(self._config["session.timeout.ms"] / 1000 + END_SECONDS)

    # -- on this host

    def is_running(self) -> bool:
        """Whether its supervisor runs on this host."""
        try:
            find(self._config).close()
        except NotRunningError:
            return False
        return True

    @contextmanager
    def held(self, seconds: float) -> Iterator[BranchLayout]:
        """Let all stream threads commit and hold within this context, for this time at most; yield what they hold.

        Raises StreamsError if one of them cannot hold now, NotRunningError if the application does not run here.
        """
        held = self._ask("hold", {"seconds": seconds}, seconds)
        try:
            yield BranchLayout.of(self.name, self.name, "", held)
        finally:
            if not self.is_stopping:
                self._ask("end_hold", {"hold": held["hold"]})

    def limit(self, offsets: Mapping[TopicPartition, int], seconds: float) -> None:
        """Let all stream threads read no further than these offsets of the sources, for this time."""
        self._ask("limit_input", {"offsets": by_topic(offsets), "seconds": seconds})

    def stop(self) -> None:
        """Begin to stop it; a hold lasts until its end."""
        self.is_stopping = True
        self._ask("stop", {})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep it from starting on this host; raises LockError if it runs, or does not end in time."""
        directory = StateDirectory(self._group.state.parent, self.name)
        deadline, pace = time.monotonic() + END_SECONDS, threading.Event()
        while True:
            try:
                directory.lock_application()
                break
            except LockError:
                if time.monotonic() > deadline:
                    raise
                pace.wait(LOOK_SECONDS)
        try:
            yield
        finally:
            directory.close()

    def _ask(self, command: str, arguments: Mapping[str, object], seconds: float = 0.0) -> dict[str, object]:
        """Ask the application; each time over a new connection, because an idle one is closed."""
        with find(self._config) as running:
            answer: dict[str, object] = running.ask(command, arguments, timeout=seconds + ANSWER_SECONDS)
            return answer
