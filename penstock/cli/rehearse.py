"""``penstock rehearse``: two versions of a topology on the same state and input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from penstock.cli.options import LIMIT, Settings, as_json, configuration, examples, print_json
from penstock.cli.replay_options import Output, TaskName
from penstock.cli.status_view import counted
from penstock.replay.application import ReplayedApplication
from penstock.replay.cluster_topics import Bounds
from penstock.replay.global_tables import global_topics
from penstock.replay.rehearsal import Rehearsal, TaskResult, Verdict, Version, write_test
from penstock.replay.rehearsal_report import as_plain, lines_of
from penstock.replay.rehearsed_slice import GLOBALS, RECORDS, RehearsedSlice, write_records
from penstock.replay.replayed_task import ReplayedTask
from penstock.replay.starts import Start, Wanted
from penstock.supervisor.source.topology_source import TopologySource
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import StreamsError
from penstock.topology.graph.topology import Topology
from penstock.topology.records import Message, TaskId, TopicPartition

NEWEST, OLDEST, BEGINNING = "newest", "oldest", "beginning"
DIRECTORY = click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)
#: The exit code if the versions differ, or cannot be compared because the old one gives other results each time.
EXIT_DIFFERENT = 1


@click.command(
    epilog=examples(
        "penstock rehearse my_app_1:topology my_app_2:topology --config penstock.toml --records 100000",
        "penstock rehearse my_app:topology my_app:topology --old-path ../release --config penstock.toml",
        "penstock rehearse my_app_1:topology my_app_2:topology --ignore updated_at --test tests/test_total.py",
    )
)
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@configuration
@click.option(
    "--task", "tasks", type=TaskName(), multiple=True, metavar="TASK", help="Only this task; may be repeated."
)
@click.option(
    "--from",
    "begin",
    default=NEWEST,
    show_default=True,
    metavar="CHECKPOINT",
    help="The state to begin with: newest, oldest, beginning (of the input), or the name of a checkpoint.",
)
@click.option("--records", type=LIMIT, default=10_000, show_default=True, help="The number of records of each task.")
@click.option("--ignore", multiple=True, metavar="FIELD", help="A field of values that is not compared; repeatable.")
@click.option("--old-path", type=DIRECTORY, default=".", help="The folder with the module of OLD.")
@click.option("--new-path", type=DIRECTORY, default=".", help="The folder with the module of NEW.")
@click.option(
    "--test",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a pytest that repeats the first record that makes a difference, and its state beside it.",
)
@as_json
def rehearse(
    old: str,
    new: str,
    settings: Settings,
    tasks: tuple[TaskId, ...],
    begin: str,
    records: int,
    ignore: tuple[str, ...],
    old_path: Path,
    new_path: Path,
    test: Path | None,
    json_output: bool,
) -> None:
    """Run two versions of a topology on the same state and input, and compare what they send and store.

    OLD and NEW are MODULE:TOPOLOGY. Nothing is written, and a running application does not notice. Exits with 0 if
    there is no difference, 1 if there is one.
    """
    config = settings.load()
    output = Output(json_output)
    if str(old_path) != os.getcwd():
        sys.path.insert(0, str(old_path))
    topology = TopologySource.of(old).load_for_command(config)
    with (
        ReplayedApplication(topology, config) as application,
        TemporaryDirectory(prefix="penstock-rehearsal-") as scratch,
    ):
        slicing = Slicing(application, topology, config, Path(scratch), output, begin, records)
        chosen = tasks or tuple(application.tasks)
        slices = [slicing.slice(application.task(task_id)) for task_id in chosen]
        rehearsal = Rehearsal(Version(old, old_path), Version(new, new_path), ignore, Path(scratch), output.progress)
        results = rehearsal.run(slices)
        written = _write_test(test, slices, rehearsal, results)
    _report(results, output, written)
    if any(result.verdict is not Verdict.EQUAL for result in results):
        raise SystemExit(EXIT_DIFFERENT)


@dataclass(frozen=True, slots=True)
class Slicing:
    """Writes the slices of tasks into a directory. begin: which state; records: of each task."""

    application: ReplayedApplication
    topology: Topology
    config: StreamsConfig
    scratch: Path
    output: Output
    begin: str
    records: int

    def slice(self, task: ReplayedTask) -> RehearsedSlice:
        """Return the slice of a task. Raises StreamsError if it has no such start."""
        directory = self.scratch / str(task.task_id)
        directory.mkdir()
        bounds = self.application.bounds(task)
        start = self._start(task, bounds)
        self.application.load(task, start, directory, self.output.loading(start))

        def input_records() -> Iterator[Message]:
            for partition in task.inputs:
                with closing(
                    self.application.records(partition, start.offsets[partition], bounds[partition].end)
                ) as batches:
                    yield from islice((each for batch in batches for each in batch), self.records)

        count = write_records(directory / RECORDS, input_records())
        topics = global_topics(self.topology, self.config)
        tables = (each for topic in topics for batch in self.application.all_records(topic) for each in batch)
        write_records(directory / GLOBALS, tables)
        made = RehearsedSlice(directory, task.task_id, start, self.application.counts, self.records)
        made.write(self.config)
        self.output.say(f"Task {task.task_id} begins at {start}; {counted(min(count, self.records), 'record')}")
        return made

    def _start(self, task: ReplayedTask, bounds: Mapping[TopicPartition, Bounds]) -> Start:
        named = None if self.begin in (NEWEST, OLDEST, BEGINNING) else self.begin
        skipped = partial(self.output.skipped, task.task_id)
        found = self.application.starts(task, Wanted(named=named), bounds, skipped)
        if named is not None or self.begin == NEWEST:
            return next(found)
        if self.begin == BEGINNING:
            return list(found)[-1]
        oldest = None
        for each in found:
            if each.manifest is None:
                return oldest or each
            oldest = each
        raise StreamsError(f"Task {task.task_id} has no start.")


def _write_test(
    file: Path | None, slices: list[RehearsedSlice], rehearsal: Rehearsal, results: list[TaskResult]
) -> bool:
    for of, result in zip(slices, results, strict=True):
        first = result.comparison.first
        if file is not None and result.way is not None and first is not None:
            write_test(file, of, rehearsal, result.way, first)
            return True
    return False


def _report(results: list[TaskResult], output: Output, written: bool) -> None:
    if output.json:
        print_json([as_plain(result) for result in results])
        return
    for result in results:
        for line in lines_of(result):
            output.say(line)
    if written:
        output.say("The test is written: it fails as long as the versions differ.")
