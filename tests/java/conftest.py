"""Java programs, and applications that they share with Penstock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ResourceType

from benchmarks.systems import compile_java
from penstock.pipeline.java.jar_lock import fetch_jars, read_lock
from penstock.pipeline.java.java_runtime import JavaNotFoundError, find_java
from tests import short_lived_jvms
from tests.java.handover import PARTITIONS, Handover, Java
from tests.java.program import Topics
from tests.java.versions import STREAMS_PROTOCOL_SINCE, chosen_lock, is_since
from tests.topics import delete_topics
from tests.waiting import change_settings

SOURCE = Path(__file__).parent / "TakeoverProgram.java"
TEST_UTILS = Path(__file__).parent / "test-utils.lock"

MakeHandover = Callable[..., Handover]


def kafka_streams_jars() -> tuple[Path, str]:
    """Return a Java with a compiler, and the class path of Kafka Streams; skips the test where there is no JDK."""
    try:
        java = find_java()
    except JavaNotFoundError as error:
        pytest.skip(f"needs a JDK to compile and run a Kafka Streams program: {error}")
    if not java.resolve().with_name("javac").exists():
        pytest.skip(f"needs a JDK to compile and run a Kafka Streams program: no javac beside {java}")
    jars = fetch_jars(read_lock(chosen_lock()))
    return java, os.pathsep.join(map(str, jars))


def driver_program(source: Path, classes: Path) -> list[str]:
    """Compile a program that uses Java's TopologyTestDriver into a folder, and return its command; skips as above."""
    java, class_path = kafka_streams_jars()
    everything = os.pathsep.join([class_path, *map(str, fetch_jars(read_lock(TEST_UTILS)))])
    compile_java(java, source, classes, everything)
    options = ("-Xmx512m", *short_lived_jvms.OPTIONS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
    return [str(java), *options, "-cp", f"{classes}{os.pathsep}{everything}", source.stem]


def configure(admin: AdminClient, group: str, config: Mapping[str, str]) -> None:
    """Give a group with broker-side assignment the settings that members of other groups have themselves."""
    keys = ("session.timeout.ms", "heartbeat.interval.ms", "num.standby.replicas")
    change_settings(admin, ResourceType.GROUP, group, {f"streams.{key}": config.get(key, "0") for key in keys})


@pytest.fixture
def handover(
    java: Java,
    bootstrap_servers: str,
    unique_name: Callable[[str], str],
    make_topic: Callable[..., str],
    admin: AdminClient,
    tmp_path: Path,
) -> Iterator[MakeHandover]:
    """Make applications that read the same input: ``handover("purpose", **config)``; with_people: a larger topology."""
    orders, products, people = (make_topic(name, PARTITIONS) for name in ("orders", "products", "people"))
    made: list[Handover] = []

    def make(purpose: str, with_people: bool = False, **config: str) -> Handover:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        if settings.get("group.protocol") == "streams" and not is_since(STREAMS_PROTOCOL_SINCE):
            pytest.skip("this version of Kafka Streams has no streams groups")
        outputs = {name: make_topic(f"{purpose}-{name}", PARTITIONS) for name in ("counts", "final", "joined")}
        directory = tmp_path / purpose
        directory.mkdir()
        topics = Topics(orders, products, people=people if with_people else "", **outputs)
        made.append(Handover(java, bootstrap_servers, unique_name(purpose), topics, directory, **settings))
        if settings.get("group.protocol") == "streams":
            configure(admin, made[-1].application_id, made[-1].config)
        return made[-1]

    yield make
    delete_topics(admin, *(name for application in made for name in application.internal_topics()))


@pytest.fixture(scope="session")
def java_command(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the program; skips the test where there is no JDK."""
    classes = tmp_path_factory.mktemp("classes")
    java, class_path = kafka_streams_jars()
    compile_java(java, SOURCE, classes, class_path)
    log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
    options = ("-Xmx1g", *short_lived_jvms.OPTIONS)
    return [str(java), *options, log, "-cp", f"{classes}{os.pathsep}{class_path}", "TakeoverProgram"]


@pytest.fixture
def java(java_command: list[str]) -> Iterator[Java]:
    made = Java(java_command)
    yield made
    for instance in made.running:
        if instance.process.poll() is None:
            instance.kill()
