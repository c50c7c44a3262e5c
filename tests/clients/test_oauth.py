"""SASL/OAUTHBEARER with a token from a user's function."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from penstock.testing.wire import Action, Exchange, Rule, WireProxy
from tests.brokers import SESSION_MS, SecuredBroker
from tests.clients.application import Application, Topics, wait_for_values
from tests.clients.conftest import MakeApplication
from tests.clients.oauth_program import EXTENSIONS

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: The number of authenticated sessions that the test covers.
SESSIONS = 4


class Tokens(Action):
    """Keeps the authentication data of clients."""

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
    """A broker's topics, over its plain listener, and a proxy before the listener that requires tokens."""

    topics: Topics
    proxy: WireProxy
    source: str
    sink: str


@pytest.fixture
def secured(secured_broker: SecuredBroker, tokens: Tokens, unique_name: Callable[[str], str]) -> Iterator[Secured]:
    """A broker that requires tokens, and a new authentication every few seconds."""
    with WireProxy(secured_broker.addresses["SASL"], [Rule(tokens, api="SaslAuthenticate")]) as proxy:
        topics = Topics(secured_broker.bootstrap_servers)
        yield Secured(topics, proxy, topics.create(unique_name("in")), topics.create(unique_name("out")))


@pytest.fixture
def application(secured: Secured, run: MakeApplication) -> Application:
    """An application that copies the source, and has copied its first record."""
    secured.topics.write(secured.source, ["first"])
    started = run(
        "copy",
        secured.source,
        secured.sink,
        secured.proxy.bootstrap_servers,
        module="tests.clients.oauth_program",
        auto_offset_reset="earliest",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
    )
    wait_for_values(started, secured.topics, secured.sink, ["first"])
    return started


def test_brokers_get_the_extensions_of_a_token(application: Application, tokens: Tokens) -> None:
    assert application.exit_code is None
    assert tokens.seen
    for name, value in EXTENSIONS.items():
        without = [data for data in tokens.seen if f"\x01{name}={value}\x01".encode() not in data]
        assert not without, f"{name} is missing in {len(without)} of {len(tokens.seen)}"


def test_a_reauthentication_does_not_disturb_processing(
    application: Application, secured: Secured, tokens: Tokens
) -> None:
    written, before = ["first"], len(tokens.seen)
    until = time.monotonic() + SESSIONS * SESSION_MS / 1000
    while time.monotonic() < until:
        written.append(f"{len(written)}")
        secured.topics.write(secured.source, written[-1:])
        wait_for_values(application, secured.topics, secured.sink, written)
    assert len(tokens.seen) > before, "nobody has authenticated again"
    warnings = [line for line in application.log.splitlines() if " WARNING " in line or " ERROR " in line]
    assert not warnings
