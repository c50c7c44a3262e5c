"""Access to the control socket, and the number of concurrent connections."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.running_application import NotRunningError, RunningApplication
from penstock.supervisor.control.control_socket import CONNECTIONS_MAX, SOCKET_NAME, ControlSocket, socket_address
from penstock.topology.errors import StreamsError
from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
STATUS = b'{"command": "status"}\n'
#: A user that owns nothing.
NOBODY = 65_534
#: Sends a request directly: the first argument is the user to become, the second the socket.
ASKING = """
import contextlib, os, socket, sys
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[2])
    with contextlib.suppress(BrokenPipeError):  # who is refused may be so before having asked
        line.sendall(b'{"command": "status"}\\n')
    print(line.makefile().readline())
"""

#: Listens as the user of the first argument on the inherited socket of the second, until its stdin closes.
IMPOSTOR = """
import os, socket, sys
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
line = socket.socket(fileno=int(sys.argv[2]))
line.listen()
print("listens", flush=True)
sys.stdin.read()
"""
#: Sends a request as the user of the first argument with the command's own client, in the inherited directory of the
#: second.
CLIENT = """
import os, sys
from pathlib import Path
from penstock.cli.running_application import RunningApplication
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
RunningApplication(Path(f"/proc/self/fd/{sys.argv[2]}"))
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The directory of a control socket that answers "status" with the request's number."""
    asked = iter(range(1, 1_000))
    control = ControlSocket(tmp_path, {"status": lambda: next(asked)})
    control.start()
    yield tmp_path
    control.stop()


def connected(directory: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(PATIENCE_SECONDS)
    try:
        with socket_address(directory) as address:
            line.connect(address)
    except OSError:
        line.close()
        raise
    return line


def answer(line: socket.socket) -> dict[str, Any]:
    with line.makefile() as lines:
        found: dict[str, Any] = json.loads(lines.readline())
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(("user", "allowed"), [(NOBODY, False), (0, True)])
def test_another_user_is_refused_even_with_permission_on_the_file(directory: Path, user: int, allowed: bool) -> None:
    (directory / SOCKET_NAME).chmod(0o666)
    # A path that other users can traverse: pytest's folders are private to their owner.
    with socket_address(directory) as address:
        descriptor = int(address.split("/")[4])
        command = [sys.executable, "-c", ASKING, str(user), f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"]
        directory.chmod(0o755)
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, pass_fds=[descriptor], timeout=PATIENCE_SECONDS
        )
    assert done.returncode == 0, done.stderr
    expected: dict[str, Any] = {"result": 1}
    if not allowed:
        message = "Only the user of the application may send it commands"
        expected = {"error": {"kind": "StreamsError", "message": message}}
    assert json.loads(done.stdout) == expected


def test_without_linux_the_socket_has_its_own_path_and_is_still_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    control = ControlSocket(tmp_path, {})
    control.start()
    with socket_address(tmp_path) as address:
        assert address == str(tmp_path / SOCKET_NAME)
        assert os.stat(address).st_mode & 0o777 == 0o600
    control.stop()
    assert not (tmp_path / SOCKET_NAME).exists()


def test_a_connection_above_the_limit_gets_an_error_and_the_others_continue(directory: Path) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(connected(directory)) for _ in range(CONNECTIONS_MAX)]
        for line in lines:  # each has its thread now
            line.sendall(STATUS)
            assert "result" in answer(line)
        with connected(directory) as late:
            assert f"{CONNECTIONS_MAX} commands are already connected" in answer(late)["error"]["message"]
        lines[0].sendall(STATUS)
        assert answer(lines[0]) == {"result": CONNECTIONS_MAX + 1}


def test_a_client_refused_before_its_request_learns_the_reason(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket_address(tmp_path) as address:
        listener.bind(address)
        listener.listen()
        with RunningApplication(tmp_path) as application:
            with listener.accept()[0] as connection:
                connection.sendall(b'{"error": {"kind": "StreamsError", "message": "not you"}}\n')
            with pytest.raises(StreamsError, match="not you"):
                application.ask("status")


def test_a_full_queue_does_not_end_the_application(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket_address(tmp_path) as address, ExitStack() as stack:
        listener.bind(address)
        listener.listen(1)
        with suppress(BlockingIOError):  # the queue is full
            while True:
                stack.enter_context(connected(tmp_path))
        with pytest.raises(StreamsError, match="runs, but accepts no command") as refused:
            RunningApplication(tmp_path)
        assert not isinstance(refused.value, NotRunningError)


def test_split_and_pipelined_requests_are_answered_in_order(directory: Path) -> None:
    with connected(directory) as line, line.makefile() as answers:
        for piece in (STATUS[:7], STATUS[7:] + STATUS, STATUS[:1], STATUS[1:]):
            line.sendall(piece)
        assert [json.loads(answers.readline()) for _ in range(3)] == [{"result": 1}, {"result": 2}, {"result": 3}]


def test_the_end_of_the_application_closes_the_socket(tmp_path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        entered.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return "done"

    control = ControlSocket(tmp_path, {"status": slow})
    control.start()
    with connected(tmp_path) as line:
        line.sendall(STATUS)
        assert entered.wait(PATIENCE_SECONDS)
        control.stop()
        go_on.set()
        assert answer(line) == {"result": "done"}  # an earlier request is still answered
    with pytest.raises(FileNotFoundError):
        connected(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(("listener", "trusted"), [(1, False), (NOBODY, True), (0, True)])
def test_a_command_trusts_only_its_own_user_and_root(tmp_path: Path, listener: int, trusted: bool) -> None:
    tmp_path.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as line, socket_address(tmp_path) as address:
        line.bind(address)
        (tmp_path / SOCKET_NAME).chmod(0o666)
        descriptor = int(address.split("/")[4])
        impostor = subprocess.Popen(
            [sys.executable, "-c", IMPOSTOR, str(listener), str(line.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[line.fileno()],
        )
        with impostor:
            assert impostor.stdout is not None
            assert impostor.stdout.readline() == b"listens\n"
            done = subprocess.run(
                [sys.executable, "-c", CLIENT, str(NOBODY), str(descriptor)],
                check=False,
                capture_output=True,
                text=True,
                pass_fds=[descriptor],
                timeout=PATIENCE_SECONDS,
                cwd=ROOT,
            )
            assert impostor.stdin is not None
            impostor.stdin.close()
    assert (done.returncode == 0) is trusted, done.stderr
    assert ("belongs to another user, so its answers cannot be trusted" in done.stderr) is not trusted
