"""Carries out a schedule and checks the result."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.dev.kafka_distribution import distribution, newest
from tests.chaos.agenda import Agenda
from tests.chaos.branches import Branches
from tests.chaos.broker_logs import BrokerLogs, ForgottenOffsets
from tests.chaos.checker import Verdict
from tests.chaos.checkers import Report
from tests.chaos.checkers.dropped_markers import DroppedMarkers
from tests.chaos.checkers.rows_on_disk import rows_on_disk
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults, Stage
from tests.chaos.growth import Growth
from tests.chaos.hosts import Host
from tests.chaos.means import Means
from tests.chaos.options import Options
from tests.chaos.process_faults import TOLD_TO_STOP, resume
from tests.chaos.recovery import Recovery, Stalled
from tests.chaos.schedule import CHECKPOINTS, HOSTS, SESSION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS, Action, Event
from tests.chaos.unclean import CONFIG as UNCLEAN_CONFIG
from tests.topics import create_topics

from . import program

#: How long outputs are awaited before an event, unless a recovery has its own limit.
SETTLE_SECONDS = 30.0
#: Seconds until a partition counts as stalled: after a broker's death librdkafka may stop reading one (its issue 5430).
STALL_TIMEOUT_MS = 15_000
#: Interval of the progress line.
PROGRESS_SECONDS = 1.0
BROKER_CONFIG = {
    # The checkers read the logs of coordinators from their beginning, so these must not be compacted.
    "transaction.state.log.segment.bytes": str(1 << 30),
    "offsets.topic.segment.bytes": str(1 << 30),
    "group.streams.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.streams.heartbeat.interval.ms": "300",
}
#: A single broker must abort old transactions only after the end of its session with the controller: it would treat
#: partitions without a leader as deleted, see dropped_markers.py. So it checks for old transactions every 20 s
#: (default: 10 s).
LONE_BROKER_CONFIG = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "20000"}
#: Log lines of a host about another one that it watches, and the faults that cause them.
FOUND_LOST = "is lost: its connection broke, and no program listens there now"
DEATHS = (Action.KILL_HOST, Action.KILL_SUPERVISOR, Action.DELETE_STATE, Action.CORRUPT_STATE)
#: With this many deaths, at least one host must have been watched: on a busy machine a host may die before that.
DEATHS_MIN = 8
#: The file in a run's directory with the log lines about brokers' bugs.
MISTAKES_FILE = "mistakes-of-brokers.log"
#: Seconds within which a host may end with this error after the group's coordinator has forgotten committed offsets: a
#: rebalance and the start of its tasks.
FORGOTTEN, FORGOTTEN_MS = "has no committed offset of its input", 60_000


@dataclass(frozen=True)
class Outcome:
    """The verdict, hosts that ended by themselves or not cleanly, and the number of records.

    mistakes: bugs of brokers, from their logs. table: of faults, recoveries and growth; reports: of the checkers beside
    the verdict.
    """

    verdict: Verdict
    failures: tuple[str, ...]
    kills: int
    records: int
    aborted: int
    events: tuple[str, ...] = field(default=())
    mistakes: tuple[DroppedMarkers | ForgottenOffsets, ...] = ()
    table: tuple[str, ...] = field(default=())
    reports: tuple[Report, ...] = ()

    @property
    def good(self) -> bool:
        """True if there is no failure."""
        return self.verdict.good and not self.failures and all(report.good for report in self.reports)


class Chaos:
    """One run. directory: for logs, state and the broker; it is kept. out, progress: receive the lines."""

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
        self._recovery = Recovery(self._agenda, self._outputs, self._stalled, self._workload.restore_seconds)
        self._stage = Stage(self._agenda, self._recovery, self._say, self._fail, self._has_lost_offsets)
        self._faults: Mapping[Action, Faults] = {}
        #: None without branches.
        self._branches: Branches | None = None
        self._interrupted = False
        self._broker_logs = BrokerLogs(directory / MISTAKES_FILE)
        #: Outputs that stopped for too long: a failure unless dropped markers explain it.
        self._stalls: list[tuple[Stalled, int]] = []
        self._growth = Growth()
        self._done = self._kills = 0
        self._progress_at = 0.0

    def interrupt(self) -> None:
        """End the schedule early; the results so far are judged. A signal handler may call this.

        The current event is completed: without its second half, such as the broker's start after a kill, the system
        would never come to rest.
        """
        self._interrupted = True

    def run(self) -> Outcome:
        """Run everything; raises if resources fail, such as the broker's start."""
        options, brokers = self._options, self._options.brokers
        config = (
            BROKER_CONFIG | (LONE_BROKER_CONFIG if brokers == 1 else {}) | (UNCLEAN_CONFIG if options.unclean else {})
        )
        kafka = options.upgrade_from or newest()
        with ExitStack() as stack:
            for version in {kafka, newest()}:
                distribution(version).class_path()  # fetches jars, which is impossible inside the run's network
            means = stack.enter_context(
                Means(
                    options.families,
                    options.without,
                    brokers,
                    options.previous,
                    self._directory,
                    exact=options.exact,
                )
            )
            self._cluster = stack.enter_context(
                Cluster(self._directory, brokers, brokers, config, hosts=means.broker_addresses, kafka=kafka)
            )
            self._broker_logs.follow(self._cluster.brokers.values())
            stack.callback(self._broker_logs.close)
            stack.callback(self._end_hosts)
            self._set_up(self._cluster.bootstrap_servers, means)
            self._do_all()
            return self._finish(self._cluster.bootstrap_servers)

    def _end_hosts(self) -> None:
        if self._branches is not None:
            self._branches.end()
            self._branches.kill()
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
        create_topics(admin, *topics)
        workload.prepare(address)
        self._reader = workload.reader(address)
        fault = {program.FAULT_VARIABLE: self._options.fault, program.ADDRESS_VARIABLE: address}
        environment = {**fault, **workload.environment}
        for number in range(HOSTS):
            asked = means.reachable(number + 1) if self._options.watch or self._options.branch_seconds else {}
            config = {**self._config(address), **means.checkpointing(), **asked, **workload.settings(number)}
            self._hosts.append(means.host(number + 1, config, environment, workload.topology))
            self._hosts[-1].start()
        workload.start(address)
        if self._options.branch_seconds:
            how = (environment, workload.topology, address, self._options.seed, self._options.branch_seconds)
            self._branches = Branches(self._hosts[0], self._directory, *how)
            self._branches.start()
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
            **({"penstock.host.watch": "true"} if self._options.watch else {}),
            "penstock.partition.stall.timeout.ms": STALL_TIMEOUT_MS,
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": 300,
            "max.poll.interval.ms": 120_000,  # the group waits so long for a member that has vanished
            **({"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS} if exact else {}),
            # With a cache, commits decide which tallies come out, so a branch would write others.
            **({"statestore.cache.max.bytes": 0} if self._options.branch_seconds else {}),
            "penstock.worker.restart.max": 100_000,
            "penstock.worker.restart.backoff.ms": 50,
            "penstock.worker.restart.backoff.max.ms": 500,
        }

    # -- between events

    def _await(self, event: Event) -> None:
        """Wait as the schedule says, and read outputs meanwhile."""
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
        """Read outputs, run due actions, check the hosts, and show the progress.

        Returns True if there were new outputs.
        """
        records = self._reader.poll(0.05)
        for record in records:
            self._workload.see(record)
        self._look_at_broker_logs()
        self._agenda.run_due()
        self._recovery.look()
        self._growth.look(self._hosts, time.monotonic() - self._start)
        for host in self._hosts:
            if host.exit_code is not None and not host.troubled and not self._agenda.expects(host.name):
                self._stage.report_end(host, "ended by itself", host.exit_code)
                host.start()
        while self._branches is not None and not self._branches.news.empty():
            self._say(f"{time.monotonic() - self._start:8.2f} s  {self._branches.news.get()}")
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

    def _stalled(self, stalled: Stalled) -> None:
        self._stalls.append((stalled, _now_ms()))
        self._say(f"{time.monotonic() - self._start:8.2f} s  STALLED  {stalled}")

    def _look_at_broker_logs(self) -> None:
        for what in self._broker_logs.look():
            self._say(f"{time.monotonic() - self._start:8.2f} s  {what}")

    def _has_lost_offsets(self, error: str) -> bool:
        """Return True if a coordinator that forgot committed offsets explains the error with which a host ended."""
        self._look_at_broker_logs()
        earliest = _now_ms() - FORGOTTEN_MS
        return FORGOTTEN in error and any(forgotten.at > earliest for forgotten in self._broker_logs.forgotten)

    # -- events

    def _say_and_do(self, event: Event) -> None:
        at = time.monotonic() - self._start
        self._done += 1
        self._kills += event.kills
        what = self._do(event)
        self._say(f"{at:8.2f} s  #{event.number:<4} {event.action.value:<16} {what}")

    def _do(self, event: Event) -> str:
        """Carry out one event; return what it hit."""
        return self._faults[event.action].carry_out(event)

    # -- the end

    def _finish(self, address: str) -> Outcome:
        """Let everything recover, write a last record of each key, wait for all outputs, and judge."""
        workload = self._workload
        while self._agenda:
            self._turn()
        workload.healed()
        while self._recovery.waits():
            self._turn()
        self._end_branches()
        seconds = time.monotonic() - self._start
        for grown in self._growth.faults(seconds):
            self._fail(grown)
        workload.finish()
        missing = self._await_outputs()
        for host in self._hosts:
            code = host.stop()
            if code:
                self._stage.report_end(host, TOLD_TO_STOP, code)
        for record in self._reader.read_to_end():
            workload.see(record)
        self._look_at_broker_logs()
        dropped = self._broker_logs.dropped
        excuse = workload.examine(address, self._reader, dropped)
        for stalled, at in self._stalls:
            if not excuse.stalls_all(stalled.outputs, at - round(stalled.seconds * 1000), at):
                self._fail(str(stalled))
        if missing and not workload.complete():
            self._fail(missing)
        for kind in self._recovery.not_injected():
            self._fail(f"{kind} was to happen, and nothing of it was seen")
        watch = self._watch_table() if self._options.watch else ()
        checkpoints = self._checkpoint_table() if CHECKPOINTS in self._options.families else ()
        memory = f"{len(self._cluster.nodes)} JVMs of the cluster take {self._cluster.memory() >> 20} MiB"
        verdict, reports = workload.verdict(address), workload.reports(address)
        if CHECKPOINTS in self._options.families and workload.stores:
            reports.append(rows_on_disk(self._hosts, workload.topology, workload.stores, address))
        if self._branches is not None:
            reports.append(self._branches.report())
        self._reader.close()
        return Outcome(
            verdict,
            tuple(self.failures),
            self._kills,
            workload.sent(),
            workload.aborted,
            tuple(self._lines),
            (*dropped, *self._broker_logs.forgotten),
            (*self._recovery.table(), *self._growth.table(seconds), *watch, *checkpoints, memory),
            tuple(reports),
        )

    def _end_branches(self) -> None:
        """Let the current branch be checked while the input continues."""
        if self._branches is not None:
            self._branches.end()
            while self._branches.is_alive() or not self._branches.news.empty():
                self._turn()

    def _watch_table(self) -> tuple[str, ...]:
        """Return how often a host found another one lost; a failure if that never happened although several died."""
        died = sum(f" {action.value} " in line for line in self._lines for action in DEATHS)
        lost = sum(FOUND_LOST in line for host in self._hosts for line in host.log.read_text().splitlines())
        if died >= DEATHS_MIN and not lost:
            self._fail(f"{died} hosts died, and the other one found none of them lost")
        return (f"{died} hosts died, {lost} of them found lost by the other one",)

    def _checkpoint_table(self) -> tuple[str, ...]:
        """Return how many checkpoints hosts have uploaded and loaded; a failure if one of both never happened."""
        lines = [line for host in self._hosts for line in host.log.read_text(errors="replace").splitlines()]
        uploaded, loaded = (sum(f"{what} checkpoint " in line for line in lines) for what in ("Uploaded", "Loaded"))
        if not uploaded or not loaded:
            self._fail(f"{uploaded} checkpoints were uploaded and {loaded} loaded, so nothing is proved about them")
        return (f"{uploaded} checkpoints uploaded, {loaded} loaded",)

    def _await_outputs(self) -> str:
        """Wait for all outputs; return a description of the missing ones, "" for none.

        complete() may be slow, so it is called when no more outputs arrive.
        """
        patience, is_renewed = self._options.patience_seconds, False
        deadline = time.monotonic() + patience
        while True:
            if self._turn():
                deadline = time.monotonic() + patience
            elif self._workload.complete():
                return ""
            elif time.monotonic() > deadline:
                missing = f"nothing has come out for {patience:.0f} s{self._workload.missing()}"
                if is_renewed:
                    return missing
                self._say(f"{'':11} {missing}; reading with a new consumer")
                self._reader.renew()
                is_renewed, deadline = True, time.monotonic() + patience


def _now_ms() -> int:
    return round(time.time() * 1000)


def run(options: Options, directory: Path, out: TextIO = sys.stdout, progress: TextIO | None = None) -> Outcome:
    """Run a schedule in a separate directory; see Chaos."""
    return Chaos(options, directory, out, progress).run()
