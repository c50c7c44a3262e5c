"""``penstock run --engine spark`` is killed with all its processes, and goes on from its checkpoint."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

pytestmark = [pytest.mark.broker, pytest.mark.slow]
#: Starting Java and Spark takes 10 s on a quiet machine.
DEADLINE_SECONDS = 180.0
KEYS = [b"a", b"b", b"c", b"d", b"e"]
TOPOLOGY = """
from penstock import Serdes, StreamsBuilder

topology = StreamsBuilder()
records = topology.stream("{source}", key_serde=Serdes.string(), value_serde=Serdes.string())
records.group_by_key().count(store="counts").to_stream().to("{sink}")
"""


@contextmanager
def application(directory: Path, application_id: str, servers: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in a process group of its own; whatever is left of it at the end is killed."""
    command = [sys.executable, "-m", "penstock.cli", "run", "counting_app:topology", "--engine", "spark"]
    options = ["--master", "local[2]", "--checkpoint", str(directory / "checkpoint")]
    config = ["-c", f"application.id={application_id}", "-c", f"bootstrap.servers={servers}"]
    with (directory / "log").open("a") as log:
        process = subprocess.Popen(
            [*command, *options, *config], cwd=directory, stdout=log, stderr=log, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended, with all its children
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def produce(servers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    for number in range(count):
        producer.produce(topic, b"v", KEYS[number % len(KEYS)])
    producer.flush()


def await_counts(servers: str, topic: str, partitions: int, expected: dict[bytes, int], log: Path) -> None:
    """Wait until the newest count of each key is this one."""
    counts: dict[bytes, int] = {}
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "none", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        while counts != expected:
            assert time.monotonic() < deadline, f"{counts}, not {expected}; its log:\n{log.read_text()[-3000:]}"
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                counts[message.key() or b""] = struct.unpack(">q", message.value() or b"")[0]
    finally:
        consumer.close()


def test_a_killed_application_goes_on_from_its_checkpoint(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, sink = make_topic("in", partitions=2), make_topic("out", partitions=2)
    (tmp_path / "counting_app.py").write_text(TOPOLOGY.format(source=source, sink=sink))
    log = tmp_path / "log"
    produce(bootstrap_servers, source, 500)
    with application(tmp_path, application_id, bootstrap_servers) as process:
        await_counts(bootstrap_servers, sink, 2, dict.fromkeys(KEYS, 100), log)
        produce(bootstrap_servers, source, 500)  # killed with these under way
        os.killpg(process.pid, signal.SIGKILL)
    with application(tmp_path, application_id, bootstrap_servers) as process:
        await_counts(bootstrap_servers, sink, 2, dict.fromkeys(KEYS, 200), log)
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0, log.read_text()[-3000:]
