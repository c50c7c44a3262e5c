"""Many, slow or silent connections do not affect processing, health checks or commands."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from http.client import HTTPConnection
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from http_client import Answer
from limited_application import LimitedApplication, limited_application, sent
from stage import Conductor, until

from penstock import StreamsError
from penstock.supervisor.http.endpoints import PAGES
from tests.waiting import PATIENCE_FACTOR, PATIENCE_SECONDS

pytestmark = pytest.mark.medium

#: The timeout of a load balancer's health check.
PROBE_SECONDS = 10.0 * PATIENCE_FACTOR
IDLE_SECONDS = 10.0
SLOW_QUERY = b"GET /stores/counts/key?timeout_ms=30000 HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def application(tmp_path: Path, conductor: Conductor) -> Iterator[LimitedApplication]:
    with limited_application(tmp_path, conductor) as made:
        yield made


def probed(application: LimitedApplication) -> Answer:
    """Return the response to a health check, which must arrive in time."""
    begin = time.monotonic()
    answer = application.http.ask("/health/live")
    assert time.monotonic() - begin < PROBE_SECONDS
    return answer


@pytest.mark.parametrize(("method", "body"), [("GET", (PAGES / "page.js").read_bytes()), ("HEAD", b"")])
def test_requests_sent_together_get_their_responses_in_order(
    application: LimitedApplication, method: str, body: bytes
) -> None:
    request = f"{method} /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    last = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", application.http.port), timeout=PROBE_SECONDS) as line:
        line.sendall(request * 2 + last)
        with line.makefile("rb") as received:
            _, *responses = received.read().split(b"HTTP/1.1 200 OK\r\n")
    bodies = [response.partition(b"\r\n\r\n")[2] for response in responses]
    assert bodies == [body, body, b'{"live":true,"reason":""}']


def test_an_answer_on_a_kept_connection_does_not_wait_for_an_acknowledgement(application: LimitedApplication) -> None:
    """With Nagle's algorithm its last part would wait for that of the first part, which takes the client 40 ms."""
    connection = HTTPConnection("127.0.0.1", application.http.port, timeout=PROBE_SECONDS)
    seconds = []
    for _ in range(40):
        begin = time.monotonic()
        connection.request("GET", "/health/live")
        assert connection.getresponse().read()
        seconds.append(time.monotonic() - begin)
    connection.close()
    assert min(seconds[20:]) < 0.03  # a client acknowledges its first packets at once, and a busy machine is slow


def test_many_silent_connections_end_nothing(application: LimitedApplication, conductor: Conductor) -> None:
    with ExitStack() as stack:
        application.crowd(stack)
        application.measured()
        (thread,) = application.ask("status")["threads"]
        os.kill(thread["pid"], signal.SIGKILL)
        (replacement,) = conductor.running(1)  # enough is left to start another process
        until(lambda: application.ask("status")["state"] == "RUNNING")
        (thread,) = application.ask("status")["threads"]
        assert thread["pid"] == replacement.pid
    assert "Traceback" not in application.log()


def test_health_checks_work_beside_many_silent_connections(application: LimitedApplication) -> None:
    with ExitStack() as stack:
        application.crowd(stack, 300)
        for _ in range(3):
            assert probed(application).status == 200
        assert application.http.ask("/status").status == 200  # and so do clients that send their request at once


def test_health_checks_work_beside_slow_queries(application: LimitedApplication) -> None:
    with ExitStack() as stack:
        lines = application.crowd(stack, 300, SLOW_QUERY)
        refused = read_one_of(lines)
        assert refused.startswith(b"HTTP/1.1 503 "), refused
        assert b"TOO_MANY_REQUESTS" in refused
        assert b"retry-after: 1" in refused.lower()
        for _ in range(3):
            assert probed(application).status == 200
            assert application.http.ask("/health/ready").status == 503  # says the puppet, which reports a restore


