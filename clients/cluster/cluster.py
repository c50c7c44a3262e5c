"""Requests to a cluster's brokers on the process's IO thread: leaders, coordinators, and connections to brokers.

A request goes to any reachable broker: first a connected one, then the other known brokers, then
``bootstrap.servers``. So a client finds its cluster again after all brokers were replaced (KIP-899).
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
from functools import partial
from types import SimpleNamespace
from typing import ClassVar, NamedTuple, TypeVar

from ..connection.opening import Identity, Opened, authenticate, open_connection
from ..connection.waiting import in_thread
from ..errors import BrokerError, ErrorCode, Kind, RetriableError, UnreachableError, raise_for_code
from ..log_context import PrefixedLogger
from ..network_settings import NetworkSettings
from ..protocol.messages import FIND_COORDINATOR, INIT_PRODUCER_ID, METADATA
from ..protocol.schema import Request, SchemaApi
from ..retry_log import RetryLog
from ..throttle import Throttle
from ..traffic import Connections
from .broker_connection import BrokerConnection
from .coordinators import CoordinatorKind

T = TypeVar("T")

#: The default purpose of a connection; a broker may have connections for other purposes.
QUESTIONS = "questions"
#: That of the requests of a producer to coordinators, of which it sends one at a time.
COORDINATION = "coordination"
#: The timeout factor for a request that may have to open a connection first.
CONNECTED = 1.5


class Address(NamedTuple):
    """The address of a broker's listener."""

    host: str
    port: int


@dataclass(slots=True)
class _BackOff:
    """The backoff of an address after failed connections. kind, failure: the last error's. until: loop time."""

    kind: type[UnreachableError]
    failure: str
    failures: int
    until: float


