"""Secured connections with each mechanism that a real broker offers, also after their sessions end."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from penstock.clients.cluster.brokers import KafkaBrokers
from penstock.clients.cluster.cluster import Cluster
from penstock.clients.cluster.network_client import NetworkClient
from penstock.clients.connection import opening
from penstock.clients.connection.broker_link import LinkApi
from penstock.clients.errors import BrokerError, UnreachableError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import network_settings
from penstock.clients.protocol.messages import METADATA
from tests.brokers import SESSION_MS, SecuredBroker
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker
#: The number of sessions that a test covers.
SESSIONS = 2
LOG = PrefixedLogger("penstock.test", "")
#: The number of Metadata requests.
VERSION = 12

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def broker(secured_broker: SecuredBroker) -> dict[str, str]:
    """A broker's addresses by listener: SASL_PLAINTEXT with all mechanisms, SASL_SSL, SSL with client certificates."""
    return secured_broker.addresses


def token(config: str) -> tuple[str, float, str, dict[str, str]]:
    """Behave as librdkafka's oauth_cb: return a token that the broker's test validator accepts, and extensions."""
    now = time.time()

    def part(claims: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(claims).encode()).rstrip(b"=").decode()

    encoded = f"{part({'alg': 'none'})}.{part({'sub': 'reader', 'iat': int(now), 'exp': now + 3_600})}."
    return encoded, now + 3_600, "reader", {"logicalCluster": "lkc1"}


class TokenEndpoint(BaseHTTPRequestHandler):
    """An OpenID provider for one client."""

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        known = f"Basic {base64.b64encode(b'the-client:hush').decode()}"
        allowed = self.headers["Authorization"] == known and body["grant_type"] == ["client_credentials"]
        answer = {"access_token": token("")[0], "expires_in": 3_600} if allowed else {"error": "invalid_client"}
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps({**answer, "scope": body.get("scope", [""])[0]}).encode())

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def provider() -> Iterator[dict[str, str]]:
    """The settings of a client that is registered at an OpenID provider."""
    with HTTPServer(("127.0.0.1", 0), TokenEndpoint) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{server.server_port}/token",
            "sasl.oauthbearer.client.id": "the-client",
            "sasl.oauthbearer.client.secret": "hush",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc1,identityPoolId=pool1",
        }
        server.shutdown()
        serving.join()


