"""SASL/OAUTHBEARER with a token from a function of the user's."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock.dev.dev_broker import DevBroker
from penstock.testing.wire import Action, Exchange, Rule, WireProxy
from tests.clients.application import Application, Topics, wait_for_values
from tests.clients.conftest import MakeApplication
from tests.clients.oauth_program import EXTENSIONS

pytestmark = [pytest.mark.broker, pytest.mark.slow]

REAUTHENTICATION_MS = 4_000
SOURCE, SINK = "in", "out"
_LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class Tokens(Action):
    """Keeps what clients authenticate with."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    async def on_request(self, exchange: Exchange) -> None:
        self.seen.append(exchange.request.data)
        await exchange.forward()


@pytest.fixture
def tokens() -> Tokens:
    return Tokens()


@dataclass(frozen=True)
class Secured:
    """A broker's topics, by its plain listener, and a proxy before the listener that wants tokens."""

    topics: Topics
    proxy: WireProxy


@pytest.fixture
def secured(tmp_path: Path, tokens: Tokens) -> Iterator[Secured]:
    """A broker that wants tokens, and to see them again every few seconds."""
    plain, secure, controller = free_ports(3)
    config = {
        "listeners": f"BROKER://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},SECURE://127.0.0.1:{secure}",
        "advertised.listeners": f"BROKER://127.0.0.1:{plain},SECURE://127.0.0.1:{secure}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.secure.oauthbearer.sasl.jaas.config": f'{_LOGIN} required unsecuredLoginStringClaim_sub="x";',
        "listener.name.secure.oauthbearer.connections.max.reauth.ms": str(REAUTHENTICATION_MS),
    }
    with (
        DevBroker("oauth", tmp_path / "broker", port=plain, config=config),
        WireProxy(f"127.0.0.1:{secure}", [Rule(tokens, api="SaslAuthenticate")]) as proxy,
    ):
        topics = Topics(f"127.0.0.1:{plain}")
        topics.create(SOURCE)
        topics.create(SINK)
        yield Secured(topics, proxy)


def free_ports(count: int) -> list[int]:
    with ExitStack() as open_ones:
        sockets = [open_ones.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [found.getsockname()[1] for found in sockets]


@pytest.fixture
def application(secured: Secured, run: MakeApplication) -> Application:
    """An application that copies the source, and has copied a first record."""
    secured.topics.write(SOURCE, ["first"])
    started = run(
        "copy",
        SOURCE,
        SINK,
        secured.proxy.bootstrap_servers,
        module="tests.clients.oauth_program",
        auto_offset_reset="earliest",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
    )
    wait_for_values(started, secured.topics, SINK, ["first"], 60)
    return started


def test_brokers_get_the_extensions_that_come_with_a_token(application: Application, tokens: Tokens) -> None:
    assert application.exit_code is None
    assert tokens.seen
    for name, value in EXTENSIONS.items():
        without = [data for data in tokens.seen if f"\x01{name}={value}\x01".encode() not in data]
        assert not without, f"{name} is missing in {len(without)} of {len(tokens.seen)}"


def test_authenticating_again_is_no_event(application: Application, secured: Secured, tokens: Tokens) -> None:
    written, before = ["first"], len(tokens.seen)
    until = time.monotonic() + 4 * REAUTHENTICATION_MS / 1000
    while time.monotonic() < until:
        written.append(f"{len(written)}")
        secured.topics.write(SOURCE, written[-1:])
        wait_for_values(application, secured.topics, SINK, written, 30)
    assert len(tokens.seen) > before, "nobody has authenticated again"
    warnings = [line for line in application.log.splitlines() if " WARNING " in line or " ERROR " in line]
    assert not warnings
