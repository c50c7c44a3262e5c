"""Carries a schedule out, and asks the checker."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TextIO

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.kafka_distribution import distribution, newest

from . import program
from .agenda import Agenda
from .broker_faults import BrokerFaults
from .checker import EXACTLY_ONCE, Ledger, TopicReader, Verdict, read_table
from .cluster import Cluster
from .faults import Faults, Stage
from .feeder import Feeder
from .growth import Growth
from .hosts import Host
from .means import PREVIOUS, Means
from .process_faults import resume
from .recovery import Recovery
from .schedule import (
    HOSTS,
    PROCESSES,
    SESSION_TIMEOUT_MS,
    TRANSACTION_TIMEOUT_MS,
    Action,
    Event,
    each_once,
    endless,
    schedule,
)

PARTITIONS = 4
#: How many events hit the older Kafka before the cluster is upgraded.
UPGRADE_AFTER = 4
TOPICS = (program.NUMBERS, program.COPIES, program.TALLIES, program.GROUP_TALLIES)
#: How long outputs of all partitions are awaited before an event, if there is no recovery with a budget of its own.
SETTLE_SECONDS = 30.0
#: When a partition counts as stalled: after a broker's death librdkafka may not read one any more (its issue 5430).
STALL_TIMEOUT_MS = 15_000
#: How long nothing may come out at the end before the rest counts as lost. Two sessions, a transaction, a restart and
#: their retries on a machine that has much else to do.
STALL_SECONDS = 120.0
#: How often the progress line is written.
PROGRESS_SECONDS = 1.0
BROKER_CONFIG = {
    "group.streams.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.streams.heartbeat.interval.ms": "300",
}
#: A broker that is alone ends old transactions later than its session with the controller ends, see MARKERS_DROPPED.
LONE_BROKER_CONFIG = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "20000"}
#: What Kafka 4.4 logs when it ends a transaction before it is registered again after a SIGKILL: it takes partitions
#: without a leader for deleted ones and writes no marker to them. Such a transaction stays open, or passes for
#: committed with the next one of the same producer. No client can help that. It was seen of brokers that are their own
#: controllers; the look for old transactions (each 20 s here, by default each 10 s) should come later than the end of
#: the broker's session with its controller.
MARKERS_DROPPED = "Couldn't find leader endpoint for partitions"
#: What it logs when the group's coordinator has loaded twice at once, because its partition lost its leader and got it
#: again meanwhile: on a machine that has much else to do, or with a short session. For a moment it knows nothing of the
#: group and says that there are no committed offsets; or it does not answer any more.
OUT_OF_SYNC = "is out of sync with the underlying log"
#: What the broker's log says, and what is said then.
BROKER_FAULTS = {
    MARKERS_DROPPED: "the broker has dropped markers of transactions while it led no partition",
    OUT_OF_SYNC: "the coordinator of the group has forgotten what it knew, committed offsets too",
}


@dataclass(frozen=True)
class Options:
    """What is run.

    kills: how many; each: every kind of fault once instead; minutes: as many kills as fit into them instead.
    families: see schedule.FAMILIES. brokers: 1, or 3 with as many controllers. upgrade_from: the version of Kafka that
    the cluster begins with; after UPGRADE_AFTER events it is upgraded, node by node. previous: the commit whose
    Penstock takes turns with this one. without: kinds of faults that cannot be had here, see means.why_not. fault: see
    program.FAULT_VARIABLE; judged_as: the guarantee that the checker holds it to.
    """

    seed: int
    kills: int = 0
    guarantee: str = EXACTLY_ONCE
    protocol: str = "classic"
    fault: str = ""
    judged_as: str | None = None
    each: bool = False
    minutes: float = 0.0
    families: tuple[str, ...] = (PROCESSES,)
    brokers: int = 1
    upgrade_from: str | None = None
    previous: str = PREVIOUS
    without: frozenset[Action] = frozenset()

    def events(self) -> Iterable[Event]:
        """Return what happens, and when; without an end if it is a matter of minutes."""
        events: Iterable[Event]
        if self.minutes:
            events = endless(self.seed, self.families, self.without)
        elif self.each:
            events = each_once(self.seed, self.families, self.without)
        else:
            events = schedule(self.seed, self.kills, self.families, self.without)
        return events if self.upgrade_from is None else _with_upgrade(events, self.seed)


def _with_upgrade(events: Iterable[Event], seed: int) -> Iterator[Event]:
    """Yield an upgrade among the events: first it is an old cluster's, then a new one's, trouble."""
    later = iter(events)
    yield from islice(later, UPGRADE_AFTER)
    yield Event(UPGRADE_AFTER + 1, True, 0, Action.UPGRADE_CLUSTER, 0, 0.0, 0, seed)
    yield from (replace(event, number=event.number + 1) for event in later)


@dataclass(frozen=True)
class Outcome:
    """The verdict, hosts that ended by themselves or not in good order, and how many records there were.

    broker_failed: a broker itself has made a mistake, see BROKER_FAULTS. faults: a table of them.
    """

    verdict: Verdict
    failures: tuple[str, ...]
    kills: int
    records: int
    aborted: int
    events: tuple[str, ...] = field(default=())
    broker_failed: bool = False
    faults: tuple[str, ...] = field(default=())

    @property
    def judged(self) -> bool:
        """False if something is wrong and may be the broker's fault: the run says nothing of Penstock then."""
        return self.good or not self.broker_failed

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict.good and not self.failures


