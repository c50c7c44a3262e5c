"""Connections to brokers that are played: older ones, and those that do not say what they should."""

from __future__ import annotations

import asyncio
import base64
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import pytest

from penstock.clients.cluster.broker_connection import BrokerConnection
from penstock.clients.connection.broker_socket import BrokerSocket
from penstock.clients.connection.opening import Opened, _connect, open_connection
from penstock.clients.errors import BrokerError, ErrorCode, UnreachableError
from penstock.clients.network_settings import NetworkSettings, network_settings
from penstock.clients.protocol.compact import CompactReader
from penstock.clients.protocol.messages import API_VERSIONS, HEARTBEAT, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.clients.protocol.schema import Api

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

#: Answers a request (its API, version and body) with a version and a body; None: not at all, b"": by hanging up.
Handler = Callable[[Api, int, Any], tuple[int, Mapping[str, Any]] | bytes | None]


def versions(**api_versions: tuple[int, int]) -> dict[str, Any]:
    """Return what a broker says that it knows; of Api's names."""
    known = {"ApiVersions": (0, 4), "SaslHandshake": (0, 1), "SaslAuthenticate": (0, 2), **api_versions}
    keys = {api.name: api.key for api in APIS.values()}
    return {
        "api_keys": [
            {"api_key": keys[name], "min_version": least, "max_version": most} for name, (least, most) in known.items()
        ]
    }


@contextmanager
def played(handler: Handler) -> Iterator[tuple[str, int]]:
    """Serve connections, one after the other, and yield where."""

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
            with suppress(OSError):  # a client that does not like an answer may close before it has read all of it
                serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=accept)
        serving.start()
        yield listener.getsockname()[:2]
        listener.shutdown(socket.SHUT_RDWR)
    serving.join()


def encoded(api: Api, version: int, body: Mapping[str, Any], number: int) -> bytes:
    flexible = version >= api.flexible
    tags = b"\0" if flexible and api is not API_VERSIONS else b""
    return number.to_bytes(4, "big") + tags + api.response.encode(body, version, flexible)


def opened(address: tuple[str, int], settings: NetworkSettings = SETTINGS) -> Opened:
    return asyncio.run(open_connection(*address, settings))


def test_an_older_broker_says_in_its_first_answer_what_it_knows() -> None:
    asked: list[int] = []

    def handler(api: Api, version: int, body: Any) -> Any:
        asked.append(version)
        if version > 2:
            return 0, {"error_code": ErrorCode.UNSUPPORTED_VERSION, **versions(ApiVersions=(0, 2))}
        return version, versions(ApiVersions=(0, 2), Metadata=(0, 7))

    with played(handler) as address:
        found = opened(address)
        found.socket.close()
    assert asked == [4, 2]
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
def test_what_does_not_answer_as_a_broker_is_unreachable(answer: bytes | None, says: str) -> None:
    with played(lambda api, version, body: answer) as address, pytest.raises(UnreachableError, match=says):
        opened(address)


def test_an_answer_that_is_too_long_is_refused() -> None:
    says = r"a response of 200 bytes exceeds receive\.message\.max\.bytes=100"
    with played(lambda api, version, body: bytes(200)) as address, pytest.raises(UnreachableError, match=says):
        opened(address, NetworkSettings(max_answer_bytes=100))


def test_a_host_that_there_is_not_is_unreachable() -> None:
    with pytest.raises(UnreachableError, match=r"no-such-host\.invalid:9092: "):
        opened(("no-such-host.invalid", 9092))


def test_all_addresses_of_a_host_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as reserved, played(lambda api, version, body: (version, versions())) as (host, port):
        reserved.bind(("127.0.0.1", 0))
        addresses = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", at) for at in (reserved.getsockname(), (host, port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: addresses)
        opened(("two-addresses", 1)).socket.close()


def test_a_broker_that_does_not_know_the_password_either_is_not_trusted() -> None:
    """SCRAM is mutual: only who has the stored key can sign the exchange."""

    def handler(api: Api, version: int, body: Any) -> Any:
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


def test_a_request_without_an_answer_ends_the_connection_and_those_behind_it() -> None:
    def handler(api: Api, version: int, body: Any) -> Any:
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


def test_a_quota_is_kept() -> None:
    def handler(api: Api, version: int, body: Any) -> Any:
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
        assert 0.25 < asyncio.run(ask()) < 5


SENDS_MORE_THAN_IS_READ = """
import asyncio, signal, sys
from penstock.clients.connection.broker_socket import BrokerSocket
from penstock.clients.connection.opening import _connect
opened = BrokerSocket(asyncio.run(_connect("127.0.0.1", int(sys.argv[1]))), 1)
opened.drop_at_close(True)
opened.send(bytes(64 << 20))
print(opened.has_unsent, flush=True)
signal.pause()
"""


def read_to_end(connection: socket.socket) -> None:
    while connection.recv(1 << 20):
        pass


def test_what_the_kernel_has_not_sent_yet_is_dropped_when_a_process_is_killed() -> None:
    """Found by chaos: delivered once the network was whole again, it came behind the records of the next owner."""
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
def test_what_the_kernel_has_not_sent_yet_is_delivered_after_a_close_only_if_it_may_be(is_delivered: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sending = BrokerSocket(asyncio.run(_connect("127.0.0.1", listening.getsockname()[1])), 1)
        connection, _ = listening.accept()
        sending.send(bytes(64 << 20))
        sending.drop_at_close(not is_delivered)
        sending.close()
        with connection, nullcontext() if is_delivered else pytest.raises(ConnectionResetError):
            read_to_end(connection)
