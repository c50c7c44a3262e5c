"""Checkpoints on a real broker: SIGKILL within an upload and a load, and changelogs that are others now."""

from __future__ import annotations

import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import OFFSET_END
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import ApplicationState, KafkaStreams
from tests.s3_server import S3Server, s3_server
from tests.scripted_front import Hold, ScriptedFront, scripted_front
from tests.topics import create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS, allow_deletions, delete_records, eventually, has_ended
from tests.workers.test_checkpoints_broker import PARTITIONS, Latest

pytestmark = [pytest.mark.broker, pytest.mark.slow]

NEVER_MS = 10**9


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3.log") as running:
        yield running


@pytest.fixture
def front(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedFront]:
    with scripted_front(server.port) as running:
        for name, value in server.environment(running.port).items():
            monkeypatch.setenv(name, value)
        yield running


MakeLatest = Callable[[str], Latest]


@pytest.fixture
def latest(
    bootstrap_servers: str,
    application_id: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> MakeLatest:
    """Make an application whose checkpoints are below a URI."""
    caplog.set_level(logging.INFO)
    return lambda uri: Latest(bootstrap_servers, application_id, make_topic("in", PARTITIONS), uri, tmp_path / "state")


def run_until_checkpoint(app: Latest, number: int) -> None:
    """Process records until both tasks have a checkpoint of them, stop, and lose the disk."""
    with app.streams() as streams:
        streams.start()
        before = app.newest()
        app.feed(number)
        app.wait_for_rows(streams)
        app.feed(number + 100)
        eventually(lambda: app.has_newer(before), "both tasks have a newer checkpoint")
        app.wait_for_rows(streams)
    shutil.rmtree(app.state)


def transfers(pid: int) -> list[psutil.Process]:
    """Return the processes that upload or load for a stream thread's process."""
    found = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):  # another task's has just ended
            if any("checkpoints.transfer" in word for word in child.cmdline()):
                found.append(child)
    return found


def kill_while_held(streams: KafkaStreams, hold: Hold) -> None:
    """Kill the stream thread once the bucket has a request of its transfer, which ends, too."""
    assert hold.arrived.wait(PATIENCE_SECONDS)
    pid = streams.status()[0].pid
    processes = transfers(pid)
    assert processes
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(map(has_ended, processes)), "the transfer ends with its thread")
    eventually(lambda: bool(streams.status()) and streams.status()[0].pid != pid, "the thread is replaced")


def test_a_kill_within_an_upload(
    server: S3Server, front: ScriptedFront, latest: MakeLatest, caplog: pytest.LogCaptureFixture
) -> None:
    """The write of a file is held, and reaches the bucket after its writer has died; another one uploads meanwhile."""
    app = latest(server.uri)
    with app.streams() as streams:
        streams.start()
        eventually(lambda: streams.state is ApplicationState.RUNNING, streams.status)
        with front.holding("PUT", "/files/") as hold:
            app.feed(1)
            kill_while_held(streams, hold)
            assert [each.task for each in app.newest() if f"/{each.task}/" in hold.path] == []
            app.wait_for_rows(streams)
    run_until_checkpoint(app, 2)
    with app.streams() as streams:
        streams.start()
        app.wait_for_rows(streams)
    assert caplog.text.count("Loaded checkpoint") == PARTITIONS


def test_a_kill_within_a_load(
    server: S3Server, front: ScriptedFront, latest: MakeLatest, caplog: pytest.LogCaptureFixture
) -> None:
    """The next process begins the load again: half of a store is never used."""
    app = latest(server.uri)
    run_until_checkpoint(app, 1)
    with front.holding("GET", "/files/") as hold, app.streams() as streams:
        streams.start()
        assert hold.arrived.wait(PATIENCE_SECONDS)

        def loading() -> list[int]:
            tasks = (task for thread in streams.status() for task in thread.tasks)
            return [task.checkpoint.loading_total_bytes for task in tasks if task.checkpoint is not None]

        eventually(lambda: any(loading()), "the status shows the load")
        assert any("loading the checkpoint of task 0_" in text for text in streams.status()[0].waits)
        kill_while_held(streams, hold)
        app.wait_for_rows(streams)
    assert caplog.text.count("Loaded checkpoint") >= PARTITIONS


def test_a_changelog_that_was_created_again(
    latest: MakeLatest, admin: AdminClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its offsets mean other records: with the state of the checkpoint deleted rows would come back."""
    app = latest(f"file://{tmp_path}/bucket")
    run_until_checkpoint(app, 1)
    changelog = f"{app.config['application.id']}-latest-changelog"
    delete_topics(admin, changelog)
    create_topics(admin, NewTopic(changelog, PARTITIONS, 1, config={"cleanup.policy": "compact"}))
    app.config["penstock.lost.offsets"] = "accept"
    app.expected.clear()
    with app.streams() as streams:
        streams.start()
        app.feed(2)
        app.wait_for_rows(streams)
    assert f"is not used: the changelog {changelog} was deleted and created again since" in caplog.text
    assert "Loaded checkpoint" not in caplog.text


def test_a_changelog_that_begins_after_the_checkpoint(
    latest: MakeLatest, admin: AdminClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Records between are deleted, and with them rows or their deletions: the changelog is all that counts."""
    app = latest(f"file://{tmp_path}/bucket")
    run_until_checkpoint(app, 1)
    app.config["penstock.checkpoint.interval.ms"] = NEVER_MS
    with app.streams() as streams:
        streams.start()
        app.feed(2)
        app.wait_for_rows(streams)
    shutil.rmtree(app.state)
    loads = caplog.text.count("Loaded checkpoint")
    assert loads == PARTITIONS
    changelog = f"{app.config['application.id']}-latest-changelog"
    allow_deletions(admin, changelog)
    delete_records(admin, changelog, dict.fromkeys(range(PARTITIONS), OFFSET_END))
    app.expected.clear()
    with app.streams() as streams:
        streams.start()
        app.feed(3)
        app.wait_for_rows(streams)
    assert "is not used: it ends at offset" in caplog.text
    assert caplog.text.count("Loaded checkpoint") == loads
