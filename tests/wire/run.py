"""Runs an application behind the proxy, with one plan after the other: each lasts a moment, and nothing may be lost,
duplicated or stuck.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.dev.dev_broker import DevBroker
from penstock.testing.wire import Plan, WireProxy
from tests.chaos import program
from tests.chaos.checker import EXACTLY_ONCE, Sequence, Verdict
from tests.chaos.hosts import Host
from tests.chaos.workloads import Setting
from tests.chaos.workloads.numbers import Numbers
from tests.topics import create_topics

#: Duration of a plan's rules: about thirty commits with exactly-once.
PLAN_SECONDS = 3.0
#: Time limit for the outputs of all records written before the end of a plan: two sessions, a transaction timeout with
#: the broker's check for it, and a restart, on a busy machine.
STUCK_SECONDS = 60.0
START_SECONDS = 120.0
TRANSACTION_TIMEOUT_MS = 6_000
BROKER_CONFIG = {
    "group.streams.session.timeout.ms": "4000",
    "group.streams.heartbeat.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "2000",
}
#: Before every plan with a number divisible by this, a stream thread is killed, so that its replacement starts under
#: the plan's rules.
PLANS_FOR_A_KILL = 3


@dataclass
class Result:
    """The findings of a run, none if it is good. findings: one line for each plan after which something was wrong."""

    plans: int = 0
    done: int = 0
    records: int = 0
    findings: list[str] = field(default_factory=list)
    verdict: Verdict | None = None

    @property
    def good(self) -> bool:
        """True if there are no findings."""
        return not self.findings and self.verdict is not None and self.verdict.good

    def __str__(self) -> str:
        return (
            f"{self.plans} plans, {self.done} faults, {self.records} records: {self.verdict}, "
            f"{len(self.findings)} plans with a finding"
        )


class WirePlans:
    """One run. directory: for logs, state and the broker; out: where a line for each plan is written.

    fault: see program.FAULT_VARIABLE.
    """

    def __init__(self, directory: Path, guarantee: str, protocol: str, out: TextIO, fault: str = "") -> None:
        self.result = Result()
        self._directory = directory
        self._guarantee = guarantee
        self._protocol = protocol
        self._fault = fault
        self._out = out
        self._workload = Numbers(Setting(1, 1, guarantee, guarantee, fault), directory)
        self._ledger = self._workload.ledger
        self._interrupted = False

    def interrupt(self) -> None:
        """End after the current plan, and judge. A signal handler may call this."""
        self._interrupted = True

    def run(self, seeds: Iterable[int]) -> Result:
        """Run the plans of these seeds in turn, and judge."""
        with (
            DevBroker("wire", self._directory / "broker", config=BROKER_CONFIG) as broker,
            (self._directory / "proxy.log").open("w") as log,
            WireProxy(broker.bootstrap_servers, out=log) as self._proxy,
        ):
            self._address = broker.bootstrap_servers
            try:
                self._set_up()
                for seed in seeds:
                    if self._interrupted:
                        break
                    self._plan(Plan.random(seed))
                return self._finish()
            finally:
                self._host.kill()

    def _set_up(self) -> None:
        admin, workload = AdminClient({"bootstrap.servers": self._address}), self._workload
        create_topics(admin, *(NewTopic(topic, workload.partitions) for topic in workload.topics))
        environment = {program.FAULT_VARIABLE: self._fault}
        self._host = Host("host", self._directory, self._config(), environment, workload.topology)
        self._reader = workload.reader(self._address)
        self._host.start()
        workload.start(self._address)
        self.result.findings += self._recover(START_SECONDS)

    def _config(self) -> dict[str, object]:
        exact = self._guarantee == EXACTLY_ONCE
        return {
            "application.id": program.APPLICATION_ID,
            "bootstrap.servers": self._proxy.bootstrap_servers,
            "processing.guarantee": self._guarantee,
            "group.protocol": self._protocol,
            "isolation.level": "read_committed",  # the feeder aborts some transactions
            "commit.interval.ms": 100 if exact else 300,
            "request.timeout.ms": 2_000,  # so that the application detects a plan's silence while it lasts
            "session.timeout.ms": 4_000,
            "heartbeat.interval.ms": 300,
            **({"transaction.timeout.ms": TRANSACTION_TIMEOUT_MS} if exact else {}),
            "penstock.worker.restart.max": 100_000,
            "penstock.worker.restart.backoff.ms": 50,
            "penstock.worker.restart.backoff.max.ms": 500,
        }

    # -- one plan

    def _plan(self, plan: Plan) -> None:
        faults, lost, doubled = len(self._proxy.events), self._lost(), self._doubled()
        self._proxy.set_rules(plan.rules, seed=plan.seed)
        killed = plan.seed % PLANS_FOR_A_KILL == 0 and self._kill_a_worker()
        until = time.monotonic() + PLAN_SECONDS
        while time.monotonic() < until:
            self._read()
        self._proxy.heal()
        begin = time.monotonic()
        wrong = self._recover(STUCK_SECONDS)
        if self._host.exit_code is not None:
            wrong.append(f"the application ended with exit code {self._host.exit_code}: {self._host.last_error()}")
            self._host.start()
        if (more := self._lost() - lost) > 0 and not wrong:
            wrong.append(f"{more} lost")
        if self._guarantee == EXACTLY_ONCE and (more := self._doubled() - doubled):
            wrong.append(f"{more} doubled")
        done = len(self._proxy.events) - faults
        self.result.plans += 1
        self.result.done += done
        what = f"{done} faults{', a kill' if killed else ''}, {time.monotonic() - begin:.1f} s to recover"
        self._say("; ".join([f"seed {plan.seed}: {what}", *wrong]))
        if wrong:
            self.result.findings.append(f"seed {plan.seed}: {'; '.join(wrong)}")
            for rule in plan.rules:
                self._say(f"    {rule}")

    def _recover(self, seconds: float) -> list[str]:
        """Wait until all current input, one record at least, has an output; return the stuck records."""
        deadline = time.monotonic() + seconds
        while not self._ledger.expected and time.monotonic() < deadline:  # the feeder may have just started
            self._read()
        for _ in range(3):
            self._read()
        expected = dict(self._ledger.expected)
        while self._missing(expected) and time.monotonic() < deadline and self._host.exit_code is None:
            self._read()
        if not expected:
            return [f"stuck: nothing has been written within {seconds:.0f} s"]
        missing = self._missing(expected)
        return [f"stuck: {missing} records have not come out within {seconds:.0f} s"] if missing else []

    def _kill_a_worker(self) -> bool:
        victim = self._host.victim(0.0)
        if victim is None:
            return False
        try:
            victim[0].send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            return False
        return True

    def _missing(self, expected: dict[str, int]) -> int:
        copies = self._ledger.copies
        return sum(len(copies.get(key, Sequence()).lost(count)) for key, count in expected.items())

    def _lost(self) -> int:
        return sum(len(sequence.missing) for sequence in self._ledger.copies.values())

    def _doubled(self) -> int:
        return self._ledger.doubled()

    def _read(self) -> None:
        for record in self._reader.poll(0.1):
            self._workload.see(record)

    # -- the end

    def _finish(self) -> Result:
        workload = self._workload
        workload.finish()
        deadline = time.monotonic() + STUCK_SECONDS
        while not workload.complete() and time.monotonic() < deadline:
            self._read()
        if not workload.complete():
            self.result.findings.append("at the end: not all has come out")
        if code := self._host.stop():
            self.result.findings.append(f"at the end: exit code {code}: {self._host.last_error()}")
        for record in self._reader.read_to_end():
            workload.see(record)
        self._reader.close()
        self.result.records = workload.sent()
        self.result.verdict = workload.verdict(self._address)
        return self.result

    def _say(self, line: str) -> None:
        print(line, file=self._out, flush=True)
