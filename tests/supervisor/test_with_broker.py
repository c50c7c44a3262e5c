"""Real stream threads on a real broker: tasks are shared, come back after a kill, move when threads come and go."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.uncaught_exception import StreamsUncaughtExceptionHandlerResponse
from penstock.supervisor.worker import ThreadStatus

pytestmark = pytest.mark.broker

PARTITIONS = 8
KEYS = 40
PATIENCE_SECONDS = 60.0
#: How often a condition is looked at that only a beat of the stream threads can bring about.
LOOK_SECONDS = 0.05


class Counting:
    """An application that counts the records of each key, with what the test does to it."""

    def __init__(self, bootstrap_servers: str, application_id: str, source: str, sink: str, state_dir: Path) -> None:
        self.source, self.sink = source, sink
        self.bootstrap_servers = bootstrap_servers
        self.expected: Counter[str] = Counter()
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap_servers,
            "state.dir": str(state_dir),
            "commit.interval.ms": 200,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 300,
            "penstock.worker.beat.interval.ms": 50,
        }

    def topology(self) -> Any:
        builder = StreamsBuilder()
        stream = builder.stream(self.source, key_serde=Serdes.string(), value_serde=Serdes.string())
        counts = stream.group_by_key().count(store="counts")
        counts.to_stream().to(self.sink, key_serde=Serdes.string(), value_serde=Serdes.int64())
        return builder.build()

    def streams(self, threads: int) -> KafkaStreams:
        return KafkaStreams(self.topology(), self.config | {"num.stream.threads": threads})

    def produce(self, rounds: int) -> None:
        """Write so many records of each key and wait until the broker has them."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        for _ in range(rounds):
            for number in range(KEYS):
                producer.produce(self.source, key=f"key-{number}", value="x")
                self.expected[f"key-{number}"] += 1
        assert producer.flush(30) == 0

    def counted(self) -> dict[str, int]:
        """Return the last count of each key in the sink."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "unused"})
        try:
            partitions = [TopicPartition(self.sink, number, 0) for number in range(PARTITIONS)]
            left = sum(end_offset(consumer, partition) for partition in partitions)
            consumer.assign(partitions)
            counts: dict[str, int] = {}
            while left:
                for message in consumer.consume(left, timeout=10):
                    key, value = message.key(), message.value()
                    assert key is not None
                    assert value is not None
                    counts[key.decode()] = struct.unpack(">q", value)[0]
                    left -= 1
            return counts
        finally:
            consumer.close()

    def wait_for_all_counts(self) -> None:
        eventually(lambda: self.counted() == self.expected, "all records are counted, each once")


def eventually(check: Callable[[], bool], what: str) -> None:
    deadline, pace = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not check():
        assert time.monotonic() < deadline, f"it never came true that {what}"
        pace.wait(LOOK_SECONDS)


def end_offset(consumer: Consumer, partition: TopicPartition) -> int:
    """Return it; a partition that was just made may not have a leader yet."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=10)[1])
        except KafkaException as error:
            new = error.args[0].code() in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
            if not new or time.monotonic() > deadline:
                raise


def tasks(status: list[ThreadStatus]) -> dict[int, set[str]]:
    """Return the active tasks that each thread processes."""
    return {
        thread.slot: {task.task_id for task in thread.tasks if task.kind == "active" and task.state == "RUNNING"}
        for thread in status
    }


def shared_by(streams: KafkaStreams, threads: int, all_tasks: int = PARTITIONS) -> bool:
    """Return True if so many threads have so many tasks, about the same number each."""
    found = tasks(streams.status())
    sizes = [len(ids) for ids in found.values()]
    everything = set().union(*found.values()) if found else set()
    return len(sizes) == threads and sum(sizes) == len(everything) == all_tasks and max(sizes) - min(sizes) <= 1


