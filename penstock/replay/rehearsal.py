"""Two versions of a topology on the same state and input: their results compared, the first difference explained.

Each version of each task runs in its own process (rehearsal_run.py). The old version runs twice: what differs between
these runs is not deterministic, and cannot be compared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import orjson

from penstock.statestore.directory.state_directory import STORES_DIRECTORY
from penstock.topology.errors import ConfigError
from penstock.topology.records import TopicPartition

from .application import copy_state
from .compared_values import SENT
from .rehearsal_run import SHOWN, TRACE, Run
from .rehearsed_slice import GLOBALS, RECORDS, RehearsedSlice, place_of, read_records, write_records
from .run_comparison import Comparison, compare_runs

#: The results of a run are in this folder of its directory, the state that it changes in the other.
_RESULTS, _STATE = "results", "state"


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a topology. topology: ``module:attribute``; path: the folder in which it is found."""

    topology: str
    path: Path


class Verdict(Enum):
    """What a comparison has found."""

    EQUAL = "equal"
    DIFFERENT = "different"
    #: The old version gives other results each time.
    UNSTABLE = "unstable"


@dataclass(frozen=True, slots=True)
class Event:
    """A step of a record's way: what a node receives, or a topic. sender: the node that it comes from."""

    kind: str
    name: str
    sender: str
    key: Any
    value: Any
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class Way:
    """The way of the first record that makes a difference: pairs of what old and new do; None: nothing there.

    blamed: the node whose results differ first although it has received the same, "" for the source.
    """

    record: dict[str, Any]
    steps: Sequence[tuple[Event | None, Event | None]]
    errors: tuple[str | None, str | None]
    blamed: str

    def is_first_difference(self, number: int) -> bool:
        """Return whether a step is the first one that differs."""
        return next((at for at, (old, new) in enumerate(self.steps) if old != new), None) == number


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one task. way: of a difference whose first record is known."""

    task: str
    verdict: Verdict
    comparison: Comparison
    way: Way | None = None


def run_once(run: Run) -> None:
    """Carry out a run in its own process. Raises ConfigError with its message if it cannot."""
    path = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "penstock.replay.rehearsal_run"],
        input=run.encode(),
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ConfigError(f"{run.topology} cannot be rehearsed: {done.stderr.strip()[-2_000:]}")


@dataclass(eq=False)
class Rehearsal:
    """ignore: fields of values that are not compared. scratch: an empty directory. say(text): reports progress."""

    old: Version
    new: Version
    ignore: tuple[str, ...]
    scratch: Path
    say: Callable[[str], None]
    cores: int = os.cpu_count() or 1
    execute: Callable[[Run], None] = run_once

    def run(self, slices: Sequence[RehearsedSlice]) -> list[TaskResult]:
        """Compare the versions on slices of tasks, as many processes at a time as there are cores.

        Raises ConfigError if a version cannot run on a slice.
        """
        with ThreadPoolExecutor(self.cores) as pool:
            asked = [(each, [pool.submit(self._run, each, *which) for which in self._runs()]) for each in slices]
            return [self._result(each, [future.result() for future in futures]) for each, futures in asked]

    def _runs(self) -> Sequence[tuple[str, Version]]:
        return ("old", self.old), ("old again", self.old), ("new", self.new)

    def _run(
        self,
        of: RehearsedSlice,
        name: str,
        version: Version,
        shown: tuple[object, ...] | None = None,
        trace: int | None = None,
    ) -> Path:
        """Run a version in its own process and return the directory with the results."""
        directory = self.scratch / f"{of.task} {name}"
        directory.mkdir()
        (directory / _RESULTS).mkdir()
        state = directory / _STATE
        copy_state(of.directory / STORES_DIRECTORY, state / STORES_DIRECTORY)
        places = (str(of.directory), str(state), str(directory / _RESULTS))
        self.execute(Run(version.topology, str(version.path), *places, self.ignore, shown, trace))
        shutil.rmtree(state, ignore_errors=True)
        self.say(f"Task {of.task}: the {name} version is done")
        return directory / _RESULTS

    def _result(self, of: RehearsedSlice, results: Sequence[Path]) -> TaskResult:
        old, again, new = results
        unstable = compare_runs(old, again)
        if not unstable.are_equal:
            shown, _ = self._explained(of, unstable, (self.old, self.old), None)
            return TaskResult(str(of.task), Verdict.UNSTABLE, shown)
        found = compare_runs(old, new)
        if found.are_equal:
            return TaskResult(str(of.task), Verdict.EQUAL, found)
        shown, way = self._explained(of, found, (self.old, self.new), found.first)
        return TaskResult(str(of.task), Verdict.DIFFERENT, shown, way)

    def _explained(
        self, of: RehearsedSlice, found: Comparison, versions: tuple[Version, Version], index: int | None
    ) -> tuple[Comparison, Way | None]:
        """Return differences as the serdes of both versions read them, and the way of the record with an index."""
        explained = [
            self._run(of, f"{name} explained", version, tuple(found.to_show(side)), index)
            for side, (name, version) in enumerate(zip(("old", "new"), versions, strict=True))
        ]
        shown = found.as_shown(*(orjson.loads((path / SHOWN).read_bytes()) for path in explained))
        if index is None:
            return shown, None
        traced = [orjson.loads((path / TRACE).read_bytes()) for path in explained]
        old, new = ([_event(each) for each in one["events"]] for one in traced)
        steps = list(zip_longest(old, new))
        errors = traced[0]["error"], traced[1]["error"]
        return shown, Way(traced[0]["record"], steps, errors, _blamed(steps))


def _event(found: dict[str, Any]) -> Event:
    kind = "node" if "node" in found else "sent"
    return Event(kind, found[kind], found["from"], found["key"], found["value"], found["timestamp"])


def _blamed(steps: Sequence[tuple[Event | None, Event | None]]) -> str:
    """Return the node whose results differ first; the last one reached if the way has no difference.

    Nodes call each other depth first. If the steps that differ have different senders, the sender that was reached
    later has sent less, or more, than in the other version.
    """
    reached = [""]
    for old, new in steps:
        if old == new:
            reached += [old.name] if old is not None and old.kind == "node" else []
            continue
        senders = [each.sender for each in (old, new) if each is not None]
        return max(senders, key=lambda name: max((at for at, one in enumerate(reached) if one == name), default=-1))
    return reached[-1]


# -- tests


_TEST = '''"""Repeats the first record at which `penstock rehearse` found a difference between two versions."""

from pathlib import Path

from penstock.replay.rehearsal_report import differences

SLICE = Path(__file__).with_suffix("")
OLD = {old}
NEW = {new}


def test_{name}() -> None:
    assert differences(SLICE, OLD, NEW, ignore={ignore!r}) == ""
'''


def write_test(file: Path, of: RehearsedSlice, rehearsal: Rehearsal, way: Way, index: int) -> None:
    """Write a pytest that repeats the record, and beside it a directory with the state and the records up to it.

    Raises ConfigError if one of them exists.
    """
    target = file.with_suffix("")
    for path in (file, target):
        if path.exists():
            raise ConfigError(f"{path} exists: delete it, or give another name with --test.")
    target.mkdir(parents=True)
    last = _last_offsets(rehearsal.scratch / f"{of.task} old" / _RESULTS / SENT, index)
    records = read_records(of.directory / RECORDS)
    write_records(target / RECORDS, (each for each in records if each.offset() <= last.get(place_of(each), -1)))
    shutil.copy2(of.directory / GLOBALS, target / GLOBALS)
    copy_state(of.directory / STORES_DIRECTORY, target / STORES_DIRECTORY)
    replace(of, directory=target, limit=index + 1).write(of.config())
    where = f"offset {way.record['offset']} of {way.record['topic']}-{way.record['partition']} makes no difference"
    file.write_text(
        _TEST.format(
            old=(rehearsal.old.topology, str(rehearsal.old.path)),
            new=(rehearsal.new.topology, str(rehearsal.new.path)),
            name="".join(each if each.isalnum() else "_" for each in where),
            ignore=rehearsal.ignore,
        )
    )


def _last_offsets(sent: Path, index: int) -> dict[TopicPartition, int]:
    """Return the last offset of each partition among the first records of a run."""
    last = {}
    with sent.open("rb") as file:
        for line in islice(file, index + 1):
            topic, partition, offset = orjson.loads(line)[0]
            last[TopicPartition(topic, partition)] = offset
    return last
