"""Connections to brokers that the test plays: older ones, and ones that violate the protocol."""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.clients.cluster.broker_connection import BrokerConnection
from penstock.clients.connection import opening
from penstock.clients.connection.broker_socket import BrokerSocket
from penstock.clients.connection.opening import Opened, open_connection
from penstock.clients.connection.waiting import first_result
from penstock.clients.errors import BrokerError, ErrorCode, UnreachableError
from penstock.clients.network_settings import NetworkSettings, network_settings
from penstock.clients.protocol.compact import CompactReader
from penstock.clients.protocol.messages import API_VERSIONS, HEARTBEAT, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.clients.protocol.schema import SchemaApi
from penstock.clients.traffic import ConnectionTraffic
from tests.waiting import PATIENCE_FACTOR

APIS = {api.key: api for api in (API_VERSIONS, HEARTBEAT, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE)}
SETTINGS = NetworkSettings(setup_timeout_ms=500, request_timeout_ms=300)
SCRAM = network_settings(
    {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "me",
        "sasl.password": "hush",
        "socket.connection.setup.timeout.ms": 2_000,
    }
)

#: Responds to a request (its API, version and body) with a version and a body. None: no response; b"": closes the
#: connection.
Handler = Callable[[SchemaApi, int, Any], tuple[int, Mapping[str, Any]] | bytes | None]


def versions(**api_versions: tuple[int, int]) -> dict[str, Any]:
    """Return a response that lists a broker's supported versions, by SchemaApi's names."""
    known = {"ApiVersions": (0, 4), "SaslHandshake": (0, 1), "SaslAuthenticate": (0, 2), **api_versions}
    keys = {api.name: api.key for api in APIS.values()}
    return {
        "api_keys": [
            {"api_key": keys[name], "min_version": least, "max_version": most} for name, (least, most) in known.items()
        ]
    }


@contextmanager
def played(handler: Handler) -> Iterator[tuple[str, int]]:
    """Serve connections, one after the other, and yield the address."""

    def serve(connection: socket.socket) -> None:
        with connection:
            while len(length := connection.recv(4, socket.MSG_WAITALL)) == 4:
                data = connection.recv(int.from_bytes(length, "big"), socket.MSG_WAITALL)
                key, version, number, name_length = struct.unpack_from(">hhih", data)
                api = APIS[key]
                reader = CompactReader(data[10 + name_length + (version >= api.flexible) :])
                answer = handler(api, version, api.request.decode(reader, version, version >= api.flexible))
                if answer == b"":
                    return
                if answer is not None:
                    said = answer if isinstance(answer, bytes) else encoded(api, *answer, number)
                    connection.sendall(len(said).to_bytes(4, "big") + said)

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # the end
                return
            with suppress(OSError):  # a client that refuses a response may close before it has read all of it
                serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=accept)
        serving.start()
        yield listener.getsockname()[:2]
        listener.shutdown(socket.SHUT_RDWR)
    serving.join()


def encoded(api: SchemaApi, version: int, body: Mapping[str, Any], number: int) -> bytes:
    flexible = version >= api.flexible
    tags = b"\0" if flexible and api is not API_VERSIONS else b""
    return number.to_bytes(4, "big") + tags + api.response.encode(body, version, flexible)


def opened(address: tuple[str, int], settings: NetworkSettings = SETTINGS) -> Opened:
    return asyncio.run(open_connection(*address, settings))


def test_an_older_broker_lists_its_versions_in_its_first_response() -> None:
    asked: list[int] = []

    def handler(api: SchemaApi, version: int, body: Any) -> Any:
        asked.append(version)
        if version > 2:
            return 0, {"error_code": ErrorCode.UNSUPPORTED_VERSION, **versions(ApiVersions=(0, 2))}
        return version, versions(ApiVersions=(0, 2), Metadata=(0, 7))

    with played(handler) as address:
        found = opened(address)
        found.socket.close()
    assert asked == [5, 2]
    assert found.version_of(METADATA) == 7
    with pytest.raises(BrokerError, match="the broker supports versions 0 to -1 of Heartbeat, this client 3 to 4"):
        found.version_of(HEARTBEAT)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "no connection within 500 ms"),
        (b"", "the broker closed the connection"),
        (b"\0\0\0\1", "a response that ends too early"),
        (b"\0\0\0\1\0\0\x7f\xff\xff\xff", "126 bytes or entries in 3 bytes"),
    ],
    ids=["silence", "the end", "half an answer", "a length beyond it"],
)
def test_a_peer_that_is_no_broker_is_unreachable(answer: bytes | None, says: str) -> None:
    with played(lambda api, version, body: answer) as address, pytest.raises(UnreachableError, match=says):
        opened(address)


