"""One application that Java and Penstock run, in turn or at the same time, its input, and its results."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import psutil
from confluent_kafka import Consumer, Message, Producer, TopicCollection
from confluent_kafka import TopicPartition as RdTopicPartition
from confluent_kafka.admin import AdminClient

from penstock import KafkaStreams, TaskId
from penstock.clients.group.group_description import GroupMemberDescription
from penstock.supervisor.exit_codes import ExitCode
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import Headers
from penstock.workers.group.assignment.assignment_info import AssignmentInfo
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.java.program import Topics, topology
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = 3
THREADS = 2
CUSTOMERS = 7
PRODUCTS_PER_ROUND = 5
ORDERS_PER_ROUND = 300
PEOPLE = 15
#: Far enough apart for windows to close in each round; some are still open at the handover.
ORDER_INTERVAL_MS = 150
LATE_MS = 2_000
#: The records' timestamps: of today, because the broker deletes windows' changelogs by the age of records.
START_MS = int(time.time() - 3_600) * 1_000 // 10_000 * 10_000
#: A row of a suppression's changelog: length of the new value, the value (a long), time in the buffer.
NEWEST_AND_TIME_BYTES = 4 + 8 + 8

#: key, value and timestamp of each record.
Row = tuple[bytes | None, bytes | None, int]


class Placed(NamedTuple):
    """Tasks of members; standby: includes warm-ups."""

    active: frozenset[TaskId] = frozenset()
    standby: frozenset[TaskId] = frozenset()

    @classmethod
    def of(cls, member: GroupMemberDescription) -> Placed:
        """Return the tasks of a member."""
        if member.assignment is None:  # of a streams group
            return cls(member.tasks.active, member.tasks.replicas)
        info = AssignmentInfo.decode(member.assignment.user_data, member.assignment.active)
        return cls(frozenset(info.active), frozenset(info.standby))

    def union(self, other: Placed) -> Placed:
        return Placed(self.active | other.active, self.standby | other.standby)


NOTHING = Placed()


def kind_of(member: GroupMemberDescription) -> str:
    """Return whether a member runs on Java or Penstock."""
    return "penstock" if member.client_id.endswith("-member") else "java"


def placed(bootstrap: str, group: str, name: Callable[[GroupMemberDescription], str]) -> dict[str, Placed]:
    """Return the tasks of a group's members: see Handover.placed."""
    supplier = KafkaClientSupplier(StreamsConfig({"application.id": group, "bootstrap.servers": bootstrap}))
    with supplier.get_offsets_reader("test", int(PATIENCE_SECONDS * 1000)) as reader:
        described = reader.describe()
    if described.state != "STABLE":
        return {}
    found = {"java": NOTHING, "penstock": NOTHING} if name is kind_of else {}
    for member in described.members:
        found[name(member)] = found.get(name(member), NOTHING).union(Placed.of(member))
    return found


def instance_of(member: GroupMemberDescription) -> str:
    """Return a static member's instance name."""
    assert member.instance_id is not None, f"{member.client_id} is no static member"
    return member.instance_id


