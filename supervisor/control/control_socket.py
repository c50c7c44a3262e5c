"""The control socket: how commands on this host reach a running application.

A Unix socket ``control.sock`` in the application's state directory, which only its owner may open. Both sides write
JSON, one object per line:

    {"command": "remove_thread", "arguments": {"name": "2"}}
    {"result": {"thread": "delays-…-StreamThread-2"}}     or     {"error": {"kind": "StreamsError", "message": "…"}}

A connection may send any number of requests; it is closed after IDLE_SECONDS without one.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from penstock.topology.errors import PenstockError, StreamsError

from ..channels.descriptors import RETRY_SECONDS
from ..logs.log_floods import bounded_logger

logger = bounded_logger(__name__)

SOCKET_NAME = "control.sock"
#: Maximum length of a request; responses may be longer.
QUESTION_BYTES_MAX = 64 * 1024
#: Maximum number of connections; further ones get an error.
CONNECTIONS_MAX = 16
#: How long a connection may be silent, or not read its response.
IDLE_SECONDS = 60.0
#: The name of its threads.
THREAD = "penstock-control"
#: Linux' ucred: process, user, group; and the beginning of macOS' xucred: version, user.
_PEER, _XUCRED = struct.Struct("3i"), struct.Struct("=2I")
#: macOS: the level of options of local sockets.
_SOL_LOCAL = 0

#: Executes a command; gets its arguments by name.
Action = Callable[..., Any]


@contextmanager
def socket_address(directory: Path) -> Iterator[str]:
    """Yield a path to the socket that is short enough: the kernel takes 107 bytes, and directories may be deeper.

    Only Linux has such a path; elsewhere a deep directory has no socket.
    """
    if sys.platform != "linux":
        yield str(directory / SOCKET_NAME)
        return
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


class ControlSocket:
    """Serves the commands of an application, each connection in its own thread.

    directory: the application's state directory, whose lock the caller holds: an existing socket belongs to a dead
    process. actions: by the command's name. Only this user and root get a response.
    """

    def __init__(self, directory: Path, actions: Mapping[str, Action]) -> None:
        self._directory = directory
        self._actions = actions
        self._listener: socket.socket | None = None
        self._ended = threading.Event()
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def start(self) -> None:
        """Listen. Failures are logged: the application also runs without a control socket."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            with socket_address(self._directory) as address:
                with suppress(FileNotFoundError):
                    os.unlink(address)
                if sys.platform == "linux":
                    os.fchmod(listener.fileno(), 0o600)  # it creates the file with it: it is never open to others
                listener.bind(address)
                if sys.platform != "linux":
                    os.chmod(address, 0o600)
            listener.listen(CONNECTIONS_MAX)
        except OSError as error:
            listener.close()
            logger.warning(
                "No control socket in %s (%s): penstock status and similar commands will not find this application",
                self._directory,
                error,
            )
            return
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), name=THREAD, daemon=True).start()

    def stop(self) -> None:
        """Accept no more requests, and remove the socket; pending responses are still sent."""
        self._ended.set()
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._directory / SOCKET_NAME)
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closes it

    def _accept(self, listener: socket.socket) -> None:
        with listener:
            while not self._ended.is_set():
                try:
                    self._serve(listener.accept()[0])
                except (OSError, RuntimeError) as error:  # stop(), or a lack of file descriptors or threads
                    if not self._ended.is_set():
                        logger.warning(
                            "The control socket cannot take a command: %s. It tries again in %g s", error, RETRY_SECONDS
                        )
                    self._ended.wait(RETRY_SECONDS)

    def _serve(self, connection: socket.socket) -> None:
        with ExitStack() as stack:
            stack.enter_context(connection)
            connection.settimeout(IDLE_SECONDS)
            if not self._free.acquire(blocking=False):
                full = StreamsError(f"{CONNECTIONS_MAX} commands are already connected; try again")
                with suppress(OSError):
                    _send(connection, _error(full))
                return
            stack.callback(self._free.release)
            threading.Thread(target=self._converse, args=(connection,), name=THREAD, daemon=True).start()
            stack.pop_all()  # the thread closes it

    def _converse(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):  # the other side is gone or silent
                if not _peer_is_trusted(connection):
                    _send(connection, _error(StreamsError("Only the user of the application may send it commands")))
                    return
                for question in _lines(connection):
                    _send(connection, self._answer(question))
        finally:
            self._free.release()

    def _answer(self, question: bytes | None) -> dict[str, object]:
        try:
            action, arguments = self._parse(question)
            return {"result": action(**arguments)}
        except (PenstockError, OSError) as error:  # a timeout too
            return _error(error)
        except Exception as error:
            logger.exception("A command of the control socket failed")
            return _error(error)

    def _parse(self, question: bytes | None) -> tuple[Action, dict[str, object]]:
        if question is None:
            raise StreamsError(f"A request to the control socket has at most {QUESTION_BYTES_MAX} bytes")
        try:
            asked = json.loads(question)
            command, arguments = asked["command"], asked.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise StreamsError('Expected {"command": "…", "arguments": {…}} in JSON, one object per line') from None
        action = self._actions.get(command) if isinstance(command, str) else None
        if action is None:
            raise StreamsError(f"There is no command {command!r}; there are {', '.join(sorted(self._actions))}")
        if not isinstance(arguments, dict):
            raise StreamsError(f"The arguments of {command} must be a JSON object")
        return action, arguments


def is_trusted(connection: socket.socket) -> bool:
    """Return whether the process that listens at the other end belongs to this user or root, or this user is root."""
    return os.geteuid() == 0 or _peer_is_trusted(connection)


def _peer_is_trusted(connection: socket.socket) -> bool:
    """Return whether the other end of a connection belongs to this user or root."""
    if sys.platform == "linux":
        _, user, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    elif sys.platform == "darwin":
        _, user = _XUCRED.unpack(connection.getsockopt(_SOL_LOCAL, socket.LOCAL_PEERCRED, _XUCRED.size))
    else:
        return False
    return user in (0, os.geteuid())


def _lines(connection: socket.socket) -> Iterator[bytes | None]:
    """Yield each line; None and the end for one that is too long."""
    with connection.makefile("rb") as stream:
        while line := stream.readline(QUESTION_BYTES_MAX + 1):
            if len(line) > QUESTION_BYTES_MAX:
                yield None
                return
            yield line


def _send(connection: socket.socket, answer: Mapping[str, object]) -> None:
    connection.sendall(json.dumps(answer, default=str).encode() + b"\n")


def _error(error: Exception) -> dict[str, object]:
    return {"error": {"kind": type(error).__name__, "message": str(error) or type(error).__name__}}
