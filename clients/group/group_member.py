"""A group member, as its stream thread calls it; the protocol runs on the IO thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from queue import SimpleQueue
from typing import TypeVar

from penstock.topology.errors import BrokerUnavailableError, StreamsError, TaskMigratedError
from penstock.topology.records import TaskId, TopicPartition

from ..clock import Clock
from ..cluster.cluster import Cluster
from ..log_context import PrefixedLogger
from ..network_settings import NetworkSettings
from ..protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from .group_coordinator import GroupCoordinator
from .group_protocol import LEAVE_TIMEOUT_MS, GroupProtocol, ProtocolParts
from .membership import Assigned, Event, Fatal, Joining, Lost, Meanwhile, Rebalance
from .offsets import GroupOffsets
from .requests import GroupMemberConfig
from .standstill import Standstill
from .streams_values import TaskOffsets

T = TypeVar("T")
Committed = dict[TopicPartition, OffsetAndMetadata | None]


class GroupMember:
    """One member of a group. Only the thread that created it may call it; no call blocks unless documented.

    network: connection settings; make_protocol: creates the protocol that runs on the IO thread, a ClassicProtocol or a
    StreamsProtocol; connect: creates the connections, simulated ones in a simulation. Nothing is sent before the first
    join, commit or fetch.
    """

    def __init__(
        self,
        config: GroupMemberConfig,
        network: NetworkSettings,
        clock: Clock,
        make_protocol: Callable[[ProtocolParts], GroupProtocol],
        connect: Callable[[NetworkSettings], Cluster] = Cluster,
    ) -> None:
        self._config = config
        self._network = network
        self._clock = clock
        self._log = PrefixedLogger(__name__, f"group-member [{config.group_id}/{config.instance_id or 'dynamic'}] ")
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._last_poll_ms = clock.monotonic_ms()
        self._losses_seen = 0
        #: True from ``join`` until ``poll`` has returned Assigned, Lost or Fatal; no second join is allowed before.
        self.join_pending = False
        self._dead = False
        self._closed = False
        self._questions: dict[frozenset[TopicPartition], Future[Committed]] = {}
        self._standstill = Standstill(clock, config.session_timeout_ms, self._log)
        self._connection = connect(network)
        self._coordinator = coordinator = GroupCoordinator(config, network, self._connection, clock, self._log)
        parts = ProtocolParts(
            config,
            self._connection,
            coordinator,
            GroupOffsets(config, coordinator, clock),
            clock,
            self._events.put,
            lambda: clock.monotonic_ms() - self._last_poll_ms,
            self._standstill,
            self._log,
        )
        self._protocol = make_protocol(parts)
        self._connection.submit(self._protocol.heartbeat_loop)
        self._connection.submit(self._standstill.watch, self._connection.sleep)

    def poll(self) -> list[Event]:
        """Return the events since the last call, oldest first.

        Also the liveness signal for ``max.poll.interval.ms``: if it is exceeded, the member leaves its group.
        """
        self._last_poll_ms = self._clock.monotonic_ms()
        events: list[Event] = []
        while not self._events.empty():
            event = self._events.get()
            if not (self.join_pending and isinstance(event, Rebalance)):  # the pending join already covers it
                events.append(event)
            if isinstance(event, Assigned | Lost | Fatal):
                self.join_pending = False
                self._questions.clear()  # other members may have committed since: pending responses are outdated
            self._losses_seen += isinstance(event, Lost)
            self._dead |= isinstance(event, Fatal)
        return events or self._io_thread_death()

    def _io_thread_death(self) -> list[Event]:
        failure = self._connection.failure
        if failure is None or self._dead:
            return []
        self._dead = True
        return [Fatal(StreamsError(f"The IO thread of group {self._config.group_id} has failed: {failure!r}."))]

    def waits(self) -> tuple[str, ...]:
        """Return what is being retried for long, as texts."""
        return self._coordinator.retries.current(self._clock.monotonic_ms())

    @property
    def in_doubt(self) -> bool:
        """Whether other members may own the tasks: the process was suspended, or the coordinator silent, for a session.

        Nothing may be written while it is True; see standstill.py.
        """
        return self._standstill.in_doubt

    @property
    def member_id(self) -> str:
        """The member's id in the group, "" while it has none."""
        return self._protocol.identity.member_id

    def join(self, joining: Joining, reason: str = "") -> None:
        """Join the group, or make it rebalance; an Assigned event follows.

        reason: for the broker's log (KIP-800). Raises StreamsError while join_pending.
        """
        if self._dead:
            raise StreamsError(f"The membership in group {self._config.group_id} has failed; create a new one.")
        if self.join_pending:
            raise StreamsError(f"A join of group {self._config.group_id} is already pending; wait for its event.")
        self.join_pending = True
        self._connection.submit(self._protocol.join, joining, reason, self._losses_seen)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], meanwhile: Meanwhile | None = None) -> None:
        """Commit and wait for the result.

        meanwhile: called with the awaited future; may do other work until it is done.
        Raises RetriableCommitError (retry), TaskMigratedError (no longer a member; a Lost event follows),
        FencedInstanceIdError, or StreamsError if the broker rejects it permanently.
        """
        self.wait_for_commit(self.commit_async(offsets), meanwhile)

    def commit_async(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> Future[None]:
        """Commit without waiting; the future has the result or error of ``commit``."""
        return self._connection.submit(self._protocol.commit, dict(offsets))

    def wait_for_commit(self, asked: Future[None], meanwhile: Meanwhile | None = None) -> None:
        """Wait for a future of commit_async; arguments and errors are those of ``commit``."""
        if meanwhile is not None and not asked.done():
            meanwhile(asked)
        self._wait(asked)

    def committed(self, partitions: Collection[TopicPartition]) -> Committed:
        """Return the group's committed offset of each partition, None if there is none.

        Blocks for a short time only, and not while an earlier request is unanswered; then raises
        BrokerUnavailableError. The next call with the same partitions returns the response if it has arrived meanwhile.
        Pending transactional offsets delay it until their transaction ends (KIP-447). Raises StreamsError if the broker
        rejects the request.
        """
        wanted = frozenset(partitions)
        busy = any(not question.done() for question in self._questions.values())
        if wanted not in self._questions:
            self._questions[wanted] = self._connection.submit(self._protocol.committed, list(wanted))
        try:
            found = self._questions[wanted].result(0 if busy else self._config.committed_wait_ms / 1000)
        except FutureTimeoutError:
            if self._connection.failure is None:
                raise BrokerUnavailableError(
                    f"The committed offsets of group {self._config.group_id} are not available yet. Either its "
                    "coordinator does not respond, or a transaction with such offsets is still open."
                ) from None
            found = self._wait(self._questions[wanted])
        except StreamsError:
            del self._questions[wanted]
            raise
        # Also drop other requests for these partitions: their responses would be older than the tasks that run now.
        self._questions = {asked: response for asked, response in self._questions.items() if asked.isdisjoint(wanted)}
        return found

    def _wait(self, future: Future[T]) -> T:
        # Every operation has its own deadline on the IO thread; this one covers an IO thread that hangs or has died.
        seconds = (self._config.api_timeout_ms + self._network.request_timeout_ms) / 1000
        try:
            return future.result(seconds)
        except FutureTimeoutError as error:
            failure = self._connection.failure
            raise StreamsError(
                f"The IO thread of group {self._config.group_id} has not responded for {seconds:.0f} s"
                + (f"; it has failed: {failure!r}." if failure else ".")
            ) from error

    def group_metadata(self) -> GroupMetadata:
        """Return the metadata by which a transaction's offset commit fences zombies (KIP-447).

        Raises TaskMigratedError if this is not a member: without a generation the broker would not fence.
        """
        identity = self._protocol.identity
        if identity.generation < 0:
            raise TaskMigratedError(f"Not a member of group {self._config.group_id}; other members may own its tasks.")
        return GroupMetadata(self._config.group_id, identity.generation, identity.member_id, self._config.instance_id)

    def release_host(self, endpoint: str) -> None:
        """Make the members of a lost host leave, so that their tasks move before its session times out.

        endpoint: its application.server.
        """
        self._connection.submit(self._protocol.release_host, endpoint)

    def report_task_offsets(self, offsets: Mapping[TaskId, int], end_offsets: Mapping[TaskId, int]) -> None:
        """Report standby and warm-up tasks' positions and end offsets, each summed over the task's changelogs.

        Only for ``group.protocol=streams``: they are sent at the coordinator's interval, and as soon as a warm-up task
        has caught up.
        """
        self._connection.submit(self._protocol.take_task_offsets, TaskOffsets(dict(offsets), dict(end_offsets)))

    def close(self, leave: bool) -> None:
        """End the membership and close all connections; may block. A second call does nothing, no other is allowed.

        leave: leave the group, so that other members take over immediately. A static member that will be replaced under
        the same ``group.instance.id`` does not leave; its tasks stay assigned to it until the session times out.
        """
        if self._closed:
            return
        self._closed = True
        if self._connection.failure is None:
            ended = self._connection.submit(self._protocol.end, leave)
            try:
                ended.result(2 * LEAVE_TIMEOUT_MS / 1000)
            except FutureTimeoutError:
                self._log.warning("Leaving the group took too long; its other members wait for the session timeout")
        self._connection.close()
