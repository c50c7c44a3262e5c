"""Stores with headers (KIP-1271) on Java and on Penstock: reads and changelogs have the same bytes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Producer

from penstock.supervisor.exit_codes import ExitCode
from penstock.topology.records import Headers
from tests.java.conftest import driver_program
from tests.java.handover import ROOT, START_MS, Java
from tests.java.headers_program import hexadecimal, parsed, record, shown_headers
from tests.java.versions import is_since
from tests.read_to_end import read_to_end
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_since((4, 4)), reason="this version of Kafka Streams has no stores with headers"),
]
#: Commands: see HeadersProgram. they have all kinds of headers: repeated, null, empty, and not ASCII.
COMMANDS = [
    *("a value 5 h=31", "a other 3", "b more 14 x y=32 x= é=c3a9", "a null 12 h=33", "a absent 12 n=34"),
    *("a absent 13 n=35", "b delete 15 t=36", "b delete 15", "c read 25 r=37", "c more2 26 h=38", "c null 27 z=39"),
    f"d long 31 h={'00' * 300}",
]
#: Commands that Penstock gets after Java has stopped, and Java after Penstock has.
READS = ["a read 40", "b read 41", "d read 42"]
MORE = ["a more 50 p=31 p=32", "d null 31 q=33", "e value 52 x"]
READS_AGAIN = ["a read 60", "d read 61", "e read 62"]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the program, and return its command; skips the test where there is no JDK."""
    return driver_program(Path(__file__).with_name("HeadersProgram.java"), tmp_path_factory.mktemp("classes"))


@pytest.fixture
def java(program: list[str]) -> Iterator[Java]:
    made = Java(program)
    yield made
    for instance in made.running:
        if instance.process.poll() is None:
            instance.kill()


def written(directory: Path, name: str, config: dict[str, str]) -> Path:
    """Write the settings of an instance."""
    file = directory / f"{name}.properties"
    values = config | {"state.dir": str(directory / name)}
    file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    return file


def of_today(command: str) -> str:
    """Return a command at a time of today: the broker deletes windows' changelogs by the age of records."""
    key, value, timestamp, *headers = command.split(" ")
    return " ".join((key, value, str(START_MS + int(timestamp)), *headers))


@pytest.mark.parametrize("caching", ["true", "false"])
def test_a_test_driver_has_the_same_results(program: list[str], caching: str, tmp_path: Path) -> None:
    config = {
        "application.id": "app",
        "bootstrap.servers": "unused:1",
        "headers.input": "in",
        "headers.output": "out",
        "headers.caching": caching,
    }
    commands = tmp_path / "commands"
    commands.write_text("".join(f"{line}\n" for line in COMMANDS))
    run = subprocess.run(
        [*program, str(written(tmp_path, "java", config)), str(commands)], capture_output=True, check=True, cwd=ROOT
    )
    assert record(config, COMMANDS) == run.stdout.decode().splitlines()


@pytest.mark.broker
def test_changelogs_of_both_are_restored_by_the_other(
    java: Java,
    bootstrap_servers: str,
    application_id: str,
    make_topic: Callable[..., str],
    tmp_path: Path,
) -> None:
    source, target = make_topic("commands"), make_topic("results")
    config = {
        "application.id": application_id,
        "bootstrap.servers": bootstrap_servers,
        "headers.input": source,
        "headers.output": target,
        "headers.caching": "true",
        "statestore.cache.max.bytes": "0",
        "commit.interval.ms": "100",
        "session.timeout.ms": "3000",
        "heartbeat.interval.ms": "300",
    }
    first, reads, more, reads_again = (list(map(of_today, some)) for some in (COMMANDS, READS, MORE, READS_AGAIN))
    expected = record(config, [*first, *reads, *more, *reads_again])
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    done = 0

    def feed(commands: list[str]) -> None:
        nonlocal done
        for line in commands:
            key, value, timestamp, headers = parsed(line)
            producer.produce(source, value, key, timestamp=timestamp, headers=[*headers])
        assert producer.flush(PATIENCE_SECONDS) == 0
        done += len(commands)
        eventually(lambda: len(lines(target)) == done, lambda: lines(target), PATIENCE_SECONDS)

    def lines(*topics: str) -> list[str]:
        return [
            f"{one.topic()} {hexadecimal(one.key())} {hexadecimal(one.value())} {one.timestamp()[1]} "
            f"{shown_headers(cast('Headers', one.headers()))}"
            for one in read_to_end(bootstrap_servers, *topics)
        ]

    instance = java.start(written(tmp_path, "java", config))
    feed(first)
    instance.stop()
    command = [sys.executable, "-m", "tests.java.headers_program", str(written(tmp_path, "penstock", config))]
    instance = java.launch(command, tmp_path / "penstock.properties", (int(ExitCode.OK),))
    feed(reads)
    feed(more)
    instance.stop()
    shutil.rmtree(tmp_path / "java")
    instance = java.start(tmp_path / "java.properties")
    feed(reads_again)
    instance.stop()

    assert lines(target) == [line for line in expected if line.startswith(f"{target} ")]
    for topic in sorted({line.partition(" ")[0] for line in expected} - {target}):
        assert lines(topic) == [line for line in expected if line.startswith(f"{topic} ")], topic
