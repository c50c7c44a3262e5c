"""A disk that is really full: a small file system of this test, filled and freed again."""

from __future__ import annotations

import re
import signal
import time
from base64 import b64encode
from collections.abc import Callable
from random import Random
from threading import Thread

import pytest
from broker_stage import App, last_line, read_table, wait_for_line
from confluent_kafka import Producer

from penstock.supervisor.exit_codes import ExitCode
from tests.small_disk import small_disk
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

DISK_MB = 160
KEYS, VALUE_BYTES = 2_000, 10_000  # 20 MB of state, through memtables of 1 MB
LATEST = """
def small_memtables(store, options, config):
    options.set_write_buffer_size(1 << 20)

topology = StreamsBuilder()
stream = topology.stream({source!r}, key_serde=TEXT, value_serde=TEXT)
stream.group_by_key().reduce(lambda old, new: new, store="latest").to_stream().to(
    {sink!r}, key_serde=TEXT, value_serde=TEXT
)
"""


def produce(bootstrap_servers: str, topic: str, seed: int, keys: int = KEYS) -> dict[str, str]:
    """Write a value for each key, and return them; random, because RocksDB compresses its files."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    random = Random(seed)
    written = {f"key-{number}": b64encode(random.randbytes(VALUE_BYTES)).decode() for number in range(keys)}
    for key, value in written.items():
        producer.produce(topic, value, key)
        producer.poll(0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return written


def fails_at_work(app: App, threads: int, work: Callable[[], object]) -> tuple[int, str]:
    """Give the command more work until it ends; return its exit code and its log.

    RocksDB writes its memtables in the background, so only a later write can report that this failed.
    """
    process = app.start(threads=threads)
    log: list[str] = []
    reader = Thread(target=lambda: log.append(process.communicate()[1]))
    reader.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while reader.is_alive():
        work()
        reader.join(1.0)
        if time.monotonic() > deadline:
            process.kill()
    return process.returncode, log[0]


def test_a_full_disk_is_reported_and_nothing_is_lost_once_there_is_space(
    app: App, bootstrap_servers: str, make_topic: Callable[..., str]
) -> None:
    source, sink = make_topic("in", 2), make_topic("out", 2)
    app.module(LATEST.format(source=source, sink=sink))
    produce(bootstrap_servers, source, seed=1)
    with small_disk(app.folder / "disk", DISK_MB) as disk:
        app.config["state.dir"] = str(app.folder / "disk" / "state")
        app.config["rocksdb.config.setter"] = "user_app:small_memtables"
        app.prefix = disk.prefix
        disk.fill()
        for threads in (2, 1):  # the second time the disk is full from the beginning
            code, log = fails_at_work(app, threads, lambda: produce(bootstrap_servers, source, seed=1, keys=100))
            assert code == ExitCode.FAILED, log
            assert "No space left on device" in log
            assert re.search("is the disk full|check state.dir, its permissions and the disk", last_line(log))
            assert str(app.folder / "disk") in last_line(log)

        disk.free()
        expected = produce(bootstrap_servers, source, seed=2)
        process = app.start(threads=2)
        wait_for_line(process, "State transition from REBALANCING to RUNNING")
        eventually(lambda: read_table(bootstrap_servers, sink) == expected, "all keys have their latest value")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == ExitCode.OK, log
        assert "ERROR" not in log, log
