"""A real producer over the simulated brokers: its requests take simulated time, get lost, or arrive late.

The code of clients/writing is real (batches, sequence numbers, deadlines, transactions), and so are the stream thread's
connections except for their sockets. Everything that runs on the IO thread (requests, opening connections) is an event
of the world.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any

from penstock.clients.cluster.brokers import Leaders, ProducerId
from penstock.clients.cluster.cluster import error_codes
from penstock.clients.cluster.coordinators import CoordinatorKind
from penstock.clients.connection.opening import Opened
from penstock.clients.errors import DeliveryTimeoutError, ErrorCode, Kind, UnreachableError
from penstock.clients.protocol.offset_commits import GroupMetadata, OffsetAndMetadata
from penstock.clients.protocol.produce_messages import API_KEY, API_VERSION, NEW_TRANSACTIONS_VERSION
from penstock.clients.protocol.schema import Request
from penstock.clients.throttle import Health
from penstock.clients.traffic import Traffic
from penstock.clients.writing.kafka_producer import KafkaProducer
from penstock.clients.writing.transactional_producer import TransactionalKafkaProducer
from penstock.clients.writing.writer import Lost, Source
from penstock.kernel.sinks import RecordTaker
from penstock.topology.records import TopicPartition
from tests.produce_bytes import ProduceBytes, Said, encoded_answer
from tests.simulation.coordinators import Coordinators
from tests.simulation.stamps import stamp_of, stamped

_VERSIONS = {API_KEY: (API_VERSION, NEW_TRANSACTIONS_VERSION)}
_LENGTH_BYTES = 4
#: Latency of a request, and of a late one, in ms; and the time until a broken connection is detected.
WAY_MS = (0, 1, 2, 5)
LATE_MS = (600, 3_000, 12_000)
BROKEN_MS = 300
#: The share of lost requests that arrive late instead.
LATE_SHARE = 0.5
#: Errors that brokers sometimes return for a batch; with the second one, the batch is written nevertheless.
_TRANSIENT = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


class Fate(Enum):
    """The fate of later requests on a connection: they are lost, arrive late, or get no response."""

    GONE = "gone"
    LATE = "late"
    UNANSWERED = "unanswered"


class _Connection:
    """The broker's end of a connection. As with TCP, nothing is reordered, and nothing arrives after a lost message.

    free_at_ms: when the previous request is handled; said_at_ms: when the previous response has arrived.
    """

    def __init__(self, node: int, end: socket.socket) -> None:
        self.node = node
        self.free_at_ms = self.said_at_ms = 0
        self.fate: Fate | None = None
        self._end: socket.socket | None = end
        end.setblocking(False)
        self._received = b""

    @property
    def is_open(self) -> bool:
        return self._end is not None

    def requests(self) -> list[bytes]:
        """Return the requests that have arrived."""
        while self._end is not None:
            try:
                some = self._end.recv(1 << 20)
            except BlockingIOError:
                break
            except ConnectionResetError:  # it was closed with an unread response
                some = b""
            if not some:
                self.close()
            self._received += some
        found = []
        while len(self._received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._received[:_LENGTH_BYTES], "big")
            if len(self._received) < end:
                break
            found.append(self._received[_LENGTH_BYTES:end])
            self._received = self._received[end:]
        return found

    def say(self, answer: bytes) -> None:
        if self._end is not None:
            try:
                self._end.sendall(len(answer).to_bytes(_LENGTH_BYTES, "big") + answer)
            except BrokenPipeError:  # the producer has closed it since
                self.close()

    def close(self) -> None:
        if self._end is not None:
            self._end.close()
            self._end = None


class Wire:
    """A producer's network: its Brokers, and the selector with which it waits for them. io: its process."""

    failure = None

    def __init__(self, coordinators: Coordinators, io: Any) -> None:
        self._coordinators = coordinators
        self._io = io
        self._world = io.world
        self.client, self.transaction_timeout_ms = io.client, io.transaction_timeout_ms
        self._connections: list[_Connection] = []
        #: The producer's ends of connections that are not reported to it yet.
        self._unclaimed: list[socket.socket] = []
        self._has_come = False
        self._closed = False

    # clients.cluster.brokers.Brokers

    def leaders(self, topics: Collection[str], on_done: Callable[[], None]) -> Future[Leaders]:
        def find() -> Leaders:
            found = {p: leader for topic in topics for p, leader in self._coordinators.leaders(topic).items()}
            missing = set(topics) - {partition.topic for partition in found}
            return Leaders(found, dict.fromkeys(sorted(missing), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

        return self._ask("ask for leaders", find, on_done)

    def producer_id(self, on_done: Callable[[], None]) -> Future[ProducerId]:
        return self._ask("ask for an id", lambda: ProducerId(self._coordinators.producer_id(), 0), on_done)

    def ask_coordinator(
        self, kind: CoordinatorKind, key: str, request: Request, on_done: Callable[[], None]
    ) -> Future[Any]:
        # A late request of the old protocol may split the next transaction, and a late InitProducerId fences the client
        # that repeated it. That is inherent in Kafka.
        can_be_late = self._coordinators.is_new and request.api.name in ("TxnOffsetCommit", "EndTxn")
        name = f"ask {request.api.name}"
        return self._ask(name, lambda: self._coordinators.answer(request, self), on_done, can_be_late)

    def open(self, node: int, on_done: Callable[[], None]) -> Future[Opened]:
        def connect() -> Opened:
            ours, theirs = socket.socketpair()
            self._connections.append(_Connection(node, theirs))
            self._unclaimed.append(ours)
            return Opened(ours, _VERSIONS)

        return self._ask("connect", connect, on_done)

    def authenticate(self, opened: Opened, on_done: Callable[[], None]) -> Future[Opened]:
        raise AssertionError("these brokers let everybody in for ever")

    def traffic(self) -> Traffic:
        return Traffic()

    def close(self) -> None:
        self._closed = True
        for connection in self._connections:
            connection.close()
        for end in self._unclaimed:
            end.close()

    def _ask(
        self, what: str, effect: Callable[[], Any], on_done: Callable[[], None], can_be_late: bool = False
    ) -> Future[Any]:
        """Call effect() at a broker after a while. The future gets its result."""
        future: Future[Any] = Future()

        def done(answer: Any) -> None:
            if self._closed or future.cancelled():
                return
            if isinstance(answer, Opened):
                self._unclaimed.remove(answer.socket)
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                for code in error_codes(answer) if isinstance(answer, SimpleNamespace) else ():
                    self._judge(what, code)
                future.set_result(answer)
            self._has_come = True
            on_done()

        def take_effect(lost: str | None) -> None:
            if self._closed and what == "connect":
                return
            answer = UnreachableError("the brokers are away") if self._world.brokers_away else effect()
            if lost is None:
                self._io.later(self._way_ms(), partial(done, answer))

        def ask() -> None:
            lost = None if what == "connect" else self._io.loses()
            if lost != "request":
                self._world.after(self._way_ms(), partial(take_effect, lost))
            elif can_be_late and self._happens(LATE_SHARE, f"a request comes late: {what}"):
                self._world.after(self._world.chance.choice(LATE_MS), partial(take_effect, lost))
            if lost is not None:
                self._io.later(BROKEN_MS, partial(done, UnreachableError(f"{what}: no answer")))

        self._io.points.call(what, ask)
        return future

    # The selector of its connections

    def register(self, *_: Any) -> None:
        """Do nothing, because there are no sockets."""

    modify = unregister = register

    def select(self, timeout: float) -> list[Any]:
        """Wait until data has arrived."""
        self.pump()
        if not self._has_come:
            self._io.wait(lambda: self._has_come, max(1, math.ceil(timeout * 1000)))
        self._has_come = False
        return []

    # Produce requests

    def pump(self) -> None:
        """Deliver the requests that the producer has sent."""
        for connection in self._connections:
            for data in connection.requests():
                self._put_on_its_way(connection, ProduceBytes(data))
        self._connections = [each for each in self._connections if each.is_open]

    def _put_on_its_way(self, connection: _Connection, request: ProduceBytes) -> None:
        lost = self._io.loses()
        if lost is not None and connection.fate is None:
            connection.fate = self._fate(lost)
            self._world.after(BROKEN_MS, partial(self._break, connection))
        if connection.fate is Fate.GONE:
            return
        now = self._world.now_ms
        on_its_way_ms = self._world.chance.choice(LATE_MS) if connection.fate is Fate.LATE else self._way_ms()
        connection.free_at_ms = max(now + on_its_way_ms, connection.free_at_ms)
        handle = partial(self._handle, connection, request, connection.fate is None)
        self._world.after(connection.free_at_ms - now, handle)

    def _fate(self, lost: str) -> Fate:
        if lost == "answer":
            return Fate.UNANSWERED
        return Fate.LATE if self._happens(LATE_SHARE, "a request comes late: produce") else Fate.GONE

    def _handle(self, connection: _Connection, request: ProduceBytes, is_answered: bool) -> None:
        if self._world.brokers_away:
            self._break(connection)
            return
        transient = self._happens(self._io.roughness.failed_sends, "a broker cannot write a batch now")
        error = self._world.chance.choice(_TRANSIENT) if transient else ErrorCode.NONE
        codes = dict.fromkeys(request.record_batches, 0)
        if error != ErrorCode.NOT_ENOUGH_REPLICAS:
            codes = self._coordinators.produce(connection.node, request, self)
        said = {partition: Said(code or error) for partition, code in codes.items()}
        if is_answered:
            answer = encoded_answer(request.correlation_id, said)
            now = self._world.now_ms
            connection.said_at_ms = max(now + self._way_ms(), connection.said_at_ms)
            self._world.after(connection.said_at_ms - now, partial(self._say, connection, answer, codes.values()))

    def _say(self, connection: _Connection, answer: bytes, codes: Collection[int]) -> None:
        if connection.is_open:
            for code in codes:
                self._judge("produce", code)
            connection.say(answer)
            self._has_come = True

    def _break(self, connection: _Connection) -> None:
        connection.close()
        self._has_come = True

    def _judge(self, what: str, code: int) -> None:
        """Record a violation if a producer that still holds its id gets the error of a fenced one."""
        if ErrorCode(code).kind is not Kind.FENCED:
            return
        self._world.happened("a producer is fenced")
        if self._coordinators.is_held_by(self):
            self._world.violated(f"{self.client} is fenced ({what}: {ErrorCode(code).name}), but by nobody")

    def _way_ms(self) -> int:
        way_ms: int = self._world.chance.choice(WAY_MS)
        return way_ms

    def _happens(self, share: float, what: str) -> bool:
        happens: bool = share > 0 and self._world.chance.random() < share
        if happens:
            self._world.happened(what)
        return happens


class OwnWriter:
    """The real producer as a Writer, with faults at its process's points. delivery_ms: its delivery timeout."""

    #: Every record comes by produce().
    records: RecordTaker | None = None

    def __init__(self, producer: KafkaProducer, wire: Wire, io: Any, delivery_ms: int) -> None:
        self._producer = producer
        self._wire = wire
        self._io = io
        self._delivery_ms = delivery_ms
        self._judged: list[DeliveryTimeoutError] = []
        network = producer._sender._network
        network._selector.close()
        network._selector = wire  # type: ignore[assignment]

    def produce(
        self,
        topic: str,
        key: Any,
        value: Any,
        partition: int,
        timestamp: int | None,
        headers: Any = None,
        source: Source | None = None,
    ) -> None:
        stamp = stamped(headers, self._io.broker.group.term(self._io.client), self._io.served_ms)
        self._producer.produce(topic, key, value, partition, 0 if timestamp is None else timestamp, stamp)
        self._wire.pump()

    def send_due(self) -> None:
        self._producer.send_due()
        self._wire.pump()

    def wait_ms(self) -> float:
        return self._producer.wait_ms()

    def poll(self) -> None:
        if self._producer._sender.is_idle and math.isinf(self._producer.wait_ms()):
            self._producer.poll()
        else:
            self._io.points.call("send some", self.send_due)

    def flush(self, seconds: float = math.inf) -> bool:
        return bool(self._io.points.call("flush producer", partial(self._producer.flush, seconds)))

    def health(self) -> Health:
        return Health()

    def take_lost(self) -> list[Lost]:
        lost = self._producer.take_lost()
        for error, record, *_ in lost:
            if isinstance(error, DeliveryTimeoutError) and not any(error is judged for judged in self._judged):
                self._judged.append(error)  # a transaction's other records, and later ones, fail with it
                self._judge(self._io.served_ms - stamp_of(record.headers()).served_ms)
        return lost

    def _judge(self, served_ms: int) -> None:
        """Record a violation if a record expired although no process could have sent it in that time.

        With at-least-once the thread then restarts at its last commit, as after a failed send.
        """
        self._io.world.happened("a record is given up")
        self._io.world.disturbed = True
        if served_ms < self._delivery_ms:
            self._io.world.violated(
                f"{self._io.client} has given up a record after {served_ms} ms of its own, of {self._delivery_ms}"
            )

    def drop(self) -> None:
        self._producer.drop()

    def close(self) -> None:
        self._wire.pump()
        self._producer.close()

    def lose_process(self) -> None:
        """Deliver requests that the process has sent; other records are lost with it."""
        self.close()


class OwnTransactionalWriter(OwnWriter):
    """The same with transactions."""

    _producer: TransactionalKafkaProducer

    def init_transactions(self, seconds: float) -> None:
        self._io.points.call("init transactions", partial(self._producer.init_transactions, seconds))

    def begin_transaction(self) -> None:
        self._judged.clear()
        self._producer.begin_transaction()

    def send_offsets_to_transaction(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_metadata: GroupMetadata, seconds: float
    ) -> None:
        send = partial(self._producer.send_offsets_to_transaction, offsets, group_metadata, seconds)
        self._io.points.call("send offsets", send)

    def commit_transaction(self, seconds: float) -> None:
        self._io.points.call("commit transaction", partial(self._producer.commit_transaction, seconds))

    def abort_transaction(self, seconds: float) -> None:
        self._io.points.call("abort transaction", partial(self._producer.abort_transaction, seconds))
