"""A real Kafka for development, tests and the demo: one node in KRaft mode, from the jars of a lock file.

``penstock broker start`` runs it in the background; ``DevBroker`` does the same from Python. A broker's files are in
one folder: ``data``, ``server.properties``, a file for its logging, ``broker.log`` and ``state.json`` with its process
and version of Kafka.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import psutil
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.dev.class_data import ClassDataArchive, keep_archives, writes_archive
from penstock.pipeline.java.java_runtime import find_java
from penstock.statestore.directory.own_files import check_folder, write_atomically
from penstock.statestore.directory.state_directory import FileLock
from penstock.topology.errors import PenstockError, ProcessorStateError

from . import kafka_distribution

logger = logging.getLogger(__name__)

#: The default broker of commands, and its preferred port, which is Kafka's default. Other brokers do not use that port.
DEFAULT_NAME, DEFAULT_PORT = "dev", 9092
#: The version of MemoryBroker.
IN_MEMORY = "in memory"
HOST = "127.0.0.1"  # never reachable from outside: the broker does not authenticate clients
START_TIMEOUT_SECONDS = 60.0  # it takes about three; more on a busy machine
STOP_TIMEOUT_SECONDS = 20.0  # for a clean shutdown, before SIGKILL
ARCHIVE_TIMEOUT_SECONDS = 60.0  # to write the class data after the shutdown; three seconds on a quiet machine
POLL_SECONDS = 0.05
ANSWER_TIMEOUT_SECONDS = 5.0
MINIMUM_FREE_BYTES = 256 * 1024 * 1024  # internal topics and a little data; an index file alone is 10 MB
#: A port of a broker that has no other. The system gives higher ones to connections of all programs: a broker that is
#: down for a moment would lose its port to one of them.
PORTS = range(20_000, 32_000)
PORT_ATTEMPTS = 3  # a free port may be taken between the check and the broker's start
LOG_TAIL_LINES = 15

JVM_OPTIONS = ("-XX:+UseSerialGC", "-Djava.awt.headless=true")
#: More options for the JVM, as Kafka's own scripts take them: separated by spaces, the last one wins.
OPTIONS_VARIABLE = "KAFKA_OPTS"

#: One node holds all replicas, and there are no waits for members or replicas that never join.
BROKER_CONFIG = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "BROKER",
    "controller.listener.names": "CONTROLLER",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "auto.create.topics.enable": "false",  # a misspelled topic is an error, and Penstock creates its own topics
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",  # 50 by default: too many files for a handful of groups
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # Classic, consumer, share and streams groups need no setting: Kafka 4.4 formats its storage with all of them on.
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",  # 6000 by default: tests of a lost member would take that long
    "group.streams.min.session.timeout.ms": "1000",  # 45000 by default; a group may then set a short one for itself
    "group.streams.min.heartbeat.interval.ms": "100",  # 5000 by default, likewise
    "log.retention.ms": "-1",  # records of recorded data sets carry old timestamps and would be deleted at once
}

#: Python code that has Linux send a SIGTERM when its parent ends, and then executes the command in its arguments. It
#: exits if the parent has ended before that. On other systems the command may outlive its parent.
DIE_WITH_PARENT = """\
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

#: Explanations of lines of the broker's log.
DIAGNOSES = {
    "Address already in use": "a port is in use: choose another with --port, or leave the choice to Penstock",
    "No space left on device": "the disk is full: free some space, or choose another --directory",
    "Failed to acquire lock on file": "another Kafka uses the same data: stop it, or choose another --directory",
    "OutOfMemoryError": "the broker ran out of memory",
}


class DevBrokerError(PenstockError):
    """The dev broker cannot be started, stopped or reached; the message says why and where its log is."""


class _PortTakenError(DevBrokerError):
    """A port was taken while the broker started."""


