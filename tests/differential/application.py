"""A count on Spark that can be killed: ``penstock run --engine spark`` in separate processes, and its topics."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.topology.config.config_keys import AT_LEAST_ONCE, EXACTLY_ONCE_V2
from tests.topics import add_partitions, create_topics, delete_topics
from tests.waiting import PATIENCE_SECONDS

PARTITIONS = 2
KEYS = [b"a", b"b", b"c", b"d", b"e"]
RECORDS = 2_000  # between two kills
#: The commands that always start Spark.
ON_SPARK = ("handover", "backfill")
EXECUTOR = "CoarseGrainedExecutorBackend"
#: Of records: in their topic, in the plan of a micro-batch, the first ones counted, all in the checkpoint.
PHASES = ("produced", "planned", "counted", "finished")
TOPOLOGY = """
from penstock import Serdes, StreamsBuilder

topology, changed = StreamsBuilder(), StreamsBuilder()
records = topology.stream("{source}", key_serde=Serdes.string(), value_serde=Serdes.string())
records.group_by_key().count(store="counts").to_stream().map_values(str).to("{sink}", value_serde=Serdes.string())
records = changed.stream("{source}", key_serde=Serdes.string(), value_serde=Serdes.string())
records.group_by_key().count(store="other").to_stream().map_values(str).to("{sink}", value_serde=Serdes.string())
"""


class Application:
    """``penstock run --engine spark`` on its own topics.

    directory: for its module, its checkpoint and its log. environment: beside this process's. guarantee:
    processing.guarantee. keys: of the records.
    """

    def __init__(
        self,
        servers: str,
        directory: Path,
        master: str = "local[2]",
        environment: Mapping[str, str] | None = None,
        guarantee: str = AT_LEAST_ONCE,
        keys: Sequence[bytes] = KEYS,
    ) -> None:
        self._servers = servers
        self._directory = directory
        self._master = master
        self._guarantee = guarantee
        self._keys = keys
        self._environment = {**os.environ, **(environment or {})}
        self.id = f"kills-{uuid.uuid4().hex[:8]}"
        self.source, self.sink = (f"{self.id}-{name}" for name in ("in", "out"))
        self._process: subprocess.Popen[str] | None = None
        self.produced = 0
        self.log = directory / "log"
        self.checkpoint = directory / "checkpoint"
        (directory / "counting_app.py").write_text(TOPOLOGY.format(source=self.source, sink=self.sink))

    @contextmanager
    def topics(self) -> Iterator[None]:
        """Make the topics, delete them at the end."""
        admin, names = AdminClient({"bootstrap.servers": self._servers}), (self.source, self.sink)
        create_topics(admin, *(NewTopic(name, PARTITIONS, 1) for name in names))
        try:
            yield
        finally:
            delete_topics(admin, *names)

    @contextmanager
    def running(self, *options: str, host: str = "host", engine: str = "spark") -> Iterator[subprocess.Popen[str]]:
        """Run it in a separate process group; processes left at the end are killed.

        host: each has its own state directory.
        """
        with (
            self.log.open("a") as log,
            self.command("run", "--engine", engine, *options, host=host, output=log) as process,
        ):
            self._process = process
            try:
                yield process
            finally:
                self._process = None

    @contextmanager
    def command(
        self,
        name: str,
        *options: str,
        host: str = "host",
        master: str = "",
        output: Any = subprocess.PIPE,
        topology: str = "topology",
    ) -> Iterator[subprocess.Popen[str]]:
        """Run a command with the topology; host as for running."""
        config = [word for each in self.settings(host) for word in ("-c", each)]
        spark = (
            ["--master", master or self._master, "--checkpoint", str(self.checkpoint)]
            if name in ON_SPARK or "spark" in options
            else []
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", name, f"counting_app:{topology}", *options, *spark, *config],
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

    def remove_checkpoint(self) -> None:
        """Delete the folder of the checkpoint, if there is one."""
        if self.checkpoint.exists():
            shutil.rmtree(self.checkpoint)

    def set_environment(self, name: str, value: str) -> None:
        """Set a variable for the commands that follow."""
        self._environment[name] = value

    def settings(self, host: str = "host") -> tuple[str, ...]:
        """Return its configuration, as name=value."""
        return (
            f"application.id={self.id}",
            f"bootstrap.servers={self._servers}",
            f"state.dir={self._directory / host}",
            f"processing.guarantee={self._guarantee}",
            "statestore.cache.max.bytes=0",  # each record's count is written, so that a test can wait for the first one
        )

    def run(self, name: str, *options: str, **more: str) -> tuple[int, str]:
        """Run a command to its end; return its exit status and its output. more: see command."""
        with self.command(name, *options, **more) as process:
            try:
                printed, _ = process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired as error:
                printed = (error.output or b"").decode()
                raise AssertionError(
                    f"{name} has not ended after {PATIENCE_SECONDS} s; it printed\n{printed}"
                ) from error
            return process.returncode, printed

    def recreate_source(self) -> None:
        """Delete the source topic and create it again."""
        admin = AdminClient({"bootstrap.servers": self._servers})
        delete_topics(admin, self.source)
        create_topics(admin, NewTopic(self.source, PARTITIONS, 1))

    @property
    def handed_over(self) -> Path:
        """The file in the state directory that prevents the local engine from starting."""
        return self._directory / "host" / self.id / "handed-over.json"

    def add_partition(self) -> None:
        """Add a partition to the source topic."""
        admin = AdminClient({"bootstrap.servers": self._servers})
        add_partitions(admin, self.source, PARTITIONS + 1)

    def produce(self, count: int = RECORDS) -> None:
        """Produce records, the keys in turn."""
        producer = Producer({"bootstrap.servers": self._servers, "partitioner": "murmur2_random"})
        for _ in range(count):
            key = self._keys[self.produced % len(self._keys)]
            while True:
                try:
                    producer.produce(self.source, b"v", key)
                except BufferError:  # the queue is full
                    producer.poll(1.0)
                else:
                    break
            self.produced += 1
        producer.flush()

    def await_counts(self) -> None:
        """Wait until the newest count of each key equals that of the input.

        Fails if a count is too high, and with exactly-once if one is missing or duplicated.
        """
        expected = {key: len(range(place, self.produced, len(self._keys))) for place, key in enumerate(self._keys)}
        counts: dict[bytes, int] = {}
        for key, value in self._read(self.sink, 0):
            before, counts[key] = counts.get(key, 0), int(value)
            if self._guarantee == EXACTLY_ONCE_V2:
                assert counts[key] == before + 1, f"{key!r} was counted {before}, and next {counts[key]}"
            assert counts[key] <= expected[key], f"{key!r} was counted {counts[key]} times, not {expected[key]}"
            if counts == expected:
                return

    def logged(self, log: str) -> int:
        """Return how many micro-batches a log of Spark's query has: offsets when planned, commits when finished."""
        folder = self.checkpoint / "subtopology-0" / log
        return sum(path.name.isdigit() for path in folder.iterdir()) if folder.exists() else 0

    def produce_until(self, phase: str) -> None:
        """Produce records, and wait until their first micro-batch is in this phase: one of PHASES."""
        planned, ends, finished = self.logged("offsets"), self.ends(), self.logged("commits")
        self.produce()
        if phase == "planned":
            self._until(lambda: self.logged("offsets") > planned)
        elif phase == "counted":
            self.await_growth(ends)
        elif phase == "finished":
            self._until(lambda: self.logged("commits") > finished)

    def await_growth(self, ends: dict[int, int]) -> None:
        """Wait until the counts' topic has more records than these, by partition."""
        self._until(lambda: any(end > ends[partition] for partition, end in self.ends().items()))

    def ends(self) -> dict[int, int]:
        """Return the current ends of the counts' partitions for a read_committed reader."""
        consumer = Consumer(
            {"bootstrap.servers": self._servers, "group.id": "none", "isolation.level": "read_committed"}
        )
        try:
            return {
                partition: consumer.get_watermark_offsets(TopicPartition(self.sink, partition), PATIENCE_SECONDS)[1]
                for partition in range(PARTITIONS)
            }
        finally:
            consumer.close()

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
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": "none",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.list_topics(topic, PATIENCE_SECONDS)  # otherwise it requests the leaders twice a second
        consumer.assign([TopicPartition(topic, partition, start) for partition in range(PARTITIONS)])
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while True:
                self._check(deadline)
                message = consumer.poll(1.0)
                if message is not None and message.error() is None:
                    yield message.key() or b"", message.value() or b""
        finally:
            consumer.close()

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            self._check(deadline)
            time.sleep(0.02)

    def _check(self, deadline: float) -> None:
        ended = self._process is not None and self._process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = "the application has ended" if ended else f"not within {PATIENCE_SECONDS:.0f} s"
            raise TimeoutError(f"{what}; its log ends with\n{self.log.read_text()[-5000:]}")


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a process that was started here with all its children, including those in other sessions."""
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended, and its children with it
        children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    process.wait()
