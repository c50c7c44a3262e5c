"""Carries a schedule out, and asks the checker."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.brokers import Controller, LedBroker

from . import program
from .checker import EXACTLY_ONCE, TopicReader, Verdict
from .checkers import Report
from .hosts import THREADS_MAX, Host
from .schedule import HOSTS, SESSION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS, Action, Event, schedule
from .workloads import BUDGET_SECONDS, WORKLOADS, Setting

#: How long outputs of all partitions are awaited before an event; what has not recovered by then is hit again.
SETTLE_SECONDS = 30.0
#: When a partition counts as stalled: after a broker's death librdkafka may not read one any more (its issue 5430).
STALL_TIMEOUT_MS = 15_000
#: How long nothing may come out at the end before the rest counts as lost. Two sessions, a transaction, a restart and
#: their retries on a machine that has much else to do.
STALL_SECONDS = 120.0
#: How long the broker may take to start: its controller waits for the session of the one that was killed.
BROKER_START_SECONDS = 300.0
#: How often the progress line is written.
PROGRESS_SECONDS = 1.0
#: How long a broker that was killed counts as alive; its next process is not let in before.
BROKER_SESSION = {"broker.session.timeout.ms": "5000", "broker.heartbeat.interval.ms": "500"}
BROKER_CONFIG = {
    **BROKER_SESSION,
    "group.streams.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "group.streams.heartbeat.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "20000",  # see MARKERS_DROPPED
}
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
    """What is run. fault: see program.FAULT_VARIABLE; judged_as: the guarantee that the checker holds it to.

    workload: a name of workloads.WORKLOADS; patience_seconds, budget_seconds: see STALL_SECONDS and Setting.
    """

    seed: int
    kills: int
    guarantee: str = EXACTLY_ONCE
    protocol: str = "classic"
    fault: str = ""
    judged_as: str | None = None
    workload: str = "numbers"
    patience_seconds: float = STALL_SECONDS
    budget_seconds: float = BUDGET_SECONDS

    @property
    def setting(self) -> Setting:
        """What the workload needs to know."""
        judged_as = self.judged_as or self.guarantee
        return Setting(self.seed, HOSTS, self.guarantee, judged_as, self.fault, self.budget_seconds)


@dataclass(frozen=True)
class Outcome:
    """The verdict, hosts that ended by themselves or not in good order, and how many records there were.

    broker_failed: the broker itself has made a mistake, see BROKER_FAULTS. reports: of the checkers beside the verdict.
    """

    verdict: Verdict
    failures: tuple[str, ...]
    kills: int
    records: int
    aborted: int
    events: tuple[str, ...] = field(default=())
    broker_failed: bool = False
    reports: tuple[Report, ...] = ()

    @property
    def judged(self) -> bool:
        """False if something is wrong and may be the broker's fault: the run says nothing of Penstock then."""
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
        self._controller = Controller("controller", directory / "controller", config=BROKER_SESSION)
        self._directory = directory
        (directory / "workload").mkdir(parents=True)
        self._workload = WORKLOADS[options.workload](options.setting, directory / "workload")
        self._hosts: list[Host] = []
        self._due: list[tuple[float, str, Callable[[], None]]] = []
        self._interrupted = False
        self._broker_faults: set[str] = set()
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
        with self._controller:
            self._broker = LedBroker(self._controller, "chaos", self._directory / "broker", BROKER_CONFIG)
            return self._run(self._broker.start(BROKER_START_SECONDS, detached=False))

    def _run(self, address: str) -> Outcome:
        try:
            self._set_up(address)
            self._do_all()
            return self._finish(address)
        finally:
            for host in self._hosts:
                _continue(host)
                host.kill()
            self._broker.stop()

    def _do_all(self) -> None:
        """Carry out the schedule, up to an interruption."""
        for event in schedule(self._options.seed, self._options.kills):
            self._await(event)
            if self._interrupted:
                self._say(f"interrupted after {self._kills} of {self._options.kills} kills")
                return
            self._say_and_do(event)

    def _set_up(self, address: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        workload = self._workload
        topics = [NewTopic(t, workload.partitions, 1, config=dict(config)) for t, config in workload.topics.items()]
        for future in admin.create_topics(topics).values():
            future.result(30.0)
        workload.prepare(address)
        self._reader = TopicReader(address, workload.followed)
        fault = {program.FAULT_VARIABLE: self._options.fault, program.ADDRESS_VARIABLE: address}
        environment = {**fault, **workload.environment}
        for number in range(HOSTS):
            config = {**self._config(address), **workload.settings(number)}
            self._hosts.append(Host(f"host-{number + 1}", self._directory, config, environment, workload.topology))
            self._hosts[-1].start()
        workload.start(address)

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
        if event.settle:
            before = dict(self._reader.seen)
            deadline = time.monotonic() + SETTLE_SECONDS
            while time.monotonic() < deadline and not self._interrupted and not self._moved_on(before):
                self._turn()
        until = time.monotonic() + event.pause_ms / 1000
        while time.monotonic() < until and not self._interrupted:
            self._turn()

    def _moved_on(self, before: dict[tuple[str, int], int]) -> bool:
        seen, moving = self._reader.seen, self._workload.moving
        if not moving:
            return sum(seen.values()) > sum(before.values())
        return all(seen[p] > count for p, count in before.items() if p[0] in moving)

    def _turn(self) -> None:
        """Read what has come out, do what has become due, look after the hosts, and show where things are."""
        for record in self._reader.poll(0.05):
            self._workload.see(record)
        now = time.monotonic()
        for entry in [entry for entry in self._due if entry[0] <= now]:
            self._due.remove(entry)
            entry[2]()
        for host in self._hosts:
            if host.exit_code is not None and not any(due[1] == host.name for due in self._due):
                self._fail(f"{host.name} ended by itself with exit code {host.exit_code}: {host.last_error()}")
                host.start()
        self._show_progress(now)

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
        """Carry out one event; returns the victim."""
        host = self._hosts[event.host]
        rng = random.Random(event.seed)
        match event.action:
            case Action.KILL_BROKER | Action.RESTART_BROKER:
                return self._restart_broker(kill=event.action is Action.KILL_BROKER)
            case Action.KILL_WORKER | Action.STOP_WORKER:
                return self._hit_worker(host, event)
            case Action.ADD_WORKER | Action.REMOVE_WORKER:
                return self._change_workers(host, event.action is Action.ADD_WORKER)
        return f"{host.name} {self._take_down(host, event.action, rng)}, back in {event.duration_ms} ms" + self._later(
            event.duration_ms, host
        )

    def _later(self, delay_ms: int, host: Host) -> str:
        self._due.append((time.monotonic() + delay_ms / 1000, host.name, host.start))
        return ""

    def _take_down(self, host: Host, action: Action, rng: random.Random) -> str:
        self._due = [due for due in self._due if due[1] != host.name]  # it may have been away already
        if action is Action.RESTART_HOST:
            _continue(host)  # a stopped process cannot stop in good order
            started = bool(host.workers())
            code = host.stop() if host.runs else 0
            if code and (started or code != -signal.SIGTERM):  # before it has handlers, SIGTERM just ends it
                self._fail(f"{host.name} was told to stop and ended with exit code {code}: {host.last_error()}")
            return f"exit code {code}"
        if action is Action.KILL_SUPERVISOR:
            _continue(host)
            if not host.kill_supervisor():
                self._fail(f"workers of {host.name} outlive their supervisor")
            return "supervisor"
        workers = len(host.workers())
        host.kill()
        if action is Action.DELETE_STATE:
            return f"and {host.delete_state(rng)} deleted"
        if action is Action.CORRUPT_STATE:
            return f"and {host.corrupt_state(rng)}"
        return f"supervisor and {workers} workers"

    def _restart_broker(self, kill: bool) -> str:
        pid = self._broker.status().pid
        if kill and pid is not None:
            self._broker.kill()
        else:
            self._broker.stop()
        self._look_at_brokers_log()
        self._broker.start(BROKER_START_SECONDS, detached=False)
        return f"pid {pid}"

    def _look_at_brokers_log(self) -> None:
        """Say it if the broker itself has made a mistake."""
        with self._broker.log_file.open(errors="replace") as log:
            found = {text for line in log for text in BROKER_FAULTS if text in line}
        for text in found - self._broker_faults:
            self._say(BROKER_FAULTS[text])
        self._broker_faults |= found

    def _hit_worker(self, host: Host, event: Event) -> str:
        victim = host.victim(event.victim)
        if victim is None:
            return f"{host.name}: nobody there"
        worker, name = victim
        if event.action is Action.KILL_WORKER:
            _send(worker, signal.SIGKILL)
            return name
        _send(worker, signal.SIGSTOP)
        again = time.monotonic() + event.duration_ms / 1000
        self._due.append((again, "", lambda: _send(worker, signal.SIGCONT)))
        return f"{name}, for {event.duration_ms} ms"

    def _change_workers(self, host: Host, add: bool) -> str:
        wanted = host.threads + (1 if add else -1)
        if not host.runs or not 1 <= wanted <= THREADS_MAX:
            return f"{host.name} keeps {host.threads}"
        host.threads = wanted
        host.signal_supervisor(signal.SIGTTIN if add else signal.SIGTTOU)
        return f"{host.name} now {wanted}"

    # -- the end

    def _finish(self, address: str) -> Outcome:
        """Let everything recover, write a last record of each key, wait for all outputs, and judge."""
        workload = self._workload
        while self._due:
            self._turn()
        workload.healed()
        workload.finish()
        self._await_outputs()
        for host in self._hosts:
            code = host.stop()
            if code:
                self._fail(f"{host.name} was told to stop and ended with exit code {code}: {host.last_error()}")
        for record in self._reader.read_to_end():
            workload.see(record)
        self._look_at_brokers_log()
        verdict, reports = workload.verdict(address), tuple(workload.reports(address, self._reader))
        self._reader.close()
        failures, lines = tuple(self.failures), tuple(self._lines)
        broker_failed = bool(self._broker_faults)
        return Outcome(verdict, failures, self._kills, workload.sent(), workload.aborted, lines, broker_failed, reports)

    def _await_outputs(self) -> None:
        seen, deadline = -1, 0.0
        while not self._workload.complete():
            if (now := sum(self._reader.seen.values())) != seen:
                seen, deadline = now, time.monotonic() + self._options.patience_seconds
            elif time.monotonic() > deadline:
                self._fail(f"nothing has come out for {self._options.patience_seconds:.0f} s")
                return
            self._turn()


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _continue(host: Host) -> None:
    for worker in host.workers():
        _send(worker, signal.SIGCONT)


def run(options: Options, directory: Path, out: TextIO = sys.stdout, progress: TextIO | None = None) -> Outcome:
    """Run a schedule in a directory of its own; see Chaos."""
    return Chaos(options, directory, out, progress).run()
