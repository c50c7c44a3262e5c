"""After a SIGKILL: how long until each task processes records again."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from typing_extensions import override

from benchmarks.data import ADMIN_TIMEOUT_SECONDS, PARTITIONS, Workload, recreate_topic
from benchmarks.latency import LATENCY_SCENARIOS
from benchmarks.recovery import (
    SESSION_TIMEOUT_MS,
    LogLines,
    Recovered,
    RecoveryResults,
    RecoveryScenario,
    Restore,
    Run,
    running,
)
from benchmarks.rounds import Rounds
from benchmarks.steady import SteadyWriter, following
from benchmarks.systems import THREADS, System
from tests.topics import delete_topics_of

#: Records of each task that must have results before the SIGKILL, twice: at first, and at the feeder's pace. The same
#: number must follow after it, in addition to those written until then: more than those of a commit interval, which may
#: count twice.
BEFORE, AFTER = 200, 400
POLL_SECONDS = 0.05
#: So that a record has its result when it is processed, not at the next commit, up to a second later.
NO_CACHE: Mapping[str, str] = {"statestore.cache.max.bytes": "0"}
CLASSIC: Mapping[str, str] = {**NO_CACHE, "session.timeout.ms": str(SESSION_TIMEOUT_MS)}
#: The settings of CLASSIC and standbys, where the broker has the group's settings.
STREAMS_GROUP = {
    "streams.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "streams.heartbeat.interval.ms": str(SESSION_TIMEOUT_MS // 3),
    "streams.num.standby.replicas": "1",
}
READ_BATCH = 1_000


class Feeder(SteadyWriter):
    """Writes one record for each task repeatedly, each task's with its own key."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        super().__init__(bootstrap_servers, topic)
        self.written: Counter[bytes] = Counter()

    @override
    def write(self, producer: Producer, seconds: float) -> None:
        for partition in range(PARTITIONS):
            key = b"task-%d" % partition
            producer.produce(self.topic, b"x", key, partition)
            self.written[key] += 1


class Answers:
    """The output: the newest count of each task, and the time of each result (monotonic seconds)."""

    def __init__(self, consumer: Consumer) -> None:
        self.counts: dict[bytes, int] = {}
        self.times: dict[bytes, list[float]] = {}
        self._consumer = consumer

    def read(self) -> None:
        """Read the results that have arrived."""
        for message in self._consumer.consume(READ_BATCH, POLL_SECONDS):
            key, value = message.key(), message.value()
            if message.error() is None and key is not None and value is not None:
                self.counts[key] = int.from_bytes(value)
                self.times.setdefault(key, []).append(time.monotonic())

    def reach(self, wanted: Mapping[bytes, int]) -> bool:
        """Read; return True if each task has reached this count."""
        self.read()
        return all(self.counts.get(key, 0) >= count for key, count in wanted.items())

    def back_after(self, killed_at: float) -> float:
        """Return the seconds from the kill to the end of the longest silence of any task.

        Tasks of the surviving process are also silent for a moment now and then, which does not count.
        """
        _, end = max((_longest_silence(times, killed_at) for times in self.times.values()), key=_length)
        return end - killed_at


def _longest_silence(times: list[float], since: float) -> tuple[float, float]:
    later = [at for at in times if at > since]
    return max(zip([since, *later], later, strict=False), key=_length)


def _length(silence: tuple[float, float]) -> float:
    return silence[1] - silence[0]


class Failover(RecoveryScenario, ABC):
    """Two processes share four tasks of a count with a large state; one of them is killed."""

    unit, more_is_better = "s", False
    config: ClassVar[Mapping[str, str]] = {}

    @override
    def run(self, run: Run, workload: Workload) -> Recovered:
        run.config = self.config
        recreate_topic(run.bootstrap_servers, run.input)
        run.write_counts(workload)
        with (
            running(run),
            Feeder(run.bootstrap_servers, run.input) as feeder,
            following(run.bootstrap_servers, run.output) as consumer,
        ):
            found = Answers(consumer)
            self.start(run)
            keys = [b"task-%d" % partition for partition in range(PARTITIONS)]
            run.wait_until(lambda: found.reach(dict.fromkeys(keys, BEFORE)), "the first answers of all tasks")
            run.wait_until(lambda: found.reach({}) and self.is_ready(run, workload), "all tasks and their standbys")
            steady = {key: count + BEFORE for key, count in feeder.written.items()}
            run.wait_until(lambda: found.reach(steady), "answers as fast as the records come")
            written = dict(feeder.written)
            killed_at = time.monotonic()
            self.kill(run)
            wanted = {key: count + AFTER for key, count in written.items()}
            run.wait_until(lambda: found.reach(wanted), "the answers of all tasks after the SIGKILL")
            feeder.stop()
            run.wait_until(lambda: found.reach(feeder.written), "the last answers")
        seconds = found.back_after(killed_at)
        rss = max(instance.rss_bytes for instance in run.instances)
        return Recovered(seconds, seconds, rss, sum(instance.cpu_seconds for instance in run.instances))

    @abstractmethod
    def start(self, run: Run) -> None:
        """Start the programs."""

    @abstractmethod
    def kill(self, run: Run) -> None:
        """Kill one of the two processes."""

    @abstractmethod
    def is_ready(self, run: Run, workload: Workload) -> bool:
        """Return True if the application is in its steady state."""