@dataclass
class Instance:
    """One process of the application, on Java or of Penstock, with its own threads and state directory."""

    process: subprocess.Popen[bytes]
    log: Path
    exit_codes: tuple[int, ...]

    def stop(self) -> None:
        """Stop it cleanly."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE_SECONDS)
        assert code in self.exit_codes, f"it ended with {code}:\n{self.log.read_text()}"

    def kill(self) -> None:
        """Kill it, and all its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def kill_a_thread(self) -> None:
        """Kill one of Penstock's stream thread processes."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        threads = [child for child in children if "StreamThread" in " ".join(child.cmdline())]
        min(threads, key=lambda child: child.pid).kill()

    def has_logged(self, text: str) -> bool:
        return text in self.log.read_text()

    def hosts(self) -> str:
        """Return its last output about the hosts of the application; empty before."""
        return next((line for line in reversed(self.log.read_text().splitlines()) if line.startswith("HOSTS ")), "")

    @property
    def states(self) -> list[str]:
        """Its states so far, the latest one last; RUNNING follows each rebalance."""
        lines = self.log.read_text().splitlines()
        return [line for line in lines if line in ("CREATED", "REBALANCING", "RUNNING", "ERROR")]

    @property
    def runs(self) -> bool:
        """True if it has reached RUNNING, or has again. Fails if it has ended."""
        assert self.process.poll() is None, f"it has ended:\n{self.log.read_text()}"
        assert "ERROR" not in self.states, self.log.read_text()
        return self.states[-1:] == ["RUNNING"]


@dataclass
class Java:
    """The command of Java programs; command: without the program's arguments."""

    command: list[str]
    running: list[Instance] = field(default_factory=list)

    def start(self, properties: Path) -> Instance:
        """Start the program and wait until it is running; its output is written beside its properties."""
        return self.launch([*self.command, str(properties)], properties, (128 + signal.SIGTERM,))

    def start_penstock(self, properties: Path) -> Instance:
        """Start the same application on Penstock, and wait until it runs."""
        command = [sys.executable, "-m", "tests.java.program", str(properties)]
        return self.launch(command, properties, (int(ExitCode.OK),))

    def launch(self, command: list[str], properties: Path, exit_codes: tuple[int, ...]) -> Instance:
        log = properties.with_suffix(".log")
        with log.open("w") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT
            )
        instance = Instance(process, log, exit_codes)
        self.running.append(instance)
        eventually(lambda: instance.runs, log.read_text, PATIENCE_SECONDS)
        return instance

    def describe(self, properties: Path) -> str:
        return subprocess.run(
            [*self.command, str(properties), "describe"], capture_output=True, text=True, check=True
        ).stdout


