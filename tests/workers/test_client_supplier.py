"""The clients of a stream thread: the settings that each receives, refused settings, and TLS
and SASL for both kinds.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as RdTopicPartition

from penstock.clients.connection.security import PLAINTEXT, Security, check_security_keys, security, ssl_context
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.librdkafka import LibrdkafkaReader, LibrdkafkaWriter, as_reader, making
from penstock.clients.network_settings import NetworkSettings
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.partitioners import murmur2
from penstock.topology.errors import ConfigError
from penstock.workers.thread import client_supplier
from penstock.workers.thread.client_supplier import KafkaClientSupplier, process_id_file, static_instance_id
from tests.waiting import PATIENCE_SECONDS

MakeTopic = Callable[..., str]


def config(**values: Any) -> StreamsConfig:
    dotted = {name.replace("__", "."): value for name, value in values.items()}
    return StreamsConfig({"application.id": "app", "bootstrap.servers": "localhost:1", **dotted})


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return what a supplier's method would hand to librdkafka: ``settings_of("get_consumer", producer__acks="1")``."""
    handed: list[dict[str, Any]] = []

    def make(client: type, name: str, settings: dict[str, Any]) -> SimpleNamespace:
        handed.append(dict(settings))
        return SimpleNamespace()

    monkeypatch.setattr(making, "_make", make)

    def settings(method: str, *arguments: Any, **values: Any) -> dict[str, Any]:
        given = {"penstock__fetcher": "librdkafka", "penstock__sender": "librdkafka", **values}
        getattr(KafkaClientSupplier(config(**given)), method)("the-client", *arguments)
        return handed.pop()

    return settings


@pytest.mark.parametrize("method", ["get_consumer", "get_restore_consumer", "get_global_consumer"])
def test_consumers_read_only_assigned_partitions(settings_of: Callable[..., dict[str, Any]], method: str) -> None:
    settings = settings_of(method, consumer__enable__auto__commit=True, consumer__allow__auto__create__topics=True)
    expected = {
        "group.id": "app",
        "client.id": "the-client",
        "bootstrap.servers": "localhost:1",
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": "read_uncommitted",
        "check.crcs": True,
    }
    assert {name: settings.get(name) for name in expected} == expected
    assert "group.instance.id" not in settings


@pytest.mark.parametrize(
    ("method", "prefix"),
    [
        ("get_consumer", "main.consumer"),
        ("get_restore_consumer", "restore.consumer"),
        ("get_global_consumer", "global.consumer"),
    ],
)
def test_a_consumers_own_prefix_takes_precedence_over_the_common_one(
    settings_of: Callable[..., dict[str, Any]], method: str, prefix: str
) -> None:
    own = {f"{prefix}.fetch.min.bytes".replace(".", "__"): 2}
    settings = settings_of(method, consumer__fetch__min__bytes=1, consumer__check__crcs="false", **own)
    assert settings["fetch.min.bytes"] == 2
    assert settings["check.crcs"] == "false"
    others = {"main.consumer", "restore.consumer", "global.consumer"} - {prefix}
    foreign = {f"{other}.fetch.min.bytes".replace(".", "__"): 3 for other in others}
    assert settings_of(method, consumer__fetch__min__bytes=1, **foreign)["fetch.min.bytes"] == 1


def test_keys_that_streams_config_resolves_do_not_reach_librdkafka_by_prefix(
    settings_of: Callable[..., dict[str, Any]],
) -> None:
    settings = settings_of("get_consumer", consumer__max__poll__records=5, consumer__session__timeout__ms=9_000)
    assert "max.poll.records" not in settings
    assert "session.timeout.ms" not in settings
    assert settings["max.poll.interval.ms"] == 86_400_000


def test_kafkas_setting_names_become_those_of_librdkafka(settings_of: Callable[..., dict[str, Any]]) -> None:
    common = settings_of("get_admin_client", request__timeout__ms=5_000, reconnect__backoff__ms=7)
    assert (common["socket.timeout.ms"], common["reconnect.backoff.ms"]) == (5_000, 7)
    own = settings_of("get_producer", producer__request__timeout__ms=6_000, producer__send__buffer__bytes=8)
    assert (own["socket.timeout.ms"], own["socket.send.buffer.bytes"]) == (6_000, 8)


