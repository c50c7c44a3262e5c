"""A host that boots before its brokers: systemd learns at once that the service is up, and what it is waiting for."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from broker_stage import App
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.dev.dev_broker import DevBroker
from penstock.supervisor.exit_codes import ExitCode
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.broker

TOPOLOGY = """
topology = StreamsBuilder()
topology.stream({source!r}, key_serde=TEXT, value_serde=TEXT).to({sink!r})
"""


class Stopped(NamedTuple):
    """A broker that does not run, its address and its topics."""

    broker: DevBroker
    address: str
    source: str
    sink: str


@pytest.fixture
def stopped_broker(stoppable_broker: DevBroker, unique_name: Callable[[str], str]) -> Stopped:
    """A broker that was stopped after the topics were created; the application does not run yet."""
    address, topics = stoppable_broker.bootstrap_servers, (unique_name("in"), unique_name("out"))
    admin = AdminClient({"bootstrap.servers": address})
    create_topics(admin, *(NewTopic(topic, 2, 1) for topic in topics))
    stoppable_broker.stop()
    return Stopped(stoppable_broker, address, *topics)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_it_is_ready_waits_and_processes_once_brokers_run(
    guarantee: str,
    stopped_broker: Stopped,
    tmp_path: Path,
    systemd: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", systemd.getsockname())
    broker, address, source, sink = stopped_broker
    text = TOPOLOGY.format(source=source, sink=sink)
    app = App(tmp_path, address, f"boot-{guarantee}-{os.getpid()}").module(text)
    heard: list[str] = []

    def hears(text: str) -> None:
        """Wait for a message, unless it has arrived: each status is sent once, before READY=1 or after it."""
        while not any(text in message for message in heard):
            heard.append(systemd.recv(4096).decode())

    process = app.start(threads=2, processing_guarantee=guarantee)
    try:
        hears("READY=1")
        hears(f"STATUS=REBALANCING: waiting for a broker of {address} to answer; 2 stream threads")
        broker.start()
        hears("STATUS=RUNNING: 2 stream threads, 2 tasks")
        assert heard.count("READY=1") == 1
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == ExitCode.OK, log
    finally:
        process.kill()
        process.communicate()
