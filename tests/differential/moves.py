"""``python -m tests.differential.moves``: a count of many keys moves from engine to engine, and is killed on the way.

In each round: local → Spark → local → Java → local, with exactly-once everywhere. Each engine counts some more records.
At random moments the engine that counts, or the command that hands over, is killed with all its processes, and started
again; the wrong engine is started by mistake; a changed topology is handed over. At the end each record was counted
once, and each count was written once.

Prints a line for each step with its seconds. $KAFKA_BOOTSTRAP_SERVERS names the broker, else a dev broker is started.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from benchmarks.systems import compile_java
from penstock.supervisor.exit_codes import ExitCode
from penstock.topology.config.config_keys import EXACTLY_ONCE_V2
from tests.differential.__main__ import broker
from tests.differential.application import PARTITIONS, Application, kill_all
from tests.java.conftest import kafka_streams_jars
from tests.waiting import PATIENCE_SECONDS

#: The steps of a round.
STEPS = ("local", "to spark", "spark", "to local", "local", "java")
#: When to kill a step without an earlier one of its kind: after at most this many seconds.
FIRST_KILL_SECONDS = 20.0
#: The exit code of Java on SIGTERM.
JAVA_TERMINATED = 128 + signal.SIGTERM
SESSION = "session.timeout.ms=6000"  # a handover waits for the session of a member that was killed
READ_AT_ONCE = 10_000


class Counts:
    """The topic of counts, read as it grows. Raises AssertionError for a missing or duplicate count."""

    def __init__(self, servers: str, topic: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "none", "isolation.level": "read_committed"}
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._latest: dict[bytes, int] = {}
        self.total = 0

    def follow(self, is_done: Callable[[], bool]) -> None:
        """Read until is_done, which is called at least once a second."""
        while not is_done():
            for message in self._consumer.consume(READ_AT_ONCE, 1.0):
                if message.error() is not None:
                    continue  # librdkafka retries by itself
                key, count = message.key() or b"", int(message.value() or b"")
                before = self._latest.get(key, 0)
                assert count == before + 1, f"{key!r} was counted {before}, and next {count}"
                self._latest[key] = count
                self.total += 1


@dataclass
class Moves:
    """One application that moves between engines.

    java: the command of CountProgram. kills: of the steps, by number. say: prints a line.
    """

    application: Application
    counts: Counts
    java: Sequence[str]
    directory: Path
    kills: frozenset[int]
    chance: random.Random
    say: Callable[[str], object]
    seconds: dict[str, float] = field(default_factory=dict)
    _step: int = 0

    def round(self, records: int) -> None:
        """Move once through all engines, each of which counts this many records."""
        for step in STEPS:
            kill_after = self._kill_after(step)
            if step.startswith("to "):
                self._hand_over(step, kill_after)
            else:
                self._count(step, records, kill_after)
            if step == "local":
                self._is_refused("run", "--engine", "spark")
                self._is_refused("handover", "--to", "spark", topology="changed")
            elif step == "to spark":
                self._is_refused("run", "--engine", "local")

    def _kill_after(self, step: str) -> float | None:
        """Return the seconds after which to kill this step, None if it is not killed."""
        self._step += 1
        if self._step - 1 not in self.kills:
            return None
        return self.chance.uniform(0.0, self.seconds.get(step, FIRST_KILL_SECONDS))

    def _done(self, step: str, began: float, kill_after: float | None, what: str) -> None:
        took = time.monotonic() - began
        if kill_after is None:
            self.seconds[step] = max(took, self.seconds.get(step, 0.0))
        killed = "" if kill_after is None else f", killed after {kill_after:.1f} s and started again"
        self.say(f"{step}: {what}, {took:.1f} s{killed}")

    # -- counting

    def _count(self, engine: str, records: int, kill_after: float | None) -> None:
        began = time.monotonic()
        self.application.produce(records)
        wanted = self.application.produced
        if kill_after is not None:
            with self._running(engine) as process:
                self.counts.follow(lambda: time.monotonic() > began + kill_after or self._is_counted(wanted, process))
                kill_all(process)
            self.application.produce(1)  # so that the next process has work before it is stopped
            wanted += 1
        with self._running(engine) as process:
            self.counts.follow(lambda: self._is_counted(wanted, process))
            process.send_signal(signal.SIGTERM)
            code = process.wait(PATIENCE_SECONDS)
            assert code in (ExitCode.OK, JAVA_TERMINATED), f"{engine} ended with {code}"
        self._done(engine, began, kill_after, f"{records:,} records counted")

    def _is_counted(self, wanted: int, process: subprocess.Popen[str]) -> bool:
        log = self.application.log
        assert process.poll() is None, f"it has ended; its log ends with\n{log.read_text()[-3000:]}"
        return self.counts.total >= wanted

    @contextmanager
    def _running(self, engine: str) -> Iterator[subprocess.Popen[str]]:
        if engine != "java":
            options = ("-c", "penstock.spark.max.records.per.batch=200000") if engine == "spark" else ()
            with self.application.running("-c", SESSION, *options, engine=engine) as process:
                yield process
            return
        properties = self.directory / "java.properties"
        more = (SESSION, f"count.source={self.application.source}", f"count.sink={self.application.sink}")
        settings = (*self.application.settings("java"), "auto.offset.reset=earliest", "num.stream.threads=2", *more)
        properties.write_text("\n".join(settings))
        with self.application.log.open("a") as log:
            process = subprocess.Popen(
                [*self.java, str(properties)], stdout=log, stderr=subprocess.STDOUT, text=True, start_new_session=True
            )
        try:
            yield process
        finally:
            kill_all(process)

    # -- moving

    def _hand_over(self, step: str, kill_after: float | None) -> None:
        command = ("handover", "--to", step.removeprefix("to "), "--wait", "60", "-c", SESSION)
        began = time.monotonic()
        if kill_after is not None:
            with self.application.command(*command) as process:
                try:
                    process.communicate(timeout=kill_after)
                except subprocess.TimeoutExpired:
                    kill_all(process)
        status, printed = self.application.run(*command)
        # A step killed at its very end has moved the application: then Spark has it already, or the local engine has.
        moved = status == ExitCode.OK or (kill_after is not None and "already" in printed)
        assert moved, f"{' '.join(command)} ended with {status}:\n{printed}"
        last = printed.splitlines()[-1]
        self._done(step, began, kill_after, last)

    def _is_refused(self, *command: str, topology: str = "topology") -> None:
        """Start an engine that must refuse to start and must count nothing."""
        status, printed = self.application.run(*command, topology=topology)
        assert status not in (ExitCode.OK, ExitCode.INTERNAL), f"{' '.join(command)} ended with {status}:\n{printed}"
        self.say(f"  {' '.join(command)} of {topology}: refused with exit code {status}")


@contextmanager
def moves(servers: str, keys: int, kills: frozenset[int], seed: int, say: Callable[[str], object]) -> Iterator[Moves]:
    """Make the application, and delete its topics at the end."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        classes = directory / "classes"
        java, class_path = kafka_streams_jars()
        compile_java(java, Path(__file__).with_name("CountProgram.java"), classes, class_path)
        log = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        command = [str(java), "-Xmx1g", log, "-cp", f"{classes}:{class_path}", "CountProgram"]
        names = [b"key-%d" % number for number in range(keys)]
        application = Application(servers, directory, guarantee=EXACTLY_ONCE_V2, keys=names)
        with application.topics():
            counts = Counts(servers, application.sink)
            yield Moves(application, counts, command, directory, kills, random.Random(seed), say)


def main() -> int:
    """Read the command line, run; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential.moves", description="Move a count, and kill.")
    parser.add_argument("--keys", type=int, default=1_000_000, help="of the state (1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="through all engines (3)")
    parser.add_argument("--kills", type=int, default=10, help="at random moments (10)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    options = parser.parse_args()
    steps = options.rounds * len(STEPS)
    # Not the first one, because it creates the state.
    kills = frozenset(random.Random(options.seed).sample(range(1, steps), min(options.kills, steps - 1)))
    with broker() as servers, moves(servers, options.keys, kills, options.seed, print_now) as moving:
        for number in range(options.rounds):
            moving.round(options.keys if number == 0 else options.keys // 10)
        print_now(
            f"{moving.counts.total:,} records of {options.keys:,} keys, {len(kills)} kills: each record counted once, "
            "each count written once"
        )
        for step in ("to spark", "to local"):
            print_now(f"{step}: at most {moving.seconds.get(step, 0.0):.1f} s")
    return 0


def print_now(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
