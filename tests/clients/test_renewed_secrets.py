"""Passwords in renewed files are used for the next login and the next handshake."""

from __future__ import annotations

import pickle
import ssl
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from scramp import ScramMechanism

from penstock.clients.connection.sasl import Mechanism
from penstock.clients.connection.security import security
from penstock.supervisor.source.config_loader import load_config


def mechanism_of(secret: Path, name: str) -> Mechanism:
    config = load_config(None, {}, [f"sasl.password.file={secret}", "sasl.username=me"])
    sent = pickle.loads(pickle.dumps(config))  # as stream threads receive it
    protocol = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": name}
    found = security({**sent.common_client_settings(), **protocol}).mechanism
    assert found is not None
    return found


def login_plain(mechanism: Mechanism, password: str) -> None:
    assert next(mechanism("localhost")) == b"\0".join((b"", b"me", password.encode()))


def login_scram(mechanism: Mechanism, password: str) -> None:
    known = ScramMechanism("SCRAM-SHA-256")
    server = known.make_server(lambda user: known.make_auth_info(password))
    exchange = mechanism("localhost")
    server.set_client_first(next(exchange).decode())
    server.set_client_final(exchange.send(server.get_server_first().encode()).decode())  # raises for a wrong password
    with suppress(StopIteration):
        exchange.send(server.get_server_final().encode())


@pytest.mark.parametrize(("name", "login"), [("PLAIN", login_plain), ("SCRAM-SHA-256", login_scram)])
def test_a_password_file_is_read_for_each_login(
    tmp_path: Path, name: str, login: Callable[[Mechanism, str], None]
) -> None:
    secret = tmp_path / "password"
    secret.write_text("former\n")
    mechanism = mechanism_of(secret, name)
    login(mechanism, "former")
    secret.write_text("latter\n")
    login(mechanism, "latter")
    secret.write_text("")  # the file is being written
    login(mechanism, "latter")
    secret.unlink()
    login(mechanism, "latter")


def test_a_login_password_is_no_tls_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("former")
    config = load_config(None, {}, [f"sasl.password.file={secret}", "sasl.username=me"])
    protocol = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    found = security({**config.common_client_settings(), **protocol})
    assert found.tls is not None
    context = found.tls.context()
    secret.write_text("the latter")
    assert found.tls.context() is context


def test_a_keys_password_can_be_renewed_with_the_key(tmp_path: Path, certificate: Path) -> None:
    def lock(password: str) -> None:
        command = f"openssl rsa -in {certificate}/key.pem -aes256 -passout pass:{password} -out {tmp_path}/locked.pem"
        subprocess.run(command.split(), check=True, capture_output=True)

    secret = tmp_path / "password"
    secret.write_text("former\n")
    lock("former")
    config = load_config(None, {}, [f"ssl.key.password.file={secret}"])
    files = {"ssl.certificate.location": f"{certificate}/cert.pem", "ssl.key.location": f"{tmp_path}/locked.pem"}
    found = security({**config.common_client_settings(), "security.protocol": "SSL", **files})
    assert found.tls is not None
    former: ssl.SSLContext = found.tls.context()
    lock("latter")
    assert found.tls.context() is former, "the key does not open with the former password"
    secret.write_text("latter\n")
    assert found.tls.context() is not former
