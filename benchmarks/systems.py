"""The measured systems, each as its own users would run it: Penstock, Kafka Streams, and Python libraries."""

from __future__ import annotations

import compileall
import os
import re
import shutil
import socket
import subprocess
import sys
import venv
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from typing_extensions import override

import penstock
from benchmarks.data import CODEC
from benchmarks.measure import BenchmarkError
from benchmarks.python_build import is_plain_build
from penstock.dev.dev_broker import DevBroker
from penstock.pipeline.java.jar_lock import fetch_jars, read_lock
from penstock.pipeline.java.java_runtime import find_java

HERE = Path(__file__).resolve().parent
THREADS = 2
#: Common settings, by Kafka Streams' names; all others have each system's own default.
COMMON_CONFIG = {
    "num.stream.threads": str(THREADS),
    "commit.interval.ms": "1000",
    "replication.factor": "1",
    "producer.linger.ms": "50",
    "producer.batch.size": "262144",
    "producer.compression.type": CODEC,
}
#: Measured, the fastest choice on two cores: G1 and larger heaps take more CPU and up to 3 GB.
JVM_OPTIONS = ("-XX:+UseParallelGC", "-Xmx1g")
#: Options of javac, which ends before better code of it would help.
QUICK_COMPILER = "-J-XX:TieredStopAtLevel=1"


#: Kafka's default; the dev broker's is 0. Members that start together then form the first generation of their group
#: together, as on other brokers: Faust counts some records twice if its second process joins later.
FOR_PEERS = {"group.initial.rebalance.delay.ms": "3000"}


