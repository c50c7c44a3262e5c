"""A group member's connection to the simulated coordinator, over which the real membership's coroutines run.

Replaces clients/cluster/cluster.Cluster. Its IO thread is simulated by events of the world, so a heartbeat is sent
while the stream thread is busy, but not while its process is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Protocol, TypeVar

from penstock.clients.cluster.cluster import Address
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.errors import UnreachableError
from tests.simulation.faults import Points
from tests.simulation.world import World
from tests.stepped_coroutines import SteppedCluster, Wait

T = TypeVar("T")
Reply = Callable[[Any], None]
#: Latency of a response, in ms.
LATENCY_MS = 3
#: A connection that broke is noticed after this many ms.
BROKEN_MS = 300


class Coordinator(Protocol):
    """Answers a member's requests, some of them later."""

    def handle(self, client: str, request: Any, reply: Reply) -> None:
        """Call reply with the response, or with None if the connection ends before."""


class Io(Protocol):
    """The process of a connection, as seen by its IO thread."""

    points: Points
    client: str

    def later(self, ms: int, happen: Callable[[], None]) -> None:
        """Call happen() on the IO thread in ms milliseconds, or later, when the process runs again."""

    def wait(self, condition: Callable[[], object], timeout_ms: int) -> bool:
        """Let the stream thread wait; returns whether the condition holds in the end."""

    def loses(self) -> str | None:
        """Return which part of an exchange with a broker is lost: "request", "answer" or None."""


class WaitedFuture(Future[T]):
    """A future whose result() advances simulated time."""

    def __init__(self, io: Io, name: str) -> None:
        super().__init__()
        self._io, self._name = io, name

    def result(self, timeout: float | None = None) -> T:
        def wait() -> T:
            if not self._io.wait(self.done, int((timeout or 0) * 1000)):
                raise FutureTimeoutError
            return super(WaitedFuture, self).result(0)

        return self._io.points.call(self._name, wait)


class SimulatedConnection(SteppedCluster):
    """A Cluster over a Coordinator in memory."""

    def __init__(self, world: World, io: Io, client: str, coordinator: Coordinator) -> None:
        super().__init__()
        self._world, self._io, self._client, self._coordinator = world, io, client, coordinator

    def submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        name = f"group {function.__name__}"
        future: WaitedFuture[T] = WaitedFuture(self._io, name)
        self.step(function(*args), future)
        return future

    async def sleep(self, seconds: float) -> None:
        wait = Wait()
        self._io.later(int(seconds * 1000), wait.resume)
        await wait

    async def find_coordinator(self, kind: CoordinatorKind, key: str) -> Address:
        await self.sleep(LATENCY_MS / 1000)
        return Address("coordinator", 1)

    async def send(self, address: Address, request: Any, timeout_ms: float | None = None, purpose: str = "") -> Any:
        """Send a request and return the response. Raises UnreachableError if either gets lost."""
        wait = Wait()
        lost = self._io.loses()

        def answer(response: Any) -> None:
            if response is None:
                self._io.later(BROKEN_MS, lambda: wait.resume(_unreachable))
            elif lost is None:
                self._io.later(1, lambda: wait.resume(lambda: response))

        if lost != "request":
            self._world.after(1, lambda: self._coordinator.handle(self._client, request, answer))
        limit_ms = int(timeout_ms or 30_000) if lost is None else BROKEN_MS
        self._io.later(limit_ms, lambda: wait.resume(_unreachable))
        return await wait

    def close(self) -> None:
        self.closed = True


def _unreachable() -> None:
    raise UnreachableError("the connection was lost")
