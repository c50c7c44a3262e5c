"""A wrong security.protocol is diagnosed: TLS sent to a listener without TLS, and the other way round."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import cli
from penstock.clients.connection import listener_probe
from penstock.clients.connection.listener_probe import security_mismatch


@pytest.fixture
def tls(certificate: Path) -> Iterator[str]:
    """The address of a listener that accepts only TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        context.wrap_socket(connection, server_side=True).close()
                    except OSError:
                        continue

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_a_listener_that_speaks_tls(tls: str) -> None:
    assert security_mismatch(tls, "SSL") is None
    advice = f"{tls} speaks TLS: set security.protocol=SSL, or name a listener without TLS"
    assert security_mismatch(tls, "PLAINTEXT") == advice
    assert security_mismatch(f"127.0.0.1:1,{tls}", "plaintext") == advice
    assert "security.protocol=SASL_SSL" in (security_mismatch(tls, "SASL_PLAINTEXT") or "")


def test_a_silent_listener_gives_no_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener_probe, "PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert security_mismatch(address, "SSL") is security_mismatch(address, "PLAINTEXT") is None
    assert security_mismatch(f"{address},nowhere", "SSL") is None


@pytest.mark.broker
def test_a_command_reports_that_the_broker_has_no_tls(bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.cli.topics.TIMEOUT_SECONDS", 1.0)
    assert security_mismatch(bootstrap_servers, "PLAINTEXT") is None
    advice = f"{bootstrap_servers} does not speak TLS: set security.protocol=PLAINTEXT, or name a listener with TLS"
    assert security_mismatch(bootstrap_servers, "SSL") == advice
    settings = ["-c", f"bootstrap.servers={bootstrap_servers}", "-c", "security.protocol=SSL"]
    ran = CliRunner().invoke(cli, ["topic", "list", *settings], prog_name="penstock")
    assert advice in ran.stderr
    assert ran.exit_code != 0