def test_the_producer_is_idempotent_and_partitions_as_java_does(settings_of: Callable[..., dict[str, Any]]) -> None:
    settings = settings_of("get_producer", producer__linger__ms=3)
    assert settings["enable.idempotence"] is True
    assert settings["partitioner"] == "murmur2_random"
    assert settings["delivery.report.only.error"] is True
    assert settings["linger.ms"] == 3
    assert settings["delivery.timeout.ms"] == 120_000
    assert "transactional.id" not in settings


@pytest.mark.parametrize(("idempotent", "linger_ms"), [(True, 0.25), (False, 0)])
def test_an_idempotent_producer_lingers_so_that_its_thread_sleeps(
    settings_of: Callable[..., dict[str, Any]], idempotent: bool, linger_ms: float
) -> None:
    settings = settings_of("get_producer", linger__ms=0, enable__idempotence=idempotent)
    assert settings["linger.ms"] == linger_ms


def test_exactly_once_makes_a_transactional_producer_and_reads_committed(
    settings_of: Callable[..., dict[str, Any]],
) -> None:
    guarantee = {"processing__guarantee": "exactly_once_v2"}
    settings = settings_of("get_producer", "tx-1", **guarantee)
    assert settings["transactional.id"] == "tx-1"
    assert settings["transaction.timeout.ms"] == 10_000
    assert settings_of("get_consumer", **guarantee)["isolation.level"] == "read_committed"


def test_settings_that_the_admin_client_ignores_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock.workers.thread.client_supplier")
    values = {"admin__socket__keepalive__enable": True, "admin__socket__timeout__ms": 5_000}
    KafkaClientSupplier(config(**values)).get_admin("a").close()
    assert caplog.messages == [
        "Only the command line's admin client, which is librdkafka's, knows socket.keepalive.enable"
    ]


def test_librdkafka_accepts_all_settings() -> None:
    """Real clients, which do not connect."""
    for guarantee in ("at_least_once", "exactly_once_v2"):
        librdkafkas = {"penstock__fetcher": "librdkafka", "penstock__sender": "librdkafka"}
        supplier = KafkaClientSupplier(
            config(processing__guarantee=guarantee, request__timeout__ms=5_000, **librdkafkas)
        )
        for make in (supplier.get_consumer, supplier.get_restore_consumer, supplier.get_global_consumer):
            reader = as_reader(make("c"))
            assert isinstance(reader, LibrdkafkaReader)
            reader.close()
        for transactional_id in (None, "tx"):
            assert isinstance(supplier.get_producer("p", transactional_id), LibrdkafkaWriter)
        supplier.get_admin_client("a")


@pytest.mark.parametrize(
    ("method", "values", "message"),
    [
        (
            "get_consumer",
            {"consumer__no__such": 1},
            'settings of the consumer: No such configuration property: "no.such"',
        ),
        ("get_producer", {"producer__linger__mss": 1}, 'settings of the producer: .*"linger.mss"'),
        ("get_producer", {"acks": "1"}, "settings of the producer: .*acks"),
        ("get_admin_client", {"admin__client__dns__lookup": "x"}, "settings of the admin client: .*client.dns.lookup"),
        (
            "get_consumer",
            {"ssl__truststore__location": "x"},
            "ssl.truststore.location is not supported: use a PEM file",
        ),
        (
            "get_admin",
            {"consumer__ssl__x": 1, "admin__ssl__y": 1},
            "ssl.y is not supported: it is not a key of librdkafka",
        ),
        ("get_producer", {"sasl__jaas__config": "x"}, "sasl.jaas.config is not supported: use sasl.username"),
    ],
)
def test_a_setting_that_a_client_refuses_is_a_config_error_that_names_the_key(
    method: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        getattr(KafkaClientSupplier(config(**values)), method)("c")


def test_a_secret_is_not_in_the_error() -> None:
    with pytest.raises(ConfigError) as raised:
        KafkaClientSupplier(config(sasl__password="hush", consumer__no__such=1)).get_consumer("c")
    assert "hush" not in str(raised.value)


def test_the_member_gets_streams_configs_settings_and_the_consumers_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[GroupMemberConfig, Mapping[str, Any]]] = []
    monkeypatch.setattr(client_supplier, "GroupMember", lambda c, connection, *_, **__: made.append((c, connection)))
    supplier = KafkaClientSupplier(
        config(
            main__consumer__session__timeout__ms=9_000,
            consumer__heartbeat__interval__ms=1_000,
            max__poll__interval__ms=20_000,
            request__timeout__ms=4_000,
            task__timeout__ms=0,
            security__protocol="SASL_PLAINTEXT",
            sasl__mechanism="SCRAM-SHA-256",
            consumer__sasl__username="me",
            consumer__sasl__password="hush",
            consumer__reconnect__backoff__ms=3,
        )
    )
    supplier.get_group_member("the-client", lambda members: {}, "slot-1")
    ((member, connection),) = made
    assert isinstance(connection, NetworkSettings)
    assert member == GroupMemberConfig(
        "app",
        "slot-1",
        session_timeout_ms=9_000,
        heartbeat_interval_ms=1_000,
        max_poll_interval_ms=20_000,
        unavailable_timeout_ms=9_000,
        committed_wait_ms=500,
        process_id_file=str(process_id_file(supplier._config)),
    )
    assert connection == NetworkSettings(
        bootstrap_servers=(("localhost", 1),),
        client_id="the-client",
        request_timeout_ms=4_000,
        reconnect_backoff_ms=3,
        retry_backoff_ms=100,
    )
    assert said_by(connection.security) == ["SCRAM-SHA-256", "n,,n=me"]


