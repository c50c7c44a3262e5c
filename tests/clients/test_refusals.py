"""Error messages when brokers refuse, or are unreachable for a reason that only a change of settings removes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from penstock.clients.cluster.cluster import Cluster
from penstock.clients.connection.opening import open_connection
from penstock.clients.errors import ErrorCode, TlsError, UnreachableError, broker_error
from penstock.clients.librdkafka.errors import client_error
from penstock.clients.network_settings import network_settings
from penstock.testing import EmbeddedKafka
from tests.clients.test_renewed_tls_files import Authority

ACLS = [
    code
    for code in ErrorCode
    if code.name.endswith("_AUTHORIZATION_FAILED") and not code.name.startswith("DELEGATION_TOKEN")
]


@pytest.mark.parametrize("code", ACLS, ids=lambda code: code.name)
@pytest.mark.parametrize("made", [broker_error, lambda code: client_error(KafkaError(int(code)))])
def test_the_error_names_the_operation_to_grant(code: ErrorCode, made: Callable[[ErrorCode], Exception]) -> None:
    said = str(made(code))
    assert said.startswith(code.name)
    assert "the principal needs " in said
    assert any(operation in said for operation in ("READ on", "WRITE and DESCRIBE on", "CREATE on"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ca")


def refuse(connection: socket.socket, context: ssl.SSLContext) -> None:
    """Shake hands, and wait until the client closes: closing earlier would lose the alert."""
    with connection.dup() as rest:
        try:
            context.wrap_socket(connection, server_side=True).recv(1000)
        except ssl.SSLError:
            rest.shutdown(socket.SHUT_WR)
            while rest.recv(1000):
                pass


@contextmanager
def listener(context: ssl.SSLContext | None) -> Iterator[int]:
    """Accept connections, with or without TLS, send nothing, and yield the port."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # the end
                return
            with connection, suppress(OSError):
                if context is None:
                    connection.recv(100_000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                else:
                    refuse(connection, context)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def server_context(authority: Authority, files: tuple[Path, Path], clients: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED if clients else ssl.CERT_NONE
    context.load_cert_chain(*files)
    return context


def failure(port: int, host: str = "localhost", **config: Any) -> UnreachableError:
    settings = network_settings({"security.protocol": "SSL", "socket.connection.setup.timeout.ms": 60_000, **config})
    with pytest.raises(UnreachableError) as raised:
        asyncio.run(open_connection(host, port, settings))
    return raised.value


def test_a_tls_error_names_the_setting_to_change(authority: Authority) -> None:
    known = {"ssl.ca.location": str(authority.certificate)}
    files = authority.sign("server")
    with listener(server_context(authority, files)) as port:
        unknown, other_name = failure(port), failure(port, "127.0.0.1", **known)
    with listener(server_context(authority, files, clients=True)) as port:
        nameless = failure(port, **known)
        stranger = Authority(authority.folder, "strangers")
        certificate, key = stranger.sign("stranger")
        unwanted = failure(
            port, **known, **{"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
        )
    with listener(None) as port:
        plain = failure(port, **known)
    for error, advice in (
        (unknown, "ssl.ca.location must have the CA"),
        (other_name, "ssl.endpoint.identification.algorithm"),
        (nameless, "the broker wants a client certificate: set ssl.certificate.location"),
        (unwanted, "the broker does not know the CA of ssl.certificate.location"),
        (plain, "the listener does not speak TLS: see security.protocol"),
    ):
        assert isinstance(error, TlsError), (error, advice)
        assert ": the TLS handshake has failed: [SSL: " in str(error)
        assert advice in str(error)


def test_the_error_for_a_wrongly_advertised_address_says_so(closed_port: str) -> None:
    wrong = int(closed_port.rpartition(":")[2])
    with EmbeddedKafka(topics={"in": 1}) as kafka:
        right = kafka.bootstrap_servers
        kafka.do(lambda brokers: setattr(brokers.nodes[1], "port", wrong))
        cluster = Cluster(network_settings({"bootstrap.servers": right}))
        try:
            cluster.submit(cluster.metadata, []).result()
            for _ in range(2):  # the second time the connection is in backoff
                with pytest.raises(UnreachableError) as raised:
                    cluster.submit(cluster.open, 1).result()
                said = f"; broker 1, asked by bootstrap.servers={right}, says that clients reach it there: if not, "
                assert str(raised.value).endswith(f"{said}correct its advertised.listeners"), raised.value
                assert str(raised.value).startswith(f"127.0.0.1:{wrong}: ")
        finally:
            cluster.close()


def test_the_error_for_a_configured_address_does_not_call_it_advertised(closed_port: str) -> None:
    cluster = Cluster(network_settings({"bootstrap.servers": closed_port}))
    try:
        with pytest.raises(UnreachableError) as raised:
            cluster.submit(cluster.metadata, []).result()
        assert "advertised" not in str(raised.value)
    finally:
        cluster.close()