def read_one_of(lines: list[socket.socket]) -> bytes:
    """Return the first response that arrives completely on any of many connections."""
    received = dict.fromkeys(lines, b"")
    found: list[bytes] = []

    def has_come() -> bool:
        for line in lines:
            with suppress(OSError):  # nothing yet, or closed
                received[line] += line.recv(65536)
            if is_complete(received[line]):
                found.append(received[line])
                return True
        return False

    until(has_come)
    return found[0]


def is_complete(response: bytes) -> bool:
    """Return True if a response has all of its body."""
    head, ended, body = response.partition(b"\r\n\r\n")
    length = re.search(rb"^content-length: (\d+)", head, re.IGNORECASE | re.MULTILINE)
    return bool(ended) and length is not None and len(body) >= int(length.group(1))


def seconds_until_closed(line: socket.socket, drop: bytes) -> float:
    """Return how long the server keeps a connection open on which a byte arrives now and then."""
    begin = time.monotonic()
    line.settimeout(0.5)
    while time.monotonic() - begin < 4 * IDLE_SECONDS:
        try:
            if drop:
                line.sendall(drop)
            if not line.recv(65536):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - begin


def test_a_connection_without_a_request_is_closed(application: LimitedApplication) -> None:
    live = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
    cases = {  # the first bytes, and the drops that follow
        "nothing": (b"", b""),
        "half a line": (b"GET /status HTT", b""),
        "headers in drops": (live + b"X-Drop: ", b"x"),
        "a body in drops": (live + b"Content-Length: 4000\r\n\r\n", b"x"),
        "kept alive": (live + b"\r\n", b""),
        "the next request in drops": (live + b"\r\nGET /", b"x"),
    }

    def ask(first: bytes, drop: bytes) -> float:
        with socket.create_connection(("127.0.0.1", application.port), PATIENCE_SECONDS) as line:
            line.sendall(first)
            return seconds_until_closed(line, drop)

    with ThreadPoolExecutor(len(cases)) as askers:
        seconds = dict(zip(cases, askers.map(lambda case: ask(*case), cases.values()), strict=True))
    assert all(IDLE_SECONDS - 1 < found < 4 * IDLE_SECONDS for found in seconds.values()), [*seconds.items()]


def test_everything_continues_after_a_lack_of_descriptors(
    tmp_path: Path, conductor: Conductor, systemd: socket.socket
) -> None:
    """Here the user's program has used them all."""
    service = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
    with limited_application(tmp_path, conductor, **service) as application, ThreadPoolExecutor(8) as askers:
        assert probed(application).status == 200
        application.order("take")
        # Several: earlier connections that are being closed may still make room for one.
        statuses = [askers.submit(application.ask, "status") for _ in range(4)]
        checks = [askers.submit(application.http.ask, "/health/live") for _ in range(4)]
        until(lambda: "The control socket cannot take a command" in application.log())
        until(lambda: "HTTP cannot take a connection" in application.log())
        with pytest.raises(subprocess.TimeoutExpired):  # it measures its processes meanwhile, at least once
            application.process.wait(3)
        application.order("give")
        for status in statuses:
            with suppress(StreamsError):  # it has no descriptor for the file it would read either
                assert status.result(PATIENCE_SECONDS)["state"] == "RUNNING"
        assert [check.result(PATIENCE_SECONDS).status for check in checks] == [200] * 4
        application.measured()
        while wait([systemd], 0):  # of the time before
            systemd.recv(4096)
        until(lambda: systemd.recv(4096) == b"WATCHDOG=1")
        assert "Traceback" not in application.log()
        assert len(application.log().splitlines()) < 50


def test_malformed_requests_are_one_log_line(application: LimitedApplication) -> None:
    for _ in range(500):
        with socket.create_connection(("127.0.0.1", application.port), PATIENCE_SECONDS) as line:
            assert sent(line, b"\x16\x03\x01 this is TLS\r\n\r\n")
            line.recv(65536)
    assert probed(application).status == 200
    assert application.log().count("Invalid HTTP request received") == 1
    assert len(application.log().splitlines()) < 50
