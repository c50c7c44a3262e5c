"""The streams group protocol (KIP-1071) on the IO thread.

streams_membership.py decides on the contents of heartbeats and handles the responses; this module does the I/O.
Heartbeats are sent one at a time, because each depends on the response to the last.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TypeVar
from uuid import uuid4

from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TaskId

from ..cluster.retrying import retried, try_ms
from ..cluster.topics import described
from ..errors import BrokerError, ErrorCode, RetriableError, broker_error, raise_for_code
from ..protocol.messages import METADATA
from ..protocol.schema import Request
from ..protocol.streams_messages import STREAMS_GROUP_HEARTBEAT
from . import streams_messages
from .group_protocol import GroupProtocol, ProtocolParts
from .member_state import MemberState
from .membership import Assigned, HostMember, Joining
from .requests import Identity
from .streams_membership import StreamsEvent, StreamsMembership
from .streams_refusals import refusal_error, refuses_topology
from .streams_values import (
    DescribedTopology,
    Heartbeat,
    HeartbeatResponse,
    HostPartitions,
    Partitions,
    StreamsTopology,
    TaskOffsets,
    Tasks,
    TasksAssigned,
    TasksGiven,
)
from .topology_difference import difference

T = TypeVar("T")


class StreamsProtocol(GroupProtocol):
    """One member, which looks to the stream thread like one of a classic group.

    Session timeout, heartbeat interval and number of standby tasks are group configs on the broker
    (streams.session.timeout.ms, streams.heartbeat.interval.ms, streams.num.standby.replicas). rack_id: client.rack, for
    the broker's assignor.
    """

    offset_commit_version = 9  # the first version with member epochs, and the last with topic names
    overtaken = ErrorCode.GROUP_ID_NOT_FOUND

    def __init__(
        self,
        parts: ProtocolParts,
        topology: StreamsTopology,
        rack_id: str | None = None,
    ) -> None:
        super().__init__(parts)
        self._topology = topology
        self._subtopologies = {found.subtopology: found for found in topology.subtopologies}
        self._rack_id = rack_id
        self._membership = StreamsMembership(parts.config, str(uuid4()), self._subtopologies, parts.log)
        self._version = 0  # of heartbeats
        self._warned = False
        self._exchanging = False
        self._missed_response = False
        self._describing = False  # whether a description is on its way
        self._partitions: Mapping[TaskId, Partitions] = {}
        self._user_endpoint = ""

    @property
    def identity(self) -> Identity:
        """Member id and member epoch; the latter is -1 without a membership."""
        return self._membership.identity

    @property
    def state(self) -> MemberState:
        """The current state."""
        return self._membership.state

    # Joining and staying

    async def join(self, joining: Joining, reason: str, losses_seen: int) -> None:
        """Report the thread's tasks, and join if not a member; the broker knows the topics from the topology."""
        try:
            self._user_endpoint = joining.report.user_endpoint
            self._log.debug("Joining: %s", reason)
            self._membership.join(joining.report, losses_seen)
            await self._heartbeat_if_due()
        except Exception as error:  # noqa: BLE001  # whatever it is, the stream thread must hear of it
            self.fail(error)

    async def heartbeat_loop(self) -> None:
        """Send heartbeats at the broker's interval, and monitor the stream thread's polls."""
        try:
            while self.state is not MemberState.FATAL:
                await self._connection.sleep(self._ms_to_sleep() / 1000)
                await self._heartbeat_if_due()
        except Exception as error:  # noqa: BLE001  # whatever it is, the stream thread must hear of it
            self.fail(error)

    def _ms_to_sleep(self) -> int:
        due = self._membership.ms_until_heartbeat(self._clock.monotonic_ms())
        # join() sends a heartbeat that is due earlier. Its response may set a shorter interval; until then, only the
        # retry backoff is sure to be short enough.
        if due is None or self._exchanging:
            return self._network.retry_backoff_ms
        return max(due, self._network.retry_backoff_ms)

    async def _heartbeat_if_due(self) -> None:
        if self._exchanging:
            return
        self._exchanging = True
        try:
            while self._membership.ms_until_heartbeat(self._clock.monotonic_ms()) == 0:
                if reason := self.too_slow():
                    await self._give_up_slow_thread(reason)
                elif not await self._heartbeat():
                    await self._coordinator.pause()
        finally:
            self._exchanging = False

    async def _heartbeat(self) -> bool:
        """Send a heartbeat; return False to retry soon."""
        sent_ms = self._standstill.beat()
        heartbeat = self._membership.next_heartbeat(sent_ms)
        try:
            response = await self._exchange(heartbeat)
        except RetriableError as error:
            self._coordinator.failed(STREAMS_GROUP_HEARTBEAT.name, error)
            self._missed_response = True
            self._membership.on_no_response(heartbeat)
            return False
        except _RefusedError as error:
            refusal = await self._explained(error.refusal)
            self._emit_all(self._membership.on_refusal(heartbeat, refusal, self._clock.monotonic_ms()))
            if error.refusal.code is ErrorCode.UNRELEASED_INSTANCE_ID:
                await self._take_over_instance(error.refusal)
            return True
        self._coordinator.succeeded(STREAMS_GROUP_HEARTBEAT.name)
        self._standstill.answered(sent_ms)
        self._emit_all(self._membership.on_response(heartbeat, response, self._clock.monotonic_ms()))
        if response.description_required and self._topology.description is not None and not self._describing:
            self._describing = True
            self._connection.submit(self._describe, self._topology.description)
        return True

    async def _describe(self, description: DescribedTopology) -> None:
        """Send the description of the topology, which the broker has asked for (KIP-1331).

        After a failure the broker asks again, with the heartbeats that follow.
        """
        member_id = self._membership.member_id
        request = streams_messages.topology_description(self._config.group_id, member_id, self._topology, description)
        try:
            self._log.info("Sending topology description for group %s", self._config.group_id)
            response = await self._coordinator.description(request, self._network.request_timeout_ms)
            raise_for_code(response.error_code, response.error_message)
            self._log.info("Topology description pushed successfully")
        except (RetriableError, BrokerUnavailableError) as error:
            self._log.info(
                "The topology description could not be pushed, and is pushed again when asked for: %s", error
            )
        except BrokerError as error:
            self._log.warning("Topology description push failed with %s", error)
        finally:
            self._describing = False

    async def _exchange(self, heartbeat: Heartbeat) -> HeartbeatResponse:
        """Send a heartbeat; raises RetriableError or _RefusedError."""
        member_id = self._membership.member_id
        await self._negotiate()
        request = streams_messages.heartbeat(
            self._config, self._rack_id, self._topology, member_id, heartbeat, self._version
        )
        response = streams_messages.heartbeat_response(await self._ask(request))
        if self._missed_response and heartbeat.joining is None and response.tasks is None:
            response = replace(response, tasks=await self._described_tasks())
        self._missed_response = False
        if response.tasks is not None:
            await self._learn_partitions(response.tasks)
        return response

    async def _negotiate(self) -> None:
        """Determine the coordinator's version; during an upgrade the next coordinator may have another one."""
        try:
            self._version = await self._coordinator.version(STREAMS_GROUP_HEARTBEAT)
        except BrokerError as error:
            raise _RefusedError(error) from error
        if self._config.instance_id is not None and not self._static and not self._warned:
            self._warned = True
            self._log.warning(
                "Brokers before Kafka 4.4 ignore group.instance.id in streams groups: joining as a dynamic member"
            )

    @property
    def _static(self) -> bool:
        static = self._version >= streams_messages.STATIC_MEMBERS_VERSION
        return static and self._config.instance_id is not None

    async def _ask(self, request: Request) -> SimpleNamespace:
        try:
            response = await self._coordinator.membership(request, self._network.request_timeout_ms)
            self._coordinator.check(response.error_code, response.error_message)
        except RetriableError:
            raise
        except BrokerError as error:
            raise _RefusedError(error) from error
        return response

    async def _described_tasks(self) -> Tasks | None:
        """Return the tasks that the coordinator has assigned to this member.

        It sends an assignment only once. A lost response may have contained tasks, which no member would then process.
        """
        members = await self._described_members()
        return next((found.tasks for found in members if found.member_id == self._membership.member_id), None)

    async def _take_over_instance(self, refusal: BrokerError) -> None:
        """Release the instance id on behalf of the member that holds it: it was killed, or will be fenced.

        A restarted process gets its tasks back immediately, and the latest member wins, as with the classic protocol;
        the earlier one learns that it was replaced. The coordinator alone would reject the id until the session of
        the old member times out.
        """
        replaced = f"replaced by {self._membership.member_id}"
        for found in await self._described_members():
            if found.instance_id != self._config.instance_id:
                continue
            if self._membership.has_been_member and found.member_id != self._membership.member_id:
                self.fail(refusal_error(self._config, refusal))
            elif await self.leave(replaced, found.member_id, found.instance_id, comes_back=True):
                self._membership.hurry()  # before the other one can rejoin

    async def members_at(self, endpoint: str) -> list[HostMember]:
        """Return a host's members."""
        members = await self._described_members()
        return [
            HostMember(found.member_id, found.instance_id, found.process_id)
            for found in members
            if found.endpoint == endpoint
        ]

    async def hear_now(self) -> None:
        """Send a heartbeat now, and as many as the responses demand."""
        self._membership.hurry()
        try:
            await self._heartbeat_if_due()
        except Exception as error:  # noqa: BLE001  # whatever it is, the stream thread must hear of it
            self.fail(error)

    async def _explained(self, refusal: BrokerError) -> BrokerError:
        """Add the differences between the topologies to an error about the topology."""
        if not refuses_topology(refusal):
            return refusal
        try:
            described = await self._described_group()
        except (StreamsError, BrokerError) as error:
            self._log.info("Cannot determine how the topology of the group differs: %s", error)
            return refusal
        what = "" if described.topology is None else difference(described.topology, self._topology)
        return BrokerError(refusal.code, f"{refusal.message} {what}".strip())

    async def _described_members(self) -> list[streams_messages.DescribedMember]:
        return streams_messages.described_members(await self._described_group())

    async def _described_group(self) -> SimpleNamespace:
        def read(response: SimpleNamespace) -> SimpleNamespace:
            self._coordinator.check(response.groups[0].error_code)
            group: SimpleNamespace = response.groups[0]
            return group

        request = streams_messages.describe(self._config.group_id)
        return await self._looked_up(self._offsets.until_deadline(lambda: request, read))

    async def _learn_partitions(self, tasks: Tasks) -> None:
        """Look up the input partitions of tasks; topics of a sub-topology may differ in their partition counts."""
        wanted = {
            task: self._subtopologies[task.subtopology]
            for role in tasks
            for task in role
            if task.subtopology in self._subtopologies
        }
        names = {name for subtopology in wanted.values() for name in subtopology.read_topics}

        async def attempt(deadline: float) -> Mapping[TaskId, Partitions]:
            response = await self._connection.metadata(names, timeout_ms=try_ms(deadline))
            counts = dict.fromkeys(names, 0) | described(response, names).partition_counts
            found = {task: reads.input_partitions(task.partition, counts) for task, reads in wanted.items()}
            if not all(counts.values()) or not all(found.values()):  # this broker does not know the topics yet
                raise broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            return found

        timeout_ms, pause_ms = self._config.api_timeout_ms, self._network.retry_backoff_ms
        asked = retried(attempt, timeout_ms, pause_ms, self._coordinator.retries, METADATA.name) if names else None
        self._partitions = {} if asked is None else await self._looked_up(asked)

    async def _looked_up(self, asked: Awaitable[T]) -> T:
        """Wait for a lookup that a response depends on; raises BrokerUnavailableError after its timeout."""
        try:
            return await asked
        except RetriableError as error:
            raise BrokerUnavailableError(
                f"The tasks of group {self._config.group_id} could not be looked up within "
                f"{self._config.api_timeout_ms} ms (default.api.timeout.ms): {error!r}. Check the brokers."
            ) from error

    # Reports to the stream thread

    def _emit_all(self, events: Collection[StreamsEvent]) -> None:
        for event in events:
            self._emit(self._assigned(event) if isinstance(event, TasksAssigned) else event)

    def _assigned(self, event: TasksAssigned) -> Assigned:
        active = {task: self._partitions[task] for task in event.tasks.active}
        standby = {task: self._partitions[task] for task in event.tasks.replicas}
        partitions = frozenset(partition for found in active.values() for partition in found)
        # Include this member's endpoint, which the group may not know yet.
        own_host = {self._user_endpoint: partitions} if self._user_endpoint else {}
        hosts = HostPartitions({**own_host, **event.hosts.active}, event.hosts.standby)
        given = TasksGiven(active, standby, hosts, event.taken, event.shutdown_application)
        return Assigned(event.epoch, b"", partitions, given)

    def fail(self, error: Exception) -> None:
        """End the membership permanently and emit Fatal."""
        self._emit_all(self._membership.fail(self.translate(error)))

    def translate(self, error: Exception) -> StreamsError:
        """Return an error with advice for the reader."""
        if isinstance(error, StreamsError):
            return error
        if isinstance(error, BrokerError):
            return refusal_error(self._config, error)
        failure = StreamsError(f"Membership in group {self._config.group_id} failed: {error!r}.")
        failure.__cause__ = error
        return failure

    # The end

    async def _give_up_slow_thread(self, reason: str) -> None:
        """Leave, so that other members take over. A static member keeps its tasks until the session times out."""
        self._log.warning("%s", reason)
        await self.leave_self(reason, comes_back=self._static)
        self._emit_all(self._membership.lose(reason))

    async def end(self, leave: bool) -> None:
        """Leave if requested; a static member that will be replaced must release its instance id itself."""
        if self._membership.end() and (leave or self._static):
            await self.leave_self("the stream thread was closed", comes_back=not leave)

    def leave_request(self, reason: str, member_id: str, instance_id: str | None, comes_back: bool) -> Request:
        """Return the request of ``leave``; the broker does not ask for a reason."""
        return streams_messages.leave(self._config.group_id, member_id, instance_id, comes_back, self._version)

    # Offsets

    def on_refused_commit(self, identity: Identity, error: BrokerError) -> None:
        """Handle a rejected commit with an outdated member epoch."""
        newer_on_its_way = self._exchanging and error.code is ErrorCode.STALE_MEMBER_EPOCH
        if identity == self.identity and not newer_on_its_way:
            self._emit_all(self._membership.lose(f"a commit was rejected: {error}"))

    async def take_task_offsets(self, offsets: TaskOffsets) -> None:
        """Send the offsets to the coordinator with the next heartbeat that is due to include them."""
        self._membership.offsets.update(offsets)


class _RefusedError(Exception):
    """The coordinator's error, with its text."""

    def __init__(self, refusal: BrokerError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
