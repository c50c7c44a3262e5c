"""``penstock debug``: stops in the user's function at one record of a task, with the state before it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from penstock.cli.dead_letters import Choice, DeadLetters, check_names
from penstock.cli.options import Settings, as_json, configuration, examples, print_json
from penstock.cli.replay_options import Output, TaskName
from penstock.replay.application import ReplayedApplication, copy_state
from penstock.replay.cluster_topics import Bounds
from penstock.replay.own_code import OwnCode
from penstock.replay.record_debugger import Editor, RecordPdb
from penstock.replay.replayed_task import ReplayedTask
from penstock.replay.replica import Replica
from penstock.replay.shown_records import Mask, RecordCommand, ShownRecords
from penstock.replay.starts import Start, Wanted
from penstock.replay.stops import Place, ReplayProgress, earlier_stop, run_until
from penstock.supervisor.source.topology_source import TopologySource
from penstock.topology.config.streams_config import StreamsConfig, import_reference
from penstock.topology.errors import ConfigError, StreamsError
from penstock.topology.records import SentRecord, TaskId, TopicPartition


@dataclass(frozen=True, slots=True)
class Target:
    """The options that name a record: task and offset, with the topic if it has several, or a dead letter."""

    task: TaskId | None
    topic: str | None
    offset: int | None
    letter: str | None

    def check(self) -> None:
        """Raise UsageError for options that do not name one record."""
        if self.letter is not None:
            if (self.task, self.topic, self.offset) != (None, None, None):
                raise click.UsageError("--letter names the record, so --task, --topic and --offset are not needed.")
        elif self.task is None or self.offset is None:
            raise click.UsageError("Name the record: --task TASK --offset OFFSET, or --letter LETTER.")


@click.command(
    epilog=examples(
        "penstock debug my_app:topology --config penstock.toml --task 0_3 --offset 82324",
        "penstock debug my_app:topology --config penstock.toml --task 1_3 --topic orders --offset 82324 --step back",
        "penstock debug my_app:topology --config penstock.toml --letter 0:17",
        "penstock debug my_app:topology --config penstock.toml --task 0_3 --offset 82324 --port 5678",
    )
)
@click.argument("topology", metavar="MODULE:TOPOLOGY")
@configuration
@click.option("--task", "task_id", type=TaskName(), metavar="TASK", help="The task, e.g. 0_3.")
@click.option("--topic", help="The input topic of the record, if the task has several.")
@click.option("--offset", type=click.IntRange(min=0), help="The offset of the record in the task's partition.")
@click.option("--letter", metavar="LETTER", help="The record of this dead letter, e.g. 0:17 (penstock dlq list).")
@click.option("--from", "named", metavar="CHECKPOINT", help="Begin at this checkpoint; default: the nearest.")
@click.option(
    "--step", "steps", type=click.Choice(["back"]), multiple=True, help="Stop one record earlier; may be repeated."
)
@click.option("--port", type=click.IntRange(1, 65535), help="Wait for an editor on this port, in place of pdb.")
@click.option("--mask", metavar="MODULE:FUNCTION", help="A function that returns what is shown in place of a value.")
@as_json
def debug(
    topology: str,
    settings: Settings,
    task_id: TaskId | None,
    topic: str | None,
    offset: int | None,
    letter: str | None,
    named: str | None,
    steps: tuple[str, ...],
    port: int | None,
    mask: str | None,
    json_output: bool,
) -> None:
    """Stop in your function at one record of a task, with the state that the task had before it.

    The nearest checkpoint of the task is loaded into a temporary directory, and its input is processed up to the
    record. Nothing is written, and a running application does not notice.
    """
    target = Target(task_id, topic, offset, letter)
    target.check()
    if port is not None and mask is not None:
        raise click.UsageError("--mask has no effect on an editor, so --port and --mask exclude each other.")
    config = settings.load()
    output, built = Output(json_output), TopologySource.of(topology).load_for_command(config)
    masked: Mask = _unmasked if mask is None else import_reference(mask, "--mask")
    with (
        ReplayedApplication(built, config) as application,
        TemporaryDirectory(prefix="penstock-replay-") as scratch,
    ):
        task, stop = _find(application, config, target)
        session = Session(application, config, task, Path(scratch), output)
        start, stop = session.begin(stop, len(steps), named)
        result = session.run(start, stop, masked, OwnCode.of(topology), port)
    if json_output:
        print_json(result)


def _unmasked(value: Any) -> object:
    return value


def _find(application: ReplayedApplication, config: StreamsConfig, target: Target) -> tuple[ReplayedTask, Place]:
    if target.letter is not None:
        stop = _place_of_letter(config, target.letter)
        return application.task_that_reads(stop[0]), stop
    assert target.task is not None, "see Target.check"
    assert target.offset is not None, "see Target.check"
    task = application.task(target.task)
    found = [partition for partition in task.inputs if target.topic in (None, partition.topic)]
    if len(found) != 1:
        topics = ", ".join(partition.topic for partition in task.inputs)
        raise ConfigError(f"Task {target.task} reads {topics}: name the topic of the record with --topic.")
    return task, (found[0], target.offset)


def _place_of_letter(config: StreamsConfig, name: str) -> Place:
    letters = DeadLetters(config)
    found = next(filter(Choice(check_names((name,))).fits, letters.letters()), None)
    if found is None:
        raise StreamsError(f"There is no letter {name} in {letters.topic}; its retention time may have passed.")
    if found.source is None or not found.error("offset").isdecimal():
        raise StreamsError(f"The letter {name} does not name the record that failed, so it cannot be replayed.")
    return TopicPartition(*found.source), int(found.error("offset"))


@dataclass(frozen=True, slots=True)
class Session:
    """One debugged record. scratch: an empty directory."""

    application: ReplayedApplication
    config: StreamsConfig
    task: ReplayedTask
    scratch: Path
    output: Output

    @property
    def _state(self) -> Path:
        return self.scratch / "task"

    def begin(self, record: Place, back: int, named: str | None) -> tuple[Start, Place]:
        """Return where the replay begins, with its state in place, and where it stops.

        record: the one that the user named; the stop is ``back`` records before. Raises StreamsError.
        """
        bounds = self.application.bounds(self.task)
        _check_offset(record, bounds[record[0]])
        wanted = Wanted((record[0], max(record[1] - back, 0)), named)
        skipped = partial(self.output.skipped, self.task.task_id)
        for start in self.application.starts(self.task, wanted, bounds, skipped):
            shutil.rmtree(self._state, ignore_errors=True)
            self.application.load(self.task, start, self._state, self.output.loading(start))
            if not back:
                return start, record
            with self._ordering(start, bounds) as replica:
                stop = earlier_stop(replica, record, back)
            if stop is not None:
                return start, stop
            self.output.say(f"Fewer than {back} records lie between {start} and the record.")
        raise StreamsError(
            f"The task has processed fewer than {back} records before offset {record[1]} of {record[0]}."
        )

    @contextmanager
    def _ordering(self, start: Start, bounds: Mapping[TopicPartition, Bounds]) -> Iterator[Any]:
        """Yield a replica that only brings the records in their order, over a copy of the state."""
        copy = self.scratch / "order"
        copy_state(self._state, copy)
        with self.application.replica(self.task, start, copy, bounds, processes=False) as replica:
            yield replica
        shutil.rmtree(copy, ignore_errors=True)

    def run(self, start: Start, stop: Place, mask: Mask, own: OwnCode, port: int | None) -> dict[str, Any]:
        """Replay the records before the stop, debug the record there, and return the result for JSON."""
        self.output.say(f"Task {self.task.task_id} begins at {start}")
        progress = ReplayProgress(self.output.progress)
        bounds = self.application.bounds(self.task)
        with self.application.replica(self.task, start, self._state, bounds) as replica:
            run_until(replica, stop, progress)
            self.output.say(progress.text())
            shown = ShownRecords(replica.task, self.config, mask)
            debugger = self._debugger(own, mask, RecordCommand(replica, shown), port)
            sent = self._process(replica, shown, debugger)
            self._conclude(shown.output_lines(sent), debugger)
            assert replica.message is not None, "it was processed"
            return {
                "task": str(self.task.task_id),
                "checkpoint": None if start.manifest is None else start.manifest.name,
                "replayed": progress.records,
                "record": shown.input(replica.message),
                "stopped": debugger.has_stopped,
                "quit": debugger.was_quit,
                "sent": [found for each in sent if (found := shown.output(each)) is not None],
            }

    def _process(self, replica: Replica, shown: ShownRecords, debugger: RecordPdb | Editor) -> list[SentRecord]:
        """Process the record under the debugger; returns the sent records, none if the user has quit."""

        def run_record(process: Callable[[], None]) -> None:
            assert replica.message is not None, "it is being processed"
            self.output.say(f"Stopped before {shown.lines(replica.message)}")
            debugger.run_record(process)

        try:
            return replica.process_next(run_record)
        except Exception:
            if not debugger.was_quit:
                raise
            return []

    def _debugger(self, own: OwnCode, mask: Mask, command: RecordCommand, port: int | None) -> RecordPdb | Editor:
        if port is not None:
            self.output.say(f"Waiting for a debugger on 127.0.0.1:{port}")
            return Editor(own, port)
        stdin = None if sys.stdin.isatty() else sys.stdin
        return RecordPdb(own, mask, command, stdin, sys.stderr if self.output.json else sys.stdout)

    def _conclude(self, lines: list[str], debugger: RecordPdb | Editor) -> None:
        if debugger.was_quit:
            self.output.say("Quit: the record was not processed to its end. Nothing was written.")
            return
        if not debugger.has_stopped:
            self.output.say("The record reached none of your functions.")
        self.output.say(
            "The record was processed. It would have written, but nothing was written:"
            if lines
            else "The record was processed. It sends nothing."
        )
        for line in lines:
            self.output.say(line)


def _check_offset(record: Place, bounds: Bounds) -> None:
    partition, offset = record
    if not bounds.first <= offset < bounds.end:
        raise StreamsError(f"{partition} has the offsets {bounds.first} to {bounds.end - 1}, not {offset}.")
