"""The one module that knows kafka-python's connection layer, which lies below its public API.

Everything that is private there is used here only, and `require_names` says at start-up what is missing; that is why
the version is pinned exactly. Coroutines run on the layer's own IO thread, one for each KafkaConnections: a member of
the group has one, and each fetcher.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, TypeVar

import kafka
import kafka.errors as kafka_errors
from kafka.cluster import ClusterMetadata
from kafka.future import Future as KafkaFuture
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaTCPTransport
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest

from penstock.topology.errors import StreamsError

from .security_config import kafka_python_security

T = TypeVar("T")

#: Names that this module uses.
_NAMES: Mapping[object, tuple[str, ...]] = {
    KafkaConnectionManager: ("get_connection", "call_soon", "close", "least_loaded_node"),
    KafkaConnection: ("send_request", "init_future", "close"),
    KafkaTCPTransport: ("pause_reading",),
    NetworkSelector: ("start", "sleep", "close", "cancel"),
    ClusterMetadata: ("add_coordinator", "bootstrap_brokers", "broker_metadata", "update_metadata"),
}

#: These would log each failed attempt as an error with a stack; every failure reaches us as an exception and is
#: reported once, in our words.
_NOISY_LOGGERS = ("kafka.net.manager", "kafka.net.connection", "kafka.net.transport", "kafka.cluster")

#: librdkafka's names of settings of connections that kafka-python knows too.
CONNECTION_SETTINGS: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "socket.timeout.ms": "request_timeout_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "connections.max.idle.ms": "connections_max_idle_ms",
    "socket.connection.setup.timeout.ms": "socket_connection_setup_timeout_ms",
    "receive.message.max.bytes": "receive_message_max_bytes",
    "client.dns.lookup": "client_dns_lookup",
}

#: The longest answer that is taken, in bytes: librdkafka's default.
RECEIVE_MAX_BYTES = 100_000_000
#: Overrides of the layer's defaults, which are those of a small client: its reconnect back-off grows to 30 s and it
#: refuses answers above 1 MB, which a leader's JoinGroup of a big application exceeds.
_DEFAULTS: Mapping[str, Any] = {
    "reconnect_backoff_max_ms": 1000,
    "receive_message_max_bytes": RECEIVE_MAX_BYTES,
    "slow_task_threshold_secs": 0,  # the leader's assign runs on the IO thread and may take longer than its 0.1 s
}


class UnreachableError(Exception):
    """No answer: the connection could not be made, broke, or timed out. Trying again may help."""


class KafkaConnections:
    """Connections to the brokers, and the IO thread that owns them.

    config: keyword arguments of kafka-python's client; see connection_settings.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        for name in _NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger("kafka.net.selector").setLevel(logging.WARNING)  # it tells of each IO thread's start and end
        require_names(_NAMES)
        self._net = NetworkSelector(**{**_DEFAULTS, **config})
        self._manager = KafkaConnectionManager(self._net, **{**_DEFAULTS, **config})
        require_names({self._net: ("_io_thread", "_exception"), self._manager: ("cluster",)})
        self._last_failure = "not connected"
        self._closing = False
        self._net.start()

    def submit(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> Future[T]:
        """Run a coroutine on the IO thread. Its result or exception is in the future: none gets lost."""
        future: Future[T] = Future()

        def failed(error: BaseException) -> None:
            if isinstance(error, GeneratorExit):  # close() came first
                future.cancel()
            else:
                future.set_exception(error)

        pending = self._manager.call_soon(function, *args)
        pending.add_callback(future.set_result)
        pending.add_errback(failed)
        return future

    async def sleep(self, seconds: float) -> None:
        """Pause this coroutine."""
        try:
            await self._net.sleep(seconds)
        except RuntimeError:  # the loop takes no timers any more
            if not self._closing:
                raise
            await _cancellation()

    async def find_coordinator(self, group_id: str) -> tuple[str, str]:
        """Ask one of the bootstrap servers for the group's coordinator; return two connections' names to it.

        The broker answers a connection in order, so what must not wait behind a pending JoinGroup takes the second one.
        Raises UnreachableError, or the broker's error.
        """
        bootstrap = random.choice(self._manager.cluster.bootstrap_brokers()).node_id
        request = FindCoordinatorRequest(key=group_id, key_type=0, coordinator_keys=[group_id])
        response = await self.send(bootstrap, request)
        found = response.coordinators[0] if response.coordinators else response
        raise_for_code(found.error_code)
        return self._connection_name(found, "membership"), self._connection_name(found, "offsets")

    def _connection_name(self, found: Any, purpose: str) -> str:
        named = SimpleNamespace(node_id=f"{found.node_id}-{purpose}", host=found.host, port=found.port, error_code=0)
        return str(self._manager.cluster.add_coordinator(named, CoordinatorType.GROUP, purpose))

    async def metadata(self, topics: Collection[str], creates_topics: bool = False) -> Any:
        """Ask any broker for the topics' partitions; return the response. Its brokers can be connected to by their ids.

        creates_topics: the broker may make those that are not there. Raises UnreachableError, or the broker's error.
        """
        asked = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in sorted(topics)]
        request = MetadataRequest(topics=asked, allow_auto_topic_creation=creates_topics)
        response = await self.send(self._any_node(), request)
        self._manager.cluster.update_metadata(response)
        return response

    async def producer_id(self) -> tuple[int, int]:
        """Ask any broker for a producer id without transactions; return it and its epoch. Raises as metadata does."""
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=-1, producer_id=-1, producer_epoch=-1
        )
        response = await self.send(self._any_node(), request)
        raise_for_code(response.error_code)
        return response.producer_id, response.producer_epoch

    def _any_node(self) -> Any:
        node = self._manager.least_loaded_node()
        if node is None:  # none is known yet, or none can be reached
            node = random.choice(self._manager.cluster.bootstrap_brokers()).node_id
        return node

    async def take_socket(self, node_id: int) -> tuple[socket.socket, dict[int, tuple[int, int]]]:
        """Return a new connection to a broker, authenticated, for requests that are made and read elsewhere.

        And the first and last versions of requests that the broker knows, by API key. Raises UnreachableError, or
        kafka-python's authentication errors.
        """

        async def take(opened: KafkaConnection) -> tuple[socket.socket, dict[int, tuple[int, int]]]:
            await opened.init_future
            versions = dict(opened.broker_version_data.api_versions)
            transport = opened.transport
            transport.pause_reading()
            self._net.cancel(transport._read_task)
            taken: socket.socket = transport._sock
            transport._sock = None
            opened.close()
            return taken, versions

        broker = self._manager.cluster.broker_metadata(node_id)
        if broker is None:
            raise UnreachableError(f"broker {node_id} is not known any more")
        # Not the connection that questions go through: an answer on its way would come to whoever has the socket.
        named = SimpleNamespace(node_id=node_id, host=broker.host, port=broker.port)
        return await self._use(self._connection_name(named, "taken"), take)

    async def send(self, connection: str | int, request: Any, timeout_ms: float | None = None) -> Any:
        """Send a request and return the response; timeout None: the connection's own. Raises UnreachableError."""

        async def send(opened: KafkaConnection) -> Any:
            return await opened.send_request(request, request_timeout_ms=timeout_ms)

        return await self._use(connection, send)

    async def version(self, connection: str, request: Any) -> int:
        """Return the highest version of a request's class that both sides know; raises as ``send`` does."""

        async def negotiate(opened: KafkaConnection) -> int:
            await opened.init_future
            return int(opened.broker_version_data.api_version(request))

        return await self._use(connection, negotiate)

    async def _use(self, connection: str | int, use: Callable[[KafkaConnection], Coroutine[Any, Any, T]]) -> T:
        try:
            return await use(self._manager.get_connection(connection, refresh_metadata_on_err=False))
        except _FINAL:
            raise
        except kafka_errors.NodeNotReadyError as error:  # still backing off from an earlier failure
            raise UnreachableError(self._last_failure) from error
        except (kafka_errors.KafkaError, OSError, RuntimeError) as error:
            if self._closing:
                await _cancellation()
            # RuntimeError: the transport was closed between our look and the write
            self._last_failure = str(error) or type(error).__name__
            raise UnreachableError(self._last_failure) from error

    @property
    def failure(self) -> BaseException | None:
        """What the IO thread died of; None while it runs."""
        thread = self._net._io_thread
        if thread is None or thread.is_alive():
            return None
        return self._net._exception or RuntimeError("the IO thread has ended")

    def close(self) -> None:
        """Close all connections and end the IO thread; coroutines that still run are cancelled."""
        if self.failure is None:
            self.submit(self._close_connections).result()
        self._net.close()

    async def _close_connections(self) -> None:
        self._closing = True
        self._manager.close()