class Cluster:
    """One client's view of a cluster, and its connections. Coroutines run on the IO thread; see submit."""

    def __init__(self, settings: NetworkSettings) -> None:
        self._settings = settings
        self._io = IoThread.acquire()
        self._tasks: set[asyncio.Task[object]] = set()
        self._bootstrap: list[Address] = [Address(*address) for address in settings.bootstrap_servers]
        self._brokers: dict[int, Address] = {}
        self._cluster_id: str | None = None  # of the latest metadata
        self._connections: dict[tuple[Address, str], BrokerConnection] = {}
        self._back_off: dict[Address, _BackOff] = {}
        self._knowing_brokers: asyncio.Task[None] | None = None
        self._coordinators: dict[tuple[CoordinatorKind, str], Address] = {}
        self._closed = False
        #: Everything that the client repeats; times are those of the event loop.
        self.retries = RetryLog(PrefixedLogger("penstock.clients.cluster", f"[{settings.client_id}] "))
        self._throttle = Throttle(self.retries, settings.client_id)
        #: All of the client's, those of its readers and writers included.
        self.connections = Connections()

    def submit(self, function: Callable[..., Coroutine[object, object, T]], *args: object) -> Future[T]:
        """Run a coroutine on the IO thread. Its result or exception is in the future; close() cancels it."""
        return self._io.submit(self._tracked(function(*args)))

    async def _tracked(self, coroutine: Coroutine[object, object, T]) -> T:
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
        """The error that ended the IO thread; None while it runs."""
        return self._io.failure

    async def sleep(self, seconds: float) -> None:
        """Pause this coroutine."""
        await asyncio.sleep(seconds)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        """Run a function that is slow or uses a cluster itself, without blocking other coroutines; return its result.

        close() waits until it has returned, because the caller may close the function's resources next.
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
    ) -> SimpleNamespace:
        """Send a broker a request and return the response.

        purpose: each purpose has a separate connection, whose requests are answered in order. timeout_ms: for the
        response, None for ``socket.timeout.ms``. Raises UnreachableError, or BrokerError if the broker rejects it.
        """
        return await self._connection(address, purpose).ask(request, timeout_ms)

    async def version(self, address: Address, api: SchemaApi, purpose: str = QUESTIONS) -> int:
        """Return the highest version of an API that both sides support; raises as ``send`` does."""
        return await self._connection(address, purpose).version(api)

    async def ask_any(self, request: Request, timeout_ms: float | None = None) -> SimpleNamespace:
        """Send a request to the first reachable broker; if there is none, raises the last one's error as ``send`` does.

        timeout_ms: per broker, for connecting and responding; None for the connections' defaults.
        """
        failure = UnreachableError("bootstrap.servers names no broker")
        for address in await self._candidates():
            try:
                async with asyncio.timeout(None if timeout_ms is None else CONNECTED * timeout_ms / 1000):
                    return await self.send(address, request, timeout_ms)
            except UnreachableError as error:
                failure = error
            except TimeoutError:
                failure = UnreachableError(f"cannot connect to {address.host}:{address.port}")
        raise failure

    async def ask_broker(
        self, node: int, request: Request, timeout_ms: float | None = None, purpose: str = QUESTIONS
    ) -> SimpleNamespace:
        """Send a request to a broker by its id from the latest metadata(); parameters and errors as for ``send``."""
        return await self.send(self._address(node), request, timeout_ms, purpose)

    async def _candidates(self) -> Iterator[Address]:
        """Return all addresses, most likely to answer first."""
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
    ) -> SimpleNamespace:
        """Request the topics' partitions and return the response. Its brokers can then be addressed by id.

        topics: None for all. creates_topics: the broker may auto-create missing ones. timeout_ms: as for ``ask_any``.
        Raises UnreachableError, BrokerError.
        """
        asked = None if topics is None else [{"name": topic} for topic in sorted(topics)]
        response = await self.ask_any(METADATA(topics=asked, allow_auto_topic_creation=creates_topics), timeout_ms)
        if response.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:  # this broker has left the cluster (KIP-1102)
            self._forget_brokers()
        raise_for_code(response.error_code)
        self._cluster_id = response.cluster_id
        self._brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        return response

    async def producer_id(self) -> tuple[int, int]:
        """Request a producer id without transactions; return it and its epoch. Raises as metadata does."""
        response = await self.ask_any(INIT_PRODUCER_ID())
        raise_for_code(response.error_code)
        return response.producer_id, response.producer_epoch

    # Coordinators

    async def find_coordinator(self, kind: CoordinatorKind, key: str) -> Address:
        """Look up the coordinator of a group or a transactional id; raises UnreachableError, BrokerError."""
        if self._knowing_brokers is None:
            self._knowing_brokers = asyncio.create_task(self._tracked(self._keep_knowing_brokers()))
        response = await self.ask_any(FIND_COORDINATOR(key=key, key_type=int(kind), coordinator_keys=[key]))
        found = response.coordinators[0] if response.coordinators else response
        raise_for_code(found.error_code, found.error_message)
        address = Address(found.host, found.port)
        self._brokers.setdefault(found.node_id, address)
        return address

    async def _keep_knowing_brokers(self) -> None:
        """Refresh the list of brokers periodically; it is needed when a coordinator is lost.

        Clients that look up leaders learn of the brokers by those requests already.
        """
        while True:
            with suppress(RetriableError, BrokerError):  # other requests meet the same error, and report it
                await self.metadata(())
            await asyncio.sleep(self._settings.metadata_max_age_ms / 1000)

    async def ask_coordinator(self, kind: CoordinatorKind, key: str, request: Request) -> SimpleNamespace:
        """Send a request to a coordinator once, after looking it up if unknown; see Coordinators.ask_coordinator."""
        try:
            address = self._coordinators.get((kind, key))
            if address is None:
                address = self._coordinators[kind, key] = await self.find_coordinator(kind, key)
            response = await self.send(address, request, purpose=COORDINATION)
        except RetriableError:
            self._coordinators.pop((kind, key), None)
            raise
        if any(ErrorCode(code).kind is Kind.MOVED for code in error_codes(response)):
            self._coordinators.pop((kind, key), None)
        return response

    # Connections

    async def open(self, node: int) -> Opened:
        """Return a new authenticated connection to a broker, owned by the caller; raises as ``send`` does."""
        return await self._open(self._address(node), node)

    def _address(self, node: int) -> Address:
        """Return a broker's address; raises UnreachableError."""
        address = self._brokers.get(node)
        if address is None:
            raise UnreachableError(f"broker {node} is no longer in the cluster's metadata")
        return address

    async def authenticate(self, opened: Opened) -> Opened:
        """Reauthenticate a connection returned by open(); see connection.opening."""
        return await authenticate(opened, self._settings)

    def _connection(self, address: Address, purpose: str) -> BrokerConnection:
        key = address, purpose
        if key not in self._connections:
            note = partial(self._note_throttle, address)
            self._connections[key] = BrokerConnection(lambda: self._open(address), self._settings, note)
        return self._connections[key]

    def _note_throttle(self, address: Address, request: str, throttle_ms: int) -> None:
        now_ms = asyncio.get_running_loop().time() * 1000
        self._throttle.note(f"{address.host}:{address.port}", request, throttle_ms, now_ms)

    def _forget_brokers(self) -> None:
        """Start again from ``bootstrap.servers`` (KIP-899, KIP-1102)."""
        self._brokers.clear()
        self._cluster_id = None

    def _identity(self, address: Address, node: int | None) -> Identity | None:
        """Return the broker at an address by the latest metadata; None if it is not known or not to be checked."""
        if node is None:
            node = next((node for node, known in self._brokers.items() if known == address), None)
        if node is None or self._cluster_id is None or not self._settings.checks_cluster:
            return None
        return Identity(self._cluster_id, node)

    async def _open(self, address: Address, node: int | None = None) -> Opened:
        now = asyncio.get_running_loop().time()
        back_off = self._back_off.get(address)
        if back_off is not None and now < back_off.until:
            raise back_off.kind(back_off.failure)
        try:
            identity = self._identity(address, node)
            opened = await open_connection(*address, self._settings, self.connections, identity)
        except BrokerError as error:
            if identity is None or error.code is not ErrorCode.REBOOTSTRAP_REQUIRED:
                raise
            self._forget_brokers()
            raise UnreachableError(
                f"{address.host}:{address.port} is not broker {identity.node_id} of the cluster {identity.cluster_id} "
                "any more: the client asks bootstrap.servers for its brokers again (KIP-1242)"
            ) from error
        except UnreachableError as error:
            failures = 0 if back_off is None else back_off.failures
            text = f"{error}{self._advertised_by(address)}"
            until = now + self._pause_seconds(failures)
            self._back_off[address] = _BackOff(type(error), text, failures + 1, until)
            raise type(error)(text) from error
        self._back_off.pop(address, None)
        return opened

    def _advertised_by(self, address: Address) -> str:
        """Return the broker that advertises an address that is not configured, such as ``kafka:9092`` outside of its
        container.
        """
        node = next((node for node, known in self._brokers.items() if known == address), None)
        if node is None or address in self._settings.bootstrap_servers:
            return ""
        servers = ",".join(f"{host}:{port}" for host, port in self._settings.bootstrap_servers)
        return (
            f"; broker {node}, asked by bootstrap.servers={servers}, says that clients reach it there: if not, "
            "correct its advertised.listeners"
        )

    def _pause_seconds(self, failures: int) -> float:
        """Return the backoff after a failure, given the number of failures before it (Kafka: ExponentialBackoff)."""
        ms: float = self._settings.reconnect_backoff_ms << min(failures, 10)
        return min(ms, self._settings.reconnect_backoff_max_ms) * random.uniform(0.8, 1.2) / 1000

    def waits(self) -> tuple[str, ...]:
        """Return what is being retried or throttled for long, as texts; any thread may call it."""
        return self.retries.current(self._io.now_ms())

    def close(self) -> None:
        """Close all connections and cancel running coroutines. A second call does nothing."""
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
        await asyncio.sleep(0)  # let the futures of submit() complete