class ProcessFailover(Failover):
    """One process dies and its machine survives. With Penstock that is one stream thread's process, which its
    supervisor replaces.

    With Kafka Streams, whose threads cannot die alone, it is one of two programs; the other one takes over.
    """

    name, title = "failover", "SIGKILL of one of two processes"
    config: ClassVar[Mapping[str, str]] = CLASSIC

    @override
    def start(self, run: Run) -> None:
        if run.system.threads_are_processes:
            run.start(threads=THREADS)
        else:
            run.start(threads=1)
            run.start(threads=1)

    @override
    def kill(self, run: Run) -> None:
        if run.system.threads_are_processes:
            run.instances[0].workers()[0].kill()  # the last one is the spare process
        else:
            run.instances.pop().kill()

    @override
    def is_ready(self, run: Run, workload: Workload) -> bool:
        """Return True if the spare process runs too, some seconds after the stream threads."""
        return not run.system.threads_are_processes or len(run.instances[0].workers()) > THREADS


class HostFailover(Failover):
    """One of two machines dies: the other one, which has standby tasks, takes over.

    Kafka Streams does so after the session timeout; Penstock's hosts watch each other.
    """

    name, title = "failover-standby", f"loss of one of two hosts, standbys, session {SESSION_TIMEOUT_MS // 1000} s"
    config: ClassVar[Mapping[str, str]] = {**CLASSIC, "num.standby.replicas": "1"}

    @override
    def start(self, run: Run) -> None:
        for _ in range(2):
            run.start(1, run.system.host_config())

    @override
    def kill(self, run: Run) -> None:
        """Kill the one with more work: the other may have only standby tasks."""
        busier = min(run.instances, key=lambda instance: len(LogLines([instance.log_file]).standby_offsets()))
        run.instances.remove(busier)
        busier.kill()

    @override
    def is_ready(self, run: Run, workload: Workload) -> bool:
        """Return True if the standby task of each partition has about a quarter of the records."""
        offsets = run.log_lines().standby_offsets()
        return len(offsets) == PARTITIONS and min(offsets.values()) > workload.records / PARTITIONS * 0.98


class StreamsGroupHostFailover(HostFailover):
    """The same with broker-side assignment (KIP-1071).

    The dev broker allows groups such a session; elsewhere group.streams.min.session.timeout.ms is 45 s by default.
    """

    name, title = "failover-streams", f"the same, group.protocol=streams, session {SESSION_TIMEOUT_MS // 1000} s"
    config: ClassVar[Mapping[str, str]] = {**NO_CACHE, "group.protocol": "streams"}

    @override
    def start(self, run: Run) -> None:
        entries = [
            ConfigEntry(*setting, incremental_operation=AlterConfigOpType.SET) for setting in STREAMS_GROUP.items()
        ]
        group = ConfigResource(ResourceType.GROUP, run.name, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": run.bootstrap_servers})
        admin.incremental_alter_configs([group])[group].result(ADMIN_TIMEOUT_SECONDS)
        super().start(run)


#: Scenarios of ``python -m benchmarks`` beside throughput.
RECOVERY_SCENARIOS: tuple[RecoveryScenario, ...] = (
    Restore(),
    ProcessFailover(),
    HostFailover(),
    StreamsGroupHostFailover(),
    *LATENCY_SCENARIOS,
)


class RecoveryBench:
    """Runs recovery scenarios."""

    def __init__(self, bootstrap_servers: str, workload: Workload, directory: Path, systems: list[System]) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._workload = workload
        self._directory = directory
        self._systems = systems
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 3})

    def run(self, scenarios: list[RecoveryScenario], rounds: Rounds) -> RecoveryResults:
        """Run everything."""
        return rounds.run(self._systems, scenarios, self._run_one, lambda s, found: f"{found.value:,.2f} {s.unit}")

    def _run_one(self, scenario: RecoveryScenario, system: System) -> Recovered:
        # A token, so that no earlier run's committed offsets are taken up.
        name = f"benchmark-{uuid.uuid4().hex[:8]}-{scenario.name}-{system.name.lower().replace(' ', '-')}"
        home = self._directory / name
        home.mkdir()
        source = scenario.prepare(self._bootstrap_servers) or f"{name}-input"
        run = Run(self._bootstrap_servers, system, name, home, source, records=self._workload.records)
        found = scenario.run(run, self._workload)
        delete_topics_of(self._admin, name)
        return found
