"""Who connects, how many, and how slowly, is nothing that processing, health or commands depend on."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from http_client import Answer
from limited_application import LimitedApplication, limited_application, sent
from stage import PATIENCE, Conductor, until

from penstock import StreamsError

#: What a load balancer waits for a health check.
PROBE_SECONDS = 2.0
IDLE_SECONDS = 10.0
SLOW_QUERY = b"GET /stores/counts/key?timeout_ms=30000 HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
def application(tmp_path: Path, conductor: Conductor) -> Iterator[LimitedApplication]:
    with limited_application(tmp_path, conductor) as made:
        yield made


def probed(application: LimitedApplication) -> Answer:
    """Return the answer to a health check, which must come in time."""
    begin = time.monotonic()
    answer = application.http.ask("/health/live")
    assert time.monotonic() - begin < PROBE_SECONDS
    return answer


def test_a_crowd_of_silent_connections_ends_nothing(application: LimitedApplication, conductor: Conductor) -> None:
    with ExitStack() as stack:
        application.crowd(stack)
        application.measured()
        (thread,) = application.ask("status")["threads"]
        os.kill(thread["pid"], signal.SIGKILL)
        (replacement,) = conductor.running(1)  # there is still enough to start another process
        until(lambda: application.ask("status")["state"] == "RUNNING")
        (thread,) = application.ask("status")["threads"]
        assert thread["pid"] == replacement.pid
    assert "Traceback" not in application.log()


def test_health_checks_have_room_in_a_silent_crowd(application: LimitedApplication) -> None:
    with ExitStack() as stack:
        application.crowd(stack, 300)
        for _ in range(3):
            assert probed(application).status == 200
        assert application.http.ask("/status").status == 200  # and so do those who ask at once


def test_health_checks_have_room_beside_slow_queries(application: LimitedApplication) -> None:
    with ExitStack() as stack:
        lines = application.crowd(stack, 300, SLOW_QUERY)
        refused = read_one_of(lines)
        assert refused.startswith(b"HTTP/1.1 503 "), refused
        assert b"TOO_MANY_REQUESTS" in refused
        assert b"retry-after: 1" in refused.lower()
        for _ in range(3):
            assert probed(application).status == 200
            assert application.http.ask("/health/ready").status == 503  # says the puppet, which restores


def read_one_of(lines: list[socket.socket]) -> bytes:
    """Return the first answer that comes on any of many connections."""
    found: list[bytes] = []

    def has_come() -> bool:
        for line in lines:
            try:
                data = line.recv(65536)
            except OSError:  # nothing yet, or closed
                continue
            if data:
                found.append(data)
                return True
        return False

    until(has_come)
    return found[0]


def seconds_until_closed(line: socket.socket, drop: bytes) -> float:
    """Return how long the server leaves a connection open on which a byte comes now and then."""
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


def test_who_does_not_ask_is_hung_up_on(application: LimitedApplication) -> None:
    live = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
    cases = {  # what is sent first, and what comes in drops afterwards
        "nothing": (b"", b""),
        "half a line": (b"GET /status HTT", b""),
        "headers in drops": (live + b"X-Drop: ", b"x"),
        "a body in drops": (live + b"Content-Length: 4000\r\n\r\n", b"x"),
        "kept alive": (live + b"\r\n", b""),
        "the next request in drops": (live + b"\r\n", b"G"),
    }

    def ask(first: bytes, drop: bytes) -> float:
        with socket.create_connection(("127.0.0.1", application.port), PATIENCE) as line:
            line.sendall(first)
            return seconds_until_closed(line, drop)

    with ThreadPoolExecutor(len(cases)) as askers:
        seconds = dict(zip(cases, askers.map(lambda case: ask(*case), cases.values()), strict=True))
    assert all(IDLE_SECONDS - 1 < found < IDLE_SECONDS + 5 for found in seconds.values()), seconds


def test_all_goes_on_after_a_lack_of_descriptors(tmp_path: Path, conductor: Conductor, systemd: socket.socket) -> None:
    """Here it is the user's program that has them all."""
    service = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1000000"}
    with limited_application(tmp_path, conductor, **service) as application, ThreadPoolExecutor(8) as askers:
        assert probed(application).status == 200
        application.order("take")
        # Several: the connections from before, which are being closed, may still make room for one.
        statuses = [askers.submit(application.ask, "status") for _ in range(4)]
        checks = [askers.submit(application.http.ask, "/health/live") for _ in range(4)]
        until(lambda: "The control socket cannot take a command" in application.log())
        until(lambda: "HTTP cannot take a connection" in application.log())
        with pytest.raises(subprocess.TimeoutExpired):  # it looks at its processes meanwhile, at least once
            application.process.wait(3)
        application.order("give")
        for status in statuses:
            with suppress(StreamsError):  # it has no descriptor either for what it would read
                assert status.result(PATIENCE)["state"] == "RUNNING"
        assert [check.result(PATIENCE).status for check in checks] == [200] * 4
        application.measured()
        while has_data(systemd):  # from before
            systemd.recv(4096)
        until(lambda: systemd.recv(4096) == b"WATCHDOG=1")
        assert "Traceback" not in application.log()
        assert len(application.log().splitlines()) < 50


def has_data(line: socket.socket) -> bool:
    return bool(select.select((line,), (), (), 0)[0])


def test_malformed_requests_are_one_line_of_the_log(application: LimitedApplication) -> None:
    for _ in range(500):
        with socket.create_connection(("127.0.0.1", application.port), PATIENCE) as line:
            assert sent(line, b"\x16\x03\x01 this is TLS\r\n\r\n")
            line.recv(65536)
    assert probed(application).status == 200
    assert application.log().count("Invalid HTTP request received") == 1
    assert len(application.log().splitlines()) < 50
