"""An editor that speaks the Debug Adapter Protocol stops in the user's function, and sees its variables."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.replay.own_code import OwnCode
from penstock.replay.record_debugger import Editor
from penstock.topology.errors import ConfigError
from tests.free_port import free_port
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[2]


class Client:
    """A client of the protocol: requests, their responses, and events."""

    def __init__(self, port: int) -> None:
        eventually(lambda: self._connects(port), "debugpy listens")
        self._read = self._socket.makefile("rb")
        self._number = 0
        self._seen: list[dict[str, Any]] = []

    def _connects(self, port: int) -> bool:
        """Connect once: debugpy takes the first connection for its editor."""
        try:
            self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS)
        except ConnectionRefusedError:
            return False
        return True

    def close(self) -> None:
        self._read.close()
        self._socket.close()

    def send(self, command: str, **arguments: Any) -> int:
        self._number += 1
        message = {"seq": self._number, "type": "request", "command": command, "arguments": arguments}
        data = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%b" % (len(data), data))
        return self._number

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        number = self.send(command, **arguments)
        answer = self.wait(lambda each: each["type"] == "response" and each["request_seq"] == number)
        assert answer["success"], answer
        body: dict[str, Any] = answer.get("body", {})
        return body

    def event(self, name: str) -> dict[str, Any]:
        body: dict[str, Any] = self.wait(lambda each: each["type"] == "event" and each["event"] == name).get("body", {})
        return body

    def wait(self, wanted: Any) -> dict[str, Any]:
        while True:
            found: dict[str, Any] | None = next(filter(wanted, self._seen), None)
            if found is not None:
                self._seen.remove(found)
                return found
            self._seen.append(self._next())

    def _next(self) -> dict[str, Any]:
        size = 0
        while (line := self._read.readline().strip()) or not size:
            size = int(line.partition(b":")[2]) if line.startswith(b"Content-Length") else size
        message: dict[str, Any] = json.loads(self._read.read(size))
        return message


@pytest.fixture
def debugged(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The program, which waits for an editor on a port."""
    port = free_port()
    command = [sys.executable, "-m", "tests.replay.edited_record", str(port), str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, port
        finally:
            process.kill()


@pytest.mark.medium
def test_an_editor_stops_in_the_function_and_sees_its_variables(debugged: tuple[subprocess.Popen[str], int]) -> None:
    process, port = debugged
    client = Client(port)
    try:
        client.ask("initialize", adapterID="test", pathFormat="path", linesStartAt1=True, columnsStartAt1=True)
        client.send("attach", justMyCode=False)
        client.event("initialized")
        client.ask("configurationDone")
        thread = client.event("stopped")["threadId"]
        frame = client.ask("stackTrace", threadId=thread)["stackFrames"][0]
        assert (frame["name"], Path(frame["source"]["path"]).name) == ("shout", "edited_record.py")
        assert client.ask("evaluate", expression="value", frameId=frame["id"], context="repl")["result"] == "'quiet'"
        client.ask("continue", threadId=thread)
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "[b'QUIET'] True"
    finally:
        client.close()


def test_without_debugpy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "debugpy", None)
    with pytest.raises(ConfigError, match="--port needs debugpy: pip install debugpy"):
        Editor(OwnCode("app"), free_port())
