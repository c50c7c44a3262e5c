"""A Java Kafka Streams application that Penstock takes over in place, and gives back: same results, same topics."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicCollection
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks.measure import BenchmarkError
from benchmarks.systems import HERE, JVM_OPTIONS, compile_java
from penstock import KafkaStreams, Serdes, StreamsBuilder, Suppressed, TimeWindows
from penstock.jar_lock import fetch_jars, read_lock
from penstock.java_runtime import JavaNotFoundError, find_java
from penstock.supervisor.exit_codes import ExitCode
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

SOURCE = Path(__file__).parent / "java" / "TakeoverProgram.java"
PARTITIONS = 3
THREADS = 2
CUSTOMERS = 7
PRODUCTS_PER_ROUND = 5
ORDERS_PER_ROUND = 300
#: Far enough apart for windows to close in each round; some are still open when the application is handed over.
ORDER_INTERVAL_MS = 150
LATE_MS = 2_000
#: The records' times: of today, because the broker deletes windows' changelogs by their records' age.
START_MS = int(time.time() - 3_600) * 1_000 // 10_000 * 10_000
PATIENCE_SECONDS = 60.0
#: Of a row of a suppression's changelog: length of the new value, the value (a long), time in the buffer.
NEWEST_AND_TIME_BYTES = 4 + 8 + 8

#: key, value and timestamp of each record.
Row = tuple[bytes | None, bytes | None, int]


@dataclass(frozen=True)
class Topics:
    """What the application reads and writes; the outputs are those of one application of the test."""

    orders: str
    products: str
    counts: str
    final: str
    joined: str

    def properties(self) -> dict[str, str]:
        return {f"takeover.{name}": getattr(self, name) for name in self.__dataclass_fields__}


def topology(topics: Topics) -> Any:
    """TakeoverProgram's topology."""
    builder = StreamsBuilder()
    string, int64 = Serdes.string(), Serdes.int64()
    products = builder.table(topics.products, key_serde=string, value_serde=string, store="products")
    orders = builder.stream(topics.orders, key_serde=string, value_serde=string)
    orders.group_by_key(key_serde=string, value_serde=string).count(store="counts").to_stream().to(
        topics.counts, key_serde=string, value_serde=int64
    )
    (
        orders.group_by_key(key_serde=string, value_serde=string)
        .windowed_by(TimeWindows.of_size_and_grace(10_000, 5_000))
        .count(store="windowed-counts")
        .suppress(Suppressed.until_window_closes())
        .to_stream(lambda windowed, count: f"{windowed.key}@{windowed.window.start}")
        .to(topics.final, key_serde=string, value_serde=int64)
    )
    (
        orders.select_key(lambda customer, product: product)
        .join(products, lambda order, product: f"{order}={product}", key_serde=string, value_serde=string)
        .to(topics.joined, key_serde=string, value_serde=string)
    )
    return builder.build()


@dataclass
class Java:
    """How Java programs are run; command: without the program's arguments."""

    command: list[str]
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, properties: Path) -> subprocess.Popen[bytes]:
        """Start the program and wait until it runs; what it writes is beside its properties."""
        log = properties.with_suffix(".log")
        with log.open("w") as output:
            process = subprocess.Popen([*self.command, str(properties)], stdout=output, stderr=subprocess.STDOUT)
        self.running.append(process)

        def runs() -> bool:
            assert process.poll() is None, f"the Java program has ended:\n{log.read_text()}"
            return "RUNNING" in log.read_text().splitlines()

        eventually(runs, log.read_text)
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Have it close in good order."""
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 128 + signal.SIGTERM

    def describe(self, properties: Path) -> str:
        return subprocess.run(
            [*self.command, str(properties), "describe"], capture_output=True, text=True, check=True
        ).stdout


@pytest.fixture(scope="session")
def java_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the program; skips the test where there is no JDK."""
    lock = read_lock(HERE / "kafka_streams" / "kafka_streams.lock")
    classes = tmp_path_factory.mktemp("classes")
    try:
        java = find_java()
        class_path = os.pathsep.join(map(str, fetch_jars(lock)))
        compile_java(java, SOURCE, classes, class_path)
    except (JavaNotFoundError, BenchmarkError) as error:
        if "does not compile" in str(error):
            raise
        pytest.skip(f"needs a JDK to compile and run a Kafka Streams program: {error}")
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    return [str(java), *JVM_OPTIONS, log, "-cp", f"{classes}{os.pathsep}{class_path}", "TakeoverProgram"]


@pytest.fixture
def java(java_command: list[str]) -> Iterator[Java]:
    made = Java(java_command)
    yield made
    for process in made.running:
        process.kill()
        process.wait()


