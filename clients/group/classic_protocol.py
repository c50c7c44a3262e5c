"""The classic group protocol, on the IO thread (Kafka: AbstractCoordinator and ConsumerCoordinator).

It covers JoinGroup, SyncGroup and heartbeats, the leader's assignment, and the broker's errors. The stream thread calls
group_member.py; the two share the events and the Identity, which is immutable and replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from penstock.topology.errors import StreamsError, TaskAssignmentError

from ..errors import BrokerError, ErrorCode, RetriableError
from ..protocol.messages import HEARTBEAT
from ..protocol.schema import Request
from . import requests
from .group_description import describe_group
from .group_protocol import GroupProtocol, ProtocolParts, evicts
from .member_state import MEMBER_STATES, MemberState, member_states
from .membership import (
    Assign,
    Event,
    Fatal,
    FencedInstanceIdError,
    HostMember,
    HostOf,
    Joining,
    Lost,
    Rebalance,
)
from .requests import Identity
from .streams_values import TaskOffsets

#: The number of heartbeats after a join that are sent at the eager interval: 10 s with the default.
EAGER_BEATS = 33

#: The name of the retries of a join.
_JOIN = "JoinGroup"
#: Advice for errors that end a membership.
_ADVICE: Mapping[ErrorCode, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "The group has members of another kind: another program uses this application.id as its group.id, or the group "
        "is a consumer or streams group (KIP-848, KIP-1071). Stop those members or choose another application.id."
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms is not between the broker's group.min.session.timeout.ms and group.max.session.timeout.ms."
    ),
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Check sasl.mechanism, sasl.username and sasl.password.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "The broker's group.max.size is reached: run fewer threads or raise it.",
}


class ClassicProtocol(GroupProtocol):
    """One member. All coroutines run on the IO thread.

    assign: the assignor, which runs on a separate thread if this member is the leader; host_of: the host of a member,
    see HostOf; by default members have no application.server.
    """

    offset_commit_version = 8  # later versions do not distinguish a stale generation from a deleted group
    overtaken = ErrorCode.REBALANCE_IN_PROGRESS

    def __init__(self, parts: ProtocolParts, assign: Assign, host_of: HostOf = lambda _: ("", "")) -> None:
        super().__init__(parts)
        self._assign = assign
        self._host_of = host_of
        self._machine = member_states(parts.log)
        self._losses = 0
        self._identity = Identity()
        self._eager_beats = 0
        self._fenced_after_join = False

    @property
    def identity(self) -> Identity:
        """The member's identity at the coordinator."""
        return self._identity

    @property
    def state(self) -> MemberState:
        """The current state."""
        return self._machine.state

    # Joining

    async def join(self, joining: Joining, reason: str, losses_seen: int) -> None:
        """Join until there is an Assigned, Lost or Fatal event.

        losses_seen: number of Lost events the caller had seen. A subscription from before the last one contains tasks
        that other members may own by now, so it is not sent; the caller gets Lost from its next poll and rejoins.
        """
        if losses_seen != self._losses or self.state is MemberState.FATAL:
            return
        try:
            self._machine.transition_to(MemberState.JOINING)
            self._standstill.joins()
            envelope = requests.encode_subscription(joining.subscription(), self.identity.generation)
            while not await self._join_once(envelope, reason):
                await self._coordinator.pause()
        except TaskAssignmentError as error:  # this member cannot lead: leave, so that the others do not wait for it
            await self.leave_self(str(error))
            self.fail(error)
        except Exception as error:  # noqa: BLE001  # whatever it is, the stream thread must hear of it
            self.fail(error)

    async def _join_once(self, envelope: bytes, reason: str) -> bool:
        """Return True if the join has ended with an event, False to retry."""
        joined = None
        try:
            joined = await self._join_group(envelope, reason)
            leads = joined.leader == joined.member_id and not joined.skip_assignment
            assignments = await self._lead(joined) if leads else {}
            assigned = await self._sync_group(assignments)
            self._fenced_after_join = False
        except RetriableError as error:
            self._coordinator.failed(_JOIN, error)
            self._standstill.join_failed()
            return False
        except BrokerError as error:
            if error.code is ErrorCode.FENCED_INSTANCE_ID and joined is not None and self._joins_once_more():
                return False
            if evicts(error):
                return self._evicted(error)
            if error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
                raise
            self._coordinator.failed(_JOIN, error)
            return False
        self._coordinator.succeeded(_JOIN)
        self._machine.transition_to(MemberState.STABLE)
        self._eager_beats = EAGER_BEATS
        self._emit(assigned)
        return True

    async def _join_group(self, envelope: bytes, reason: str) -> SimpleNamespace:
        timeout_ms = self._rebalance_timeout_ms
        request = requests.join_group(self._config, self.identity.member_id, envelope, reason)
        response = await self._coordinator.membership(request, timeout_ms)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:  # the first of two steps, KIP-394
            self._identity = self.identity._replace(member_id=response.member_id)
            request = requests.join_group(self._config, response.member_id, envelope, reason)
            response = await self._coordinator.membership(request, timeout_ms)
        self._coordinator.check(response.error_code)
        self._identity = Identity(response.generation_id, response.member_id)
        return response

    def _joins_once_more(self) -> bool:
        """Return True, once, so that a member joins again although the broker fenced it right after its JoinGroup.

        A coordinator that could not write the group (brokers of its partition are down) takes back the member id that
        it gave out. If another process has really joined, the new join fences it, and its error says so.
        """
        if self._fenced_after_join:
            return False
        self._fenced_after_join = True
        self._identity = Identity()
        self._log.warning(
            "Fenced between JoinGroup and SyncGroup as group.instance.id=%s; joining again.", self._config.instance_id
        )
        return True

    @property
    def _rebalance_timeout_ms(self) -> int:
        """The timeout of JoinGroup and SyncGroup, which block until all members have joined, plus a margin."""
        return max(self._network.request_timeout_ms, self._config.max_poll_interval_ms + 5_000)

    async def _lead(self, joined: SimpleNamespace) -> dict[str, bytes]:
        members = requests.decode_subscriptions(joined.members)
        self._log.info("Leading generation %d of %d members", joined.generation_id, len(members))
        assignments = await self._connection.run(self._assign, members)  # it queries the brokers itself
        if assignments.keys() != members.keys():
            raise StreamsError(
                f"The assignor returned assignments of {sorted(assignments)}, but the group's members are "
                f"{sorted(members)}."
            )
        return {member: requests.encode_assignment(assignment) for member, assignment in assignments.items()}

    async def _sync_group(self, assignments: Mapping[str, bytes]) -> Event:
        request, sent_ms = requests.sync_group(self._config, self.identity, assignments), self._standstill.beat()
        response = await self._coordinator.membership(request, self._rebalance_timeout_ms)
        self._coordinator.check(response.error_code)
        self._standstill.answered(sent_ms)
        return requests.decode_assignment(self.identity.generation, response.assignment)

    def _evicted(self, error: BrokerError) -> bool:
        if self.identity.generation >= 0:  # it may own tasks
            self._lose(error)
            return True
        self._identity = Identity()  # an unused member id has expired; it owned nothing
        return False

    # Staying

    async def heartbeat_loop(self) -> None:
        """Send heartbeats while a member, and monitor the stream thread's polls; ends with the connection.

        Heartbeats are more frequent for a while after a join, because rebalances often follow each other: the other
        threads of a starting host join slightly later, and a member learns of it only from its next heartbeat.
        """
        interval_ms = self._config.heartbeat_interval_ms
        step_ms = min(self._config.eager_heartbeat_interval_ms, interval_ms)
        waited_ms = 0
        try:
            while self.state is not MemberState.FATAL:
                await self._connection.sleep(step_ms / 1000)
                waited_ms += step_ms
                if waited_ms < interval_ms and not self._eager_beats:
                    continue
                waited_ms = 0
                self._eager_beats = max(self._eager_beats - 1, 0)
                while self.state in MEMBER_STATES and not await self._heartbeat():
                    await self._coordinator.pause()
        except Exception as error:  # noqa: BLE001  # whatever it is, the stream thread must hear of it
            self.fail(error)

    async def _heartbeat(self) -> bool:
        """Send a heartbeat; return False to retry soon."""
        if reason := self.too_slow():
            await self._give_up_slow_thread(reason)
            return True
        identity, sent_ms = self.identity, self._standstill.beat()
        timeout_ms = min(self._network.request_timeout_ms, self._config.session_timeout_ms)
        try:
            response = await self._coordinator.membership(requests.heartbeat(self._config, identity), timeout_ms)
            self._coordinator.check(response.error_code)
            self._coordinator.succeeded(HEARTBEAT.name)
            self._standstill.answered(sent_ms)
        except RetriableError as error:
            self._coordinator.failed(HEARTBEAT.name, error)
            return False
        except BrokerError as error:
            if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                self._standstill.answered(sent_ms)
                self._rebalance()
            elif not evicts(error):
                raise
            elif identity == self.identity and self.state in MEMBER_STATES:
                self._lose(error)
        return True

    async def _give_up_slow_thread(self, reason: str) -> None:
        """Leave, so that other members take over. A static member keeps its tasks until the session times out."""
        self._log.warning("%s", reason)
        if self._config.instance_id is None:
            await self.leave_self(reason)
        if self.state in MEMBER_STATES:
            self._lose(reason)

    def _rebalance(self) -> None:
        if self.state is MemberState.STABLE:
            self._machine.transition_to(MemberState.REBALANCE)
            self._emit(Rebalance())

    # Leaving

    def _lose(self, why: BrokerError | str) -> None:
        keep = (
            isinstance(why, BrokerError) and why.code is ErrorCode.ILLEGAL_GENERATION
        )  # the broker still knows the member id
        self._identity = Identity(member_id=self.identity.member_id if keep else "")
        self._losses += 1
        self._machine.transition_to(MemberState.LOST)
        self._emit(Lost(why if isinstance(why, str) else f"the coordinator responded with {why}"))

    def fail(self, error: Exception) -> None:
        """End the membership permanently and emit Fatal."""
        if self.state is not MemberState.FATAL:
            self._machine.transition_to(MemberState.FATAL)
            self._identity = Identity()
            self._emit(Fatal(self.translate(error)))

    def translate(self, error: Exception) -> StreamsError:
        """Return an error with advice for the reader."""
        if isinstance(error, StreamsError):
            return error
        group, instance = self._config.group_id, self._config.instance_id
        translated: StreamsError
        code = error.code if isinstance(error, BrokerError) else None
        if code is ErrorCode.FENCED_INSTANCE_ID:
            translated = FencedInstanceIdError(
                f"Another process has joined group {group} with group.instance.id={instance}. "
                f"{self._config.fenced_advice}"
            )
        else:
            advice = "" if code is None else _ADVICE.get(code, "")
            translated = StreamsError(f"Membership in group {group} failed: {error!r}. {advice}".strip())
        translated.__cause__ = error
        return translated

    def leave_request(self, reason: str, member_id: str, instance_id: str | None, comes_back: bool) -> Request:
        """Return the request of ``leave``; a static member that comes back does not leave."""
        return requests.leave_group(self._config.group_id, member_id, instance_id, reason)

    async def members_at(self, endpoint: str) -> list[HostMember]:
        """Return a host's members; none during a rebalance."""
        group = await describe_group(self._config.group_id, self._offsets, self._coordinator.check)
        hosts = [
            (found, self._host_of(found.subscription.user_data))
            for found in group.members
            if found.subscription is not None
        ]
        return [HostMember(found.member_id, found.instance_id, host[1]) for found, host in hosts if host[0] == endpoint]

    async def hear_now(self) -> None:
        """Send a heartbeat now."""
        if self.state in MEMBER_STATES:
            await self._heartbeat()

    async def take_task_offsets(self, offsets: TaskOffsets) -> None:
        """Do nothing: the leader gets them with each join."""

    async def end(self, leave: bool) -> None:
        """Leave if requested."""
        if leave:
            await self.leave_self("the stream thread was closed")

    # Offsets

    def on_refused_commit(self, identity: Identity, error: BrokerError) -> None:
        """Handle a commit that was rejected because of a rebalance or an eviction."""
        if error.code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._rebalance()
        elif identity == self.identity and self.state in MEMBER_STATES:
            self._lose(error)

    def require_member(self) -> None:
        """Raise also while joining: the group accepts no commit during a rebalance."""
        super().require_member()
        if self.state is MemberState.JOINING:
            raise self.retriable("the group is rebalancing")
