"""Applications on a real broker, run through KafkaStreams and as a user's command."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock import InvalidStateStoreError, KafkaStreams, Serdes, StreamsBuilder
from penstock.supervisor.processes.worker import ThreadStatus
from tests.read_to_end import read_to_end
from tests.waiting import LONGEST_SESSION_MS, PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 8
KEYS = 40
R = TypeVar("R")


class Counting:
    """An application that counts the records of each key, with operations for tests."""

    def __init__(self, bootstrap_servers: str, application_id: str, source: str, sink: str, state_dir: Path) -> None:
        self.source, self.sink = source, sink
        self.bootstrap_servers = bootstrap_servers
        self.expected: Counter[str] = Counter()
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap_servers,
            "state.dir": str(state_dir),
            "commit.interval.ms": 200,
            "session.timeout.ms": LONGEST_SESSION_MS,
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
        """Write this many records of each key and wait until they are acknowledged."""
        producer = Producer({"bootstrap.servers": self.bootstrap_servers})
        for _ in range(rounds):
            for number in range(KEYS):
                producer.produce(self.source, key=f"key-{number}", value="x")
                self.expected[f"key-{number}"] += 1
        assert producer.flush(PATIENCE_SECONDS) == 0

    def counted(self) -> dict[str, int]:
        """Return the last count of each key in the sink."""
        counts: dict[str, int] = {}
        for message in read_to_end(self.bootstrap_servers, self.sink):
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            counts[key.decode()] = struct.unpack(">q", value)[0]
        return counts

    def wait_for_at_least_all_counts(self) -> None:
        """Wait until no count is missing; after a kill, records may be counted twice."""

        def enough() -> bool:
            counted = self.counted()
            return all(counted.get(key, 0) >= count for key, count in self.expected.items())

        eventually(enough, "all records are counted, each at least once")

    def wait_for_all_counts(self) -> None:
        eventually(lambda: self.counted() == self.expected, "all records are counted, each once")


def end_offset(consumer: Consumer, partition: TopicPartition) -> int:
    """Return the end offset; a new partition may not have a leader yet."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=PATIENCE_SECONDS)[1])
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
    """Return True if this many threads share all tasks about evenly."""
    found = tasks(streams.status())
    sizes = [len(ids) for ids in found.values()]
    everything = set().union(*found.values()) if found else set()
    return len(sizes) == threads and sum(sizes) == len(everything) == all_tasks and max(sizes) - min(sizes) <= 1


def read_now(read: Callable[[], R]) -> R | None:
    """Return the result of a read of a store; None while it says to try again, because tasks move or are busy."""
    try:
        return read()
    except (InvalidStateStoreError, TimeoutError):
        return None


def kill_one(streams: KafkaStreams, choice: random.Random) -> None:
    """Kill the process of one stream thread. Returns when the status does not have it any more."""
    pid = choice.choice(streams.status()).pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: all(thread.pid != pid for thread in streams.status()), "the supervisor has seen the kill")


def replaced(status: list[ThreadStatus], victim: ThreadStatus, before: dict[int, set[str]]) -> bool:
    """Return True if another process has replaced the victim and all tasks are in their former slots, in one
    snapshot.
    """
    return victim.pid not in [thread.pid for thread in status] and tasks(status) == before


def commit_of_all(counting: Counting) -> None:
    """Wait until the whole source is committed, so that a kill repeats nothing."""
    consumer = Consumer(
        {"bootstrap.servers": counting.bootstrap_servers, "group.id": counting.config["application.id"]}
    )
    try:
        partitions = [TopicPartition(counting.source, number) for number in range(PARTITIONS)]
        ends = [end_offset(consumer, partition) for partition in partitions]
        eventually(
            lambda: [max(p.offset, 0) for p in consumer.committed(partitions, timeout=PATIENCE_SECONDS)] == ends,
            "everything is committed",
        )
    finally:
        consumer.close()


HEAD = "from penstock import Serdes, StreamsBuilder\nTEXT, JSON = Serdes.string(), Serdes.json()\n"
STATELESS = "topology = StreamsBuilder()\ntopology.stream('in', key_serde=TEXT, value_serde=TEXT).to('out')\n"


class App:
    """A folder with a user's module, and the command that runs it."""

    def __init__(self, folder: Path, bootstrap_servers: str, application_id: str) -> None:
        self.folder = folder
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap_servers,
            "state.dir": str(folder / "state"),
            "commit.interval.ms": "200",
        }
        #: A prefix of the command line, e.g. for a mount namespace.
        self.prefix: Sequence[str] = ()
        self.processes: list[subprocess.Popen[str]] = []
        #: Input and output topics of applications with one each.
        self.topics = ("", "")

    def module(self, text: str, name: str = "user_app") -> App:
        (self.folder / f"{name}.py").write_text(HEAD + textwrap.dedent(text))
        return self

    def start(self, reference: str = "user_app:topology", *, threads: int = 2, **config: str) -> subprocess.Popen[str]:
        """Start the command; config: with _ for the dots of keys."""
        values = self.config | {key.replace("_", "."): value for key, value in config.items()}
        settings = [part for key, value in values.items() for part in ("-c", f"{key}={value}")]
        command = [
            *self.prefix,
            sys.executable,
            "-m",
            "penstock.cli",
            "run",
            reference,
            "--threads",
            str(threads),
            *settings,
        ]
        process = subprocess.Popen(
            command, cwd=self.folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        return process

    def fails(self, reference: str = "user_app:topology", *, threads: int = 2, **config: str) -> tuple[int, str]:
        """Run the command until it ends by itself; return its exit code and its log."""
        process = self.start(reference, threads=threads, **config)
        try:
            _, log = process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"it does not end by itself:\n{process.communicate()[1]}") from None
        return process.returncode, log


def wait_for_line(process: subprocess.Popen[str], text: str) -> str:
    """Read the log until a line contains this text; return all lines read. Fails if the process ends before."""
    assert process.stderr is not None
    read = []
    for line in process.stderr:
        read.append(line)
        if text in line:
            return "".join(read)
    raise AssertionError(f"{text!r} was not logged; what was:\n{''.join(read)}")


def last_line(log: str) -> str:
    return log.rstrip().splitlines()[-1]


def produce(bootstrap_servers: str, topic: str, *values: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for number, value in enumerate(values):
        producer.produce(topic, value, f"k{number}", partition)
    assert producer.flush(PATIENCE_SECONDS) == 0


def read_until(bootstrap_servers: str, topic: str, last: str) -> list[str]:
    """Return the values of a topic up to the first one equal to ``last``; duplicates are included."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "unused"})
    values: list[str] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while last not in values:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"{last} never came, only {values}"
            values.append((message.value() or b"").decode())
        return values
    finally:
        consumer.close()


def read_table(bootstrap_servers: str, topic: str) -> dict[str, str]:
    """Return the current last value of each key of a topic."""
    return {
        (message.key() or b"").decode(): (message.value() or b"").decode()
        for message in read_to_end(bootstrap_servers, topic)
    }
