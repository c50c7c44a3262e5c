"""Checkpoints of real processes on a real broker and a real S3 server that fails, with SIGKILL at any point.

The rows of the stores must equal the topic's newest values at the end, and deleted keys stay deleted.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import ApplicationState, KafkaStreams, Serdes, StreamsBuilder
from penstock.statestore.checkpoints.bucket import Bucket
from penstock.statestore.checkpoints.manifest import Manifest
from penstock.statestore.checkpoints.task_checkpoints import TaskCheckpoints
from penstock.topology.errors import InvalidStateStoreError
from tests.faulty_front import FaultyFront, faulty_front
from tests.s3_server import S3Server, s3_server
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

PARTITIONS, KEYS, ROWS_A_ROUND = 2, 300, 2_000
ROUNDS = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3.log") as running:
        yield running


@pytest.fixture
def front(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyFront]:
    with faulty_front(server.port) as running:
        for name, value in server.environment(running.port).items():
            monkeypatch.setenv(name, value)
        yield running


class Latest:
    """An application that keeps the newest value of each key; a null value deletes it."""

    def __init__(self, bootstrap_servers: str, application_id: str, source: str, uri: str, state: Path) -> None:
        self.source, self.state = source, state
        self.expected: dict[str, str] = {}
        self._random = random.Random(7)
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random"})
        self.config: dict[str, Any] = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap_servers,
            "commit.interval.ms": 100,
            "session.timeout.ms": 6_000,
            "state.dir": str(state),
            "penstock.checkpoint.uri": uri,
            "penstock.checkpoint.interval.ms": 200,
        }
        self.checkpoints = [TaskCheckpoints(Bucket(uri, application_id), f"0_{number}") for number in range(PARTITIONS)]

    def streams(self) -> KafkaStreams:
        builder = StreamsBuilder()
        text = Serdes.string()
        stream = builder.stream(self.source, key_serde=text, value_serde=text)
        stream.to_table(store="latest", key_serde=text, value_serde=text)
        return KafkaStreams(builder.build(), self.config)

    def feed(self, number: int) -> None:
        for _ in range(ROWS_A_ROUND):
            key = f"k{self._random.randrange(KEYS)}"
            if self._random.random() < 0.3:
                self.expected.pop(key, None)
                self._producer.produce(self.source, None, key)
            else:
                self.expected[key] = f"{number}-{self._random.random()}"
                self._producer.produce(self.source, self.expected[key], key)
        self._producer.produce(self.source, f"{number}", "mark")
        self.expected["mark"] = f"{number}"
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def has_rows(self, streams: KafkaStreams) -> bool:
        try:
            return dict(streams.store("latest").all()) == self.expected
        except (InvalidStateStoreError, TimeoutError):  # its tasks are moving, or the machine is busy
            return False

    def wait_for_rows(self, streams: KafkaStreams) -> None:
        eventually(lambda: streams.state is ApplicationState.RUNNING, streams.status)
        eventually(lambda: sum(thread.lag for thread in streams.status()) == 0, "nothing is left to read")
        eventually(lambda: self.has_rows(streams), "the rows are those of the topic")

    def kill(self, streams: KafkaStreams, at_once: bool) -> None:
        """Kill the stream thread: while it loads or restores, or while it runs and uploads."""
        eventually(lambda: at_once or streams.state is ApplicationState.RUNNING, streams.status)
        pid = streams.status()[0].pid
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: bool(streams.status()) and streams.status()[0].pid != pid, "it is replaced")

    def has_newer(self, before: list[Manifest]) -> bool:
        known = {each.task: each.time_ms for each in before}
        newest = self.newest()
        return len(newest) == PARTITIONS and all(each.time_ms > known.get(each.task, 0) for each in newest)

    def newest(self) -> list[Manifest]:
        found = [next(mine.found(), None) for mine in self.checkpoints]
        return [each.manifest for each in found if each is not None and isinstance(each.manifest, Manifest)]


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_rows_are_right_after_kills_and_faults(
    bootstrap_servers: str,
    application_id: str,
    make_topic: Callable[..., str],
    server: S3Server,
    front: FaultyFront,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    guarantee: str,
) -> None:
    """Each round kills the stream thread, with its transfers, at another time, and at its end the disk is lost."""
    caplog.set_level(logging.INFO)
    app = Latest(bootstrap_servers, application_id, make_topic("in", PARTITIONS), server.uri, tmp_path / "state")
    app.config["processing.guarantee"] = guarantee
    for number in range(ROUNDS):
        with app.streams() as streams:
            streams.start()
            app.feed(number)
            if number % 2:
                app.kill(streams, at_once=number % 4 == 1)
            app.wait_for_rows(streams)
            front.is_faulty = False  # the next start must find a checkpoint
            before = app.newest()
            app.feed(number + 100)
            eventually(partial(app.has_newer, before), "both tasks have a newer checkpoint")
            app.wait_for_rows(streams)
        front.is_faulty = number != ROUNDS - 2
        shutil.rmtree(tmp_path / "state" / application_id)
    assert "Loaded checkpoint" in caplog.text
    assert all(front.counts.values()), front.counts