@dataclass(frozen=True, slots=True)
class _Process:
    """The content of state.json. created (s since the epoch) detects a later process with the same pid.

    kafka: its version; the newest if the file has none.
    """

    pid: int
    created: float
    port: int
    controller_port: int
    kafka: str = field(default_factory=kafka_distribution.newest)

    def find(self) -> psutil.Process | None:
        """Return the live process, None if it has ended."""
        try:
            process = psutil.Process(self.pid)
            if process.create_time() == self.created and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.NoSuchProcess:
            pass
        return None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The data of ``penstock broker status``. pid and bootstrap_servers are None unless the broker runs."""

    name: str
    running: bool
    bootstrap_servers: str | None
    pid: int | None
    kafka_version: str
    directory: Path
    log_file: Path


class DevBroker:
    """One broker, identified by its name. As a context manager, it runs for the duration of the block.

    name: distinguishes brokers of one user. directory: the folder of its files, by default
    ``$XDG_STATE_HOME/penstock/brokers/<name>`` (``~/.local/state`` if that is unset). port: a fixed port on 127.0.0.1;
    by default the first free one of: the last one, 9092 for the broker ``dev``, any. config: more broker settings, by
    Kafka's names. kafka: a version of kafka_distribution.distributions(), by default the last one, that of
    $KAFKA_VERSION, or the newest. A newer version can open the data of an older one, not the reverse. $KAFKA_OPTS:
    options of its JVM.
    """

    #: The JVM's memory limits, and the address that it listens on.
    memory_options: tuple[str, ...] = ("-Xmx1g",)
    host = HOST

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        directory: Path | str | None = None,
        *,
        port: int | None = None,
        config: Mapping[str, str] | None = None,
        kafka: str | None = None,
    ) -> None:
        self.name = name
        self.directory = Path(directory).absolute() if directory else _state_home() / "brokers" / name
        self._port = port
        self._config = dict(config or {})
        self._kafka = kafka

    def __enter__(self) -> Self:
        self.start(detached=False)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """Return ``host:port``; raises DevBrokerError if the broker does not run."""
        address = self.status().bootstrap_servers
        if address is None:
            raise DevBrokerError(f"broker {self.name!r} does not run: start it with `penstock broker start`")
        return address

    @property
    def log_file(self) -> Path:
        """Return the broker's own log file of this run; ``broker.log.1`` beside it is from the previous run."""
        return self.directory / "broker.log"

    @property
    def kafka_version(self) -> str:
        """Return the version of Kafka that the broker runs or would run."""
        recorded = self._recorded()
        return self._kafka or (recorded.kafka if recorded else kafka_distribution.preferred())

    def start(self, timeout: float = START_TIMEOUT_SECONDS, *, detached: bool = True) -> str:
        """Start the broker unless it runs, wait until it serves, and return its bootstrap servers.

        timeout: seconds from its process's start to its first response. detached: it continues when this process ends;
        otherwise it ends with the thread that started it, even if that is killed (on Linux). Raises DevBrokerError,
        JavaNotFoundError, JarError.
        """
        with self._exclusive():
            running = self._running()
            if running:
                self._check_is_meant(running)
                return f"{self.host}:{running.port}"
            self._check_disk()
            for attempt in range(1, PORT_ATTEMPTS + 1):
                try:
                    return self._launch(timeout, detached)
                except _PortTakenError:
                    if self._port is not None or attempt == PORT_ATTEMPTS:
                        raise
                    logger.info("A port of broker %s was taken while it started; trying others", self.name)
        raise AssertionError("the last attempt returns or raises")

    def stop(self, timeout: float = STOP_TIMEOUT_SECONDS) -> bool:
        """Stop the broker cleanly, with SIGKILL if that takes longer than timeout seconds; False if it did not run.

        The first broker with its version of Kafka gets another ARCHIVE_TIMEOUT_SECONDS to write the class data.
        """
        with self._exclusive():
            running = self._running()
            if running is None:
                return False
            self._end(running, timeout)
            return True

    def delete_data(self) -> None:
        """Delete the broker's folder; raises DevBrokerError while it runs."""
        if self.directory.exists():
            with self._exclusive():
                if self._running():
                    raise DevBrokerError(f"broker {self.name!r} runs: stop it before its data is deleted")
                shutil.rmtree(self.directory)

    def status(self) -> BrokerStatus:
        """Return whether the broker runs, and where."""
        running = self._running()
        return BrokerStatus(
            name=self.name,
            running=running is not None,
            bootstrap_servers=f"{self.host}:{running.port}" if running else None,
            pid=running.pid if running else None,
            kafka_version=running.kafka if running else self.kafka_version,
            directory=self.directory,
            log_file=self.log_file,
        )

    # -- the state file

    @property
    def _state_file(self) -> Path:
        return self.directory / "state.json"

    def _recorded(self) -> _Process | None:
        try:
            return _Process(**json.loads(self._state_file.read_text("utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            logger.warning("%s is not readable: assuming that the broker does not run", self._state_file)
            return None

    def _running(self) -> _Process | None:
        recorded = self._recorded()
        return recorded if recorded and recorded.find() else None

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Allow only one caller at a time to start or stop this broker."""
        with self._folder_errors():
            self.directory.mkdir(parents=True, exist_ok=True)
            check_folder(self.directory, "--directory")
            lock = FileLock(self.directory / "lock", f"broker {self.name!r} is being started or stopped", wait=True)
        with lock:
            yield

    @contextmanager
    def _folder_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ProcessorStateError) as error:
            raise DevBrokerError(f"cannot use the folder {self.directory} for broker {self.name!r}: {error}") from error

    # -- starting

    def _check_is_meant(self, running: _Process) -> None:
        """Raise DevBrokerError if the running broker does not have the requested port and version."""
        if self._port not in (None, running.port):
            is_not = f"on port {running.port}, not {self._port}"
        elif self._kafka not in (None, running.kafka):
            is_not = f"with Kafka {running.kafka}, not {self._kafka}"
        else:
            return
        raise DevBrokerError(f"broker {self.name!r} runs already, {is_not}: stop it, or use another --name")

    def _check_disk(self) -> None:
        free = shutil.disk_usage(self.directory).free
        if free < MINIMUM_FREE_BYTES:
            raise DevBrokerError(
                f"only {free // 2**20} MB are free at {self.directory} and the broker needs "
                f"{MINIMUM_FREE_BYTES // 2**20} MB: free some space, or choose another --directory"
            )

    def _launch(self, timeout: float, detached: bool) -> str:
        java, kafka = find_java(), kafka_distribution.distribution(self.kafka_version)
        class_path = self._class_path(kafka)
        port, controller_port = self._choose_ports()
        with self._folder_errors():
            (self.directory / "server.properties").write_text(self._properties(port, controller_port), "utf-8")
            kafka.write_logging_config(self.directory)
        options = [*self.memory_options, f"-XX:ErrorFile={self.directory}/jvm_crash.log"]
        options += [kafka.logging_option(self.directory), *os.environ.get(OPTIONS_VARIABLE, "").split()]
        archive = ClassDataArchive(f"kafka-{kafka.version}", java, class_path)
        command = [str(java), "-cp", class_path, *JVM_OPTIONS, *options]
        properties = str(self.directory / "server.properties")
        self._format_storage([*command, *archive.using(), "kafka.tools.StorageTool"], properties)
        command += archive.using_or_writing(self.directory)
        ports = port, controller_port
        return self._run([*command, "kafka.Kafka", properties], ports, kafka.version, timeout, detached)

    def _class_path(self, kafka: kafka_distribution.KafkaDistribution) -> str:
        """Return the broker's class path; a subclass may add plugins."""
        return kafka.class_path()

    def _run(self, command: list[str], ports: tuple[int, int], version: str, timeout: float, detached: bool) -> str:
        """Run a command that serves at the first port, and wait until it does."""
        if self.log_file.exists():
            self.log_file.replace(self.directory / "broker.log.1")
        process = _spawn(command, self.log_file, detached)
        try:
            running = _Process(process.pid, process.create_time(), *ports, version)
            write_atomically(self._state_file, json.dumps(asdict(running)))
            self._await_answer(process, running, time.monotonic() + timeout)
        except BaseException:
            _kill(process)
            raise
        logger.info("Broker %s (Kafka %s) serves %s:%d, pid %d", self.name, version, self.host, ports[0], process.pid)
        return f"{self.host}:{ports[0]}"

    def _choose_ports(self) -> tuple[int, int]:
        if self._port is not None:
            if not _is_free(self._port):
                raise DevBrokerError(f"port {self._port} is in use: choose another with --port, or omit the option")
            return self._port, _free_port()
        last = self._recorded()
        preferred = [last.port] if last else []
        if self.name == DEFAULT_NAME:
            preferred.append(DEFAULT_PORT)
        return next(filter(_is_free, preferred), None) or _free_port(), _free_port()

    def _settings(self, port: int, controller_port: int) -> dict[str, str]:
        """Return the text of server.properties."""
        return {
            **BROKER_CONFIG,
            "listeners": f"BROKER://{self.host}:{port},CONTROLLER://{self.host}:{controller_port}",
            "advertised.listeners": f"BROKER://{self.host}:{port}",
            "controller.quorum.voters": f"1@{self.host}:{controller_port}",
            "log.dirs": str(self.directory / "data"),
            **self._config,
        }

    def _properties(self, port: int, controller_port: int) -> str:
        return "".join(f"{key}={value}\n" for key, value in self._settings(port, controller_port).items())

    def _format_storage(self, storage_tool: list[str], properties: str) -> None:
        if (self.directory / "data" / "meta.properties").exists():
            return
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With "=": an id may begin with "-", which would be taken for an option.
        command = [*storage_tool, "format", f"--cluster-id={cluster_id}", "--config", properties, "--ignore-formatted"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode != 0:
            self.log_file.write_text(result.stdout + result.stderr, "utf-8")
            raise self._failure("its storage cannot be formatted")

    def _await_answer(self, process: psutil.Process, running: _Process, deadline: float) -> None:
        while not self._serves(running):
            try:
                code = process.wait(POLL_SECONDS)
            except psutil.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
                raise self._failure("it did not answer in time") from None
            raise self._failure(f"it ended with exit code {code}")

    def _serves(self, running: _Process) -> bool:
        return _answers(f"{self.host}:{running.port}")

    def _failure(self, what: str) -> DevBrokerError:
        log = self.log_file.read_text("utf-8", errors="replace") if self.log_file.exists() else ""
        for symptom, diagnosis in DIAGNOSES.items():
            if symptom in log:
                kind = _PortTakenError if symptom == "Address already in use" else DevBrokerError
                return kind(f"broker {self.name!r} did not start: {diagnosis}. Its log: {self.log_file}")
        tail = "\n".join(log.splitlines()[-LOG_TAIL_LINES:])
        return DevBrokerError(f"broker {self.name!r} did not start: {what}. Its log {self.log_file} ends:\n{tail}")

    # -- stopping

    def _end(self, running: _Process, timeout: float) -> None:
        process = running.find()
        with suppress(psutil.NoSuchProcess):  # it has just ended by itself
            if process is not None:
                timeout += ARCHIVE_TIMEOUT_SECONDS if writes_archive(process.cmdline()) else 0
                process.terminate()
                if _wait_for_end(process, timeout):
                    keep_archives(self.directory)
                else:
                    logger.warning("Broker %s did not stop within %.0f s and was killed", self.name, timeout)
                    _kill(process)
        logger.info("Broker %s stopped", self.name)


class MemoryBroker(DevBroker):
    """A ``penstock.testing.EmbeddedKafka`` in its own process: without Java, and without data once it stops.

    name, directory, port: as for DevBroker.
    """

    def __init__(
        self, name: str = DEFAULT_NAME, directory: Path | str | None = None, *, port: int | None = None
    ) -> None:
        super().__init__(name, directory, port=port, kafka=IN_MEMORY)

    def _launch(self, timeout: float, detached: bool) -> str:
        port, _ = self._choose_ports()
        command = [sys.executable, "-m", "penstock.testing.broker", "--port", str(port)]
        return self._run(command, (port, port), IN_MEMORY, timeout, detached)


def _state_home() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "penstock"


def _spawn(command: list[str], log_file: Path, detached: bool) -> psutil.Process:
    """Start a process in its own session, so that Ctrl-C in our terminal does not reach it."""
    if not detached:
        command = [sys.executable, "-c", DIE_WITH_PARENT, str(os.getpid()), *command]
    write_log = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        command[0],
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log_file), write_log, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return psutil.Process(pid)


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()
        _wait_for_end(process, STOP_TIMEOUT_SECONDS)


def _wait_for_end(process: psutil.Process, timeout: float) -> bool:
    """Wait at most timeout seconds until a process has ended; return whether it has.

    A zombie counts as ended: its parent may never read its exit code, as is common for a container's first process.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            process.wait(POLL_SECONDS)
        except psutil.TimeoutExpired:
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    continue
        return True
    return False


def _answers(address: str) -> bool:
    """Return whether a broker at this address serves: all of its partitions have a leader and can be read."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), ANSWER_TIMEOUT_SECONDS).close()
        # No log lines: connections are expected to be closed while the broker starts.
        client = AdminClient({"bootstrap.servers": address}, logger=logging.Logger("probe", logging.CRITICAL))
        metadata = client.list_topics(timeout=ANSWER_TIMEOUT_SECONDS)
        partitions = [TopicPartition(name, p) for name, topic in metadata.topics.items() for p in topic.partitions]
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        for offset in client.list_offsets(dict.fromkeys(partitions, latest)).values() if partitions else ():
            offset.result(ANSWER_TIMEOUT_SECONDS)
    except (OSError, KafkaException):
        return False
    return bool(metadata.brokers)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def _free_port() -> int:
    choose = random.SystemRandom().choice  # processes whose generators have one seed would choose the same port
    return next(filter(_is_free, (choose(PORTS) for _ in PORTS)))
