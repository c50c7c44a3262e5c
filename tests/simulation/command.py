"""The command line of the simulation."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tests.simulation.crowd import ASSIGNORS, Crowd
from tests.simulation.kinds import PLAIN, Kind
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.rare import Branch, RareBranches
from tests.simulation.simulation import Simulation
from tests.simulation.table import Rare, gaps, lines
from tests.simulation.world import EPOCH_MS, LOG, START_MS, World

#: How many schedules a process is given at a time.
PART = 10
#: Allocations between two garbage collections: with 700, Python's default, collections take a tenth of the time.
GARBAGE = 50_000
#: Where state directories are kept during a run: in memory, if the system has such a file system.
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a seed. rare: how often each rare event happened, except for branches of the code."""

    seed: int
    violations: tuple[str, ...]
    trace: tuple[tuple[int, str, str], ...]
    rare: Mapping[str, int]


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory for the state directories, with logging off, because thousands of threads die on purpose."""
    before, thresholds = logging.root.manager.disable, gc.get_threshold()
    logging.disable(logging.CRITICAL)
    gc.set_threshold(GARBAGE, *thresholds[1:])
    try:
        with tempfile.TemporaryDirectory(prefix="simulation-", dir=MEMORY if MEMORY.is_dir() else None) as name:
            yield Path(name)
    finally:
        gc.set_threshold(*thresholds)
        logging.disable(before)


class TraceHandler(logging.Handler):
    """Puts log lines into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note(LOG, f"{record.levelname} {record.getMessage()}")


@contextmanager
def logged(world: World) -> Iterator[None]:
    """Add the stream threads' log lines to the trace."""
    logger, handler = logging.getLogger("penstock"), TraceHandler(world)
    before = logging.root.manager.disable, logger.level, logger.propagate
    logging.disable(logging.NOTSET)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logging.disable(before[0])
        logger.setLevel(before[1])
        logger.propagate = before[2]


def run_seed(seed: int, directory: Path, log: bool = False, aims: Sequence[str] = (), plain: bool = False) -> Outcome:
    """Run one schedule. log: with the log lines of the stream threads in its trace; aims: see Simulation.

    plain: run the schedule as a plain one, whatever kind its seed has.
    """
    simulation = Simulation(seed, directory, aims, PLAIN if plain else Kind.of(seed))
    world = simulation.world
    with logged(world) if log else nullcontext():
        simulation.run()
    return Outcome(seed, tuple(world.violations), tuple(world.trace), world.rare)


def run_seeds(
    first: int, count: int, directory: Path, aims: Sequence[str] = (), plain: bool = False
) -> Iterator[Outcome]:
    """Run the schedules of this many seeds."""
    return (run_seed(seed, directory, aims=aims, plain=plain) for seed in range(first, first + count))


def show_trace(outcome: Outcome) -> None:
    """Print what happened, with simulated seconds since the beginning."""
    for at_ms, who, what in outcome.trace:
        print(f"{(at_ms - START_MS) / 1000:9.3f}  {who:<12} {what}")
    print(f"seed {outcome.seed}: {len(outcome.violations)} violations (epoch {EPOCH_MS})")


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns 1 if a violation was found, or a mutant was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many schedules to run")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--trace", type=int, metavar="SEED", help="print what happens in one schedule")
    parser.add_argument("--log", action="store_true", help="with --trace: the stream threads' log lines too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at work (one for each core)")
    parser.add_argument("--mutants", action="store_true", help="find each mutant, with so many seeds at most")
    parser.add_argument(
        "--members", type=int, metavar="N", help="one group of so many members that join, die and leave"
    )
    parser.add_argument("--tasks", type=int, help="with --members: the tasks of the group (two for each member)")
    parser.add_argument("--assignor", choices=ASSIGNORS, default="high-availability", help="with --members")
    parser.add_argument("--no-table", action="store_false", dest="table", help="without the table of rare branches")
    given = parser.parse_args(arguments)
    with scratch() as directory:
        if given.trace is not None:
            outcome = run_seed(given.trace, directory, given.log)
            show_trace(outcome)
            return bool(outcome.violations)
        if given.members:
            tasks = given.tasks or 2 * given.members
            crowd = Crowd(given.first, directory, given.members, tasks, print, given.assignor)
            crowd.run()
            print("\n".join(crowd.world.violations) or "nothing is lost, doubled or held")
            return bool(crowd.world.violations)
        if given.mutants:
            return _hunt(given.first, given.seeds, directory)
    return _summary(given.first, given.seeds, given.jobs, given.table)


@dataclass(frozen=True)
class Part:
    """The outcome of some seeds: violations by seed, events, and rare events."""

    violations: Mapping[int, tuple[str, ...]]
    events: int
    rare: Rare


def run_part(seeds: range) -> Part:
    """Run some seeds, and count."""
    rare, events, violations = Rare(), 0, {}
    with scratch() as directory, RareBranches().counting() as reached:
        for outcome in run_seeds(seeds.start, len(seeds), directory):
            events += len(outcome.trace)
            if outcome.violations:
                violations[outcome.seed] = outcome.violations
            rare.add({**outcome.rare, **reached})
            reached.clear()
    return Part(violations, events, rare)


def _summary(first: int, count: int, jobs: int, table: bool) -> int:
    started = time.monotonic()
    parts = [range(begin, min(begin + PART, first + count)) for begin in range(first, first + count, PART)]
    failed, events, rare = 0, 0, Rare()
    with ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext() as processes:
        for part in (processes.map if processes else map)(run_part, parts):
            events += part.events
            failed += len(part.violations)
            rare.merge(part.rare)
            for seed, violations in part.violations.items():
                print(f"seed {seed}: {violations[0]}", flush=True)
    pace = count / (time.monotonic() - started)
    branches = RareBranches().branches
    for line in lines(rare, branches) if table else gap_lines(rare, branches):
        print(line)
    print(f"{count} schedules, {failed} violations, {events} events, {pace:.1f} schedules/s with {jobs} jobs")
    return bool(failed)


def gap_lines(rare: Rare, branches: Sequence[Branch]) -> list[str]:
    """Return the output without the table: the number of gaps."""
    missing = gaps(rare, branches)
    return [f"{len(missing)} rare branches and faults were not reached: the table names them"] if missing else []


def find(mutant: Mutant, first: int, count: int, directory: Path) -> Outcome | None:
    """Return the schedule that detects a mutant: of its known seed, otherwise the first of this many; None if none
    does.
    """
    with mutant.applied():
        known = run_seeds(mutant.found_by, 1, directory, mutant.aims, plain=mutant.plain)
        outcomes = chain(known, run_seeds(first, count, directory, mutant.aims, plain=mutant.plain))
        return next((outcome for outcome in outcomes if outcome.violations), None)


def _hunt(first: int, count: int, directory: Path) -> int:
    missed = 0
    for mutant in MUTANTS:
        found = find(mutant, first, count, directory)
        missed += found is None
        how = "NOT FOUND" if found is None else f"seed {found.seed}: {found.violations[0]}"
        print(f"{mutant.name}: {how}", flush=True)
    print(f"{len(MUTANTS)} mutants, {missed} not found in {count} seeds")
    return bool(missed)