class Handover:
    """One application, its input, and its current instances."""

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
            producer.produce(
                self.topics.products,
                f"name-{number}",
                f"product-{number}",
                timestamp=begin - LATE_MS,
                headers=self._headers("product", number),
            )
        assert producer.flush(PATIENCE_SECONDS) == 0
        for number in range(PEOPLE if self.topics.people else 0):  # every other one changes between two products
            liked = (number + self.rounds % 2 * (number % 2)) % PRODUCTS_PER_ROUND
            favourite = f"product-{liked}/{self.rounds}"
            producer.produce(self.topics.people, favourite, f"person-{number}", timestamp=begin - LATE_MS)
        self.rounds += 1
        for number in range(ORDERS_PER_ROUND):
            at = begin + number * ORDER_INTERVAL_MS - (LATE_MS if number % 11 == 5 else 0)
            product = f"product-{number * 31 % (self.rounds * PRODUCTS_PER_ROUND)}"
            customer = f"customer-{number * 17 % CUSTOMERS}"
            producer.produce(
                self.topics.orders,
                product,
                customer,
                timestamp=max(at, begin),
                headers=self._headers("order", self.rounds * ORDERS_PER_ROUND + number),
            )
        assert producer.flush(PATIENCE_SECONDS) == 0

    def _headers(self, kind: str, number: int) -> list[tuple[str, str | bytes | None]]:
        """Return the headers of a record of the input; none without stores that keep them."""
        if self.config.get("dsl.store.format") != "HEADERS":
            return []
        both: list[tuple[str, str | bytes | None]] = [(kind, str(number).encode()), ("null", None)]
        return both[: 1 + number % 2]

    # -- instances

    def run_java(self, state_dir: str) -> None:
        """Feed a round to the Java program and wait until it is processed and committed."""
        process = self.java.start(self.properties(state_dir))
        self._round(self.feed)
        process.stop()

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
        eventually(self._is_processed, self._progress, PATIENCE_SECONDS)

    def start_java(self, name: str, **more: str) -> Instance:
        """Start an instance on Java; name: of its state directory; more: its own settings."""
        return self.java.start(self.properties(name, more))

    def start_penstock(self, name: str, **more: str) -> Instance:
        """Start an instance of Penstock."""
        return self.java.start_penstock(self.properties(name, more))

    def settle(self) -> None:
        """Wait until all input is processed and committed."""
        eventually(self._is_processed, self._progress, PATIENCE_SECONDS)
        time_of_a_commit = int(self.config["commit.interval.ms"]) / 1000
        eventually(lambda: self._lag() == 0, self._lag, PATIENCE_SECONDS + time_of_a_commit)

    def _lag(self) -> int:
        """Return the number of records of the inputs, and of the tables' repartition topics, that are not committed
        yet.
        """
        topics = [self.topics.orders, self.topics.products]
        if self.topics.people:
            topics += [
                self.topics.people,
                *(name for name in self.internal_topics() if not name.endswith("-changelog")),
            ]
        partitions = [RdTopicPartition(name, n) for name in topics for n in range(PARTITIONS)]
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.application_id})
        try:
            ends = sum(
                consumer.get_watermark_offsets(partition, timeout=PATIENCE_SECONDS)[1] for partition in partitions
            )
            committed = consumer.committed(partitions, timeout=PATIENCE_SECONDS)
        finally:
            consumer.close()
        return ends - sum(max(partition.offset, 0) for partition in committed)

    def members(self) -> dict[str, int]:
        """Return the number of tasks, including standbys, for the members of each kind; empty during a rebalance."""
        return {kind: len(placed.active | placed.standby) for kind, placed in self.placed(kind_of).items()}

    def placed(self, name: Callable[[GroupMemberDescription], str]) -> dict[str, Placed]:
        """Return the tasks of the members, merged for equal names; empty during a rebalance."""
        return placed(self.bootstrap, self.application_id, name)

    def shared(self) -> bool:
        """True if members of both kinds have tasks."""
        return all(self.members().values()) and bool(self.members())

    def properties(self, state_dir: str, more: Mapping[str, str] = MappingProxyType({})) -> Path:
        """Write the settings of an instance; more: in the form of the application's, with _ for each dot."""
        own = {name.replace("_", "."): value for name, value in more.items()}
        values = self.config | self.topics.properties() | {"state.dir": str(self.directory / state_dir)} | own
        file = self.directory / f"{state_dir}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        return file

    # -- results

    def _is_processed(self) -> bool:
        """Return True if no record is missing; after a kill with at-least-once, there may be duplicates."""
        return min(self._progress()) >= self.rounds * ORDERS_PER_ROUND

    def _progress(self) -> tuple[int, int]:
        """Return how many orders are counted, and how many were joined."""
        newest = {key: value for key, value, _ in self.rows(self.topics.counts)}
        counted = sum(struct.unpack(">q", value)[0] for value in newest.values() if value)
        return counted, len(self.rows(self.topics.joined))

    def rows(self, topic: str) -> list[Row]:
        found = read_to_end(self.bootstrap, topic)
        return [(message.key(), message.value(), message.timestamp()[1]) for message in found]

    def results(self) -> dict[str, Any]:
        """Return the results that an uninterrupted run gives too: the newest rows of tables, all records of streams."""
        return {
            "counts": newest(self.rows(self.topics.counts)),
            "final": Counter(self.rows(self.topics.final)),
            "joined": Counter(self.rows(self.topics.joined)),
            **{topic: self.changelog(topic) for topic in self.changelogs()},
        }

    def headers(self) -> dict[str, Counter[Any]]:
        """Return the headers of all records of the results, and of the newest rows of changelogs, with the keys."""
        found = {}
        for name in ("final", "joined"):
            records = read_to_end(self.bootstrap, getattr(self.topics, name))
            found[name] = Counter((record.key(), headers_of(record)) for record in records)
        for name in self.changelogs():
            records = read_to_end(self.bootstrap, f"{self.application_id}-{name}")
            newest = {record.key(): record for record in records}
            found[name] = Counter((key, headers_of(row)) for key, row in newest.items() if row.value() is not None)
        return found

    def changelog(self, topic: str) -> dict[bytes | None, Any]:
        table = newest(self.rows(f"{self.application_id}-{topic}"))
        if "FK-JOIN-SUBSCRIPTION-STATE" in topic:
            # Byte 1 is the instruction, which differs if a cache has merged the updates of a key.
            return {key: (row[0][:1], row[0][2:], row[1]) for key, row in table.items() if row[0]}
        if "SUPPRESS" not in topic:
            return dict(table)
        # A suppression's rows have the clock's time, in Java too, and the previous value, which differs with each flush
        # of the cache. The new value with its length, and its due time, are equal.
        return {key: row[0][-NEWEST_AND_TIME_BYTES:] for key, row in table.items() if row[0]}

    def changelogs(self) -> list[str]:
        """Return the changelogs without the application's name."""
        prefix = f"{self.application_id}-"
        return [name.removeprefix(prefix) for name in self.internal_topics() if name.endswith("-changelog")]

    def internal_topics(self) -> dict[str, Any]:
        """Return the ids of the internal topics by name: a recreated topic has another id."""
        prefix = f"{self.application_id}-"
        names = [name for name in self.admin.list_topics(timeout=PATIENCE_SECONDS).topics if name.startswith(prefix)]
        found = self.admin.describe_topics(TopicCollection(names))
        return {name: str(future.result(PATIENCE_SECONDS).topic_id) for name, future in sorted(found.items())}

    def changelog_records(self) -> int:
        """Return the number of records in the changelogs."""
        return sum(len(self.rows(f"{self.application_id}-{name}")) for name in self.changelogs())


