"""A Kafka cluster in this process, for tests: sockets before a ``Cluster``."""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from .cluster import Cluster, Connection, Node
from .output import Output
from .record_batches import NewRecord, StoredRecord, batch_of

if TYPE_CHECKING:
    from penstock.testing.wire.record import Event
    from penstock.testing.wire.rules import Rule

    from .faults import Faults

_LENGTH = struct.Struct(">i")
_LARGEST_REQUEST = 100 << 20
HOST = "127.0.0.1"
T = TypeVar("T")


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


class EmbeddedKafka:
    """A cluster that any Kafka client can connect to, ready within milliseconds, without Java or files.

    It is for tests: it keeps everything in memory, replicates nothing, and supports only the APIs in ``apis``. An
    unknown request closes the connection, as with an old broker.

        with EmbeddedKafka(topics={"in": 4}) as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    nodes: how many brokers. topics: numbers of partitions by name. config: settings of brokers (see BROKER_DEFAULTS).
    users: passwords by name; with some, clients must use SASL_PLAINTEXT and PLAIN. port: of the first broker, 0 for any
    free one. clock_ms: returns the time in ms, for records and timeouts; the system's by default. rules: faults between
    clients and brokers, as injected by WireProxy; seed: for their probabilities. Rules need kio.
    """

    def __init__(
        self,
        nodes: int = 1,
        topics: Mapping[str, int] | None = None,
        config: Mapping[str, str] | None = None,
        users: Mapping[str, str] | None = None,
        *,
        port: int = 0,
        clock_ms: Callable[[], int] | None = None,
        rules: Iterable[Rule] | None = None,
        seed: int = 0,
    ) -> None:
        self.cluster = Cluster(nodes, config, users)
        self._port = port
        self._clock_ms = clock_ms or _system_ms
        for name, partitions in (topics or {}).items():
            self.cluster.create_topic(name, partitions)
        self._faults: Faults | None = None
        if rules is not None:
            from .faults import Faults  # it needs kio

            self._faults = Faults(rules, seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="embedded-kafka", daemon=True)
        self._ready: Future[None] = Future()
        self._servers: dict[int, asyncio.Server] = {}
        self._writers: dict[Connection, Output] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The nodes' addresses, separated by commas."""
        return ",".join(f"{node.host}:{node.port}" for node in self.cluster.nodes.values())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        if self._faults is not None and self._faults.failure is not None and error is None:
            raise self._faults.failure

    def start(self) -> None:
        """Listen, on a free port for each node. Raises OSError."""
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Close all connections, and drop all data."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def do(self, change: Callable[[Cluster], T]) -> T:
        """Call ``change(cluster)`` between two requests, and return its result.

        kafka.do(lambda cluster: cluster.move_leader("in", 0, 2))
        """
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(change(self.cluster))
            except Exception as error:  # noqa: BLE001  the caller's
                done.set_exception(error)
            self._advance()

        self._loop.call_soon_threadsafe(run)
        return done.result()

    @property
    def events(self) -> list[Event]:
        """What rules have done so far; empty without rules."""
        return [] if self._faults is None else self._faults.events

    def set_rules(self, rules: Iterable[Rule], *, seed: int = 0) -> None:
        """Replace the rules for later requests. Raises ValueError unless it was made with rules, if only with ()."""
        if self._faults is None:
            raise ValueError("connections of EmbeddedKafka take rules only if it was made with some, e.g. rules=()")
        self._faults.set_rules(rules, seed)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        """Create a topic; raises ApiError as Kafka does."""
        self.do(lambda cluster: cluster.create_topic(name, partitions, config=config))

    def append(self, topic: str, value: bytes | None, key: bytes | None = None, partition: int = 0) -> int:
        """Write a record without a client; return its offset."""
        now = self._clock_ms()

        def write(cluster: Cluster) -> int:
            found = cluster.partition(cluster.topic(topic), partition)
            return found.log.append(batch_of([NewRecord(now, key, value)]), found.leader_epoch).base

        return self.do(write)

    def records(self, topic: str, partition: int = 0) -> list[StoredRecord]:
        """Return the records of a partition, including those of open and aborted transactions."""
        return self.do(lambda cluster: list(cluster.partition(cluster.topic(topic), partition).log.records()))

    # -- the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._listen())
        except BaseException as error:  # noqa: BLE001  start() raises it
            self._ready.set_exception(error)
            return
        self._ready.set_result(None)
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _listen(self) -> None:
        for node in self.cluster.nodes.values():
            server = await asyncio.start_server(partial(self._accept, node), HOST, self._port if node.id == 1 else 0)
            self._servers[node.id] = server
            node.host, node.port = server.sockets[0].getsockname()[:2]

    async def _close(self) -> None:
        for server in self._servers.values():
            server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._faults is None:
            await self._serve(node, reader, writer)
        else:
            await self._faults.serve(node, reader, writer, self._serve)

    async def _serve(self, node: Node, reader: asyncio.StreamReader, writer: Output) -> None:
        if not node.up:
            writer.close()
            return
        connection = self.cluster.connect(node.id)
        self._writers[connection] = writer
        try:
            while not connection.closed:
                (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if not 0 < size <= _LARGEST_REQUEST:
                    break
                self.cluster.receive(connection, await reader.readexactly(size), self._clock_ms())
                self._advance()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has disconnected
        finally:
            self._writers.pop(connection, None)
            if not connection.closed:
                self.cluster.disconnect(connection)
            writer.close()

    def _advance(self) -> None:
        """Send responses that are ready, and schedule the next call."""
        self.cluster.advance(self._clock_ms())
        for connection, writer in list(self._writers.items()):
            while connection.outbox:
                answer = connection.outbox.popleft()
                writer.write(_LENGTH.pack(len(answer)) + answer)
            if connection.closed:
                writer.close()
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.cluster.deadline_ms()
        if deadline is not None and deadline != float("inf"):
            delay = max(deadline - self._clock_ms(), 0) / 1000
            self._timer = self._loop.call_later(delay, self._advance)