@contextmanager
def broker(name: str, directory: Path, config: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the address of the broker in $KAFKA_BOOTSTRAP_SERVERS, otherwise of a dev broker for the length of the
    block.

    config: the dev broker's own settings. Only its log is kept, because its topics may fill the disk.
    """
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield given
    else:
        try:
            with DevBroker(name, directory / "broker", config=config) as started:
                yield started.bootstrap_servers
        finally:
            shutil.rmtree(directory / "broker" / "data", ignore_errors=True)


class Named(Protocol):
    """A scenario of any kind."""

    @property
    def name(self) -> str:
        """Its name in System.scenarios."""


class System(ABC):
    """One way to run the benchmark's topologies."""

    name: str
    #: Whether each stream thread is a separate process.
    threads_are_processes = False
    #: The supported scenarios, None for all.
    scenarios: tuple[str, ...] | None = None
    #: The share of the records that it gets: enough for several of its commits, but not for minutes. shares: exceptions
    #: by scenario.
    share_of_records = 1.0
    shares: Mapping[str, float] = {}
    #: Whether a benchmark in which it fails or gives wrong results counts as a success.
    dispensable = False

    def share(self, scenario: Named) -> float:
        """Return its share of the records in a scenario."""
        return self.shares.get(scenario.name, self.share_of_records)

    @abstractmethod
    def command(self, topology: str, properties: Path) -> list[str]:
        """Return the command that runs a topology with the settings in a properties file, until SIGTERM."""

    @property
    def config(self) -> Mapping[str, str]:
        """Settings of this system only."""
        return {}

    def host_config(self) -> Mapping[str, str]:
        """Return the settings of one of several hosts that must take over from each other quickly."""
        return {}

    @property
    @abstractmethod
    def version(self) -> str:
        """Name and version."""


class Penstock(System):
    """This project."""

    name = "Penstock"
    threads_are_processes = True
    #: The module of its topologies.
    module = "benchmarks.topologies"

    def __init__(self) -> None:
        compile_python(Path(penstock.__file__).parent)
        compile_python(HERE)

    @override
    def command(self, topology: str, properties: Path) -> list[str]:
        return [sys.executable, "-m", "benchmarks.penstock_program", f"{self.module}:{topology}", str(properties)]

    @override
    def host_config(self) -> Mapping[str, str]:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        watched = {"penstock.http.port": str(port), "penstock.host.watch": "true"}
        return {"application.server": f"127.0.0.1:{port}", **watched}

    @property
    @override
    def version(self) -> str:
        return f"Penstock on Python {sys.version.split()[0]}{' (a plain build)' if is_plain_build() else ''}"


class PenstockDicts(Penstock):
    """Penstock with dicts as values, as in Python's other libraries, instead of typed objects."""

    name = "Penstock with dicts"
    scenarios = ("map-filter", "table-join")

    @override
    def command(self, topology: str, properties: Path) -> list[str]:
        return super().command(f"{topology}_dicts", properties)

    @property
    @override
    def version(self) -> str:
        return self.name


class KafkaStreams(System):
    """Kafka Streams, from the jars in its lock file, with a program that is compiled here."""

    name = "Kafka Streams"

    def __init__(self, work_directory: Path) -> None:
        lock = read_lock(HERE / "kafka_streams" / "kafka_streams.lock")
        self._java = find_java()
        self._version = next(jar.version for jar in lock if jar.name == "kafka-streams")
        class_path = os.pathsep.join(map(str, fetch_jars(lock)))
        classes = work_directory / "classes"
        compile_java(self._java, HERE / "kafka_streams" / "KafkaStreamsBenchmark.java", classes, class_path)
        self._class_path = f"{classes}{os.pathsep}{class_path}"

    @override
    def command(self, topology: str, properties: Path) -> list[str]:
        log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        program = ["-cp", self._class_path, "KafkaStreamsBenchmark", topology, str(properties)]
        return [str(self._java), *JVM_OPTIONS, log, *program]

    @property
    def config(self) -> Mapping[str, str]:
        """Larger polls than the default of 1,000 records, as recommended by most guides for more throughput."""
        return {"consumer.max.poll.records": "10000"}

    @property
    @override
    def version(self) -> str:
        return f"Kafka Streams {self._version}"


class Peer(System):
    """Another Python library, from the pins in its lock file, in an environment that is created here."""

    #: Its name on the package index; its program and its pins, in the folder ``peers``.
    package: str
    program: str
    pins: str
    dispensable = True

    def __init__(self, work_directory: Path) -> None:
        requirements = HERE / "peers" / self.pins
        self._python = environment(work_directory / self.package, requirements, self.name)
        found = re.search(rf"^{self.package}==(.*)$", requirements.read_text("utf-8"), re.MULTILINE)
        assert found is not None
        self._version = f"{self.name} {found[1]}"

    @override
    def command(self, topology: str, properties: Path) -> list[str]:
        launcher = HERE / "peers" / "two_processes.py"
        return [str(self._python), str(launcher), str(HERE / "peers" / self.program), topology, str(properties)]

    @property
    @override
    def version(self) -> str:
        return self._version


class QuixStreams(Peer):
    """Quix Streams; its joins are as-of joins, which keep rows for a time."""

    name = "Quix Streams"
    package, program, pins = "quixstreams", "quix_streams.py", "quix_streams.txt"
    scenarios: tuple[str, ...] | None = (
        "count",
        "count-uncached",
        "exactly-once",
        "windowed-count",
        "map-filter",
        "table-join",
    )
    # By default its commits are five seconds apart: with a third of these, a count ended before the second commit.
    share_of_records = 0.3
    shares: Mapping[str, float] = {"count": 0.12, "exactly-once": 0.12, "map-filter": 0.4}


class QuixColumns(QuixStreams):
    """Quix Streams, with columns instead of functions."""

    name = "Quix Streams in columns"
    scenarios = ("map-filter",)

    @override
    def command(self, topology: str, properties: Path) -> list[str]:
        return super().command(f"{topology}_columns", properties)


class Faust(Peer):
    """Faust, as maintained by faust-streaming.

    It has no joins; its exactly_once fails at the first rebalance, and without it some records are counted twice there.
    """

    name = "Faust"
    package, program, pins = "faust-streaming", "faust_streaming.py", "faust.txt"
    scenarios = ("count", "windowed-count", "map-filter")
    share_of_records = 0.04
    shares: Mapping[str, float] = {"count": 0.012}


class ByHand(Peer):
    """A hand-written loop over confluent-kafka, without a library for stream processing."""

    name = "confluent-kafka by hand"
    package, program, pins = "confluent-kafka", "confluent_kafka_loop.py", "confluent_kafka.txt"
    scenarios = ("map-filter",)
    share_of_records = 0.5


def peers(work_directory: Path) -> list[System]:
    """Return the other Python libraries, and Penstock used in the same way; BenchmarkError if one cannot be
    installed.
    """
    return [PenstockDicts(), *(system(work_directory) for system in (QuixStreams, QuixColumns, Faust, ByHand))]


def environment(directory: Path, requirements: Path, name: str) -> Path:
    """Return the Python of an environment with these requirements, created unless it exists; raises BenchmarkError."""
    python = directory / "bin" / "python"
    if not directory.exists():  # two systems may use one package
        venv.create(directory, with_pip=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(requirements)]
        if subprocess.run(install, check=False).returncode:
            raise BenchmarkError(f"{name} cannot be installed: see above")
    return python


def compile_python(package: Path) -> None:
    """Compile a package, as pip does during an installation: otherwise each process compiles it during the
    measurement.
    """
    rooms = (path for path in package.iterdir() if path.is_symlink())  # of a checkout; compileall follows none
    for folder in (package, *rooms):
        compileall.compile_dir(folder, quiet=1)


def compile_java(java: Path, source: Path, classes: Path, class_path: str) -> None:
    """Compile one program into the folder classes with the javac of a JDK; raises BenchmarkError without one."""
    beside = java.resolve().with_name("javac")
    javac = str(beside) if beside.exists() else shutil.which("javac")
    if javac is None:
        raise BenchmarkError(f"no javac beside {java} or on the PATH: a JDK is needed, not just a JRE")
    command = [javac, QUICK_COMPILER, "-d", str(classes), "-cp", class_path, str(source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise BenchmarkError(f"{source.name} does not compile:\n{result.stderr}")
