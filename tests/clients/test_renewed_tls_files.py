"""TLS files that are renewed while a client runs, as cert-manager does within days: real handshakes."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.clients import librdkafka
from penstock.clients.connection.opening import open_connection
from penstock.clients.connection.security import Security, security
from penstock.clients.connection.waiting import in_thread
from penstock.clients.errors import UnreachableError
from penstock.clients.librdkafka.renewed_files import THREAD, RenewedFiles
from penstock.clients.network_settings import network_settings
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.medium


class Authority:
    """A CA and the certificates that it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        self.certificate = folder / f"{name}.pem"
        request = f"req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.pem -days 2 -subj /CN={name}"
        self._run(request)

    def _run(self, command: str) -> None:
        subprocess.run(["openssl", *command.split()], cwd=self.folder, check=True, capture_output=True)

    def sign(self, name: str) -> tuple[Path, Path]:
        """Return the files of a new certificate for localhost and of its key."""
        (self.folder / "ext").write_text("subjectAltName=DNS:localhost")
        self._run(f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}")
        signed = f"x509 -req -in {name}.csr -CA {self.name}.pem -CAkey {self.name}.key -CAcreateserial -days 2"
        self._run(f"{signed} -extfile ext -out {name}.pem")
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"


def shake_hands(client: Security, authority: Authority, server: tuple[Path, Path]) -> str:
    """Return the client's name as seen by a server that trusts an authority. Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # create_default_context is stricter than Kafka since 3.13
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(*server)
    ours, theirs = socket.socketpair()
    seen: list[str] = []

    def serve() -> None:
        try:
            with context.wrap_socket(theirs, server_side=True) as secure:
                found: Any = secure.getpeercert()
                seen.extend(value for ((name, value),) in found["subject"] if name == "commonName")
                secure.send(b"!")
        except OSError:
            theirs.close()  # the client reports the error

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        ours.settimeout(PATIENCE_SECONDS)
        assert client.tls is not None
        with client.tls.context().wrap_socket(ours, server_hostname="localhost") as secure:
            secure.recv(1)
    finally:
        ours.close()
        thread.join(PATIENCE_SECONDS)
    return seen[0]


@pytest.fixture
def mounted(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Put files where the settings expect them; as in Kubernetes, they are links that are replaced."""
    folder = tmp_path / "mounted"
    folder.mkdir()

    def put(**files: Path) -> dict[str, str]:
        for name, file in files.items():
            (folder / "new").symlink_to(file)
            os.replace(folder / "new", folder / name)
        names = {"ca": "ssl.ca.location", "leaf": "ssl.certificate.location", "key": "ssl.key.location"}
        return {"security.protocol": "SSL", **{key: str(folder / name) for name, key in names.items()}}

    return put