class Handover:
    """One application, its input, and who runs it at the moment."""

    def __init__(
        self, java: Java, bootstrap: str, application_id: str, topics: Topics, directory: Path, **config: str
    ) -> None:
        self.java, self.bootstrap, self.topics, self.directory = java, bootstrap, topics, directory
        self.application_id = application_id
        self.rounds = 0
        self.restored = 0
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.config = {
            "application.id": application_id,
            "bootstrap.servers": bootstrap,
            "num.stream.threads": str(THREADS),
            "commit.interval.ms": "200",
            "session.timeout.ms": "3000",
            "heartbeat.interval.ms": "300",
            **config,
        }

    # -- input

    def feed(self) -> None:
        """Write one more round: its products first, then orders of these and of earlier ones."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})
        begin = START_MS + self.rounds * ORDERS_PER_ROUND * ORDER_INTERVAL_MS
        first = self.rounds * PRODUCTS_PER_ROUND
        for number in range(first, first + PRODUCTS_PER_ROUND):
            producer.produce(self.topics.products, f"name-{number}", f"product-{number}", timestamp=begin - LATE_MS)
        assert producer.flush(PATIENCE_SECONDS) == 0
        self.rounds += 1
        for number in range(ORDERS_PER_ROUND):
            at = begin + number * ORDER_INTERVAL_MS - (LATE_MS if number % 11 == 5 else 0)
            product = f"product-{number * 31 % (self.rounds * PRODUCTS_PER_ROUND)}"
            customer = f"customer-{number * 17 % CUSTOMERS}"
            producer.produce(self.topics.orders, product, customer, timestamp=max(at, begin))
        assert producer.flush(PATIENCE_SECONDS) == 0

    # -- who runs it

    def run_java(self, state_dir: str) -> None:
        """Feed a round to the Java program and wait until it is processed and committed."""
        process = self.java.start(self.properties(state_dir))
        self._round(self.feed)
        self.java.stop(process)

    def run_penstock(self, state_dir: str, threads: int = 2) -> None:
        """Feed a round to Penstock and wait until it is processed and committed."""
        config = self.config | {
            "state.dir": str(self.directory / state_dir),
            "penstock.worker.beat.interval.ms": "50",
            "num.stream.threads": str(threads),
        }
        with KafkaStreams(topology(self.topics), config) as streams:
            streams.start()
            self._round(self.feed)
            restored = [m for m in streams.metrics() if (m.group, m.name) == ("stream-thread-metrics", "restore-total")]
            self.restored = int(sum(float(metric.value) for metric in restored))
        assert streams.exit_code is ExitCode.OK

    def _round(self, feed: Callable[[], None]) -> None:
        feed()
        eventually(self._is_processed, self._progress)

    def properties(self, state_dir: str) -> Path:
        """Write the Java program's settings."""
        values = self.config | self.topics.properties() | {"state.dir": str(self.directory / state_dir)}
        file = self.directory / f"{self.application_id}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        return file

    # -- what came of it

    def _is_processed(self) -> bool:
        return self._progress() == (self.rounds * ORDERS_PER_ROUND,) * 2

    def _progress(self) -> tuple[int, int]:
        """Return how many orders the counts hold, and how many were joined."""
        newest = {key: value for key, value, _ in self.rows(self.topics.counts)}
        counted = sum(struct.unpack(">q", value)[0] for value in newest.values() if value)
        return counted, len(self.rows(self.topics.joined))

    def rows(self, topic: str) -> list[Row]:
        return [row for number in range(PARTITIONS) for row in self._rows(topic, number)]

    def _rows(self, topic: str, partition: int) -> Iterator[Row]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "reader",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([RdTopicPartition(topic, partition, OFFSET_BEGINNING)])
        try:
            while (message := consumer.poll(PATIENCE_SECONDS)) is not None:
                error = message.error()
                if error is None:
                    yield message.key(), message.value(), message.timestamp()[1]
                elif error.code() == KafkaError._PARTITION_EOF:
                    return
        finally:
            consumer.close()

    def results(self) -> dict[str, Any]:
        """Return what one uninterrupted run gives too: tables by their newest rows, streams by all of them."""
        return {
            "counts": newest(self.rows(self.topics.counts)),
            "final": Counter(self.rows(self.topics.final)),
            "joined": Counter(self.rows(self.topics.joined)),
            **{topic: self.changelog(topic) for topic in self.changelogs()},
        }

    def changelog(self, topic: str) -> dict[bytes | None, Any]:
        table = newest(self.rows(f"{self.application_id}-{topic}"))
        if "SUPPRESS" not in topic:
            return dict(table)
        # A suppression's rows are written with the time of the clock, in Java too, and hold the value before, which
        # is another one with each flush of the cache. The same are the new value with its length, and when it is due.
        return {key: row[0][-NEWEST_AND_TIME_BYTES:] for key, row in table.items() if row[0]}

    def changelogs(self) -> list[str]:
        """Return the changelogs without the application's name."""
        prefix = f"{self.application_id}-"
        return [name.removeprefix(prefix) for name in self.internal_topics() if name.endswith("-changelog")]

    def internal_topics(self) -> dict[str, Any]:
        """Return the ids of the internal topics by their names: a topic that is made anew has another id."""
        prefix = f"{self.application_id}-"
        names = [name for name in self.admin.list_topics(timeout=30).topics if name.startswith(prefix)]
        found = self.admin.describe_topics(TopicCollection(names))
        return {name: str(future.result(30).topic_id) for name, future in sorted(found.items())}

    def changelog_records(self) -> int:
        """Return how many records the changelogs hold."""
        return sum(len(self.rows(f"{self.application_id}-{name}")) for name in self.changelogs())