def said_by(found: Security) -> list[str]:
    """Return the name of a SASL mechanism, and a description of its first message."""
    assert found.mechanism is not None
    first = next(found.mechanism("localhost")).decode()
    return [found.mechanism_name, first.partition(",r=")[0]]


def test_static_members_are_identified_by_slot_and_host() -> None:
    process = UUID(int=7)
    assert static_instance_id(config(), process, 2) == f"app-{process}-2"
    assert static_instance_id(config(group__instance__id="mine"), process, 2) == "mine-2"
    assert static_instance_id(config(penstock__static__membership=False), process, 2) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ssl.keystore.location": "x"}, "use PEM files"),
        ({"ssl.engine.id": "x"}, "OpenSSL engines are not supported"),
        ({"ssl.provider": "x"}, "it is not a key of librdkafka"),
        ({"sasl.oauthbearer.assertion.file": "x"}, "oauth_cb"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.method": "oidc"},
            "needs sasl.oauthbearer.token.endpoint.url and sasl.oauthbearer.client.id and",
        ),
        ({"security.protocol": "TLS"}, "security.protocol=TLS is not valid"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "DIGEST"}, "sasl.mechanism=DIGEST is not valid"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}, "needs sasl.username and sasl.password"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, "needs consumer.oauth_cb"),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "/no/such/file"},
            "TLS settings ssl.ca.location cannot be used",
        ),
        (
            {"security.protocol": "SSL", "ssl.cipher.suites": "none-such"},
            "TLS settings ssl.cipher.suites cannot be used",
        ),
    ],
)
def test_security_settings_that_cannot_be_translated_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        security(settings)


def test_settings_of_other_kinds_are_ignored() -> None:
    check_security_keys({"bootstrap.servers": "x", "fetch.min.bytes": 1})
    assert security({}) == PLAINTEXT


