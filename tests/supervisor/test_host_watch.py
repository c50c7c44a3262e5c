"""Which ways of ending make a host count as lost; with real processes and sockets, without a broker."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from http_client import HttpClient, host_config
from stage import until

from penstock import KafkaStreams, StreamsBuilder
from penstock.supervisor.http import connections, host_watch
from penstock.supervisor.http.endpoints import WATCHES_MAX
from penstock.supervisor.http.forwarding import host_headers
from penstock.supervisor.http.host_watch import HostWatch, WatchedHost
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError
from penstock.workers.group.streams_metadata import HostInfo
from tests.free_port import free_port

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "geheim"


class Host:
    """A host's HTTP server in a separate process; this module is its program."""

    def __init__(self, port: int, directory: Path, token: str = TOKEN) -> None:
        command = [sys.executable, __file__, str(port), str(directory), token]
        environment = {"PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "serving\n":
            self.kill()
            pytest.fail("the host does not serve; its output has the reason")

    def stop(self) -> None:
        """Let it end cleanly."""
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def start(port: int, tmp_path: Path) -> Iterator[Callable[..., Host]]:
    with ExitStack() as stack:

        def start_one(token: str = TOKEN) -> Host:
            host = Host(port, tmp_path, token)
            stack.callback(host.kill)
            return host

        yield start_one


@pytest.fixture
def lost() -> list[str]:
    return []


@pytest.fixture
def watched(port: int, lost: list[str]) -> Iterator[WatchedHost]:
    found = WatchedHost(HostInfo("127.0.0.1", port), host_headers(TOKEN), lost.append)
    yield found
    found.end()
    found._thread.join()


def is_here(watched: WatchedHost) -> Callable[[], bool]:
    return lambda: watched._is_here


def test_a_killed_host_is_lost_and_may_return(
    start: Callable[..., Host], watched: WatchedHost, lost: list[str]
) -> None:
    for number in (1, 2):
        host = start()
        until(is_here(watched))
        host.kill()
        until(lambda: len(lost) == number)  # noqa: B023  waited for here


def test_a_host_that_stops_is_not_lost(
    start: Callable[..., Host], watched: WatchedHost, lost: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    host = start()
    until(is_here(watched))
    host.stop()
    until(lambda: "stops" in caplog.text)
    another = start()
    until(is_here(watched))
    another.kill()
    until(lambda: lost and not watched._is_here)
    assert len(lost) == 1


@pytest.mark.parametrize("frozen", [False, True])
def test_a_broken_connection_alone_does_not_make_a_host_lost(
    start: Callable[..., Host], watched: WatchedHost, lost: list[str], frozen: bool
) -> None:
    host = start()
    until(is_here(watched))
    if frozen:
        host.process.send_signal(signal.SIGSTOP)
    before = watched._connection
    assert before is not None
    before.sock.shutdown(socket.SHUT_RDWR)
    until(lambda: watched._connection is not before)  # the kernel accepts it, even for a suspended process
    assert watched._is_here
    assert not lost
    host.process.send_signal(signal.SIGCONT)
    host.kill()
    until(lambda: lost)
    assert len(lost) == 1


def test_a_host_that_refuses_to_be_watched_is_logged_once(
    start: Callable[..., Host], watched: WatchedHost, lost: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    host = start("another token")
    refusal = "HTTP status 401. All hosts need the same version, penstock.http.token"
    until(lambda: refusal in caplog.text)  # on a busy machine nothing listens at first, which is logged, too
    before = watched._connection
    until(lambda: watched._connection is not before)
    assert caplog.text.count(refusal) == 1
    host.kill()
    another = start()
    until(is_here(watched))
    another.kill()
    until(lambda: lost)
    assert len(lost) == 1


@pytest.mark.parametrize(
    ("error", "is_refused"),
    [
        (ExceptionGroup("v4", [ConnectionRefusedError()]), True),
        (ExceptionGroup("v6, v4", [ConnectionRefusedError(), ConnectionRefusedError()]), True),
        (ExceptionGroup("v6, v4", [ConnectionRefusedError(), TimeoutError()]), False),
        (ExceptionGroup("v4", [OSError(errno.EHOSTUNREACH, "No route to host")]), False),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), False),
    ],
)
def test_an_unreachable_host_is_not_lost(error: Exception, is_refused: bool) -> None:
    assert host_watch._is_refused(error) is is_refused


def test_an_uneventful_watch_ends_and_is_requested_again(
    tmp_path: Path, lost: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_watch, "WATCH_SECONDS", 0.01)
    streams = application(host_config(tmp_path), tmp_path)
    streams._http.start()
    http = HttpClient.of(streams)
    assert http.get("/watch") == {"stopping": False}
    watched = WatchedHost(HostInfo("127.0.0.1", http.port), {}, lost.append)
    until(is_here(watched))
    connection = watched._connection
    for _ in range(3):
        assert http.get("/watch") == {"stopping": False}
    assert watched._connection is connection
    watched.end()
    watched._thread.join()
    streams._http.stop()
    assert not lost


def test_watches_leave_room_for_other_requests(tmp_path: Path) -> None:
    streams = application(host_config(tmp_path), tmp_path)
    streams._http.start()
    http = HttpClient.of(streams)
    with ExitStack() as stack:
        watches = [stack.enter_context(watch(http)) for _ in range(WATCHES_MAX)]
        assert {response.status for response in watches} == {200}
        refused = http.ask("/watch")
        assert (refused.status, refused.error["code"]) == (503, "TOO_MANY_REQUESTS")
        assert http.ask("/dashboard.css").status == 200
        watches[0].close()
        until(lambda: stack.enter_context(watch(http)).status == 200)
    streams._http.stop()


def watch(http: HttpClient) -> HTTPResponse:
    """Return the response, which ends when its connection does."""
    connection = HTTPConnection("127.0.0.1", http.port)
    connection.request("GET", "/watch", headers={"Connection": "close"})
    return connection.getresponse()


def test_each_host_watches_the_next_ones() -> None:
    hosts = [HostInfo(f"host-{number}", 80) for number in range(6)]
    assert host_watch._next(hosts[1], hosts) == set(hosts[2:5])
    assert host_watch._next(hosts[4], hosts) == {hosts[5], hosts[0], hosts[1]}
    assert host_watch._next(hosts[0], hosts[:2]) == {hosts[1]}
    assert host_watch._next(hosts[0], hosts[:1]) == host_watch._next(hosts[0], []) == set()


def test_it_follows_changes_of_the_group(
    start: Callable[..., Host], port: int, lost: list[str], tmp_path: Path
) -> None:
    host, settings = start(), host_config(tmp_path)
    own, other = HostInfo.parse(settings["application.server"]), HostInfo("127.0.0.1", port)
    needed = {"penstock.host.watch": True, "penstock.http.token": TOKEN}
    watch = HostWatch(StreamsConfig.of(settings | needed), lost.append)
    watch.on_hosts([own, other])
    until(is_here(watch._watched[other]))
    gone = watch._watched[other]
    watch.on_hosts([own])
    gone._thread.join()
    watch.on_hosts([own, other])
    until(is_here(watch._watched[other]))
    host.kill()
    until(lambda: lost == [f"127.0.0.1:{port}"])
    watch.stop()
    watch.on_hosts([own, other])
    assert not watch._watched


@pytest.mark.parametrize("missing", ["application.server", "penstock.http.port"])
def test_the_error_names_missing_requirements(tmp_path: Path, missing: str) -> None:
    settings = {**host_config(tmp_path), "penstock.host.watch": True}
    del settings[missing]
    with pytest.raises(ConfigError, match=rf"penstock\.host\.watch=true also needs {missing}"):
        application(settings, tmp_path)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"application.server": "host-1.example:8080"},
            "needs the same port in application.server=host-1.example:8080",
        ),
        ({"application.server": "host-1.example:{port}"}, "others reach: nothing listens at .*host-1.example"),
        ({"application.server": "127.0.0.2:{port}"}, "others reach: nothing listens at .*127.0.0.2"),
        *(
            ({"application.server": f"{own}:{{port}}", "penstock.http.host": host}, "others reach: nothing listens at")
            for own, host in (
                ("localhost", "127.0.0.2"),
                ("LOCALHOST", "10.0.0.6"),
                ("10.0.0.5", "10.0.0.6"),
                ("127.0.0.1", "10.0.0.6"),
                ("10.0.0.5", "localhost"),
                ("[fd00::1]", "[fd00::2]"),
                ("[fd00::1]", "0.0.0.0"),
                ("host-1.example", "localhost"),
            )
        ),
        *(
            ({"application.server": f"{own}:{{port}}", "penstock.http.host": host}, "names this host to others")
            for own in ("0.0.0.0", "[::]")
            for host in ("127.0.0.1", "0.0.0.0", "::")
        ),
        *(
            ({"application.server": "10.0.0.5:0", "penstock.http.port": "0", "penstock.http.host": host}, "free one")
            for host in ("10.0.0.5", "0.0.0.0")
        ),
    ],
)
def test_an_address_that_cannot_be_watched_is_refused(tmp_path: Path, wrong: dict[str, str], message: str) -> None:
    settings = {**host_config(tmp_path), "penstock.host.watch": True, "penstock.http.token": TOKEN}
    port = settings["penstock.http.port"]
    with pytest.raises(ConfigError, match=message):
        application(settings | {key: value.format(port=port) for key, value in wrong.items()}, tmp_path)


