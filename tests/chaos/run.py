"""Carries out a schedule and checks the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.dev.kafka_distribution import distribution, newest
from tests.chaos.agenda import Agenda
from tests.chaos.broker_faults import BrokerFaults
from tests.chaos.checker import Verdict
from tests.chaos.checkers import Report
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults, Stage
from tests.chaos.growth import Growth
from tests.chaos.hosts import Host
from tests.chaos.means import Means
from tests.chaos.options import Options
from tests.chaos.process_faults import TOLD_TO_STOP, resume
from tests.chaos.recovery import Recovery
from tests.chaos.schedule import HOSTS, SESSION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS, Action, Event
from tests.chaos.unclean import CONFIG as UNCLEAN_CONFIG

from . import program

#: How long outputs are awaited before an event, if there is no recovery with its own budget.
SETTLE_SECONDS = 30.0
#: When a partition counts as stalled: after a broker's death librdkafka may not read one any more (its issue 5430).
STALL_TIMEOUT_MS = 15_000
#: How often the progress line is written.
PROGRESS_SECONDS = 1.0
BROKER_CONFIG = {
    # The checkers read the logs of coordinators from their beginning, so these must not be compacted.
    "transaction.state.log.segment.bytes": str(1 << 30),
    "offsets.topic.segment.bytes": str(1 << 30),
    "group.streams.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.streams.heartbeat.interval.ms": "300",
}
#: A single broker must abort old transactions only after the end of its session with the controller; see
#: MARKERS_DROPPED.
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
#: What a host logs about another one that it watches, and the faults that are the reason.
FOUND_LOST = "is lost: its connection broke, and no program listens there now"
DEATHS = (Action.KILL_HOST, Action.KILL_SUPERVISOR, Action.DELETE_STATE, Action.CORRUPT_STATE)
#: So many deaths that at least one host was watched: on a busy machine a host may die before that.
DEATHS_MIN = 8
#: What the broker's log says, and what is said then.
BROKER_FAULTS = {
    MARKERS_DROPPED: "the broker has dropped markers of transactions while it led no partition",
    OUT_OF_SYNC: "the coordinator of the group has forgotten what it knew, committed offsets too",
}


@dataclass(frozen=True)
class Outcome:
    """The verdict, hosts that ended by themselves or not cleanly, and how many records there were.

    broker_failed: a broker itself has made a mistake, see BROKER_FAULTS. table: of faults, recoveries and growth;
    reports: of the checkers beside the verdict.
    """

    verdict: Verdict
    failures: tuple[str, ...]
    kills: int
    records: int
    aborted: int
    events: tuple[str, ...] = field(default=())
    broker_failed: bool = False
    table: tuple[str, ...] = field(default=())
    reports: tuple[Report, ...] = ()

    @property
    def judged(self) -> bool:
        """False if there are violations that may be the broker's fault; the run then proves nothing about Penstock."""
        return self.good or not self.broker_failed

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict.good and not self.failures and all(report.good for report in self.reports)


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
        (directory / "workload").mkdir(parents=True)
        self._workload = options.new_workload(directory / "workload")
        self._hosts: list[Host] = []
        self._agenda = Agenda()
        self._recovery = Recovery(self._agenda, self._outputs, self._fail, self._workload.restore_seconds)
        self._stage = Stage(self._agenda, self._recovery, self._say, self._fail)
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
        config = (
            BROKER_CONFIG | (LONE_BROKER_CONFIG if brokers == 1 else {}) | (UNCLEAN_CONFIG if options.unclean else {})
        )
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
        admin, workload = AdminClient({"bootstrap.servers": address}), self._workload
        topics = [NewTopic(t, workload.partitions, config=dict(config)) for t, config in workload.topics.items()]
        for future in admin.create_topics(topics).values():
            future.result(30.0)
        workload.prepare(address)
        self._reader = workload.reader(address)
        fault = {program.FAULT_VARIABLE: self._options.fault, program.ADDRESS_VARIABLE: address}
        environment = {**fault, **workload.environment}
        for number in range(HOSTS):
            watch = means.watching(number + 1) if self._options.watch else {}
            config = {**self._config(address), **watch, **workload.settings(number)}
            self._hosts.append(means.host(number + 1, config, environment, workload.topology))
            self._hosts[-1].start()
        workload.start(address)
        self._faults = means.faults(self._stage, self._hosts, self._cluster, self._reader, self._turn)

    def _config(self, address: str) -> dict[str, object]:
        exact = self._options.exact
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
            moved = all(count > before[output] for output, count in self._outputs().items())
            if not self._recovery.waits() and (moved or time.monotonic() > deadline):
                break
            self._turn()
        until = time.monotonic() + event.pause_ms / 1000
        while time.monotonic() < until and not self._interrupted:
            self._turn()

    def _outputs(self) -> Mapping[str, int]:
        return self._workload.progress(self._reader.seen)

    def _turn(self) -> bool:
        """Read what has come out, do what has become due, look after the hosts, and show where things are.

        Returns whether anything has come out.
        """
        records = self._reader.poll(0.05)
        for record in records:
            self._workload.see(record)
        self._agenda.run_due()
        self._recovery.look()
        self._growth.look(self._hosts, time.monotonic() - self._start)
        for host in self._hosts:
            if host.exit_code is not None and not host.troubled and not self._agenda.expects(host.name):
                self._stage.report_end(host, "ended by itself", host.exit_code)
                host.start()
        self._show_progress(time.monotonic())
        return bool(records)

    def _show_progress(self, now: float) -> None:
        if self._progress is None or now < self._progress_at + PROGRESS_SECONDS:
            return
        self._progress_at = now
        workload, workers = self._workload, sum(len(host.workers()) for host in self._hosts)
        self._progress.write(
            f"\r{now - self._start:7.1f} s  {self._kills} of {self._options.kills} kills, {self._done} events, "
            f"{workload.sent()} records in, {workload.copied()} out, {workers} workers \x1b[K"
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
        """Report faults of the broker itself."""
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
        workload = self._workload
        while self._agenda:
            self._turn()
        workload.healed()
        while self._recovery.waits():
            self._turn()
        seconds = time.monotonic() - self._start
        for grown in self._growth.faults(seconds):
            self._fail(grown)
        workload.finish()
        self._await_outputs()
        for host in self._hosts:
            code = host.stop()
            if code:
                self._stage.report_end(host, TOLD_TO_STOP, code)
        for record in self._reader.read_to_end():
            workload.see(record)
        self._look_at_brokers_log()
        for kind in self._recovery.not_injected():
            self._fail(f"{kind} was to happen, and nothing of it was seen")
        watch = self._watch_table() if self._options.watch else ()
        memory = f"{len(self._cluster.nodes)} JVMs of the cluster take {self._cluster.memory() >> 20} MiB"
        verdict, reports = workload.verdict(address), tuple(workload.reports(address, self._reader))
        self._reader.close()
        return Outcome(
            verdict,
            tuple(self.failures),
            self._kills,
            workload.sent(),
            workload.aborted,
            tuple(self._lines),
            bool(self._broker_faults),
            (*self._recovery.table(), *self._growth.table(seconds), *watch, memory),
            reports,
        )

    def _watch_table(self) -> tuple[str, ...]:
        """Return how often a host found the other one lost; a failure if that never happened, and several died."""
        died = sum(f" {action.value} " in line for line in self._lines for action in DEATHS)
        lost = sum(FOUND_LOST in line for host in self._hosts for line in host.log.read_text().splitlines())
        if died >= DEATHS_MIN and not lost:
            self._fail(f"{died} hosts died, and the other one found none of them lost")
        return (f"{died} hosts died, {lost} of them found lost by the other one",)

    def _await_outputs(self) -> None:
        """Wait until all has come out. complete() may take long, so it is asked when nothing comes any more."""
        patience, is_renewed = self._options.patience_seconds, False
        deadline = time.monotonic() + patience
        while True:
            if self._turn():
                deadline = time.monotonic() + patience
            elif self._workload.complete():
                return
            elif time.monotonic() > deadline:
                missing = self._workload.missing()
                if is_renewed:
                    self._fail(f"nothing has come out for {patience:.0f} s{missing}")
                    return
                self._say(f"{'':11} nothing has come out for {patience:.0f} s{missing}; reading with a new consumer")
                self._reader.renew()
                is_renewed, deadline = True, time.monotonic() + patience


def run(options: Options, directory: Path, out: TextIO = sys.stdout, progress: TextIO | None = None) -> Outcome:
    """Run a schedule in its own directory; see Chaos."""
    return Chaos(options, directory, out, progress).run()
