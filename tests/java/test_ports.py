"""Seven programs of others on Java and ported to Penstock: the same input gives the same bytes in all topics.

They use features that were once missing: stores of one's own, stores and suppression with headers, anchored
punctuation, partitioners that multicast and drop, client suppliers.
"""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from penstock import KafkaStreams, Serdes
from penstock.testing import TopologyTestDriver
from tests.java.conftest import driver_program
from tests.java.ports import PROGRAMS, WITH_HEADERS, MarkingClients, TopFive, broadcast
from tests.java.versions import is_since
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not is_since((4, 4)), reason="they use interfaces of 4.4")]
STEPS = 80
WORDS = ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"]


def hexed(data: bytes | None) -> str:
    return "null" if data is None else data.hex()


def line(topic: str, key: str, value: bytes | None, timestamp: int, headers: str = "") -> str:
    return f"{topic} {key.encode().hex()} {hexed(value)} {timestamp}{headers}"


def phrase(chance: random.Random) -> bytes:
    return " ".join(chance.choices(WORDS, k=chance.randrange(1, 5))).encode()


def counting(chance: random.Random) -> Iterator[str]:
    for number in range(STEPS):
        yield line("in", "k", phrase(chance), number)


def music(chance: random.Random) -> Iterator[str]:
    for number in range(10):
        yield line("songs", f"s{number}", f"Song {number}/{chance.choice(['punk', 'ska'])}".encode(), number)
    for number in range(STEPS):
        seconds = chance.choice([10_000, 30_000, 40_000])
        yield line("plays", "eu", f"s{chance.randrange(11)}/{seconds}".encode(), 100 + number)


def joined(chance: random.Random) -> Iterator[str]:
    for _ in range(STEPS):
        key, time = chance.choice("abc"), chance.randrange(4_000)
        if chance.random() < 0.4:
            value = None if chance.random() < 0.2 else struct.pack(">q", chance.randrange(100))
            yield line("table", key, value, time)
        else:
            yield line("stream", key, struct.pack(">d", chance.randrange(1_000) / 4 + 0.25), time)


def hours(chance: random.Random) -> Iterator[str]:
    for number in range(STEPS):
        if chance.random() < 0.4:
            yield f"advance {chance.choice([60_000, 1_000_000, 3_600_000, 9_000_000])}"
        else:
            yield line("in", "k", phrase(chance), number * chance.randrange(100_000))


def headers(chance: random.Random) -> str:
    return "".join(f" h{n}={chance.choice(['null', '00', 'ff01'])}" for n in range(chance.randrange(3)))


def results(chance: random.Random) -> Iterator[str]:
    for number in range(STEPS):
        yield line(
            "in", chance.choice("abcde"), chance.choice("xyz").encode(), number + chance.randrange(12), headers(chance)
        )


def events(chance: random.Random) -> Iterator[str]:
    for number in range(STEPS):
        yield line("in", chance.choice("abc"), chance.choice("xyz").encode(), 20 * number, headers(chance))


