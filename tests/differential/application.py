"""A count on Spark that can be killed: ``penstock run --engine spark`` in its own processes, and its topics."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.read_to_end import read_to_end

#: Starting Java and Spark takes 10 s on a quiet machine.
DEADLINE_SECONDS = 240.0
PARTITIONS = 2
KEYS = [b"a", b"b", b"c", b"d", b"e"]
RECORDS = 2_000  # between two kills
#: The commands that start Spark whatever their options.
ON_SPARK = ("handover", "backfill")
EXECUTOR = "CoarseGrainedExecutorBackend"
TOPOLOGY = """
import penstock
from penstock import Serdes, StreamsBuilder


def place(value):
    return penstock.__file__


topology = StreamsBuilder()
records = topology.stream("{source}", key_serde=Serdes.string(), value_serde=Serdes.string())
records.group_by_key().count(store="counts").to_stream().map_values(str).to("{sink}", value_serde=Serdes.string())
records.map_values(place).to("{places}")
"""


class Application:
    """``penstock run --engine spark`` on its own topics.

    directory: for its module, its checkpoint and its log. environment: beside this process's.
    """

    def __init__(
        self, servers: str, directory: Path, master: str = "local[2]", environment: Mapping[str, str] | None = None
    ) -> None:
        self._servers = servers
        self._directory = directory
        self._master = master
        self._environment = {**os.environ, **(environment or {})}
        self.id = f"kills-{uuid.uuid4().hex[:8]}"
        self._source, self._sink, self._places = (f"{self.id}-{name}" for name in ("in", "out", "places"))
        self._process: subprocess.Popen[str] | None = None
        self.produced = 0
        self.log = directory / "log"
        self.checkpoint = directory / "checkpoint"
        (directory / "counting_app.py").write_text(
            TOPOLOGY.format(source=self._source, sink=self._sink, places=self._places)
        )

    @contextmanager
    def topics(self) -> Iterator[None]:
        """Make the topics, delete them at the end."""
        admin, names = AdminClient({"bootstrap.servers": self._servers}), (self._source, self._sink, self._places)
        for made in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
            made.result()
        try:
            yield
        finally:
            for deleted in admin.delete_topics(list(names)).values():
                deleted.result()

    @contextmanager
    def running(self, *options: str, host: str = "host") -> Iterator[subprocess.Popen[str]]:
        """Run it in its own process group; whatever is left of it at the end is killed.

        host: each has its own state directory.
        """
        with (
            self.log.open("a") as log,
            self.command("run", "--engine", "spark", *options, host=host, output=log) as process,
        ):
            self._process = process
            try:
                yield process
            finally:
                self._process = None

    @contextmanager
    def command(
        self, name: str, *options: str, host: str = "host", master: str = "", output: Any = subprocess.PIPE
    ) -> Iterator[subprocess.Popen[str]]:
        """Run a command with the topology; host as for running."""
        given = (
            f"application.id={self.id}",
            f"bootstrap.servers={self._servers}",
            f"state.dir={self._directory / host}",
            "statestore.cache.max.bytes=0",  # each record's count is written, so that the first can be waited for
        )
        config = [word for each in given for word in ("-c", each)]
        spark = (
            ["--master", master or self._master, "--checkpoint", str(self.checkpoint)]
            if name in ON_SPARK or "--engine" in options
            else []
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", name, "counting_app:topology", *options, *spark, *config],
            cwd=self._directory,
            env=self._environment,
            stdout=output,
            stderr=output if output is not subprocess.PIPE else subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill_all(process)
            if process.stdout is not None:
                process.stdout.close()

    def run(self, name: str, *options: str, host: str = "host", master: str = "") -> tuple[int, str]:
        """Run a command to its end; return its exit status and what it has printed."""
        with self.command(name, *options, host=host, master=master) as process:
            printed, _ = process.communicate(timeout=DEADLINE_SECONDS)
            return process.returncode, printed

    def recreate_source(self) -> None:
        """Delete the source topic and create it again."""
        admin = AdminClient({"bootstrap.servers": self._servers})
        admin.delete_topics([self._source])[self._source].result()
        self._until(lambda: self._source not in admin.list_topics(timeout=DEADLINE_SECONDS).topics)
        admin.create_topics([NewTopic(self._source, PARTITIONS, 1)])[self._source].result()

    @property
    def handed_over(self) -> Path:
        """The file in the state directory that keeps the local engine out."""
        return self._directory / "host" / self.id / "handed-over.json"

    def add_partition(self) -> None:
        """Add a partition to the source topic."""
        admin = AdminClient({"bootstrap.servers": self._servers})
        admin.create_partitions([NewPartitions(self._source, PARTITIONS + 1)])[self._source].result()

    def produce(self, count: int = RECORDS) -> None:
        """Produce records, the keys in turn."""
        producer = Producer({"bootstrap.servers": self._servers, "partitioner": "murmur2_random"})
        for _ in range(count):
            producer.produce(self._source, b"v", KEYS[self.produced % len(KEYS)])
            self.produced += 1
        producer.flush()

    def await_counts(self) -> None:
        """Wait until the newest count of each key is that of the input; fails if a count is beyond it."""
        expected = {key: len(range(place, self.produced, len(KEYS))) for place, key in enumerate(KEYS)}
        counts: dict[bytes, int] = {}
        for key, value in self._read(self._sink, 0):
            counts[key] = int(value)
            assert counts[key] <= expected[key], f"{key!r} was counted {counts[key]} times, not {expected[key]}"
            if counts == expected:
                return

    def await_growth(self, ends: dict[int, int]) -> None:
        """Wait until the counts' topic has more records than these, by partition."""
        self._until(lambda: any(end > ends[partition] for partition, end in self.ends().items()))

    def ends(self) -> dict[int, int]:
        """Return where the partitions of the counts' topic end now."""
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "none"})
        try:
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(self._sink, partition), DEADLINE_SECONDS)[1]
                for partition in range(PARTITIONS)
            }
        finally:
            consumer.close()

    def place(self) -> str:
        """Return where the executors have Penstock from, the last time they said it."""
        return {(message.value() or b"").decode() for message in read_to_end(self._servers, self._places)}.pop()

    def executors(self, process: subprocess.Popen[str]) -> list[psutil.Process]:
        """Return the executors, waiting for the first."""
        found: list[psutil.Process] = []

        def look() -> bool:
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended meanwhile, or is a zombie
                    if EXECUTOR in " ".join(child.cmdline()):
                        found.append(child)
            return bool(found)

        self._until(look)
        return found

    def _read(self, topic: str, start: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield keys and values of a topic; at its end wait for more."""
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "none", "enable.auto.commit": False})
        consumer.list_topics(topic, DEADLINE_SECONDS)  # else it looks for the leaders twice a second
        consumer.assign([TopicPartition(topic, partition, start) for partition in range(PARTITIONS)])
        deadline = time.monotonic() + DEADLINE_SECONDS
        try:
            while True:
                self._check(deadline)
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    yield message.key() or b"", message.value() or b""
        finally:
            consumer.close()

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            self._check(deadline)
            time.sleep(0.02)

    def _check(self, deadline: float) -> None:
        ended = self._process is not None and self._process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = "the application has ended" if ended else f"not within {DEADLINE_SECONDS:.0f} s"
            raise TimeoutError(f"{what}; its log ends with\n{self.log.read_text()[-5000:]}")


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a process that was started here with all its children, those in their own sessions too."""
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, and its children with it
        children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()