PLAIN = {"sasl.mechanism": "PLAIN", "sasl.username": "reader", "sasl.password": "secret"}
SCRAM = {"sasl.username": "scram-reader", "sasl.password": "hush"}
MECHANISMS = [
    PLAIN,
    {**SCRAM, "sasl.mechanism": "SCRAM-SHA-256"},
    {**SCRAM, "sasl.mechanism": "SCRAM-SHA-512"},
    {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": token},
]


@pytest.fixture
def asked() -> Iterator[Ask]:
    """Request a cluster's brokers, over a client that is closed at the end."""
    made: list[Cluster] = []

    def ask(settings: dict[str, Any]) -> Any:
        if not made:
            made.append(Cluster(network_settings(settings)))
        return made[0].submit(made[0].metadata, []).result(PATIENCE_SECONDS)

    yield ask
    for cluster in made:
        cluster.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The addresses to which connections were opened."""
    found: list[tuple[str, int]] = []
    connect = opening._connected

    async def noted(resolved: Any, host: str, *rest: Any) -> opening.Opened:
        found.append((host, resolved.address[1]))
        return await connect(resolved, host, *rest)

    monkeypatch.setattr(opening, "_connected", noted)
    return found


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=lambda mechanism: mechanism["sasl.mechanism"])
@pytest.mark.parametrize("listener", ["SASL", "TLS"])
def test_each_mechanism_accepts_valid_credentials(
    broker: dict[str, str], certificate: Path, asked: Ask, mechanism: dict[str, Any], listener: str
) -> None:
    protocol = "SASL_PLAINTEXT" if listener == "SASL" else "SASL_SSL"
    settings = {"bootstrap.servers": broker[listener], "security.protocol": protocol, **mechanism}
    assert asked({**settings, "ssl.ca.location": str(certificate / "cert.pem")}).brokers


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({**PLAIN, "sasl.password": "guessed"}, "SASL_AUTHENTICATION_FAILED: Authentication failed"),
        ({**SCRAM, "sasl.mechanism": "SCRAM-SHA-256", "sasl.password": "guessed"}, "SASL_AUTHENTICATION_FAILED"),
        ({"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: ("no.token.", 0)}, "SASL_AUTHENTICATION_FAILED"),
        ({"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: 1 / 0}, "cannot get a token: ZeroDivisionError"),
        ({"sasl.mechanism": "GSSAPI"}, "has sasl.enabled.mechanisms=.*, not GSSAPI"),
    ],
    ids=["PLAIN", "SCRAM", "OAUTHBEARER", "callback", "mechanism"],
)
def test_invalid_credentials_are_refused_permanently_with_a_reason(
    broker: dict[str, str], asked: Ask, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(BrokerError, match=says) as raised:
        asked({"bootstrap.servers": broker["SASL"], "security.protocol": "SASL_PLAINTEXT", **settings})
    assert not raised.value.code.retriable


def test_tokens_come_from_an_openid_provider(broker: dict[str, str], asked: Ask, provider: dict[str, str]) -> None:
    settings = {"bootstrap.servers": broker["SASL"], "security.protocol": "SASL_PLAINTEXT"}
    assert asked({**settings, **provider}).brokers


def test_the_error_quotes_a_provider_that_refuses(broker: dict[str, str], asked: Ask, provider: dict[str, str]) -> None:
    settings = {"bootstrap.servers": broker["SASL"], "security.protocol": "SASL_PLAINTEXT"}
    with pytest.raises(BrokerError, match=r"/token answered 401 Unauthorized: .*invalid_client"):
        asked({**settings, **provider, "sasl.oauthbearer.client.secret": "wrong"})


def test_a_broker_with_an_unknown_certificate_is_not_trusted(broker: dict[str, str], asked: Ask) -> None:
    with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
        asked({"bootstrap.servers": broker["TLS"], "security.protocol": "SASL_SSL", **PLAIN})


def test_a_client_sends_its_certificate(broker: dict[str, str], certificate: Path, asked: Ask) -> None:
    files = {"ssl.certificate.location": certificate / "cert.pem", "ssl.key.location": certificate / "key.pem"}
    settings = {name: str(path) for name, path in files.items()}
    ca = {"security.protocol": "SSL", "ssl.ca.location": str(certificate / "cert.pem")}
    assert asked({"bootstrap.servers": broker["MUTUAL"], **ca, **settings}).brokers


@pytest.mark.slow
@pytest.mark.parametrize("listener", ["SASL", "TLS"])
@pytest.mark.parametrize("mechanism", [PLAIN, MECHANISMS[2], MECHANISMS[3]], ids=lambda each: each["sasl.mechanism"])
def test_a_session_is_renewed_in_place_for_requests(
    broker: dict[str, str],
    certificate: Path,
    asked: Ask,
    opened: list[Any],
    caplog: pytest.LogCaptureFixture,
    mechanism: dict[str, Any],
    listener: str,
) -> None:
    """A broker closes a connection on which a request arrives after its session has ended."""
    protocol = "SASL_PLAINTEXT" if listener == "SASL" else "SASL_SSL"
    settings = {"bootstrap.servers": broker[listener], "security.protocol": protocol, **mechanism}
    end = time.monotonic() + SESSIONS * SESSION_MS / 1000
    while time.monotonic() < end:
        assert asked({**settings, "ssl.ca.location": str(certificate / "cert.pem")}).brokers
        time.sleep(0.05)
    assert len(opened) == 1
    assert not caplog.records


class Brokers:
    """Returns Metadata, over a connection as a stream thread has it."""

    throttle_time_ms = 0

    def __init__(self, data: bytearray, version: int) -> None:
        self.body = METADATA.decode(data, version)


@pytest.mark.slow
@pytest.mark.parametrize("listener", ["SASL", "TLS"])
def test_a_session_is_renewed_in_place_for_a_stream_threads_reader(
    broker: dict[str, str], certificate: Path, opened: list[Any], caplog: pytest.LogCaptureFixture, listener: str
) -> None:
    protocol = "SASL_PLAINTEXT" if listener == "SASL" else "SASL_SSL"
    settings = network_settings(
        {
            "bootstrap.servers": broker[listener],
            "security.protocol": protocol,
            "ssl.ca.location": str(certificate / "cert.pem"),
            **PLAIN,
        }
    )
    failures: list[Any] = []
    client: NetworkClient[Brokers] = NetworkClient(
        brokers := KafkaBrokers(settings),
        settings,
        LinkApi(METADATA.name, METADATA.key, VERSION, VERSION, Brokers, "2.8", "asked", "penstock.fetcher"),
        lambda *failure: failures.append(failure),
        LOG,
    )
    try:
        brokers.leaders([], client.wake).result(PATIENCE_SECONDS)
        before, answers = len(opened), 0
        end = time.monotonic() + SESSIONS * SESSION_MS / 1000
        while (now := time.monotonic()) < end:
            now_ms = int(now * 1000)
            answers += sum(over.response is not None for over in client.advance((), now_ms))
            link = client.link(1)
            if link.is_ready(now_ms):
                link.send(lambda number: METADATA(topics=[]).encode(VERSION, number, "test"), None, 0, now_ms)
            client.wait(now_ms, now_ms + 50)
        assert answers > 10
        assert len(opened) == before + 1
        assert failures == []
        assert not caplog.records
    finally:
        client.close()