def headers_of(record: Message) -> tuple[tuple[str, Any], ...]:
    """Return the headers of a record that was read."""
    return tuple(cast("Headers", record.headers()) or ())


def newest(rows: list[Row]) -> dict[bytes | None, tuple[bytes | None, int]]:
    """Return a table from its changelog."""
    table = {key: (value, at) for key, value, at in rows}
    return {key: row for key, row in table.items() if row[0] is not None}


def uninterrupted(application: Handover, reference: Handover) -> dict[str, Any]:
    """Let Java process all of the input at once, in another application, and return the results."""
    reference.rounds = application.rounds
    process = reference.java.start(reference.properties("java"))
    reference.settle()
    process.stop()
    expected = reference.results()
    assert all(rows for rows in expected.values()), "everything has something to compare"
    return expected


def assert_as_one_uninterrupted_run(application: Handover, reference: Handover) -> None:
    """Compare everything with Java's results in another application."""
    expected, found = uninterrupted(application, reference), application.results()
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert found[name] == rows, f"{name} differs: {differing(found[name], rows)}"


def differing(found: Mapping[Any, Any], expected: Mapping[Any, Any]) -> str:
    """Return some of the differing rows: key, found, expected."""
    keys = sorted((key for key in {*found, *expected} if found.get(key) != expected.get(key)), key=str)
    return "; ".join(f"{key}: {found.get(key)} instead of {expected.get(key)}" for key in keys[:5])


def assert_nothing_is_lost(application: Handover, reference: Handover) -> None:
    """Compare what must hold after a kill with at-least-once: records may be counted, and may appear, twice."""
    expected, found = uninterrupted(application, reference), application.results()
    assert found.keys() == expected.keys()
    assert not expected["joined"] - found["joined"]
    assert {key for key, _, _ in expected["final"]} <= {key for key, _, _ in found["final"]}
    for name in expected.keys() - {"joined", "final"}:
        assert found[name].keys() == expected[name].keys(), f"{name} differs"
    assert all(found["counts"][key][0] >= count for key, (count, _) in expected["counts"].items())
