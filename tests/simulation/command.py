"""The command line of the simulation."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from .mutants import MUTANTS, Mutant
from .simulation import Simulation
from .strand import Strand
from .world import EPOCH_MS, START_MS, World

#: Where state directories are kept meanwhile: in memory, if the system has such a place.
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Outcome:
    """What came of a seed. events: how many lines its trace has."""

    seed: int
    violations: tuple[str, ...]
    trace: tuple[tuple[int, str, str], ...]


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory for the state directories, with logging off: thousands of threads die here, and shall."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="simulation-", dir=MEMORY if MEMORY.is_dir() else None) as name:
            yield Path(name)
    finally:
        logging.disable(before)
        Strand.end_workers()


class TraceHandler(logging.Handler):
    """Puts log lines into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        self._world.note("log", f"{record.levelname} {record.getMessage()}")


def run_seed(seed: int, directory: Path, log: bool = False, aims: Sequence[str] = ()) -> Outcome:
    """Run one schedule. log: with the log lines of the stream threads in its trace; aims: see Simulation."""
    simulation = Simulation(seed, directory, aims)
    if log:
        logging.disable(logging.NOTSET)
        logger = logging.getLogger("penstock")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(TraceHandler(simulation.world))
    simulation.run()
    world = simulation.world
    return Outcome(seed, tuple(world.violations), tuple(world.trace))


def run_seeds(first: int, count: int, directory: Path, aims: Sequence[str] = ()) -> Iterator[Outcome]:
    """Run the schedules of so many seeds."""
    return (run_seed(seed, directory, aims=aims) for seed in range(first, first + count))


def show_trace(outcome: Outcome) -> None:
    """Print what happened, with simulated seconds since the beginning."""
    for at_ms, who, what in outcome.trace:
        print(f"{(at_ms - START_MS) / 1000:9.3f}  {who:<12} {what}")
    print(f"seed {outcome.seed}: {len(outcome.violations)} violations (epoch {EPOCH_MS})")


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments say; returns 1 if something was found, or a mutant was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many schedules to run")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--trace", type=int, metavar="SEED", help="print what happens in one schedule")
    parser.add_argument("--log", action="store_true", help="with --trace: the stream threads' log lines too")
    parser.add_argument("--mutants", action="store_true", help="find each mutant, with so many seeds at most")
    given = parser.parse_args(arguments)
    with scratch() as directory:
        if given.trace is not None:
            outcome = run_seed(given.trace, directory, given.log)
            show_trace(outcome)
            return bool(outcome.violations)
        if given.mutants:
            return _hunt(given.first, given.seeds, directory)
        return _summary(given.first, given.seeds, directory)


def _summary(first: int, count: int, directory: Path) -> int:
    started = time.process_time()
    found = events = 0
    for outcome in run_seeds(first, count, directory):
        events += len(outcome.trace)
        if outcome.violations:
            found += 1
            print(f"seed {outcome.seed}: {outcome.violations[0]}", flush=True)
    seconds = time.process_time() - started
    print(f"{count} schedules, {found} violations, {events} events, {count / seconds:.1f} schedules/s")
    return bool(found)


def find(mutant: Mutant, first: int, count: int, directory: Path) -> Outcome | None:
    """Return the schedule that finds a mutant: of its known seed, else the first of so many; None if none does."""
    with mutant.applied():
        known = run_seeds(mutant.found_by, 1, directory, mutant.aims)
        outcomes = chain(known, run_seeds(first, count, directory, mutant.aims))
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
