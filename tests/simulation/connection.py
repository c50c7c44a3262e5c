"""A group member's connection to the simulated coordinator: the coroutines of the real membership run over it.

Replaces clients/cluster/cluster.Cluster. What runs there on an IO thread runs here as
events of the world, so a heartbeat goes out while the stream thread is busy, but not while its process is stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, Protocol, TypeVar

from penstock.clients.cluster.cluster import Address
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.errors import UnreachableError
from tests.simulation.faults import Points
from tests.simulation.world import World

T = TypeVar("T")
Reply = Callable[[Any], None]
#: How long an answer takes, in ms.
LATENCY_MS = 3
#: A connection that broke is noticed after this many ms.
BROKEN_MS = 300


class Coordinator(Protocol):
    """Answers a member's requests, some of them later."""

    def handle(self, client: str, request: Any, reply: Reply) -> None:
        """Call reply with the response."""


class Io(Protocol):
    """The process that a connection belongs to, as far as its IO thread goes."""

    points: Points
    client: str

    def later(self, ms: int, happen: Callable[[], None]) -> None:
        """Call happen() on the IO thread in ms milliseconds, or later, when the process runs again."""

    def wait(self, condition: Callable[[], object], timeout_ms: int) -> bool:
        """Let the stream thread wait; returns whether the condition holds in the end."""

    def loses(self) -> str | None:
        """Return which part of an exchange with a broker is lost: "request", "answer" or None."""


class _Wait:
    """Suspends a coroutine until resume is called with a function that returns or raises."""

    def __init__(self) -> None:
        self.resume: Callable[[Callable[[], Any]], None] | None = None

    def __await__(self) -> Generator[_Wait, Callable[[], Any], Any]:
        return (yield self)()


class WaitedFuture(Future[T]):
    """A future whose result lets simulated time pass."""

    def __init__(self, io: Io, name: str) -> None:
        super().__init__()
        self._io, self._name = io, name

    def result(self, timeout: float | None = None) -> T:
        def wait() -> T:
            if not self._io.wait(self.done, int((timeout or 0) * 1000)):
                raise FutureTimeoutError
            return super(WaitedFuture, self).result(0)

        return self._io.points.call(self._name, wait)


class SimulatedConnection:
    """A Cluster over a Coordinator in memory."""

    def __init__(self, world: World, io: Io, client: str, coordinator: Coordinator) -> None:
        self._world, self._io, self._client, self._coordinator = world, io, client, coordinator
        self._closed = False
        self.failure: BaseException | None = None

    def submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        name = f"group {function.__name__}"
        future: WaitedFuture[T] = WaitedFuture(self._io, name)
        self._run(function(*args), future)
        return future

    def _run(self, coroutine: Coroutine[Any, Any, T], future: Future[T]) -> None:
        def step(outcome: Callable[[], Any] | None) -> None:
            if self._closed and outcome is not None:
                coroutine.close()
                return
            try:
                wait = coroutine.send(outcome)
            except StopIteration as end:
                future.set_result(end.value)
            except Exception as error:  # noqa: BLE001  it is the future's
                future.set_exception(error)
            else:
                wait.resume = step

        step(None)

    async def sleep(self, seconds: float) -> None:
        wait = _Wait()
        self._io.later(int(seconds * 1000), lambda: _resume(wait, lambda: None))
        await wait

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Run it at once; its requests to brokers take no simulated time."""
        return function(*args)

    async def find_coordinator(self, kind: CoordinatorKind, key: str) -> Address:
        await self.sleep(LATENCY_MS / 1000)
        return Address("coordinator", 1)

    async def send(self, address: Address, request: Any, timeout_ms: float | None = None, purpose: str = "") -> Any:
        """Send a request and return the response. Raises UnreachableError if one of them gets lost."""
        wait = _Wait()
        lost = self._io.loses()

        def answer(response: Any) -> None:
            if lost is None:
                self._io.later(1, lambda: _resume(wait, lambda: response))

        if lost != "request":
            self._world.after(1, lambda: self._coordinator.handle(self._client, request, answer))
        limit_ms = int(timeout_ms or 30_000) if lost is None else BROKEN_MS
        self._io.later(limit_ms, lambda: _resume(wait, _unreachable))
        return await wait

    def close(self) -> None:
        self._closed = True


def _resume(wait: _Wait, outcome: Callable[[], Any]) -> None:
    resume, wait.resume = wait.resume, None
    if resume is not None:
        resume(outcome)


def _unreachable() -> None:
    raise UnreachableError("the connection was lost")
