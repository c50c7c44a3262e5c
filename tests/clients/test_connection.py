"""The connection as a state machine, by events and times alone; a model decides what may be sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.clients.connection.connection import Connection, ConnectionState, Step
from penstock.clients.connection.opening import RENEWAL, Opened
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import NetworkSettings
from penstock.clients.protocol.api import Api
from tests.examples import examples

LOG = PrefixedLogger("penstock.test", "")
SETTINGS = NetworkSettings(max_idle_ms=300, request_timeout_ms=200)
SESSION_MS = 500


@dataclass
class Response:
    """A response with a throttle."""

    body: bytes
    throttle_time_ms: int


class Echo(Api[Response]):
    """Responses have the correlation id, a throttle of two bytes in ms, and a body."""

    def decode(self, data: bytearray, version: int) -> Response:
        if len(data) < 6:
            raise ValueError("truncated")
        return Response(bytes(data[6:]), int.from_bytes(data[4:6], "big"))


ECHO = Echo("Echo", 99, 0, 0)


def opened(session_ms: int | None = None) -> Opened:
    """Return what was opened, without a socket: a connection does not use it."""
    return Opened(None, session_ms=session_ms)  # type: ignore[arg-type]


def connected(session_ms: int | None = None, most_in_flight: float = 5) -> Connection:
    """Return an idle connection that was opened at the time 0."""
    connection = Connection(SETTINGS, LOG, most_in_flight)
    connection.connecting()
    connection.ready(opened(session_ms), 0)
    return connection


def send(connection: Connection, now_ms: float, asked: object = None) -> bytes:
    """Send a request at this time, and return its bytes."""
    return connection.request(ECHO, 0, lambda number: number.to_bytes(4, "big"), now_ms, 200, asked)


def answer(request: bytes, throttle_ms: int = 0, body: bytes = b"") -> bytearray:
    """Return the broker's response."""
    return bytearray(request + throttle_ms.to_bytes(2, "big") + body)


def test_a_response_comes_back_with_what_was_asked() -> None:
    connection = connected()
    request = send(connection, 0, "asked")
    assert connection.state is ConnectionState.ACTIVE
    first, response = connection.response(answer(request, body=b"hello"), 1)
    assert (first.asked, response.body, connection.state) == ("asked", b"hello", ConnectionState.IDLE)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (answer((7).to_bytes(4, "big")), "response 7 to request 1"),
        (bytearray(b"\0\0"), "response 0 to request 1"),
        (bytearray(b"\0\0\0\1"), "truncated"),
    ],
)
def test_a_wrong_response_is_an_error_and_its_request_stays_in_flight(data: bytearray, error: str) -> None:
    connection = connected()
    send(connection, 0, "asked")
    with pytest.raises((ConnectionError, ValueError), match=error):
        connection.response(data, 1)
    assert connection.lost() == ["asked"]


def test_a_response_without_a_request_is_an_error() -> None:
    with pytest.raises(ConnectionError, match="a response without a request"):
        connected().response(answer(b"\0\0\0\1"), 1)


def test_a_request_that_cannot_be_encoded_is_not_in_flight() -> None:
    connection = connected()
    with pytest.raises(OverflowError):
        connection.request(ECHO, 0, lambda _: (-1).to_bytes(4, "big"), 0, 200, None)
    assert (connection.state, connection.lost()) == (ConnectionState.IDLE, [])


def test_a_response_is_late_unless_parts_of_it_arrive() -> None:
    connection = connected()
    send(connection, 0)
    connection.check_deadline(199, has_received=False)
    connection.check_deadline(250, has_received=True)
    connection.check_deadline(449, has_received=False)
    with pytest.raises(TimeoutError, match="no response within 200 ms"):
        connection.check_deadline(450, has_received=False)


def test_the_correlation_id_begins_again_after_the_largest() -> None:
    connection = connected(most_in_flight=1)
    connection._correlation_id = (1 << 31) - 1  # two billion requests
    assert send(connection, 0) == b"\0\0\0\0"


class Life(RuleBasedStateMachine):
    """Any order of events and pauses. The model knows when what may happen next."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.connection = Connection(SETTINGS, LOG, 2)
        self.sent: list[tuple[bytes, int]] = []
        self.quiet_until = 0.0
        self.idle_since = 0.0
        self.since: float | None = None  # of the session
        self.count = 0

    @rule(ms=st.integers(1, 400))
    def pause(self, ms: int) -> None:
        self.now += ms

    def step(self) -> Step:
        return self.connection.next_step(self.now)

    @precondition(lambda self: self.step() is Step.OPEN)
    @rule(fails=st.booleans(), with_session=st.booleans())
    def open(self, fails: bool, with_session: bool) -> None:
        self.connection.connecting()
        assert self.step() is Step.BUSY
        if fails:
            assert self.connection.lost() == []
            return
        self.ready(SESSION_MS if with_session else None)

    def ready(self, session_ms: int | None) -> None:
        self.connection.ready(opened(session_ms), self.now)
        self.quiet_until, self.idle_since = 0.0, self.now
        self.since = None if session_ms is None else self.now

    @precondition(lambda self: self.step() is Step.RENEW)
    @rule()
    def renew(self) -> None:
        assert self.since is not None
        assert self.now >= self.since + RENEWAL[0] * SESSION_MS, "not long before its end"
        self.connection.renewing()
        assert self.step() is Step.BUSY
        self.ready(SESSION_MS)

    @precondition(lambda self: self.step() is Step.DROP)
    @rule()
    def drop(self) -> None:
        assert self.now - self.idle_since >= SETTINGS.max_idle_ms
        assert self.connection.lost() == []

    @precondition(lambda self: self.step() is Step.SEND)
    @rule()
    def request(self) -> None:
        self.count += 1
        self.sent.append((send(self.connection, self.now, self.count), self.count))

    @precondition(lambda self: bool(self.sent))
    @rule(throttle_ms=st.sampled_from((0, 0, 300)))
    def respond(self, throttle_ms: int) -> None:
        request, asked = self.sent.pop(0)
        assert self.connection.response(answer(request, throttle_ms), self.now)[0].asked == asked
        if throttle_ms:
            self.quiet_until = max(self.quiet_until, self.now + throttle_ms)
        if not self.sent:
            self.idle_since = self.now

    @precondition(lambda self: self.connection.state in (ConnectionState.IDLE, ConnectionState.ACTIVE))
    @rule()
    def lose(self) -> None:
        assert self.connection.lost() == [asked for _, asked in self.sent]
        self.sent.clear()

    @invariant()
    def what_is_sent_is_allowed(self) -> None:
        step, state = self.step(), self.connection.state
        assert (step is Step.WAIT) is (self.now < self.quiet_until)
        if step is not Step.SEND:
            return
        assert len(self.sent) < 2
        assert state in (ConnectionState.IDLE, ConnectionState.ACTIVE)
        assert self.since is None or self.now < self.since + RENEWAL[1] * SESSION_MS, "the session is about to end"
        assert self.sent or self.now - self.idle_since < SETTINGS.max_idle_ms, "it may be dead"


TestLife: Any = Life.TestCase
TestLife.settings = settings(max_examples=examples(400), deadline=None, stateful_step_count=40)