#: Answers that trying again does not change.
_FINAL = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.AuthorizationError,
    kafka_errors.UnsupportedVersionError,
)


async def _cancellation() -> None:
    """Wait for the end that close() prepares for all coroutines: nobody waits for their results any more."""
    await KafkaFuture()


def raise_for_code(code: int) -> None:
    """Raise kafka-python's exception of a broker's error code, nothing for 0."""
    error = kafka_errors.for_code(code)
    if error is not kafka_errors.NoError:
        raise error()


def require_names(owners: Mapping[object, tuple[str, ...]]) -> None:
    """Raise StreamsError if the installed kafka-python lacks one of the names that this module uses."""
    missing = [
        f"{getattr(owner, '__name__', type(owner).__name__)}.{name}"
        for owner, names in owners.items()
        for name in names
        if not hasattr(owner, name)
    ]
    if missing:
        raise StreamsError(
            f"kafka-python {kafka.__version__} lacks {', '.join(missing)}, which membership and clients are built on. "
            "Install the version that penstock pins: pip install 'kafka-python==3.0.12'."
        )


def connection_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of kafka-python's client for librdkafka's settings; raises ConfigError."""
    known = {ours: settings[name] for name, ours in CONNECTION_SETTINGS.items() if name in settings}
    return known | kafka_python_security(settings)
