"""SASL with Kerberos tickets: a real key distribution center (MIT's krb5kdc), a real broker, and the package gssapi."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.clients.cluster.cluster import Cluster
from penstock.clients.connection import opening
from penstock.clients.errors import BrokerError
from penstock.clients.network_settings import network_settings
from penstock.dev.dev_broker import OPTIONS_VARIABLE
from tests.brokers import SESSION_MS, SecuredBroker
from tests.clients.test_security_broker import SESSIONS
from tests.free_port import free_port
from tests.waiting import PATIENCE_SECONDS, eventually

#: Programs of Debian's krb5-kdc, krb5-admin-server and krb5-user; they may be on root's PATH only.
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
MISSING = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
if importlib.util.find_spec("gssapi") is None:
    MISSING.append("the package gssapi (penstock-streams[kerberos])")
pytestmark = [
    pytest.mark.broker,
    pytest.mark.long,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}"),
]
REALM = "PENSTOCK.TEST"
Ask = Callable[..., Any]


@dataclass(frozen=True)
class Realm:
    """A realm with a running KDC. Principals: reader, and the service kafka/localhost, each with a key in a keytab."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, stdin: str = "") -> str:
        """Run one of the programs; return its output."""
        done = subprocess.run(
            command,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def take_ticket(self) -> None:
        """Put a ticket for reader into the credential cache with kinit."""
        self.run("kinit", "-k", "-t", str(self.folder / "reader.keytab"), f"reader@{REALM}")


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    folder = tmp_path_factory.mktemp("realm")
    port = free_port()
    (folder / "krb5.conf").write_text(
        f"""[libdefaults]
default_realm = {REALM}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
[realms]
{REALM} = {{
  kdc = 127.0.0.1:{port}
}}
[domain_realm]
localhost = {REALM}
"""
    )
    (folder / "kdc.conf").write_text(
        f"""[kdcdefaults]
kdc_listen = ""
kdc_tcp_listen = 127.0.0.1:{port}
[realms]
{REALM} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
}}
[logging]
kdc = FILE:{folder}/kdc.log
"""
    )
    made = Realm(
        folder,
        {
            "PATH": PATH,
            "KRB5_CONFIG": str(folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5CCNAME": f"FILE:{folder}/tickets",
        },
    )
    made.run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
    for principal, keytab in ((f"kafka/localhost@{REALM}", "kafka"), (f"reader@{REALM}", "reader")):
        made.run("kadmin.local", "-r", REALM, "addprinc", "-randkey", principal)
        made.run("kadmin.local", "-r", REALM, "ktadd", "-k", str(folder / f"{keytab}.keytab"), principal)
    with subprocess.Popen(["krb5kdc", "-n", "-r", REALM], env=made.environment) as kdc:
        try:
            eventually(lambda: "commencing operation" in _text(folder / "kdc.log"), "the KDC", PATIENCE_SECONDS)
            yield made
        finally:
            kdc.terminate()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture(scope="module")
def broker(realm: Realm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker's listener that requires a ticket. A separate broker, because its JVM has the realm."""
    jaas = (
        "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true "
        f'keyTab="{realm.folder}/kafka.keytab" principal="kafka/localhost@{REALM}";'
    )
    config = {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "listener.name.sasl.gssapi.sasl.jaas.config": jaas,
        "connections.max.reauth.ms": str(SESSION_MS),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(OPTIONS_VARIABLE, f"-Djava.security.krb5.conf={realm.folder}/krb5.conf")
        folder = tmp_path_factory.mktemp("kerberos")
        with SecuredBroker("kerberos", folder, {"SASL": "SASL_PLAINTEXT"}, config) as running:
            yield running.addresses["SASL"]


@pytest.fixture
def asked(realm: Realm, broker: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ask]:
    """Request the cluster's brokers, over a client that is closed at the end."""
    for name in ("KRB5_CONFIG", "KRB5CCNAME"):
        monkeypatch.setenv(name, realm.environment[name])
    settings = {"bootstrap.servers": broker, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"}
    made: list[Cluster] = []

    def ask(**more: str) -> Any:
        if not made:
            made.append(Cluster(network_settings({**settings, **more})))
        return made[0].submit(made[0].metadata, []).result(PATIENCE_SECONDS)

    yield ask
    for cluster in made:
        cluster.close()
    Path(realm.environment["KRB5CCNAME"].removeprefix("FILE:")).unlink(missing_ok=True)


def test_a_ticket_authenticates_and_sessions_are_renewed(
    realm: Realm, asked: Ask, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[str] = []
    connect = opening._connected

    async def noted(resolved: Any, host: str, *rest: Any) -> Any:
        opened.append(host)
        return await connect(resolved, host, *rest)

    monkeypatch.setattr(opening, "_connected", noted)
    realm.take_ticket()
    end = time.monotonic() + SESSIONS * SESSION_MS / 1000
    while time.monotonic() < end:
        assert asked().brokers
        time.sleep(0.05)
    assert opened == ["localhost"]
    assert not caplog.records


def test_without_a_ticket_the_error_has_the_reason(asked: Ask) -> None:
    with pytest.raises(BrokerError, match=r"GSSAPI: .*[Nn]o (Kerberos )?credentials") as raised:
        asked()
    assert not raised.value.code.retriable


def test_the_error_names_an_unknown_service(realm: Realm, asked: Ask) -> None:
    realm.take_ticket()
    with pytest.raises(BrokerError, match=r"GSSAPI: .*other/localhost"):
        asked(**{"sasl.kerberos.service.name": "other"})