@pytest.mark.parametrize(
    ("own", "host"),
    [
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("127.0.0.2", "127.0.0.2"),
        ("10.0.0.5", "10.0.0.5"),
        ("[fd00::1]", "[fd00::1]"),
        ("[fd00::1]", "fd00:0::1"),
        ("localhost", "0.0.0.0"),
        ("10.0.0.5", "0.0.0.0"),
        ("10.0.0.5", "[::]"),
        ("[fd00::1]", "::"),
        ("host-1.example", "0.0.0.0"),
        ("host-1.example", "10.0.0.5"),  # which others may resolve
        (socket.gethostname(), "10.0.0.5"),  # loopback here, by Debian's /etc/hosts
    ],
)
def test_an_address_at_which_the_process_listens_is_accepted(tmp_path: Path, own: str, host: str) -> None:
    settings = host_config(tmp_path)
    server = f"{own}:{settings['penstock.http.port']}"
    wanted = {"application.server": server, "penstock.http.host": host, "penstock.http.token": TOKEN}
    HostWatch(StreamsConfig.of(settings | wanted | {"penstock.host.watch": True}), print).stop()


def test_a_host_whose_address_refuses_connections_is_logged_once(
    watched: WatchedHost, lost: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    until(lambda: "it is in the group, but no program listens there" in caplog.text)
    seen = watched._refused_connections
    until(lambda: watched._refused_connections > seen + 2)
    assert caplog.text.count("cannot be watched") == 1
    assert not lost


def test_a_host_whose_http_server_has_failed_is_not_lost(
    tmp_path: Path, lost: list[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application continues without it, and its port stays open: the kernel does not refuse connections to it."""

    async def fail(_: connections.Server) -> None:
        raise RuntimeError("a bug in the server")

    settings = {**host_config(tmp_path), "penstock.http.token": TOKEN}
    streams = application(settings, tmp_path)
    streams._http.start()
    watched = WatchedHost(HostInfo("127.0.0.1", settings["penstock.http.port"]), host_headers(TOKEN), lost.append)
    try:
        until(is_here(watched))
        first = watched._connection
        monkeypatch.setattr(connections.Server, "_accept", fail)
        for _ in range(2):  # the waiting call accepts the first connection
            socket.create_connection(("127.0.0.1", settings["penstock.http.port"])).close()
        until(lambda: "The HTTP server has failed" in caplog.text)
        until(lambda: watched._connection is not first)
        assert watched._is_here
        assert not lost
    finally:
        watched.end()
        streams._http.stop()


def application(settings: dict[str, Any], directory: Path) -> KafkaStreams:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    config = {"application.id": "app", "bootstrap.servers": "unused:9092", "state.dir": str(directory / "state")}
    return KafkaStreams(builder.build(), config | settings)


def main(port: int, directory: Path, token: str) -> None:
    """Serve until standard input ends."""
    streams = application({"penstock.http.port": port, "penstock.http.token": token}, directory)
    streams._http.start()
    print("serving", flush=True)
    sys.stdin.read()
    streams._http.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