def newest(rows: list[Row]) -> dict[bytes | None, tuple[bytes | None, int]]:
    """Return a table as its changelog tells it."""
    table = {key: (value, at) for key, value, at in rows}
    return {key: row for key, row in table.items() if row[0] is not None}


MakeHandover = Callable[..., Handover]


def quicken(admin: AdminClient, group: str) -> None:
    """Give a group whose tasks the broker assigns the times that the members of the others have."""
    settings = {"streams.session.timeout.ms": "3000", "streams.heartbeat.interval.ms": "300"}
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(30)


@pytest.fixture
def handover(
    java: Java,
    bootstrap_servers: str,
    unique_name: Callable[[str], str],
    make_topic: Callable[..., str],
    admin: AdminClient,
    tmp_path: Path,
) -> Iterator[MakeHandover]:
    """Make applications that read the same input: ``handover("purpose", **config)``."""
    orders, products = make_topic("orders", PARTITIONS), make_topic("products", PARTITIONS)
    made: list[Handover] = []

    def make(purpose: str, **config: str) -> Handover:
        outputs = (make_topic(f"{purpose}-{name}", PARTITIONS) for name in ("counts", "final", "joined"))
        directory = tmp_path / purpose
        directory.mkdir()
        settings = {name.replace("_", "."): value for name, value in config.items()}
        topics = Topics(orders, products, *outputs)
        made.append(Handover(java, bootstrap_servers, unique_name(purpose), topics, directory, **settings))
        if settings.get("group.protocol") == "streams":
            quicken(admin, made[-1].application_id)
        return made[-1]

    yield make
    names = [name for application in made for name in application.internal_topics()]
    for future in admin.delete_topics(names).values() if names else ():
        future.result(30)


def assert_as_one_uninterrupted_run(application: Handover, reference: Handover) -> None:
    """Let Java process all of the input at once, in an application of its own, and compare everything."""
    reference.rounds = application.rounds
    process = reference.java.start(reference.properties("java"))
    reference._round(lambda: None)
    reference.java.stop(process)
    expected, found = reference.results(), application.results()
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert found[name] == rows, f"{name} differs"
    assert all(rows for name, rows in expected.items()), "everything has something to compare"


def test_a_java_application_is_taken_over_and_given_back(handover: MakeHandover) -> None:
    application = handover("moved")
    application.run_java("java")
    topics = application.internal_topics()
    records = application.changelog_records()
    # One thread: a task that moves to the second one, which joins a little later, restores its stores in memory again.
    application.run_penstock("penstock", threads=1)
    assert application.restored == records, "every record of the changelogs that Java wrote, and none twice"
    application.run_java("java")  # on its own state, behind which its changelogs have gone on
    application.run_penstock("penstock")  # likewise
    shutil.rmtree(application.directory / "java")
    application.run_java("java")  # on nothing but changelogs that both have written
    assert application.internal_topics() == topics, "no internal topic is added or made anew"
    assert_as_one_uninterrupted_run(application, handover("uninterrupted"))


def test_both_describe_the_same_topology(handover: MakeHandover, java: Java) -> None:
    application = handover("described")
    text = java.describe(application.properties("java"))
    assert str(topology(application.topics).describe()) == text


@pytest.mark.parametrize(
    "config",
    [{"processing.guarantee": "exactly_once_v2"}, {"group.protocol": "streams"}],
    ids=["exactly_once_v2", "streams_protocol"],
)
def test_so_it_is_with_other_guarantees_and_protocols(handover: MakeHandover, config: dict[str, str]) -> None:
    application = handover("moved", **config)
    application.run_java("java")
    topics = application.internal_topics()
    application.run_penstock("penstock")
    assert application.restored > 0
    shutil.rmtree(application.directory / "java")
    application.run_java("java")
    assert application.internal_topics() == topics, "no internal topic is added or made anew"
    assert_as_one_uninterrupted_run(application, handover("uninterrupted", **config))