def test_a_renewed_certificate_is_used_in_the_next_handshake(
    tmp_path: Path, mounted: Callable[..., dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    authority = Authority(tmp_path, "ca")
    server, first, second = authority.sign("server"), authority.sign("first"), authority.sign("second")
    client = security(mounted(ca=authority.certificate, leaf=first[0], key=first[1]))
    assert [shake_hands(client, authority, server) for _ in range(2)] == ["first", "first"]
    mounted(leaf=second[0])  # for a moment the key does not match
    assert shake_hands(client, authority, server) == "first"
    assert "The files are used as they were" in caplog.text
    mounted(key=second[1])
    assert [shake_hands(client, authority, server) for _ in range(2)] == ["second", "second"]
    assert caplog.text.count("Read the renewed TLS files") == 1


def test_a_renewed_authority_is_trusted(tmp_path: Path, mounted: Callable[..., dict[str, str]]) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    leaf, key = old.sign("client")
    client = security(mounted(ca=old.certificate, leaf=leaf, key=key))
    assert shake_hands(client, old, old.sign("server")) == "client"
    renewed = new.sign("renewed")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(client, old, renewed)
    mounted(ca=new.certificate)
    assert shake_hands(client, old, renewed) == "client"


def test_a_temporarily_missing_file_changes_nothing(
    tmp_path: Path, mounted: Callable[..., dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "ca")
    server, (leaf, key) = authority.sign("server"), authority.sign("client")
    settings = mounted(ca=authority.certificate, leaf=leaf, key=key)
    client = security(settings)
    os.unlink(settings["ssl.key.location"])
    assert [shake_hands(client, authority, server) for _ in range(3)] == ["client"] * 3
    assert caplog.text.count("The files are used as they were") == 1
    mounted(key=key)
    assert shake_hands(client, authority, server) == "client"


def test_a_file_that_could_not_be_read_for_a_moment_is_read_again(
    tmp_path: Path, mounted: Callable[..., dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    """As with permissions that are set late, or a full table of open files: its time of change stays the same."""
    authority = Authority(tmp_path, "ca")
    server, first, second = authority.sign("server"), authority.sign("first"), authority.sign("second")
    client = security(mounted(ca=authority.certificate, leaf=first[0], key=first[1]))
    assert client.tls is not None
    mounted(leaf=second[0], key=second[1])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        client.tls.context()
        client.tls.context()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert caplog.text.count("The files are used as they were") == 1
    assert shake_hands(client, authority, server) == "second"


def test_the_systems_authorities_are_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(old.certificate.read_bytes())
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    leaf, key = old.sign("client")
    own = {"ssl.certificate.location": str(leaf), "ssl.key.location": str(key)}
    client = security({"security.protocol": "SSL", **own})
    assert shake_hands(client, old, old.sign("server")) == "client"
    bundle.write_bytes(old.certificate.read_bytes() + new.certificate.read_bytes())
    assert shake_hands(client, old, new.sign("renewed")) == "client"


def test_blocking_files_do_not_block_the_event_loop(tmp_path: Path, mounted: Callable[..., dict[str, str]]) -> None:
    """Opening a pipe without a writer blocks, as does a file system whose server is unreachable."""
    authority = Authority(tmp_path, "ca")
    leaf, key = authority.sign("client")
    settings = mounted(ca=authority.certificate, leaf=leaf, key=key)
    client = network_settings({**settings, "bootstrap.servers": "localhost:1"})
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    mounted(ca=pipe)

    async def connect(port: int) -> None:
        opening = asyncio.create_task(open_connection("localhost", port, client))
        with await in_thread(open, pipe, "w") as writer:  # returns when the pipe is read
            assert not opening.done()
            writer.write(authority.certificate.read_text())
        with pytest.raises(UnreachableError):
            await opening

    with socket.create_server(("localhost", 0)) as listener:
        port = listener.getsockname()[1]

        def refuse() -> None:
            listener.accept()[0].close()

        thread = threading.Thread(target=refuse)
        thread.start()
        asyncio.run(asyncio.wait_for(connect(port), PATIENCE_SECONDS))
        thread.join()


def test_librdkafkas_clients_warn_once_that_they_do_not_reload_renewed_files(
    tmp_path: Path, mounted: Callable[..., dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, "ca")
    (leaf, key), (renewed, _) = authority.sign("client"), authority.sign("renewed")
    settings = mounted(ca=authority.certificate, leaf=leaf, key=key)
    watched = RenewedFiles({**settings, "client.id": "app-1-consumer"}, check_seconds=0.001)
    try:
        mounted(leaf=renewed)
        eventually(lambda: "`penstock threads restart`" in caplog.text, "the renewal is logged")
        (record,) = caplog.records
        assert record.getMessage().startswith("[app-1-consumer] Files of this client have changed")
        mounted(leaf=leaf)
        eventually(lambda: not any(t.name == THREAD for t in threading.enumerate()), "once is enough")
    finally:
        watched.close()
    assert len(caplog.records) == 1


def test_librdkafkas_readers_and_writers_watch_their_files_until_they_are_closed(
    tmp_path: Path, mounted: Callable[..., dict[str, str]]
) -> None:
    authority = Authority(tmp_path, "ca")
    leaf, key = authority.sign("client")
    settings = {**mounted(ca=authority.certificate, leaf=leaf, key=key), "bootstrap.servers": "localhost:1"}
    reader = librdkafka.make_reader({**settings, "group.id": "any"})
    writer = librdkafka.make_writer({**settings, "enable.idempotence": True, "linger.ms": 0})

    def watching() -> int:
        return sum(thread.name == THREAD for thread in threading.enumerate())

    assert watching() == 2
    reader.close()
    writer.close()
    eventually(lambda: watching() == 0, "their threads have ended")
    librdkafka.make_reader({"group.id": "any"}).close()
    assert watching() == 0, "there are no files to watch"
