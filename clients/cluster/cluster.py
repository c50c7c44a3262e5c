"""A cluster's brokers, asked on the process's IO thread: who leads, who coordinates, and connections to them.

A question goes to any broker that can be reached: one that is connected, then the others that are known, then
``bootstrap.servers``, so that a client finds its cluster again whose brokers were all replaced (KIP-899).
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from ..connection.opening import Opened, authenticate, open_connection
from ..connection.waiting import in_thread
from ..errors import BrokerError, ErrorCode, Kind, RetriableError, UnreachableError, raise_for_code
from ..network_settings import NetworkSettings
from ..protocol.messages import FIND_COORDINATOR, INIT_PRODUCER_ID, METADATA
from ..protocol.schema import Api, Request
from .broker_connection import BrokerConnection
from .coordinators import CoordinatorKind

T = TypeVar("T")

#: What connections that answer questions are for: one broker may have others for other purposes.
QUESTIONS = "questions"
#: How much longer than its answer a broker that is still to be connected to may take.
CONNECTED = 1.5


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int


@dataclass(slots=True)
class _BackOff:
    """Of an address that could not be connected to. until: loop time."""

    failure: str
    failures: int
    until: float


class Cluster:
    """One client's view of a cluster, and its connections. Coroutines run on the IO thread; see submit."""

    def __init__(self, settings: NetworkSettings) -> None:
        self._settings = settings
        self._io = IoThread.acquire()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._bootstrap: list[Address] = [Address(*address) for address in settings.bootstrap_servers]
        self._brokers: dict[int, Address] = {}
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._back_off: dict[Address, _BackOff] = {}
        self._knowing_brokers: asyncio.Task[None] | None = None
        self._coordinators: dict[tuple[CoordinatorKind, str], Address] = {}
        self._closed = False

    def submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        """Run a coroutine on the IO thread. Its result or exception is in the future; close() cancels it."""
        return self._io.submit(self._tracked(function(*args)))

    async def _tracked(self, coroutine: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        if self._closed:
            coroutine.close()
            raise asyncio.CancelledError
        self._tasks.add(task)
        try:
            return await coroutine
        finally:
            self._tasks.discard(task)

    @property
    def failure(self) -> BaseException | None:
        """What the IO thread died of; None while it runs."""
        return self._io.failure

    async def sleep(self, seconds: float) -> None:
        """Pause this coroutine."""
        await asyncio.sleep(seconds)

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Return what a function returns that takes long, or asks a cluster itself: other coroutines continue.

        close() waits for its end: what the function uses may be closed next.
        """
        running = asyncio.ensure_future(in_thread(function, *args))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait((running,))
            raise

    # Questions

    async def send(
        self, address: Address, request: Request, timeout_ms: float | None = None, purpose: str = QUESTIONS
    ) -> Any:
        """Send a broker a request and return the answer.

        purpose: requests of one purpose have a connection of their own and are answered in order. timeout_ms: for the
        answer, None for ``socket.timeout.ms``. Raises UnreachableError, or BrokerError if it refuses.
        """
        return await self._connection(address, purpose).ask(request, timeout_ms)

    async def version(self, address: Address, api: Api, purpose: str = QUESTIONS) -> int:
        """Return the highest version of an API that a broker and we know; raises as ``send`` does."""
        return await self._connection(address, purpose).version(api)

    async def ask_any(self, request: Request, timeout_ms: float | None = None) -> Any:
        """Ask the first broker that can be reached; raises as ``send`` does, of the last one.

        timeout_ms: how long each may take, to be connected to and to answer; None for the connections' own limits.
        """
        failure = UnreachableError("bootstrap.servers names no broker")
        for address in await self._candidates():
            try:
                async with asyncio.timeout(None if timeout_ms is None else CONNECTED * timeout_ms / 1000):
                    return await self.send(address, request, timeout_ms)
            except UnreachableError as error:
                failure = error
            except TimeoutError:
                failure = UnreachableError(f"{address.host}:{address.port} cannot be connected to")
        raise failure

    async def ask_broker(
        self, node: int, request: Request, timeout_ms: float | None = None, purpose: str = QUESTIONS
    ) -> Any:
        """Ask a broker by its id, as metadata() has named it last; parameters and errors as of ``send``."""
        return await self.send(self._address(node), request, timeout_ms, purpose)

    async def _candidates(self) -> Iterator[Address]:
        """Return all addresses, the likeliest to answer first."""
        known = list(dict.fromkeys(self._brokers.values()))
        random.shuffle(known)
        now = asyncio.get_running_loop().time()

        def rank(address: Address) -> int:
            connection = self._connections.get((address, QUESTIONS))
            if connection is not None and connection.is_open:
                return 0
            back_off = self._back_off.get(address)
            return 1 if back_off is None or now >= back_off.until else 2

        if not known and self._settings.canonical_names:
            self._bootstrap = await in_thread(_canonical, self._bootstrap)
        bootstrap = random.sample(self._bootstrap, len(self._bootstrap))
        return iter(dict.fromkeys((*sorted(known, key=rank), *sorted(bootstrap, key=rank))))

    async def metadata(
        self, topics: Collection[str] | None, creates_topics: bool = False, timeout_ms: float | None = None
    ) -> Any:
        """Ask for the topics' partitions; return the answer. Its brokers can be connected to by their ids.

        topics: None for all. creates_topics: the broker may make those that are not there. timeout_ms: as of
        ``ask_any``. Raises UnreachableError, BrokerError.
        """
        asked = None if topics is None else [{"name": topic} for topic in sorted(topics)]
        answer = await self.ask_any(METADATA(topics=asked, allow_auto_topic_creation=creates_topics), timeout_ms)
        if answer.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:  # this broker has left the cluster (KIP-1102)
            self._brokers.clear()
        raise_for_code(answer.error_code)
        self._brokers = {broker.node_id: Address(broker.host, broker.port) for broker in answer.brokers}
        return answer

    async def producer_id(self) -> tuple[int, int]:
        """Ask for a producer id without transactions; return it and its epoch. Raises as metadata does."""
        answer = await self.ask_any(INIT_PRODUCER_ID())
        raise_for_code(answer.error_code)
        return answer.producer_id, answer.producer_epoch

    # Coordinators

    async def find_coordinator(self, kind: CoordinatorKind, key: str) -> Address:
        """Ask any broker who coordinates a group or a transactional id; raises UnreachableError, BrokerError."""
        if self._knowing_brokers is None:
            self._knowing_brokers = asyncio.create_task(self._tracked(self._keep_knowing_brokers()))
        answer = await self.ask_any(FIND_COORDINATOR(key=key, key_type=int(kind), coordinator_keys=[key]))
        found = answer.coordinators[0] if answer.coordinators else answer
        raise_for_code(found.error_code, found.error_message)
        address = Address(found.host, found.port)
        self._brokers.setdefault(found.node_id, address)
        return address

    async def _keep_knowing_brokers(self) -> None:
        """Ask for the cluster's brokers from time to time: one of them is asked when a coordinator is lost.

        Callers learn of leaders by that.
        """
        while True:
            with suppress(RetriableError, BrokerError):  # other requests meet the same error, and report it
                await self.metadata(())
            await asyncio.sleep(self._settings.metadata_max_age_ms / 1000)

    async def ask_coordinator(self, kind: CoordinatorKind, key: str, request: Request) -> Any:
        """Ask a coordinator once; see Coordinators.ask_coordinator. It is looked for if it is not known."""
        try:
            address = self._coordinators.get((kind, key))
            if address is None:
                address = self._coordinators[kind, key] = await self.find_coordinator(kind, key)
            answer = await self.send(address, request, purpose=f"{kind.name.lower()}-{key}")
        except RetriableError:
            self._coordinators.pop((kind, key), None)
            raise
        if any(ErrorCode(code).kind is Kind.MOVED for code in error_codes(answer)):
            self._coordinators.pop((kind, key), None)
        return answer

    # Connections

    async def open(self, node: int) -> Opened:
        """Return a new connection to a broker, authenticated, which is then the caller's; raises as ``send`` does."""
        return await self._open(self._address(node))

    def _address(self, node: int) -> Address:
        """Return where a broker is; raises UnreachableError."""
        address = self._brokers.get(node)
        if address is None:
            raise UnreachableError(f"broker {node} is not known any more")
        return address

    async def authenticate(self, opened: Opened) -> Opened:
        """Authenticate a connection again that open() has returned; see connection.opening."""
        return await authenticate(opened, self._settings)

    def _connection(self, address: Address, purpose: str) -> BrokerConnection:
        key = address, purpose
        if key not in self._connections:
            self._connections[key] = BrokerConnection(lambda: self._open(address), self._settings)
        return self._connections[key]

    async def _open(self, address: Address) -> Opened:
        now = asyncio.get_running_loop().time()
        back_off = self._back_off.get(address)
        if back_off is not None and now < back_off.until:
            raise UnreachableError(back_off.failure)
        try:
            opened = await open_connection(*address, self._settings)
        except UnreachableError as error:
            failures = 0 if back_off is None else back_off.failures
            self._back_off[address] = _BackOff(str(error), failures + 1, now + self._pause_seconds(failures))
            raise
        self._back_off.pop(address, None)
        return opened

    def _pause_seconds(self, failures: int) -> float:
        """Return how long to wait after a failure that so many came before (Kafka: ExponentialBackoff)."""
        ms: float = self._settings.reconnect_backoff_ms << min(failures, 10)
        return min(ms, self._settings.reconnect_backoff_max_ms) * random.uniform(0.8, 1.2) / 1000

    def close(self) -> None:
        """Close all connections; coroutines that still run are cancelled. A second call does nothing."""
        if self._closed:
            return
        if self.failure is None:
            self._io.submit(self._close()).result()
        self._closed = True
        self._io.release()

    async def _close(self) -> None:
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in self._connections.values():
            connection.close()
        await asyncio.sleep(0)  # until the futures of submit() know


def error_codes(answer: Any) -> Iterator[int]:
    """Return all error codes in an answer, whatever they are of."""
    for name, value in vars(answer).items():
        if name.endswith("error_code"):
            yield value
        elif isinstance(value, list):
            for each in value:
                if hasattr(each, "__dict__"):
                    yield from error_codes(each)


def _canonical(addresses: Collection[Address]) -> list[Address]:
    """Return the names of all addresses behind these (``client.dns.lookup``)."""
    found = []
    for host, port in addresses:
        for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            name, _ = socket.getnameinfo(address, socket.NI_NUMERICSERV)
            found.append(Address(name, port))
    return list(dict.fromkeys(found))


class IoThread:
    """The thread of a process for what must continue while user code runs: an event loop (Kafka: heartbeat threads).

    Heartbeats and joins, questions, and the opening of connections run there as coroutines. The first client starts it
    by acquire(), the last one ends it by release().
    """

    _lock: ClassVar = threading.Lock()
    _running: ClassVar[IoThread | None] = None

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._users = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="penstock-io", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> IoThread:
        """Return the process's thread; it is started if there is none, or if it has died."""
        with cls._lock:
            if cls._running is None or cls._running.failure is not None:
                cls._running = cls()
            cls._running._users += 1
            return cls._running

    def release(self) -> None:
        """End the thread if no other client uses it. Coroutines of the caller must have ended."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
            if IoThread._running is self:
                IoThread._running = None
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.run_until_complete(_cancel_all())  # left by a thread that died
        self._loop.close()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        except BaseException as error:  # noqa: BLE001  reported by failure: callers that wait must learn of it
            self._failure = error

    @property
    def failure(self) -> BaseException | None:
        """What the thread died of; None while it runs."""
        if self._thread.is_alive():
            return None
        return self._failure or RuntimeError("the IO thread has ended")

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread; its result or exception is in the future."""
        failure = self.failure
        if failure is None:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        coroutine.close()
        future: Future[T] = Future()
        future.set_exception(failure)
        return future


async def _cancel_all() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
