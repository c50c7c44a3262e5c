"""Two applications with the same input stop at the same point of it; see docs/decisions/13-cutover.md."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from penstock.cli.progress import Progress
from penstock.cli.running_application import NotRunningError
from penstock.clients.cluster.offsets import LATEST
from penstock.topology.errors import StreamsError
from penstock.topology.records import TopicPartition

from .branch_brokers import BranchBrokers
from .branch_layout import BranchLayout, LateError, once_assigned
from .exchange_side import ExchangeSide

#: Between two looks at the applications, in seconds.
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Look:
    """Both applications at a moment. positions: their offsets of the sources, by application.

    left: by application, the partitions of its repartition topics with unprocessed records.
    """

    positions: Mapping[str, Mapping[TopicPartition, int]]
    left: Mapping[str, list[TopicPartition]]

    def difference(self) -> str:
        """Return why the applications are not at the same point, "" if they are."""
        (one, mine), (other, theirs) = self.positions.items()
        apart = [p for p in mine if mine[p] != theirs.get(p)]
        if apart:
            p = apart[0]
            return (
                f"{one} is at offset {mine[p]} of {p}, and {other} at {theirs.get(p)} ({len(apart)} partitions differ)"
            )
        behind = [f"{name} has not processed all records of {left[0]}" for name, left in self.left.items() if left]
        return "; ".join(behind)


@dataclass(eq=False)
class CommonStop:
    """Stops a shadow, and the writer that it replaces.

    limit_seconds: how long the real outputs may wait before both stop. If the caller dies, the applications continue
    after this time. catch_up_seconds: how long the shadow may take to start and to process its lag, None without a
    limit. report: prints a line about a step.
    """

    shadow: ExchangeSide
    writer: ExchangeSide
    brokers: BranchBrokers
    limit_seconds: float
    catch_up_seconds: float | None
    report: Callable[[str], None]
    progress: Progress

    def __post_init__(self) -> None:
        self._began = time.monotonic()

    # -- before anything stops

    def layouts(self) -> list[BranchLayout]:
        """Return what both consist of; raises StreamsError if not all of their tasks can hold."""
        return once_assigned(self._layouts, self.progress)

    def _layouts(self) -> list[BranchLayout]:
        found = [self._committed(side) for side in (self.shadow, self.writer)]
        self._check_tasks(found)
        return found

    def _committed(self, side: ExchangeSide) -> BranchLayout:
        """Let an application commit; it cannot while its tasks move or restore, so try again."""
        pace, reported = threading.Event(), ""
        while True:
            try:
                with side.held(self.limit_seconds) as layout:
                    return layout
            except NotRunningError:
                raise
            except StreamsError as error:
                if self._is_late:
                    raise LateError(str(error)) from error
                if str(error) != reported:
                    reported = str(error)
                    self.report(f"Waiting for {side.name}: {reported.rstrip('.')}.")
            pace.wait(LOOK_SECONDS)

    @property
    def _is_late(self) -> bool:
        return self.catch_up_seconds is not None and time.monotonic() - self._began > self.catch_up_seconds

    def catch_up(self) -> None:
        """Wait until the shadow needs less than half of limit_seconds to process the records that exist."""
        pace, most = threading.Event(), 0
        while True:
            looked, ends = time.monotonic(), self._ends()
            while behind := self._behind(ends):
                most = max(most, behind)
                self.progress(f"{self.shadow.name} has a lag of {behind:,} records", most - behind, most)
                if self._is_late:
                    raise StreamsError(
                        f"{self.shadow.name} still has a lag of {behind:,} records after {self.catch_up_seconds:g} s. "
                        "Nothing has changed. Run the command again when it has less"
                    )
                pace.wait(LOOK_SECONDS)
            if time.monotonic() - looked < self.limit_seconds / 2:
                return

    def _ends(self) -> dict[TopicPartition, int]:
        return self.brokers.offsets(self.brokers.partitions(self.shadow.sources), LATEST, committed_only=True)

    def _behind(self, ends: Mapping[TopicPartition, int]) -> int:
        self._committed(self.shadow)
        positions = self.shadow.positions(self.brokers)
        return sum(max(end - positions[partition], 0) for partition, end in ends.items())

    # -- the stop

    def stop(self) -> None:
        """Let both read up to the same offsets and process everything before these, then begin to stop them."""
        began, pace, points = time.monotonic(), threading.Event(), self._ends()
        while why := self._try(points):
            self.progress("Waiting until both are at the same point", 0, 1)
            if time.monotonic() - began > self.limit_seconds:
                for side in (self.shadow, self.writer):
                    side.limit({}, 0)
                raise StreamsError(
                    f"{self.shadow.name} and {self.writer.name} were not at the same point within "
                    f"{self.limit_seconds:g} s: {why}. Nothing has changed, and both continue. Run the command again, "
                    "perhaps with a higher --stop-at-most"
                )
            pace.wait(LOOK_SECONDS)
        self.report(f"Both stop at the same point, {time.monotonic() - began:.1f} s after they began to wait for it.")

    def _try(self, points: dict[TopicPartition, int]) -> str:
        """Stop both if they are at the same point; otherwise return why not, and raise the points that are passed."""
        sides = (self.shadow, self.writer)
        try:
            for side in sides:
                side.limit(points, self.limit_seconds)
            with ExitStack() as holds:
                self._check_tasks([holds.enter_context(side.held(self.limit_seconds)) for side in sides])
                look = self.look(self.limit_seconds / 2)
                why = look.difference()
                if not why:
                    for side in sides:  # the writer last: if this process dies in between, it continues
                        side.stop()
        except NotRunningError:
            raise
        except StreamsError as error:  # tasks move, or a stream thread is late
            if self.shadow.is_stopping:
                raise
            return str(error)
        for positions in look.positions.values():
            points.update({p: max(offset, points.get(p, 0)) for p, offset in positions.items()})
        return why

    def _check_tasks(self, layouts: Collection[BranchLayout]) -> None:
        for layout in layouts:
            described = self.brokers.describe(layout.sources)
            layout.check_tasks({topic: len(found.partitions) for topic, found in described.items()})

    def look(self, seconds: float) -> Look:
        """Look at the committed offsets of both; seconds: how long to wait for the end of transactions."""
        began = time.monotonic()

        def in_time() -> bool:
            return time.monotonic() - began < seconds

        sides = (self.shadow, self.writer)
        left = {side.name: side.unprocessed(self.brokers, in_time) for side in sides}
        return Look({side.name: side.positions(self.brokers) for side in sides}, left)
