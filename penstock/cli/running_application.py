"""Finds a running application by its control socket, and sends it commands."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from penstock.cli.options import Settings
from penstock.supervisor.control.control_socket import SOCKET_NAME, is_trusted, socket_address
from penstock.supervisor.source.state_places import left_behind, state_dirs
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import ConfigError, StreamsError

#: Default time limit of a response.
ANSWER_SECONDS = 30.0
#: Exit code of commands if the application does not run, as for init scripts (LSB).
EXIT_NOT_RUNNING = 3


class NotRunningError(StreamsError):
    """No application runs in the state directory."""


class RunningApplication:
    """A connection to a running application. A context manager that closes it.

    directory: the application's state directory. Raises NotRunningError if no process listens there, StreamsError if
    this user may not connect or too many commands are waiting.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(ANSWER_SECONDS)
        try:
            with socket_address(directory) as address:
                self._socket.connect(address)
        except PermissionError:
            self._socket.close()
            raise StreamsError(
                f"The application in {directory} belongs to another user. Run the command as that user: sudo -u USER …"
            ) from None
        except BlockingIOError:  # the kernel's queue is full
            self._socket.close()
            raise StreamsError(
                f"The application in {directory} runs, but accepts no command: too many are waiting, or it has no file "
                "descriptor left (see its log). Try again."
            ) from None
        except ConnectionRefusedError:  # only a killed process leaves its socket behind
            self._socket.close()
            raise NotRunningError(
                f"No application runs in {directory} any more: its supervisor was killed (out of memory?). Its log and "
                "the kernel's say more; `penstock run`, or its service, starts it again."
            ) from None
        except OSError:  # no directory, or no socket
            self._socket.close()
            raise NotRunningError(
                f"No application runs in {directory}. `penstock run` starts one; if it runs with another "
                "application.id or state.dir, name its configuration: --config FILE."
            ) from None
        if not is_trusted(self._socket):
            self._socket.close()
            raise StreamsError(
                f"The process that listens in {directory} belongs to another user, so its answers cannot be trusted. "
                "Run the command as that user (sudo -u USER …), or set state.dir to a folder of your own."
            )
        self._answers = self._socket.makefile("rb")

    def ask(
        self, command: str, arguments: Mapping[str, object] | None = None, *, timeout: float = ANSWER_SECONDS
    ) -> Any:
        """Return the application's response; raises StreamsError with its message if it refuses.

        timeout: seconds to wait for the response.
        """
        self._socket.settimeout(timeout)
        try:
            question = json.dumps({"command": command, "arguments": dict(arguments or {})}).encode() + b"\n"
            with suppress(BrokenPipeError):  # a refused client is disconnected before it sends
                self._socket.sendall(question)
            line = self._answers.readline()
        except TimeoutError:
            raise StreamsError(
                f"The application in {self.directory} has not answered within {timeout:.0f} s. "
                "Look at its log; a supervisor that hangs is restarted by systemd's watchdog."
            ) from None
        except OSError:
            line = b""
        if not line:
            raise NotRunningError(f"The application in {self.directory} has ended while the command waited.")
        answer = json.loads(line)
        if "error" in answer:
            raise StreamsError(answer["error"]["message"])
        return answer["result"]

    def close(self) -> None:
        """Close the connection."""
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> RunningApplication:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def find(config: StreamsConfig) -> RunningApplication:
    """Return the application that a configuration names by application.id and state.dir.

    Without a state.dir also one that runs as a service. Without an application.id: the only one that runs. Raises
    NotRunningError, or ConfigError if there are several.
    """
    places = state_dirs(config)
    if config["application.id"] is not None:
        return _first_running(config, [place / config["application.id"] for place in places])
    running = [application for place in places for application in _running_below(place)]
    below = " or ".join(map(str, places))
    if not running:
        raise NotRunningError(
            f"No application runs below {below}. `penstock run` starts one; if it runs with another state.dir, "
            "name its configuration: --config FILE."
        )
    if len(running) > 1:
        ids = [application.directory.name for application in running]
        for application in running:
            application.close()
        raise ConfigError(f"{len(ids)} applications run below {below}: choose one: {_choices(ids)}")
    return running[0]


def _first_running(config: StreamsConfig, directories: Iterable[Path]) -> RunningApplication:
    failures = []
    for directory in directories:
        try:
            return RunningApplication(directory)
        except NotRunningError as error:
            failures.append(error)
    left = left_behind(config)
    raise NotRunningError(f"{failures[0]} {left}") if left else failures[0]


def _choices(ids: list[str]) -> str:
    return ", ".join(f"-c application.id={application_id}" for application_id in sorted(ids))


def _running_below(state_dir: Path) -> list[RunningApplication]:
    found = []
    for path in sorted(state_dir.glob(f"*/{SOCKET_NAME}")):
        with suppress(NotRunningError):
            found.append(RunningApplication(path.parent))
    return found


def application(settings: Settings) -> RunningApplication:
    """Return the application that the options of a command name; see find."""
    return find(settings.load())