def test_oauth_calls_librdkafkas_callback_and_forwards_its_extensions() -> None:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.config": "scope=kafka",
        "oauth_cb": lambda text: (f"token for {text}", 1e12),
    }
    assert said_by(security(settings)) == ["OAUTHBEARER", "n,,\1auth=Bearer token for scope=kafka\1\1"]
    settings["oauth_cb"] = lambda text: ("t", 1e12, "me", {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"})
    said = "n,,\1auth=Bearer t\1logicalCluster=lkc-1\1identityPoolId=pool-2\1\1"
    assert said_by(security(settings)) == ["OAUTHBEARER", said]


def handshake(
    folder: Path, settings: Mapping[str, Any], client_certificate: bool = False, name: str = "localhost"
) -> str:
    """Connect to a TLS server with the folder's certificate; return its message."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if client_certificate:
        server_context.verify_mode = ssl.CERT_REQUIRED
        server_context.load_verify_locations(folder / "cert.pem")

    def serve(listener: socket.socket) -> None:
        plain, _ = listener.accept()
        with plain:
            try:
                with server_context.wrap_socket(plain, server_side=True) as secure:
                    secure.sendall(b"welcome")
            except OSError:  # the server refuses the client, which is what the test is about
                plain.close()

    with socket.create_server(("localhost", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        try:
            with (
                socket.create_connection(listener.getsockname()) as plain,
                ssl_context(settings).wrap_socket(plain, server_hostname=name) as secure,
            ):
                return secure.recv(100).decode()
        finally:
            server.join()


def test_tls_verifies_the_broker_by_file_and_by_text(certificate: Path) -> None:
    ca = certificate / "cert.pem"
    assert handshake(certificate, {"ssl.ca.location": str(ca)}) == "welcome"
    assert handshake(certificate, {"ssl.ca.pem": ca.read_text()}) == "welcome"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(certificate, {})


def test_tls_checks_the_brokers_name_unless_that_is_turned_off(certificate: Path) -> None:
    settings: dict[str, Any] = {"ssl.ca.location": str(certificate / "cert.pem")}
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(certificate, settings, name="elsewhere")
    settings["ssl.endpoint.identification.algorithm"] = "none"
    assert handshake(certificate, settings, name="elsewhere") == "welcome"
    assert handshake(certificate, {"enable.ssl.certificate.verification": "false"}) == "welcome"


def test_tls_sends_a_client_certificate_from_files_or_texts(certificate: Path) -> None:
    ca = {"ssl.ca.location": str(certificate / "cert.pem")}
    files = {
        "ssl.certificate.location": str(certificate / "cert.pem"),
        "ssl.key.location": str(certificate / "locked.pem"),
        "ssl.key.password": "secret",
    }
    texts = {
        "ssl.certificate.pem": (certificate / "cert.pem").read_text(),
        "ssl.key.pem": (certificate / "key.pem").read_text(),
    }
    assert handshake(certificate, ca | files, client_certificate=True) == "welcome"
    assert handshake(certificate, ca | texts, client_certificate=True) == "welcome"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(certificate, ca, client_certificate=True)


@pytest.fixture
def supplier(bootstrap_servers: str, application_id: str) -> KafkaClientSupplier:
    return KafkaClientSupplier(config(bootstrap__servers=bootstrap_servers, application__id=application_id))


def code(message: Message) -> int | None:
    error = message.error()
    return error.code() if error else None


@pytest.mark.broker
def test_a_record_goes_to_the_partition_that_javas_murmur2_gives(
    supplier: KafkaClientSupplier, make_topic: MakeTopic
) -> None:
    topic = make_topic("out", partitions=7)
    producer = supplier.confluent_producer("p")
    placed: dict[bytes | None, int | None] = {}
    keys = (b"21", b"foobar", b"a-little-bit-long-string", b"\x00\xff", b"k" * 50)
    for key in keys:
        producer.produce(topic, key=key, value=b"", on_delivery=lambda _, m: placed.__setitem__(m.key(), m.partition()))
    assert producer.flush(PATIENCE_SECONDS) == 0
    assert placed == {key: (murmur2(key) & 0x7FFFFFFF) % 7 for key in keys}


@pytest.mark.broker
def test_the_consumer_returns_end_offsets_and_refuses_an_offset_out_of_range(
    supplier: KafkaClientSupplier, make_topic: MakeTopic
) -> None:
    topic = make_topic("in")
    producer = supplier.confluent_producer("p")
    producer.produce(topic, value=b"one")
    producer.flush(PATIENCE_SECONDS)
    consumer = supplier.confluent_consumer("c")
    try:
        consumer.assign([RdTopicPartition(topic, 0, 0)])
        first, end = consumer.consume(2, PATIENCE_SECONDS)
        assert (first.value(), code(end)) == (b"one", KafkaError._PARTITION_EOF)
        consumer.assign([RdTopicPartition(topic, 0, 99)])
        (refused,) = consumer.consume(1, PATIENCE_SECONDS)
        assert code(refused) == KafkaError._AUTO_OFFSET_RESET
    finally:
        consumer.close()


@pytest.mark.broker
def test_reading_a_missing_topic_does_not_create_it(
    supplier: KafkaClientSupplier, unique_name: Callable[[str], str]
) -> None:
    missing = unique_name("missing")
    consumer = supplier.confluent_consumer("c")
    try:
        consumer.assign([RdTopicPartition(missing, 0, 0)])
        consumer.consume(1, 1.0)
        with pytest.raises(KafkaException):
            consumer.get_watermark_offsets(RdTopicPartition(missing, 0), timeout=1.0)
    finally:
        consumer.close()
    assert missing not in supplier.get_admin_client("a").list_topics(timeout=PATIENCE_SECONDS).topics


def test_the_fence_is_checked_before_exactly_once_with_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    checks: list[bool] = []
    monkeypatch.setattr(making, "verify_layout", lambda: checks.append(True))
    made = KafkaClientSupplier(config(penstock__sender="librdkafka"))
    made.get_producer("plain")
    assert not checks
    made.get_producer("transactional", transactional_id="app-1")
    assert checks