def error_codes(response: SimpleNamespace) -> Iterator[int]:
    """Return all error codes in a response, at any level."""
    for name, value in vars(response).items():
        if name.endswith("error_code"):
            yield value
        elif isinstance(value, list):
            for each in value:
                if hasattr(each, "__dict__"):
                    yield from error_codes(each)


def _canonical(addresses: Collection[Address]) -> list[Address]:
    """Return the canonical names of all addresses that these resolve to (``client.dns.lookup``)."""
    found = []
    for host, port in addresses:
        for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            name, _ = socket.getnameinfo(address, socket.NI_NUMERICSERV)
            found.append(Address(name, port))
    return list(dict.fromkeys(found))


class IoThread:
    """The process's event loop thread, for work that must continue while user code runs (Kafka: heartbeat threads).

    Heartbeats and joins, infrequent requests, and opening connections run there as coroutines. The first client starts
    it by acquire(), the last one stops it by release().
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
        """Return the process's thread; start it if it does not exist or has died."""
        with cls._lock:
            if cls._running is None or cls._running.failure is not None:
                cls._running = cls()
            cls._running._users += 1
            return cls._running

    def now_ms(self) -> float:
        """Return the event loop's time in ms."""
        return self._loop.time() * 1000

    def release(self) -> None:
        """Stop the thread if no other client uses it. The caller's coroutines must have ended."""
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
        """The error that ended the thread; None while it runs."""
        if self._thread.is_alive():
            return None
        return self._failure or RuntimeError("the IO thread has ended")

    def submit(self, coroutine: Coroutine[object, object, T]) -> Future[T]:
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
