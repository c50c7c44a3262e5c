"""Malformed requests, and unusual but valid ones: each gets the right response, and no traceback."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import worker_targets
from stage import Conductor, until

from penstock import KafkaStreams, StreamsBuilder
from penstock.supervisor.application_state import ApplicationState
from tests.waiting import PATIENCE_SECONDS

TOKEN = "geheim"
GET = b"GET /status HTTP/1.1\r\n"
#: The result of a read of a store here, where puppets have no stores: its parameters are valid.
READ = (503, "TIMEOUT")
FINE = (200, None)
BAD = (400, "BAD_REQUEST")
NOTHING = (404, "NOT_FOUND")

#: Target, Host (None: no such header), and the response without a token: status and code.
TARGETS: list[tuple[str, str | None, tuple[int, str | None]]] = [
    ("/status", "localhost", FINE),
    ("/status", "LOCALHOST", FINE),
    ("/status", "LocalHost:8080", FINE),
    ("/status", "[::1]:8080", FINE),
    ("/status", "localhost.evil.example", (421, "WRONG_HOST")),
    ("/status", "", (421, "WRONG_HOST")),
    ("/status", None, BAD),
    # absolute-form: the target's host counts
    ("http://localhost:8080/status", "localhost:8080", FINE),
    ("HTTP://LOCALHOST/status?x=1", "evil.example", FINE),
    ("http://evil.example/status", "localhost", (421, "WRONG_HOST")),
    ("http://localhost", "localhost", FINE),
    ("http://localhost@evil.example/status", "localhost", (421, "WRONG_HOST")),
    # no redirects
    ("/status/", "localhost", NOTHING),
    ("/stores/", "localhost", NOTHING),
    ("//localhost/status", "localhost", NOTHING),
    ("*", "localhost", NOTHING),
    ("status", "localhost", BAD),
    ("[", "localhost", BAD),
    ("/health/../status", "localhost", NOTHING),
    # only a literal slash separates parts of a path
    ("/stores%2Fcounts", "localhost", NOTHING),
    ("/health%2Flive", "localhost", NOTHING),
    ("/stores/counts/a%2Fb?timeout_ms=50", "localhost", READ),
    ("/stores/counts/a/b?timeout_ms=50", "localhost", READ),
    ("/stores/counts/a%0Ab?timeout_ms=50", "localhost", READ),
    ("/stores/counts/%0A?timeout_ms=50", "localhost", READ),
    ("/stores/counts%0A/a?timeout_ms=50", "localhost", READ),
    ("/stores/counts/a%0D%0Ab?timeout_ms=50", "localhost", READ),
    ("/stores/counts/%E2%80%A8?timeout_ms=50", "localhost", READ),
    ("/stores/counts/?timeout_ms=50", "localhost", READ),
    ("/stores/counts/100%?timeout_ms=50", "localhost", READ),
    ("/stores/counts/%ff", "localhost", BAD),
    ("/stores/%ff/key", "localhost", BAD),
    # queries are UTF-8 too
    ("/stores/counts?from=%C3%BC&timeout_ms=50", "localhost", READ),
    ("/stores/counts?from=%0A&timeout_ms=50", "localhost", READ),
    ("/stores/counts?from=%ff", "localhost", BAD),
    ("/stores/counts?%ff=1", "localhost", BAD),
    ("/stores/counts?limit", "localhost", BAD),
    ("/stores/counts?limit=1&limit=1", "localhost", BAD),
]  # fmt: skip

#: Raw requests, and the statuses of their responses without a token.
MALFORMED: list[tuple[bytes, int]] = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # TLS
    (b"HELLO\r\n\r\n", 400),
    (b"GET /status HTTP/9.9\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /sta tus HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /\xfc HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (GET + b"Host: localhost\r\nHost: localhost\r\n\r\n", 400),
    (GET + b"Host: localhost\r\nno colon\r\n\r\n", 400),
    (GET + b"Host: localhost\r\nContent-Length: many\r\n\r\n", 400),
    (GET + b"Host: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (GET + b"Host: localhost\r\nX: " + b"x" * 33_000, 400),
    (GET + b"Host: localhost\r\nContent-Length: 99999999999999999999\r\n\r\n", 400),
    (GET + b"Host: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413),
    (GET + b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n", 413),
    (GET + b"Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n", 400),
    (GET + b"Host: localhost\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
    (GET + b"Host: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n", 200),
    (GET + b"Host: localhost\r\n\r\nrubbish\r\n\r\n", 200),
    (GET + b"Host: localhost\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n", 200),
    (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    (b"GET /status HTTP/1.0\r\nHost: localhost\r\n\r\n", 200),
]

#: Authorization, and the status with a token.
AUTHORIZATIONS: list[tuple[str | None, int]] = [
    (f"Bearer {TOKEN}", 200),
    (f"bearer {TOKEN}", 200),
    (f"BEARER   {TOKEN}", 200),
    (f"Bearer {TOKEN}x", 401),
    (f"Bearer {TOKEN[:-1]}", 401),
    (f"Bearer{TOKEN}", 401),
    (f"Basic {TOKEN}", 401),
    ("Bearer", 401),
    ("Bearer \u00fc", 401),
    (TOKEN, 401),
    ("", 401),
    (None, 401),
]


@contextmanager
def served(tmp_path: Path, conductor: Conductor, **config: Any) -> Iterator[int]:
    """Yield the port of a running application."""
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    values = {
        "application.id": "app",
        "bootstrap.servers": "unused:9092",
        "state.dir": str(tmp_path / "state"),
        "penstock.http.port": 0,
        worker_targets.CONDUCTOR: str(conductor.path),
    }
    with KafkaStreams(builder.build(), values | config, worker_target=worker_targets.puppet) as streams:
        streams.start()
        conductor.running(1)
        until(lambda: streams.state is ApplicationState.RUNNING)
        assert streams.http_port is not None
        yield streams.http_port


def answer(port: int, request: bytes) -> bytes:
    """Return the first response to some bytes, as much of it as arrives."""
    data = b""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as line:
        line.sendall(request)
        while not is_complete(data) and (more := line.recv(65536)):
            data += more
    return data


def is_complete(data: bytes) -> bool:
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return length is not None and len(body) >= int(length[1])


def status_of(data: bytes) -> int:
    return int(data.split(b" ", 2)[1]) if data else 0


def code_of(data: bytes) -> str | None:
    found = json.loads(data.partition(b"\r\n\r\n")[2] or b"{}")
    return str(found["error"]["code"]) if "error" in found else None


def test_odd_targets_and_hosts(tmp_path: Path, conductor: Conductor) -> None:
    with served(tmp_path, conductor) as port:
        found = {}
        for target, host, expected in TARGETS:
            named = b"" if host is None else f"Host: {host}\r\n".encode()
            data = answer(port, f"GET {target} HTTP/1.1\r\nConnection: close\r\n".encode() + named + b"\r\n")
            code = None if status_of(data) == 200 else code_of(data)
            if (status_of(data), code) != expected:
                found[target, host] = status_of(data), code, expected
        assert found == {}


def test_malformed_requests(tmp_path: Path, conductor: Conductor, caplog: pytest.LogCaptureFixture) -> None:
    with served(tmp_path, conductor) as port, caplog.at_level(logging.INFO):
        found = {}
        for request, expected in MALFORMED:
            data = answer(port, request)
            if status_of(data) != expected:
                found[request[:80]] = data[:300], expected
            elif expected >= 400:
                assert code_of(data), request[:80]
        assert found == {}
        assert status_of(answer(port, GET + b"Host: localhost\r\nConnection: close\r\n\r\n")) == 200
    assert [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING] == []


def responses(port: int, *parts: bytes) -> list[int]:
    """Return the statuses of all responses until the server closes the connection. parts: sent one after the other."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = b""
        try:
            for part in parts:
                line.sendall(part)
            while more := line.recv(65536):
                data += more
        except ConnectionError:  # closed at once, with unread data
            pass
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+) ", data)]