class Chaos:
    """One run. directory: for logs, state and the broker; it is left as it is. out, progress: where lines go."""

    def __init__(self, options: Options, directory: Path, out: TextIO, progress: TextIO | None) -> None:
        self.failures: list[str] = []
        self._options = options
        self._out = out
        self._progress = progress
        self._start = time.monotonic()
        self._lines: list[str] = []
        self._directory = directory
        self._ledger = Ledger(options.judged_as or options.guarantee, program.GROUPS)
        self._hosts: list[Host] = []
        self._agenda = Agenda()
        self._recovery = Recovery(self._agenda, self._outputs, self._fail)
        self._faults: Mapping[Action, Faults] = {}
        self._interrupted = False
        self._broker_faults: set[str] = set()
        self._growth = Growth()
        self._done = self._kills = 0
        self._progress_at = 0.0

    def interrupt(self) -> None:
        """End the schedule early; what there was is judged. A signal handler may call it.

        The event that is under way is carried out: without its second half, such as the broker's start after a kill,
        nothing would come to rest.
        """
        self._interrupted = True

    def run(self) -> Outcome:
        """Do everything; raises if the means fail, such as the broker's start."""
        options, brokers = self._options, self._options.brokers
        config = BROKER_CONFIG | (LONE_BROKER_CONFIG if brokers == 1 else {})
        kafka = options.upgrade_from or newest()
        with ExitStack() as stack:
            for version in {kafka, newest()}:
                distribution(version).class_path()  # fetches jars; a network of the run's own leads nowhere
            means = stack.enter_context(
                Means(options.families, options.without, brokers, options.previous, self._directory)
            )
            self._cluster = stack.enter_context(
                Cluster(self._directory, brokers, brokers, config, hosts=means.broker_addresses, kafka=kafka)
            )
            stack.callback(self._end_hosts)
            self._set_up(self._cluster.bootstrap_servers, means)
            self._do_all()
            return self._finish(self._cluster.bootstrap_servers)

    def _end_hosts(self) -> None:
        for host in self._hosts:
            resume(host)
            host.kill()

    def _do_all(self) -> None:
        """Carry out the schedule, up to an interruption."""
        for event in self._options.events():
            self._await(event)
            if self._interrupted:
                self._say(f"interrupted after {self._kills} of {self._options.kills} kills")
                return
            if self._options.minutes and time.monotonic() > self._start + 60 * self._options.minutes:
                return
            self._say_and_do(event)

    def _set_up(self, address: str, means: Means) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        for future in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in TOPICS]).values():
            future.result(30.0)
        self._feeder = Feeder(address, program.NUMBERS, program.KEYS, self._options.seed)
        self._reader = TopicReader(address, TOPICS)
        environment = {program.FAULT_VARIABLE: self._options.fault}
        for number in range(1, HOSTS + 1):
            self._hosts.append(means.host(number, self._config(address), environment))
            self._hosts[-1].start()
        self._feeder.start()
        stage = Stage(self._agenda, self._recovery, self._say, self._fail)
        self._faults = means.faults(stage, self._hosts, self._cluster, self._turn)

    def _config(self, address: str) -> dict[str, object]:
        exact = self._options.guarantee == EXACTLY_ONCE
        return {
            "application.id": program.APPLICATION_ID,
            "bootstrap.servers": address,
            "processing.guarantee": self._options.guarantee,
            "group.protocol": self._options.protocol,
            "isolation.level": "read_committed",  # the input has aborted transactions, whatever the guarantee
            "commit.interval.ms": 100 if exact else 500,
            "penstock.partition.stall.timeout.ms": STALL_TIMEOUT_MS,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 300,
            "max.poll.interval.ms": 120_000,  # as long the group waits for a member that is gone without a trace
            **({"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS} if exact else {}),
            "penstock.worker.restart.max": 100_000,
            "penstock.worker.restart.backoff.ms": 50,
            "penstock.worker.restart.backoff.max.ms": 500,
        }

    # -- between events

    def _await(self, event: Event) -> None:
        """Wait as the schedule says, reading outputs meanwhile."""
        before, deadline = self._outputs(), time.monotonic() + SETTLE_SECONDS
        while event.settle and not self._interrupted:
            moved = all(count > before[partition] for partition, count in self._outputs().items())
            if not self._recovery.waits() and (moved or time.monotonic() > deadline):
                break
            self._turn()
        until = time.monotonic() + event.pause_ms / 1000
        while time.monotonic() < until and not self._interrupted:
            self._turn()

    def _outputs(self) -> dict[tuple[str, int], int]:
        """Return how many records each partition of the outputs has given."""
        seen = self._reader.seen
        return {p: count for p, count in seen.items() if p[0] in (program.COPIES, program.GROUP_TALLIES)}

    def _turn(self) -> None:
        """Read what has come out, do what has become due, look after the hosts, and show where things are."""
        for topic, key, value in self._reader.poll(0.05):
            self._see(topic, key, value)
        self._agenda.run_due()
        self._recovery.look()
        self._growth.look(self._hosts, time.monotonic() - self._start)
        for host in self._hosts:
            if host.exit_code is not None and not host.troubled and not self._agenda.expects(host.name):
                excused = time.monotonic() < host.excused_until
                ended = f"{host.name} ended by itself with exit code {host.exit_code}: {host.last_error()}"
                self._say(f"{'':10} {ended}") if excused else self._fail(ended)
                host.start()
        self._show_progress(time.monotonic())

    def _see(self, topic: str, key: str, value: object) -> None:
        ledger = self._ledger
        see = {
            program.NUMBERS: ledger.see_input,
            program.COPIES: ledger.see_copy,
            program.TALLIES: ledger.see_tally,
            program.GROUP_TALLIES: ledger.see_group_tally,
        }
        see[topic](key, value)

    def _show_progress(self, now: float) -> None:
        if self._progress is None or now < self._progress_at + PROGRESS_SECONDS:
            return
        self._progress_at = now
        ledger, workers = self._ledger, sum(len(host.workers()) for host in self._hosts)
        self._progress.write(
            f"\r{now - self._start:7.1f} s  {self._kills} of {self._options.kills} kills, {self._done} events, "
            f"{ledger.sent()} records in, {ledger.copied()} out, {workers} workers \x1b[K"
        )
        self._progress.flush()

    def _say(self, line: str) -> None:
        if self._progress is not None:
            self._progress.write("\r\x1b[K")
            self._progress.flush()
        print(line, file=self._out, flush=True)
        self._lines.append(line)

    def _fail(self, what: str) -> None:
        self.failures.append(what)
        self._say(f"{time.monotonic() - self._start:8.2f} s  FAILURE  {what}")

    # -- events

    def _say_and_do(self, event: Event) -> None:
        at = time.monotonic() - self._start
        self._done += 1
        self._kills += event.kills
        what = self._do(event)
        self._say(f"{at:8.2f} s  #{event.number:<4} {event.action.value:<16} {what}")

    def _do(self, event: Event) -> str:
        """Carry out one event; returns what it hit."""
        faults = self._faults[event.action]
        what = faults.carry_out(event)
        if isinstance(faults, BrokerFaults):  # the next start of a broker sets its log aside, and drops the one before
            self._look_at_brokers_log()
        return what

    def _look_at_brokers_log(self) -> None:
        """Say it if the broker itself has made a mistake."""
        found = {text for line in self._broker_lines() for text in BROKER_FAULTS if text in line}
        for text in found - self._broker_faults:
            self._say(BROKER_FAULTS[text])
        self._broker_faults |= found

    def _broker_lines(self) -> Iterator[str]:
        for log_file in self._directory.glob("node-*/broker.log*"):
            with log_file.open(errors="replace") as log:
                yield from log

    # -- the end

    def _finish(self, address: str) -> Outcome:
        """Let everything recover, write a last record of each key, wait for all outputs, and judge."""
        while self._recovery.waits():
            self._turn()
        seconds = time.monotonic() - self._start
        for grown in self._growth.faults(seconds):
            self._fail(grown)
        self._feeder.finish()
        self._await_outputs()
        for host in self._hosts:
            code = host.stop()
            if code:
                self._fail(f"{host.name} was told to stop and ended with exit code {code}: {host.last_error()}")
        for topic, key, value in self._reader.read_to_end():
            self._see(topic, key, value)
        self._reader.close()
        self._look_at_brokers_log()
        for kind in self._recovery.not_injected():
            self._fail(f"{kind} was to happen, and nothing of it was seen")
        changelog = f"{program.APPLICATION_ID}-%s-changelog"
        verdict = self._ledger.verdict(
            read_table(address, changelog % program.TALLY_STORE), read_table(address, changelog % program.GROUP_STORE)
        )
        records, aborted = self._ledger.sent(), self._feeder.aborted
        failures, lines = tuple(self.failures), tuple(self._lines)
        memory = f"{len(self._cluster.nodes)} JVMs of the cluster take {self._cluster.memory() >> 20} MiB"
        faults = (*self._recovery.table(), *self._growth.table(seconds), memory)
        return Outcome(verdict, failures, self._kills, records, aborted, lines, bool(self._broker_faults), faults)

    def _await_outputs(self) -> None:
        seen, deadline = -1, 0.0
        while not (self._ledger.sent() == self._feeder.sent() and self._ledger.complete()):
            if (now := sum(self._reader.seen.values())) != seen:
                seen, deadline = now, time.monotonic() + STALL_SECONDS
            elif time.monotonic() > deadline:
                self._fail(f"nothing has come out for {STALL_SECONDS:.0f} s")
                return
            self._turn()


def run(options: Options, directory: Path, out: TextIO = sys.stdout, progress: TextIO | None = None) -> Outcome:
    """Run a schedule in a directory of its own; see Chaos."""
    return Chaos(options, directory, out, progress).run()
