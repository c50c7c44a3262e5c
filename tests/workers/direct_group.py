"""The real group member over the in-memory broker: its coroutines run within the calls, without an IO thread."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from itertools import count
from typing import Any, TypeVar

from penstock.clients.cluster.cluster import Address
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.group.classic_protocol import ClassicProtocol
from penstock.clients.group.group_coordinator import GroupCoordinator
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assign, Event, Meanwhile
from penstock.clients.group.offsets import GroupOffsets
from penstock.clients.group.offsets_reader import GroupOffsetsReader
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import NetworkSettings
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.clients.protocol.schema import Request
from penstock.topology.records import TopicPartition
from tests.direct_kafka import GROUP, NEVER_MS, Caller, DirectKafka
from tests.stepped_coroutines import SteppedCluster, Wait

T = TypeVar("T")


class _ClockFuture(Future[T]):
    """A future whose result() advances the clock of the connection."""

    def __init__(self, connection: DirectConnection) -> None:
        super().__init__()
        self._connection = connection

    def result(self, timeout: float | None = None) -> T:
        deadline = self._connection.now_ms + int((timeout or 0) * 1000)
        while not self.done() and self._connection.sleep_until_next(deadline):
            pass
        if not self.done():
            raise FutureTimeoutError
        return super().result(0)


class DirectConnection(SteppedCluster):
    """A Cluster over the in-memory broker. Its coroutines run in submit(), run_due() and the futures' result().

    holds: APIs whose requests are kept back; held: the requests kept back so far.
    """

    def __init__(self, kafka: DirectKafka, client_id: str) -> None:
        super().__init__()
        self._kafka = kafka
        self._client_id = client_id
        self._callers: dict[str, Caller] = {}
        self._sleeping: list[tuple[int, int, Wait]] = []  # deadline, then the order of insertion
        self._order = count()
        self.holds: set[str] = set()
        self.held: list[Callable[[], None]] = []

    @property
    def now_ms(self) -> int:
        return self._kafka.clock.monotonic_ms()

    def submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        future: Future[T] = _ClockFuture(self)
        self.step(function(*args), future)
        return future

    async def sleep(self, seconds: float) -> None:
        wait = Wait()
        heapq.heappush(self._sleeping, (self.now_ms + int(seconds * 1000), next(self._order), wait))
        await wait

    def run_due(self) -> None:
        """Continue the coroutines whose sleep has ended."""
        due_ms = self.now_ms
        while self._sleeping and self._sleeping[0][0] <= due_ms:
            heapq.heappop(self._sleeping)[2].resume()

    def sleep_until_next(self, deadline_ms: int) -> bool:
        """Advance the clock to the end of the next sleep; return False if that is after the deadline."""
        if not self._sleeping or self._sleeping[0][0] > deadline_ms:
            return False
        self._kafka.clock.advance(max(self._sleeping[0][0] - self.now_ms, 0))
        self.run_due()
        return True

    async def find_coordinator(self, kind: CoordinatorKind, key: str) -> Address:
        return Address("memory", 9092)

    async def send(self, address: Address, request: Request, timeout_ms: float | None = None, purpose: str = "") -> Any:
        wait = Wait()
        if purpose not in self._callers:
            self._callers[purpose] = Caller(self._kafka, self._client_id)

        def send() -> None:
            self._callers[purpose].send(request, lambda answer: wait.resume(lambda: answer))

        if request.api.name in self.holds:
            self.held.append(send)
        else:
            send()
        return await wait

    def release(self) -> None:
        """Let the held requests reach the broker."""
        held, self.held = self.held, []
        for send in held:
            send()

    def close(self) -> None:
        self.closed = True
        for caller in self._callers.values():
            caller.close()


class DirectMember(GroupMember):
    """A GroupMember that sends a heartbeat at each poll.

    in_doubt: chosen by the test. asked: commits in flight; with holds_commits they stay in flight until the test
    answers them or the thread waits for one. left: the argument of close().
    """

    in_doubt = False
    _connection: Any

    def __init__(self, kafka: DirectKafka, client_id: str, assign: Assign, instance_id: str | None) -> None:
        config = GroupMemberConfig(
            GROUP, instance_id, session_timeout_ms=NEVER_MS, max_poll_interval_ms=NEVER_MS - 5_000
        )
        connection = DirectConnection(kafka, client_id)
        protocol = partial(ClassicProtocol, assign=assign)
        super().__init__(config, NetworkSettings(), kafka.clock, protocol, lambda _: connection)  # type: ignore[arg-type, return-value]
        self._kafka = kafka
        self.left: bool | None = None

    def poll(self) -> list[Event]:
        self._connection.run_due()
        self._connection.submit(self._protocol.hear_now).result(0)
        return super().poll()

    @property
    def asked(self) -> list[Callable[[], None]]:
        held: list[Callable[[], None]] = self._connection.held
        return held

    @property
    def holds_commits(self) -> bool:
        return bool(self._connection.holds)

    @holds_commits.setter
    def holds_commits(self, holds: bool) -> None:
        self._connection.holds = {"OffsetCommit"} if holds else set()

    def answer_commits(self) -> None:
        self._connection.release()

    def wait_for_commit(self, asked: Future[None], meanwhile: Meanwhile | None = None) -> None:
        self.answer_commits()
        super().wait_for_commit(asked, meanwhile)

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return self.read_committed(partitions)

    def read_committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What ``committed`` does; a test may replace it, also after others hold a reference to ``committed``."""
        return super().committed(partitions)

    def evict(self) -> None:
        """Throw this member out of its group, as after a session timeout."""
        self._kafka.evict(self.member_id)

    def close(self, leave: bool = False) -> None:
        self.left = leave
        super().close(leave)


class DirectOffsetsReader(GroupOffsetsReader):
    """A GroupOffsetsReader over the in-memory broker."""

    def __init__(self, kafka: DirectKafka, client_id: str) -> None:
        super().__init__(GROUP, NetworkSettings(), clock=kafka.clock)
        config, connection = GroupMemberConfig(GROUP), DirectConnection(kafka, client_id)
        log = PrefixedLogger("penstock.test", "")
        coordinator = GroupCoordinator(config, self.network, connection, kafka.clock, log)  # type: ignore[arg-type]
        self._opened = connection, GroupOffsets(config, coordinator, kafka.clock), coordinator  # type: ignore[assignment]
