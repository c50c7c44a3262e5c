"""The real brokers of tests. The first test of a run that needs a broker starts it, and later tests share it.

Processes of a run (``pytest -n``) find each other's brokers in the folder of the run. tests/conftest.py has the
fixtures, and stops the brokers at the end of the run; tests/chaos/cluster.py has the clusters of the chaos tests.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion
from typing_extensions import override

from penstock.dev.dev_broker import HOST, DevBroker
from penstock.statestore.directory.state_directory import FileLock
from tests.free_port import free_ports
from tests.topics import delete_topics, topic_names
from tests.waiting import PATIENCE_SECONDS, eventually

#: An environment variable with the folder of the run.
FOLDER_VARIABLE = "TEST_BROKERS"
#: Ids of brokers. The first one is also the controller.
IDS = FIRST, SECOND, THIRD = 1, 2, 3
#: The racks of the cluster: the first broker is in the first one, the others are in the second one.
RACKS = ("red", "blue")
#: Half the memory for compiled code and a quicker start; a lightly loaded broker needs no better code.
SMALL_COMPILER = "-XX:TieredStopAtLevel=1"
#: How long an authenticated session lasts at the secured broker (connections.max.reauth.ms).
SESSION_MS = 3_000

B = TypeVar("B", bound=DevBroker)

ACCESS_CONTROL = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:nobody",
}
#: Its session with its controller survives a broker that does not respond for some seconds. Otherwise its partitions
#: have no leader for a moment, after which librdkafka may stop reading or writing one: see docs/known-faults.md.
STOPPABLE = {"broker.session.timeout.ms": "60000"}
#: Settings for special cases: a rack, no streams groups, too few brokers for the transaction log, large responses.
UNUSUAL = {
    "broker.rack": RACKS[0],
    "group.coordinator.rebalance.protocols": "classic,consumer",
    "transaction.state.log.replication.factor": "3",
    "fetch.max.bytes": "150000000",
}
#: Internal topics survive the loss of any one broker. Leaders move soon after a broker has died, and back when it
#: returns.
THREE = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "leader.imbalance.check.interval.seconds": "1",
}


class SmallBroker(DevBroker):
    """A broker that starts quickly under a light load."""

    memory_options: tuple[str, ...] = ("-Xmx512m", SMALL_COMPILER)

    @override
    def start(self, timeout: float = PATIENCE_SECONDS, *, detached: bool = True) -> str:
        """Start with a longer timeout, because the machine may be busy."""
        return super().start(timeout, detached=detached)


class LedBroker(SmallBroker):
    """A broker that uses the controller of another broker, first, which must be running."""

    def __init__(
        self, first: DevBroker, name: str, directory: Path, config: dict[str, str], node_id: int = SECOND
    ) -> None:
        super().__init__(name, directory, config={**config, "process.roles": "broker", "node.id": str(node_id)})
        self._voter = controller_port(first)
        identity = dict(
            line.split("=", 1) for line in _meta(first.directory).read_text().splitlines() if not line.startswith("#")
        )
        data = _meta(directory)  # the storage tool would write the same, but for another cluster
        if not data.exists():
            data.parent.mkdir(parents=True)
            data.write_text(f"version=1\ncluster.id={identity['cluster.id']}\nnode.id={node_id}\n")

    def _settings(self, port: int, controller_port: int) -> dict[str, str]:
        return {
            **super()._settings(port, controller_port),
            "listeners": f"BROKER://{HOST}:{port}",
            "controller.quorum.voters": f"{FIRST}@{HOST}:{self._voter}",
        }

    def kill(self) -> None:
        """Kill it, as a power failure would."""
        pid = self.status().pid
        assert pid is not None, "it does not run"
        psutil.Process(pid).kill()
        eventually(lambda: not self.status().running, "it is dead")


class SecuredBroker(SmallBroker):
    """A broker with more listeners. protocols: the security protocol by listener name."""

    def __init__(self, name: str, directory: Path, protocols: Mapping[str, str], config: Mapping[str, str]) -> None:
        super().__init__(name, directory, config=config)
        self._protocols = protocols

    @property
    def addresses(self) -> dict[str, str]:
        """Return the address of each listener of the running broker, by name."""
        lines = (self.directory / "server.properties").read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines)
        return dict(listener.split("://") for listener in settings["advertised.listeners"].split(","))

    def _settings(self, port: int, controller_port: int) -> dict[str, str]:
        settings = super()._settings(port, controller_port)
        ports = dict(zip(self._protocols, free_ports(len(self._protocols)), strict=True))
        more = {
            "listeners": [f"{name}://{HOST}:{number}" for name, number in ports.items()],
            # By the name of the certificate, and of the service's Kerberos principal.
            "advertised.listeners": [f"{name}://localhost:{number}" for name, number in ports.items()],
            "listener.security.protocol.map": [f"{name}:{protocol}" for name, protocol in self._protocols.items()],
        }
        return {**settings, **{name: ",".join((settings[name], *values)) for name, values in more.items()}}


@dataclass(frozen=True)
class ThreeBrokers:
    """Three brokers, in two RACKS. bootstrap_servers: of the first one, which has the controller and keeps running."""

    bootstrap_servers: str
    second: LedBroker
    third: LedBroker


def plain() -> DevBroker:
    """Return the general-purpose broker, running."""
    return _running(DevBroker("plain", _folder() / "plain"))


def unusual() -> DevBroker:
    """Return the broker with UNUSUAL settings, running."""
    return _running(SmallBroker("unusual", _folder() / "unusual", config=UNUSUAL))


def secured() -> SecuredBroker:
    """Return the broker with ACCESS_CONTROL and all kinds of authentication, running.

    Its listeners: BROKER, SASL and TLS (SASL_PLAINTEXT and SASL_SSL) with the user ``reader`` and password ``secret``
    for PLAIN, ``scram-reader`` and ``hush`` for SCRAM, unsecured tokens for OAUTHBEARER; MUTUAL (SSL) for clients with
    the certificate.
    """
    pem = certificate()
    config = {
        **ACCESS_CONTROL,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem / "keystore.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(pem / "cert.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "connections.max.reauth.ms": str(SESSION_MS),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    }
    for listener in ("sasl", "tls"):
        for mechanism, module in (
            ("plain", 'plain.PlainLoginModule required user_reader="secret";'),
            ("scram-sha-256", "scram.ScramLoginModule required;"),
            ("scram-sha-512", "scram.ScramLoginModule required;"),
            ("oauthbearer", 'oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'),
        ):
            setting = f"listener.name.{listener}.{mechanism}.sasl.jaas.config"
            config[setting] = f"org.apache.kafka.common.security.{module}"
    protocols = {"SASL": "SASL_PLAINTEXT", "TLS": "SASL_SSL", "MUTUAL": "SSL"}
    broker = _running(SecuredBroker("secured", _folder() / "secured", protocols, config))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        change = UserScramCredentialUpsertion("scram-reader", ScramCredentialInfo(kind, 4_096), b"hush")
        for future in admin.alter_user_scram_credentials([change]).values():
            future.result(PATIENCE_SECONDS)
    reader: dict[str, str | int | float] = {
        "bootstrap.servers": broker.addresses["SASL"],
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "scram-reader",
        "sasl.password": "hush",
    }
    AdminClient(reader).list_topics(timeout=PATIENCE_SECONDS)  # repeats its login until the broker knows the user
    return broker


@contextmanager
def stoppable() -> Iterator[DevBroker]:
    """Give one test at a time a running broker, which it may stop and start."""
    with _alone("stoppable"):
        yield _running(SmallBroker("stoppable", _folder() / "stoppable", config=STOPPABLE))


@contextmanager
def three() -> Iterator[ThreeBrokers]:
    """Give one test at a time the three brokers: running, in sync, with the preferred leaders, and without topics."""
    with _alone("three"):
        first, second, third = (_folder() / name for name in ("first", "second", "third"))
        leader = _running(SmallBroker("first", first, config={**THREE, "broker.rack": RACKS[0]}))
        admin = AdminClient({"bootstrap.servers": leader.bootstrap_servers})
        # A broker has started only when it sees leaders of all partitions.
        delete_topics(admin, *(name for name in topic_names(admin) if not name.startswith("__")))
        config = {**THREE, "broker.rack": RACKS[1]}
        made = ThreeBrokers(
            leader.bootstrap_servers,
            _running(LedBroker(leader, "second", second, config)),
            _running(LedBroker(leader, "third", third, config, THIRD)),
        )
        eventually(lambda: _is_whole(admin), "all three brokers are in sync")
        yield made


def certificate() -> Path:
    """Return a folder with cert.pem for localhost, its key.pem, both as keystore.pem, and locked.pem: see conftest."""
    with _alone("certificate"):
        folder = _folder() / "certificate"
        if not folder.exists():
            folder.mkdir()
            make = "openssl req -x509 -newkey rsa:2048 -keyout key.pem -out cert.pem -days 2 -nodes -subj /CN=localhost"
            lock = "openssl rsa -in key.pem -aes256 -passout pass:secret -out locked.pem"
            for command in ([*make.split(), "-addext", "subjectAltName=DNS:localhost"], lock.split()):
                subprocess.run(command, cwd=folder, check=True, capture_output=True)
            keystore = [(folder / name).read_text() for name in ("key.pem", "cert.pem")]
            (folder / "keystore.pem").write_text("".join(keystore))
        return folder


def stop_all(folder: Path) -> None:
    """Stop the brokers of a run; those with a controller last, because the others need it for a controlled shutdown."""
    brokers = [DevBroker(state.parent.name, state.parent) for state in folder.glob("*/state.json")]
    for broker in sorted(brokers, key=lambda broker: broker.name == "first"):
        broker.stop()


def controller_port(broker: DevBroker) -> int:
    """Return the port of a running broker's controller."""
    port: int = json.loads((broker.directory / "state.json").read_text())["controller_port"]
    return port


def _folder() -> Path:
    return Path(os.environ[FOLDER_VARIABLE])


def _running(broker: B) -> B:
    """Start a broker unless another process or test has started it; it keeps running after both."""
    broker.start(PATIENCE_SECONDS)
    return broker


def _alone(name: str) -> FileLock:
    """Wait until no other test or process of the run holds this lock."""
    return FileLock(_folder() / f"{name}.lock", f"{name} is in use", wait=True)


def _is_whole(admin: AdminClient) -> bool:
    """Return True if all replicas are in sync and all partitions have their preferred leader."""
    found = admin.list_topics(timeout=PATIENCE_SECONDS)
    partitions = [partition for topic in found.topics.values() for partition in topic.partitions.values()]
    return len(found.brokers) == len(IDS) and all(
        sorted(partition.isrs) == sorted(partition.replicas) and partition.leader == partition.replicas[0]
        for partition in partitions
    )


def _meta(directory: Path) -> Path:
    return directory / "data" / "meta.properties"