INPUTS: dict[str, Callable[[random.Random], Iterator[str]]] = {
    "probabilistic_counting": counting,
    "kafka_music": music,
    "custom_join": joined,
    "hourly_reports": hours,
    "final_results": results,
    "audit": events,
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return driver_program(Path(__file__).with_name("PortsProgram.java"), tmp_path_factory.mktemp("classes"))


def printed(driver: TopologyTestDriver) -> Iterator[str]:
    for topic in sorted(driver.produced_topic_names()):
        for record in driver.create_output_topic(topic, Serdes.bytes(), Serdes.bytes()).read_records_to_list():
            marks = "".join(f" {name}={hexed(value)}" for name, value in record.headers or ())
            yield f"{topic} {hexed(record.key)} {hexed(record.value)} {record.timestamp}{marks}"


def shown(value: Any) -> Any:
    return value.write().hex() if isinstance(value, TopFive) else value


def stores(driver: TopologyTestDriver) -> Iterator[str]:
    for name in sorted(driver.get_all_state_stores()):
        store = driver.get_key_value_store(name)
        if store is not None:
            yield f"{name} [{', '.join(sorted(f'{key}={shown(value)}' for key, value in store.all()))}]"


def by_penstock(name: str, lines: list[str]) -> list[str]:
    config = {"application.id": "port", "statestore.cache.max.bytes": 0}
    config |= {"dsl.store.format": "HEADERS" if name in WITH_HEADERS else "DEFAULT"}
    config |= {"default.key.serde": "string", "default.value.serde": "string"}
    found = []
    with TopologyTestDriver(PROGRAMS[name](), config, initial_wall_clock_ms=1_000) as driver:
        for command in lines:
            first, *rest = command.split(" ")
            if first == "advance":
                driver.advance_wall_clock_time(int(rest[0]))
            else:
                key, value, timestamp, *marks = rest
                pairs = [mark.split("=") for mark in marks]
                driver.create_input_topic(first, Serdes.bytes(), Serdes.bytes()).pipe_input(
                    key=unhexed(key),
                    value=unhexed(value),
                    timestamp=int(timestamp),
                    headers=[(header, unhexed(text)) for header, text in pairs],
                )
            found += [*printed(driver), "--"]
        found += stores(driver)
    return found


def unhexed(text: str) -> bytes | None:
    return None if text == "null" else bytes.fromhex(text)


def steps(printed: list[str]) -> list[list[str]]:
    """Return the lines of each step; a buffer logs the changes of a commit in an order that Java's hashes determine."""
    parts = "\n".join(printed).split("--\n")
    return [
        [line for line in part.splitlines() if "-store-changelog " not in line]
        + sorted(line for line in part.splitlines() if "-store-changelog " in line)
        for part in parts
    ]


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("seed", range(3))
def test_a_ported_program_writes_what_the_original_writes(
    program: list[str], name: str, seed: int, tmp_path: Path
) -> None:
    lines = list(INPUTS[name](random.Random(seed)))
    file = tmp_path / "input"
    file.write_text("\n".join(lines))
    run = subprocess.run(
        [*program, name, str(file), str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert run.returncode == 0, run.stderr
    expected = run.stdout.splitlines()
    assert steps(by_penstock(name, lines)) == steps(expected)
    assert len(expected) > len(lines) + 15, "it writes something"


PARTITIONS = 3
VALUES = [f" {kind} {number}" for number in range(10) for kind in ("alert", "drop", "note")]
#: Alerts are in each partition, the dropped records in none.
EXPECTED = 10 * PARTITIONS + 10


def feed(servers: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for number, value in enumerate(VALUES):
        producer.produce(
            topic, value, f"k{number % 7}", number % PARTITIONS, timestamp=1_000 + number, headers=[("h", b"1")]
        )
    assert producer.flush(PATIENCE_SECONDS) == 0


def records(servers: str, topic: str) -> list[list[Any]]:
    """Return the records of each partition, in the order of their timestamps: several tasks write to each."""
    found: list[list[Any]] = [[] for _ in range(PARTITIONS)]
    reader = Consumer({"bootstrap.servers": servers, "group.id": "ports"})
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])

    def read() -> bool:
        for message in reader.consume(100, 0.2):
            assert message.error() is None
            assert message.partition() is not None
            found[message.partition()].append(  # type: ignore[index]
                (message.timestamp()[1], message.key(), message.value(), message.headers())
            )
        return sum(map(len, found)) >= EXPECTED

    eventually(read, lambda: found)
    reader.close()
    return [sorted(partition) for partition in found]


@pytest.mark.broker
def test_alerts_reach_all_partitions_by_marking_clients(
    program: list[str],
    bootstrap_servers: str,
    make_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    source, by_java, by_us = (make_topic(name, PARTITIONS) for name in ("in", "java", "penstock"))
    feed(bootstrap_servers, source)
    common = {"bootstrap.servers": bootstrap_servers, "commit.interval.ms": 100, "auto.offset.reset": "earliest"}
    config = {**common, "application.id": unique_name("java"), "ports.input": source, "ports.output": by_java}
    file = tmp_path / "program.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in {**config, "state.dir": tmp_path / "j"}.items()))
    java = subprocess.Popen([*program, "broadcast", str(file)])
    try:
        theirs = records(bootstrap_servers, by_java)
    finally:
        java.terminate()
        java.wait(PATIENCE_SECONDS)
    ours = {**common, "application.id": unique_name("penstock"), "state.dir": str(tmp_path / "p")}
    with KafkaStreams(broadcast(source, by_us), {**ours, "default.client.supplier": MarkingClients}) as streams:
        streams.start()
        found = records(bootstrap_servers, by_us)
    assert found == theirs
    assert all(sum(record[2].startswith(b"alert") for record in partition) == 10 for partition in found)
    assert {mark for partition in found for record in partition for mark in record[3]} == {
        ("h", b"1"),
        ("traced", b"yes"),
    }
