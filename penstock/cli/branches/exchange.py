"""Exchanges the writer of the real outputs and its shadow; see docs/branches.md and docs/decisions/13-cutover.md."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Self

from penstock.cli.progress import Progress
from penstock.cli.running_application import NotRunningError
from penstock.supervisor.queries.changelog_tail import ChangelogClients
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError
from penstock.workers.tasks.branch_mark import BranchMark, BranchState

from .branch_brokers import BranchBrokers
from .branch_record import BranchRecord, BranchRecords, by_topic
from .branching import branch_config
from .common_stop import CommonStop, Look
from .exchange_side import ExchangeSide

#: How long the transactions of stopped applications may take to end, in seconds: those of killed stream threads time
#: out.
TRANSACTION_SECONDS = 30.0

_S = BranchState


class Exchange:
    """One exchange. A context manager that closes its clients.

    config: of the original. to_branch: whether the branch writes the real outputs afterwards, or the original does.
    original_prefix: for the outputs of the original while it is the shadow. limit_seconds, catch_up_seconds, report:
    see CommonStop.

    The marks of the committed offsets say which step is next, so an interrupted exchange is continued by running it
    again. All errors are PenstockErrors.
    """

    def __init__(
        self,
        config: StreamsConfig,
        record: BranchRecord,
        to_branch: bool,
        original_prefix: str,
        limit_seconds: float,
        catch_up_seconds: float | None,
        report: Callable[[str], None],
        progress: Progress,
    ) -> None:
        config.require("application.id", "bootstrap.servers")
        self._config, self.record = config, record
        self._original: str = config["application.id"]
        self._to_branch, self._original_prefix = to_branch, original_prefix
        self._report = report
        self._records = BranchRecords(config)
        self._brokers = BranchBrokers(config, ChangelogClients(config, f"{record.name}-exchange"))
        self._shadow, self._writer = self._sides()
        self._stop = CommonStop(
            self._shadow, self._writer, self._brokers, limit_seconds, catch_up_seconds, report, progress
        )

    def _sides(self) -> tuple[ExchangeSide, ExchangeSide]:
        """Return the next writer, and the present one: their roles before the exchange name them."""
        names = self.record.name, self._original
        sources = set.intersection(*(set(self.record.inputs[name]) for name in names))
        branch, original = (
            ExchangeSide(branch_config(self._config, name), sources, set(self.record.inputs[name]) - sources)
            for name in names
        )
        return (branch, original) if self._to_branch else (original, branch)

    def close(self) -> None:
        """Close the clients."""
        self._shadow.close()
        self._writer.close()
        self._brokers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self) -> BranchRecord:
        """Make the exchange, or what is left of it; each step changes one mark. Returns the branch.

        Raises LockError if another process exchanges branches of this application.
        """
        with self._records.locked():
            while (marks := (self._mark(self._shadow), self._mark(self._writer))) and not self._is_done(*marks):
                self._next_step(*marks)
            since_ms = self.record.writer_since_ms or time.time_ns() // 1_000_000
            self._save(replace(self.record, writer_since_ms=since_ms if self._to_branch else None))
        return self.record

    def _mark(self, side: ExchangeSide) -> BranchMark:
        mark = side.mark(self._brokers)
        if mark is None and side.name != self._original:
            raise StreamsError(f"The group {side.name} has no offsets of a branch: they have expired, or were deleted")
        return BranchMark(_S.WRITER) if mark is None else mark

    @staticmethod
    def _is_done(shadow: BranchMark, writer: BranchMark) -> bool:
        return (shadow.state, writer.state) == (_S.WRITER, _S.SHADOW)

    def _next_step(self, shadow: BranchMark, writer: BranchMark) -> None:
        match (shadow.state, writer.state):
            case (_S.SHADOW, _S.WRITER):
                self._halt()
            case (_S.HALTED, _S.WRITER):
                self._replace(shadow.exchange)
            case (_S.HALTED, _S.SHADOW):
                self._promote(shadow.exchange, writer.exchange)
            case (_S.WRITER, _S.HALTED):  # an exchange in the other direction was interrupted after its first step
                self._set(self._writer, _S.SHADOW)
            case (_S.SHADOW, _S.HALTED):
                self._refuse_opposite()
            case _:
                raise StreamsError(
                    f"{self._shadow.name} is marked as {shadow.state.name}, and {self._writer.name} as "
                    f"{writer.state.name}: neither writes the real outputs, or a third one does. Run `penstock branch "
                    f"list`, and exchange that one with {self._original} first"
                )

    def _set(self, side: ExchangeSide, state: BranchState, exchange: int = 0) -> None:
        side.set_mark(BranchMark(state, exchange), self._brokers)

    # -- the steps

    def _halt(self) -> None:
        """Stop both at the same point. Then the shadow does not start any more."""
        self._prepare_outputs()
        running = [side for side in (self._shadow, self._writer) if side.is_running()]
        if len(running) == 1:
            self._refuse_single(running[0])
        if running:
            self._stop_together()
        self._shadow.wait_until_gone()
        self._writer.wait_until_gone()
        with self._shadow.locked(), self._writer.locked():  # their processes have ended, too
            look = self._stop.look(TRANSACTION_SECONDS)
            if why := look.difference():
                raise StreamsError(
                    f"Both applications have stopped, but not at the same point: {why}. Nothing has changed. "
                    f"Start them as before, then run the command again:\n{self._start_as_before}"
                )
            self._save_points(look)
            self._set(self._shadow, _S.HALTED, secrets.randbits(62) + 1)

    def _replace(self, exchange: int) -> None:
        """The shadow cannot start: make the writer a shadow, unless it has run since; then undo the first step."""
        with ExitStack() as lock:
            why = self._obstacle(lock)
            if not why:
                self._set(self._writer, _S.SHADOW, exchange)
                return
        self._undo(f"{self._writer.name} has run after both had stopped: {why}")

    def _undo(self, why: str) -> None:
        self._set(self._shadow, _S.SHADOW)
        raise StreamsError(
            f"{why}. The exchange is undone. Start {self._shadow.name} as before, then run the command again:\n"
            f"{self._start_as_before}"
        )

    def _obstacle(self, lock: ExitStack) -> str:
        """Keep the writer from starting until the lock is closed. Returns how it differs from where it has stopped."""
        try:
            lock.enter_context(self._writer.locked())
            self._writer.wait_until_gone()
        except StreamsError as error:
            return str(error)
        return self._stop.look(TRANSACTION_SECONDS).difference()

    def _promote(self, exchange: int, replaced_in: int) -> None:
        """The writer cannot write the real outputs any more: the shadow, which replaces it, can."""
        if exchange != replaced_in:
            self._undo(f"{self._writer.name} was replaced by another application")
        self._set(self._shadow, _S.WRITER, exchange)

    def _refuse_opposite(self) -> None:
        command = "rollback" if self._to_branch else "cutover"
        raise StreamsError(
            f"`penstock branch {command} {self.record.name}` was interrupted after {self._shadow.name} had stopped "
            "writing the real outputs. Run it again first; then this command can exchange them once more"
        )

    def _refuse_single(self, running: ExchangeSide) -> None:
        missing = self._writer if running is self._shadow else self._shadow
        raise NotRunningError(
            f"{missing.name} does not run on this host, but {running.name} does. Start it as before, then run the "
            f"command again:\n{self._start_as_before}"
        )

    # -- both at the same point

    def _stop_together(self) -> None:
        """Stop both, after a look at the topics that they read now: a new version may have others."""
        shadow, writer = self._stop.layouts()
        sources = [layout.sources - layout.repartition for layout in (shadow, writer)]
        if sources[0] != sources[1]:
            raise StreamsError(
                f"{shadow.name} and {writer.name} cannot be exchanged: only one of them reads "
                f"{', '.join(sorted(sources[0] ^ sources[1]))}. Both must have the same input"
            )
        self._save(replace(self.record, inputs={layout.name: sorted(layout.sources) for layout in (shadow, writer)}))
        self._shadow.read(shadow)
        self._writer.read(writer)
        self._report(f"Waiting until {shadow.name} has no lag.")
        self._stop.catch_up()
        self._stop.stop()

    def _prepare_outputs(self) -> None:
        """Create the topics that the original writes to as a shadow."""
        if not self._to_branch or self.record.original_prefix:
            return
        outputs = {topic: self._original_prefix + topic for topic in self._brokers.describe(self.record.outputs)}
        taken = set(self._brokers.describe(outputs.values())) if outputs else set()
        if others := sorted(taken - set(self.record.topics)):
            raise StreamsError(
                f"These topics exist, and are not those of {self._original} as a shadow: {', '.join(others)}. Choose "
                "another --sink-prefix"
            )
        topics = tuple(dict.fromkeys((*self.record.topics, *sorted(outputs.values()))))
        self._save(replace(self.record, topics=topics))
        self._brokers.create_like({topic: new for topic, new in outputs.items() if new not in taken})
        self._save(replace(self.record, original_prefix=self._original_prefix))

    # -- the branch's file

    def _save_points(self, look: Look) -> None:
        self._save(replace(self.record, points=by_topic(look.positions[self._shadow.name])))

    def _save(self, record: BranchRecord) -> None:
        self._records.save(record)
        self.record = record

    def start_lines(self, exchanged: bool = True) -> tuple[str, str]:
        """Return the commands that start the writer and its shadow, in their roles after or before the exchange."""
        to_branch = self._to_branch is exchanged
        original = start_line(self._original, self._original, self.record.original_prefix if to_branch else "")
        branch = start_line(self.record.name, self._original, "" if to_branch else self.record.sink_prefix)
        return (branch, original) if to_branch else (original, branch)

    @property
    def _start_as_before(self) -> str:
        return "\n".join(self.start_lines(exchanged=False))


def start_line(name: str, original: str, prefix: str) -> str:
    """Return the command that starts an application with the original's configuration file."""
    own = f" -c application.id={name}" if name != original else ""
    shadow = f" -c penstock.sink.prefix={prefix}" if prefix else ""
    return f"  penstock run MODULE:TOPOLOGY --config FILE{own}{shadow}"