def test_requests_in_a_row(tmp_path: Path, conductor: Conductor) -> None:
    """Several requests on a connection, all sent before the first response."""
    fine = GET + b"Host: localhost\r\n\r\n"
    last = GET + b"Host: localhost\r\nConnection: close\r\n\r\n"
    upgrade = GET + b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    body = GET + b"Host: localhost\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60_000
    with served(tmp_path, conductor) as port:
        assert responses(port, fine + fine + last) == [200, 200, 200]
        assert responses(port, fine, b"rubbish\r\n\r\n")[:1] == [200]
        assert responses(port, upgrade + last) == [200, 200]
        assert responses(port, upgrade, last) == [200, 200]
        assert responses(port, body + last) == [200, 200]  # a body does not count as headers
        # The last part exceeds the limit.
        head, field = GET + b"Host: localhost\r\n", b"X: " + b"x" * 999 + b"\r\n"
        assert responses(port, head, *[field] * 33) == [400]


@pytest.mark.parametrize("parts", [1, 4])
def test_a_request_for_another_protocol_has_a_body_as_any_other(
    tmp_path: Path, conductor: Conductor, parts: int
) -> None:
    """Java's client asks for HTTP/2 in its first request."""
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA\r\n"
    token = f"Authorization: Bearer {TOKEN}\r\n".encode()
    last = GET + b"Host: localhost\r\nConnection: close\r\n" + token + b"\r\n"

    def post(body: bytes, *headers: bytes) -> bytes:
        fields = b"".join((b"Host: localhost\r\nContent-Length: %d\r\n" % len(body), token, *headers))
        return b"POST /sql HTTP/1.1\r\n" + fields + b"\r\n" + body

    def body_of(request: bytes) -> bytes:
        return answer(port, request).partition(b"\r\n\r\n")[2]

    with served(tmp_path, conductor, **{"penstock.http.token": TOKEN}) as port:
        asked = post(b'{"query": 1}', upgrade)
        assert body_of(asked) == body_of(post(b'{"query": 1}')) != body_of(post(b""))
        size = -(-len(asked) // parts)
        sent = [asked[at : at + size] for at in range(0, len(asked), size)]
        assert responses(port, *sent, last) == [400, 200]


def test_only_the_exact_bearer_token_authorizes(tmp_path: Path, conductor: Conductor) -> None:
    with served(tmp_path, conductor, **{"penstock.http.token": TOKEN}) as port:
        for given, expected in AUTHORIZATIONS:
            header = b"" if given is None else f"Authorization: {given}\r\n".encode()
            data = answer(port, GET + b"Host: any.example\r\nConnection: close\r\n" + header + b"\r\n")
            assert status_of(data) == expected, given
        for path in (b"/status", b"/status/", b"/%73tatus", b"http://localhost/status", b"/stores/counts/a%0Ab", b"*"):
            data = answer(port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert status_of(data) == 401, path
        for host in (b"[", b"a b", b""):  # with a token, any Host is accepted
            data = answer(port, GET + b"Host: " + host + b"\r\nAuthorization: bearer geheim\r\n\r\n")
            assert status_of(data) == 200, host
            data = answer(port, b"GET /nothing HTTP/1.1\r\nHost: " + host + b"\r\nAuthorization: bearer geheim\r\n\r\n")
            assert (status_of(data), code_of(data)) == NOTHING, host
        for path in (b"/health/live", b"http://any.example/health/live"):
            data = answer(port, b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert status_of(data) == 200, path
