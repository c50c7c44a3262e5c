"""Checks whether the memory, files or threads of hosts' processes grow in a long run.

Faults replace processes all the time, so this compares the typical usage of the processes of a role in the second
quarter of the run with that in the last one.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from statistics import median

import psutil

from tests.chaos.hosts import Host
from tests.soak.figures import MIB, Allowance, Sample

SAMPLE_SECONDS = 5.0
#: A younger process is still starting.
SETTLED_SECONDS = 15.0
#: A shorter run is all warm-up: memtables and caches fill, and clients connect to all brokers.
MINUTES_MIN = 10.0
#: Each quarter needs as many samples of a role.
SAMPLES_MIN = 20
#: More than in a run without faults, because the number of threads and tasks varies.
ALLOWANCES = (Allowance("rss", 20, 24 * MIB), Allowance("handles", 20, 24), Allowance("threads", 50, 8))


class Growth:
    """Samples while the run continues; at: seconds since its start."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self._next = 0.0

    def look(self, hosts: Iterable[Host], at: float) -> None:
        """Take samples if they are due."""
        if at < self._next:
            return
        self._next = at + SAMPLE_SECONDS
        for host in hosts:
            for number, pid in enumerate(host.pids()):
                with suppress(psutil.NoSuchProcess):  # it has just been killed
                    self._sample("worker" if number else "supervisor", psutil.Process(pid), at)

    def _sample(self, role: str, process: psutil.Process, at: float) -> None:
        with process.oneshot():
            if time.time() - process.create_time() > SETTLED_SECONDS:
                usage = (process.memory_info().rss, process.num_fds(), process.num_threads())
                self._samples.append(Sample(role, process.pid, at, *usage))

    def table(self, seconds: float) -> Iterator[str]:
        """Yield lines with the typical usage of processes. seconds: of the whole run."""
        for role, field, early, late, _ in self._compare(seconds):
            unit = MIB if field == "rss" else 1
            yield f"{role:12} {field:8} {early / unit:8.1f} in the second quarter, {late / unit:8.1f} in the last one"

    def faults(self, seconds: float) -> list[str]:
        """Return the resources that grew by more than allowed."""
        found = self._compare(seconds)
        return [
            f"{role}: {field} grew from {early:.0f} to {late:.0f}, by more than {allowed:.0f}"
            for role, field, early, late, allowed in found
            if late - early > allowed
        ]

    def _compare(self, seconds: float) -> Iterator[tuple[str, str, float, float, float]]:
        if seconds < 60 * MINUTES_MIN:
            return
        for role in sorted({sample.process for sample in self._samples}):
            early, late = ([s for s in self._samples if s.process == role and low * seconds <= s.at < high * seconds]
                           for low, high in ((0.25, 0.5), (0.75, 1.0)))  # fmt: skip
            if min(len(early), len(late)) < SAMPLES_MIN:
                continue
            for allowance in ALLOWANCES:
                before, after = (median(getattr(s, allowance.field) for s in part) for part in (early, late))
                allowed = max(allowance.least, before * allowance.percent / 100)
                yield role, allowance.field, before, after, allowed