def test_a_too_long_response_is_refused() -> None:
    says = r"a response of 200 bytes exceeds receive\.message\.max\.bytes=100"
    with played(lambda api, version, body: bytes(200)) as address, pytest.raises(UnreachableError, match=says):
        opened(address, NetworkSettings(max_response_bytes=100))


def test_an_unknown_host_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match=r"no-such-host\.invalid:9092: "):
        opened(("no-such-host.invalid", 9092))


Host = Callable[[], AbstractContextManager[tuple[str, int]]]


@contextmanager
def silent(host: str = "127.0.0.1", port: int = 0) -> Iterator[tuple[str, int]]:
    """An address that drops every SYN, like that of a dead host: the queue of its listener is full."""
    with ExitStack() as opened, socket.socket() as listener:
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(3):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()


@contextmanager
def mute() -> Iterator[tuple[str, int]]:
    """An address that accepts connections and sends nothing, like a suspended process."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


@contextmanager
def refusing() -> Iterator[tuple[str, int]]:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()


def hanging_up() -> AbstractContextManager[tuple[str, int]]:
    return played(lambda api, version, body: b"")


@contextmanager
def named(monkeypatch: pytest.MonkeyPatch, *addresses: Host) -> Iterator[list[tuple[str, int]]]:
    """Make any name resolve to these addresses, in this order."""
    with ExitStack() as opened:
        found = [opened.enter_context(address()) for address in addresses]
        resolved = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", at) for at in found]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved)
        yield found


def answering() -> AbstractContextManager[tuple[str, int]]:
    return played(lambda api, version, body: (version, versions()))


@pytest.mark.parametrize(
    "others",
    [(refusing,), (silent,), (mute,), (hanging_up,), (silent, silent, mute, refusing)],
    ids=["refusing", "silent", "mute", "hanging up", "many"],
)
def test_all_addresses_of_a_host_are_tried(monkeypatch: pytest.MonkeyPatch, others: tuple[Host, ...]) -> None:
    with (
        named(monkeypatch, *others, answering) as addresses,
        opened(("several-addresses", 1), replace(SETTINGS, setup_timeout_ms=5_000)).socket as found,
    ):
        assert found.getpeername() == addresses[-1]


def test_each_address_has_the_whole_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        named(monkeypatch, *(silent,) * 5, answering) as addresses,
        opened(("several-addresses", 1)).socket as found,
    ):
        assert found.getpeername() == addresses[-1]


def test_the_error_has_a_reason_for_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    says = r"^several-addresses:1: 127\.0\.0\.1: .*refused; 127\.0\.0\.1: no connection within 500 ms$"
    with named(monkeypatch, mute, refusing), pytest.raises(UnreachableError, match=says):
        opened(("several-addresses", 1))


def test_address_families_alternate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with broken IPv6 costs one head start, even if it has many IPv6 addresses."""
    six, four = socket.AF_INET6, socket.AF_INET
    found = [
        (family, socket.SOCK_STREAM, 6, "", (name, 1))
        for family, name in zip([six] * 3 + [four] * 2, "abcde", strict=True)
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    addresses = asyncio.run(opening._addresses("host", 1, SETTINGS))
    assert "".join(resolved.address[0] for resolved in addresses) == "adbec"


def test_an_attempt_that_succeeds_too_late_is_discarded() -> None:
    async def result(found: str) -> str:
        return found

    async def both() -> tuple[str | None, list[str]]:
        late: list[str] = []
        first = asyncio.Event()

        async def slow() -> str:
            with suppress(asyncio.CancelledError):
                await first.wait()
            return "slow"  # as a connection that was ready when it was cancelled

        return await first_result([slow, partial(result, "fast")], 0.01, late.append), late

    assert asyncio.run(both()) == ("fast", ["slow"])


def test_one_module_opens_connections() -> None:
    """Any other place would also have to try all addresses of a host."""
    room = Path(opening.__file__).parents[1]
    connects = re.compile(r"create_connection|\.connect\(|connect_ex|asyncio\.open_connection")
    found = {path.relative_to(room).as_posix() for path in room.rglob("*.py") if connects.search(path.read_text())}
    assert found == {"connection/opening.py", "connection/listener_probe.py"}  # the latter diagnoses a failure


def test_a_broker_that_does_not_know_the_password_is_not_trusted() -> None:
    """SCRAM is mutual: only a broker with the stored key can sign the exchange."""

    def handler(api: SchemaApi, version: int, body: Any) -> Any:
        if api is SASL_AUTHENTICATE:
            said = body.auth_bytes.decode()
            if said.startswith("n,,"):
                nonce = said.rpartition("r=")[2]
                salt = base64.b64encode(bytes(16)).decode()
                return version, {"auth_bytes": f"r={nonce}more,s={salt},i=4096".encode()}
            return version, {"auth_bytes": b"v=" + base64.b64encode(bytes(32))}
        return version, versions() if api is API_VERSIONS else {"mechanisms": ["SCRAM-SHA-256"]}

    with (
        played(handler) as address,
        pytest.raises(BrokerError, match="SCRAM-SHA-256: the broker's response is"),
    ):
        opened(address, SCRAM)


def test_a_request_without_a_response_ends_the_connection_and_all_requests_behind_it() -> None:
    def handler(api: SchemaApi, version: int, body: Any) -> Any:
        if api is API_VERSIONS:
            return version, versions(Heartbeat=(0, 4))
        return (version, {"error_code": 16}) if body.group_id == "answered" else None

    async def ask() -> list[Any]:
        connection = BrokerConnection(lambda: open_connection(*address, SETTINGS), SETTINGS)
        try:
            first = await connection.ask(HEARTBEAT(group_id="answered"))
            others = [connection.ask(HEARTBEAT(group_id="silent"), timeout) for timeout in (100, 5_000)]
            failures = await asyncio.gather(*others, return_exceptions=True)
            again = await connection.ask(HEARTBEAT(group_id="answered"))
            return [first.error_code, *failures, again.error_code]
        finally:
            connection.close()

    with played(handler) as address:
        before, *failures, after = asyncio.run(ask())
    assert (before, after) == (16, 16)
    assert [str(failure) for failure in failures] == ["127.0.0.1: no response within 100 ms"] * 2


def test_a_throttle_time_is_respected() -> None:
    def handler(api: SchemaApi, version: int, body: Any) -> Any:
        if api is API_VERSIONS:
            return version, versions(Heartbeat=(0, 4))
        return version, {"throttle_time_ms": 300}

    async def ask() -> float:
        connection = BrokerConnection(lambda: open_connection(*address, SETTINGS), SETTINGS)
        try:
            await connection.ask(HEARTBEAT())
            started = time.monotonic()
            await connection.ask(HEARTBEAT())
            return time.monotonic() - started
        finally:
            connection.close()

    with played(handler) as address:
        assert 0.25 < asyncio.run(ask()) < 5 * PATIENCE_FACTOR


SENDS_MORE_THAN_IS_READ = """
import signal, socket, sys
from penstock.clients.connection.broker_socket import BrokerSocket
from penstock.clients.traffic import ConnectionTraffic
opened = BrokerSocket(socket.create_connection(("127.0.0.1", int(sys.argv[1]))), 1, ConnectionTraffic())
opened.drop_at_close(True)
opened.send(bytes(64 << 20))
print(opened.has_unsent, flush=True)
signal.pause()
"""


def read_to_end(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def test_unsent_bytes_in_the_kernel_are_dropped_when_the_process_is_killed() -> None:
    """Found by chaos tests: after the network recovered, they were delivered behind the records of the next owner."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        command = [sys.executable, "-c", SENDS_MORE_THAN_IS_READ, str(port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                connection, _ = listening.accept()
                assert process.stdout is not None
                assert process.stdout.readline() == "True\n"
            finally:
                process.kill()
        with connection, pytest.raises(ConnectionResetError):
            read_to_end(connection)


@pytest.mark.parametrize("is_delivered", [True, False])
def test_unsent_bytes_in_the_kernel_are_delivered_after_close_only_if_allowed(is_delivered: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sending = BrokerSocket(socket.create_connection(listening.getsockname()), 1, ConnectionTraffic())
        connection, _ = listening.accept()
        sending.send(bytes(64 << 20))
        sending.drop_at_close(not is_delivered)
        sending.close()
        with connection, nullcontext() if is_delivered else pytest.raises(ConnectionResetError):
            read_to_end(connection)