@pytest.fixture
def counting(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Counting:
    return Counting(
        bootstrap_servers, application_id, make_topic("in", PARTITIONS), make_topic("out", PARTITIONS), tmp_path
    )


def test_two_stream_threads_share_the_tasks_and_end_in_good_order(counting: Counting) -> None:
    counting.produce(5)
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        eventually(lambda: streams.state is State.RUNNING, "the application runs")
        counting.wait_for_all_counts()
        assert streams.store("counts").get("key-7") == 5
        assert dict(streams.store("counts").all()) == counting.expected
        assert streams.store("counts", timestamped=True).get("key-7").value == 5
        assert streams.metrics()["stream-metrics"]["alive-stream-threads"] == 2
    assert streams.exit_code is ExitCode.OK
    counting.produce(1)
    with counting.streams(1) as again:  # goes on from what was committed, with the state on disk
        again.start()
        counting.wait_for_all_counts()


def test_a_killed_process_gets_its_tasks_back_and_the_others_keep_theirs(counting: Counting) -> None:
    counting.produce(3)
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        counting.wait_for_all_counts()
        eventually(lambda: sum(thread.lag for thread in streams.status()) == 0, "nothing is left to read")
        before = tasks(streams.status())
        one, two = streams.status()
        commit_of_all(counting)
        os.kill(one.pid, signal.SIGKILL)
        eventually(lambda: shared_by(streams, 2) and streams.status()[0].pid != one.pid, "the process is replaced")
        assert tasks(streams.status()) == before
        assert streams.status()[0].restarts == 1
        assert streams.status()[1].pid == two.pid
        counting.produce(2)
        counting.wait_for_all_counts()
    assert streams.exit_code is ExitCode.OK


def commit_of_all(counting: Counting) -> None:
    """Wait until the group has committed all of the source, so that a kill repeats nothing."""
    consumer = Consumer(
        {"bootstrap.servers": counting.bootstrap_servers, "group.id": counting.config["application.id"]}
    )
    try:
        partitions = [TopicPartition(counting.source, number) for number in range(PARTITIONS)]
        ends = [end_offset(consumer, partition) for partition in partitions]
        eventually(
            lambda: [max(p.offset, 0) for p in consumer.committed(partitions, timeout=10)] == ends,
            "everything is committed",
        )
    finally:
        consumer.close()


def test_tasks_move_when_stream_threads_come_and_go(counting: Counting) -> None:
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 1), "one thread has all tasks")
        counting.produce(2)
        name = streams.add_stream_thread()
        assert name is not None
        assert name.endswith("-StreamThread-2")
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        counting.produce(2)
        assert streams.remove_stream_thread() == name
        eventually(lambda: shared_by(streams, 1), "one thread has all tasks again")
        counting.produce(2)
        counting.wait_for_all_counts()
    assert streams.exit_code is ExitCode.OK


def let_it_run(streams: KafkaStreams) -> None:
    """Wait for many times as long as a record takes."""
    before = streams.status()[0].uptime_seconds
    eventually(lambda: streams.status()[0].uptime_seconds > before + 1.5, "time passes")


def test_a_paused_application_counts_on_where_it_was(counting: Counting) -> None:
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 1), "one thread has all tasks")
        counting.produce(1)
        counting.wait_for_all_counts()
        streams.pause()
        assert streams.is_paused
        let_it_run(streams)  # it takes effect between two batches
        counting.produce(1)
        let_it_run(streams)
        assert streams.status()[0].records_processed == KEYS
        streams.resume()
        counting.wait_for_all_counts()


def test_one_instance_shuts_down_the_application_on_all_hosts(counting: Counting, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    stream = builder.stream(counting.source, key_serde=Serdes.string(), value_serde=Serdes.string())
    stream.filter(lambda _key, value: 1 / len(value) > 0).to(
        counting.sink, key_serde=Serdes.string(), value_serde=Serdes.string()
    )
    topology = builder.build()
    hosts = [KafkaStreams(topology, counting.config | {"state.dir": str(tmp_path / host)}) for host in ("a", "b")]
    for host in hosts:
        host.set_uncaught_exception_handler(lambda _: StreamsUncaughtExceptionHandlerResponse.SHUTDOWN_APPLICATION)
    with hosts[0], hosts[1]:
        for host in hosts:
            host.start()
        eventually(lambda: all(shared_by(host, 1, PARTITIONS // 2) for host in hosts), "both hosts have tasks")
        producer = Producer({"bootstrap.servers": counting.bootstrap_servers})
        producer.produce(counting.source, key="poison", value="")
        assert producer.flush(30) == 0
        eventually(lambda: all(host.state is State.ERROR for host in hosts), "both hosts have shut down")
    assert {host.exit_code for host in hosts} == {ExitCode.FAILED}


def test_the_command_runs_a_topology_until_sigterm(counting: Counting, tmp_path: Path) -> None:
    (tmp_path / "counting_app.py").write_text(
        "from penstock import Serdes, StreamsBuilder\n"
        "builder = StreamsBuilder()\n"
        f"stream = builder.stream({counting.source!r}, key_serde=Serdes.string(), value_serde=Serdes.string())\n"
        "counts = stream.group_by_key().count(store='counts').to_stream()\n"
        f"counts.to({counting.sink!r}, key_serde=Serdes.string(), value_serde=Serdes.int64())\n"
    )
    (tmp_path / "penstock.toml").write_text("\n".join(f'"{key}" = "{value}"' for key, value in counting.config.items()))
    counting.produce(2)
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock.cli",
            "run",
            "counting_app:builder",
            "--config",
            "penstock.toml",
            "--threads",
            "2",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        counting.wait_for_all_counts()
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, log
    for old, new in (("REBALANCING", "RUNNING"), ("RUNNING", "PENDING_SHUTDOWN"), ("PENDING_SHUTDOWN", "NOT_RUNNING")):
        assert f"State transition from {old} to {new} (penstock.supervisor.supervisor)" in log
