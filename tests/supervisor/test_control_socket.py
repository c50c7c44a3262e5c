"""Who may ask over the control socket, and how many at a time."""

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

STATUS = b'{"command": "status"}\n'
PATIENCE = 60.0
#: A user that owns nothing.
NOBODY = 65_534
#: Asks as it stands: the first argument is the user to be, the second the socket.
ASKING = """
import contextlib, os, socket, sys
os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
with socket.socket(socket.AF_UNIX) as line:
    line.connect(sys.argv[2])
    with contextlib.suppress(BrokenPipeError):  # who is refused may be so before having asked
        line.sendall(b'{"command": "status"}\\n')
    print(line.makefile().readline())
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where a control socket answers "status" with the number of the question."""
    asked = iter(range(1, 1_000))
    control = ControlSocket(tmp_path, {"status": lambda: next(asked)})
    control.start()
    yield tmp_path
    control.stop()


def connected(directory: Path) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(PATIENCE)
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
def test_another_user_is_refused_even_where_the_file_lets_it_in(directory: Path, user: int, allowed: bool) -> None:
    (directory / SOCKET_NAME).chmod(0o666)
    # A path that another user may walk: pytest's folders are for their owner only.
    with socket_address(directory) as address:
        descriptor = int(address.split("/")[4])
        command = [sys.executable, "-c", ASKING, str(user), f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"]
        directory.chmod(0o755)
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, pass_fds=[descriptor], timeout=PATIENCE
        )
    assert done.returncode == 0, done.stderr
    expected: dict[str, Any] = {"result": 1}
    if not allowed:
        message = "Only the user of the application may send it commands"
        expected = {"error": {"kind": "StreamsError", "message": message}}
    assert json.loads(done.stdout) == expected


def test_without_linux_the_socket_is_at_its_own_path_and_still_the_owners(
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


def test_one_connection_too_many_is_told_and_the_others_go_on(directory: Path) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(connected(directory)) for _ in range(CONNECTIONS_MAX)]
        for line in lines:  # each has its thread now
            line.sendall(STATUS)
            assert "result" in answer(line)
        with connected(directory) as late:
            assert f"{CONNECTIONS_MAX} commands are already connected" in answer(late)["error"]["message"]
        lines[0].sendall(STATUS)
        assert answer(lines[0]) == {"result": CONNECTIONS_MAX + 1}


def test_who_is_hung_up_on_before_asking_learns_why(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket_address(tmp_path) as address:
        listener.bind(address)
        listener.listen()
        with RunningApplication(tmp_path) as application:
            with listener.accept()[0] as connection:
                connection.sendall(b'{"error": {"kind": "StreamsError", "message": "not you"}}\n')
            with pytest.raises(StreamsError, match="not you"):
                application.ask("status")


def test_a_full_queue_is_not_the_end_of_the_application(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, socket_address(tmp_path) as address, ExitStack() as stack:
        listener.bind(address)
        listener.listen(1)
        with suppress(BlockingIOError):  # the queue is full
            while True:
                stack.enter_context(connected(tmp_path))
        with pytest.raises(StreamsError, match="runs, but accepts no command") as refused:
            RunningApplication(tmp_path)
        assert not isinstance(refused.value, NotRunningError)


def test_questions_in_pieces_and_many_at_once_are_answered_in_order(directory: Path) -> None:
    with connected(directory) as line, line.makefile() as answers:
        for piece in (STATUS[:7], STATUS[7:] + STATUS, STATUS[:1], STATUS[1:]):
            line.sendall(piece)
        assert [json.loads(answers.readline()) for _ in range(3)] == [{"result": 1}, {"result": 2}, {"result": 3}]


def test_the_end_of_the_application_closes_the_door(tmp_path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def slow() -> str:
        entered.set()
        assert go_on.wait(PATIENCE)
        return "done"

    control = ControlSocket(tmp_path, {"status": slow})
    control.start()
    with connected(tmp_path) as line:
        line.sendall(STATUS)
        assert entered.wait(PATIENCE)
        control.stop()
        go_on.set()
        assert answer(line) == {"result": "done"}  # what was asked before is still answered
    with pytest.raises(FileNotFoundError):
        connected(tmp_path)
