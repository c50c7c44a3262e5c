"""A running application uses sd_notify(3) over a real socket of systemd's kind."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable

import pytest
from broker_stage import App, produce

from penstock.supervisor.exit_codes import ExitCode
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

TOPOLOGY = """
topology = StreamsBuilder()
topology.stream({source!r}, key_serde=TEXT, value_serde=TEXT).to({sink!r})
"""


class Systemd:
    """The messages that systemd receives, in order."""

    def __init__(self, receiver: socket.socket) -> None:
        self._receiver = receiver
        self.heard: list[str] = []

    def hears(self, wanted: Callable[[str], bool], what: str) -> str:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            message = self._receiver.recv(4096).decode()
            self.heard.append(message)
            if wanted(message):
                return message
        raise AssertionError(f"systemd never heard {what}, only {self.heard}")


def test_systemd_is_notified_of_start_state_heartbeats_and_end(
    app: App, make_topic: Callable[..., str], systemd: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    source, sink = make_topic("in", 2), make_topic("out", 2)
    service = Systemd(systemd)
    process = app.module(TOPOLOGY.format(source=source, sink=sink)).start(threads=2)
    service.hears(lambda message: message == "READY=1", "READY")
    assert "STOPPING=1" not in service.heard
    service.hears(lambda message: message.startswith("STATUS=RUNNING: 2 stream threads, 2 tasks, 0"), "STATUS")
    produce(app.config["bootstrap.servers"], source, "a", "b")
    for _ in range(2):
        service.hears(lambda message: message == "WATCHDOG=1", "WATCHDOG")
    process.send_signal(signal.SIGTERM)
    service.hears(lambda message: message == "STOPPING=1", "STOPPING")
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK
    assert service.heard.count("READY=1") == service.heard.count("STOPPING=1") == 1
    assert all(message.partition("=")[0] in ("READY", "STATUS", "WATCHDOG", "STOPPING") for message in service.heard)
