"""penstock debug, on checkpoints and input of real applications."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from penstock.cli import cli
from penstock.replay.application import ReplayedApplication
from penstock.replay.starts import Wanted
from penstock.replay.stops import ReplayProgress, run_until
from penstock.statestore.checkpoints.bucket import Bucket
from penstock.statestore.checkpoints.manifest import Manifest
from penstock.statestore.checkpoints.task_checkpoints import TaskCheckpoints
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.source.config_loader import load_config
from penstock.supervisor.source.topology_source import TopologySource
from penstock.topology.records import RawRecord, TaskId
from tests.command_stage import PARTITIONS, Stage
from tests.read_to_end import read_to_end
from tests.replay.replayed import rows
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]
APP = """\
from penstock import Serdes, StreamsBuilder, TimeWindows

def number(value):
    parsed = int(value)
    return parsed

def add(key, value, total):
    total = total + value
    return total

def hide(value):
    return "***" if isinstance(value, str) else value

def topology():
    builder = StreamsBuilder()
    texts = builder.stream("@SOURCE@", key_serde=Serdes.string(), value_serde=Serdes.string())
    numbers = texts.map_values(number, name="number").group_by_key(value_serde=Serdes.int64())
    numbers.aggregate(lambda: 0, add, store="totals", value_serde=Serdes.int64()).to_stream().to(
        "@SINK@", key_serde=Serdes.string(), value_serde=Serdes.int64()
    )
    numbers.windowed_by(TimeWindows.of_size_with_no_grace(60_000)).count(store="windows")
    return builder.build()
"""
ROUNDS, RECORDS = 2, 120
TASKS = [TaskId(0, number) for number in range(PARTITIONS)]


class Debugged(Stage):
    """An application with checkpoints in a directory, whose records fail if they are no numbers."""

    def __init__(self, folder: Path, bootstrap_servers: str) -> None:
        super().__init__(folder, bootstrap_servers, APP)
        self.uri = f"file://{folder}/bucket"
        self.written = 0
        self.configure(
            {
                "penstock.checkpoint.uri": self.uri,
                "penstock.checkpoint.interval.ms": 100,
                "penstock.checkpoint.keep": 50,
                "errors.dead.letter.queue.topic.name": f"{self.application_id}.dead",
                "processing.exception.handler": "log_and_continue",
            }
        )

    def manifests(self, task: TaskId) -> list[Manifest]:
        found = TaskCheckpoints(Bucket(self.uri, self.application_id), str(task)).found()
        return [each.manifest for each in found if isinstance(each.manifest, Manifest)]

    def feed(self, seed: int) -> None:
        """Write random records, one that is no number, and wait until each task has a new checkpoint."""
        rng, producer = random.Random(seed), Producer({"bootstrap.servers": self.bootstrap_servers})
        before = self.newest()

        def write(value: str) -> None:
            partition = rng.randrange(PARTITIONS)
            producer.produce(self.source, value, f"k{partition}-{rng.randrange(5)}", partition=partition)
            self.written += 1

        def have_newer() -> bool:
            # A task without new records takes no checkpoint.
            for _ in range(PARTITIONS):
                write(str(rng.randrange(100)))
            assert producer.flush(PATIENCE_SECONDS) == 0
            return all(name != before[task] for task, name in self.newest().items())

        for number in range(RECORDS):
            write("none" if number == RECORDS // 2 else str(rng.randrange(100)))
        eventually(have_newer, "each task has a new checkpoint")
        # The lag would not do: it is that of the last fetch.
        eventually(lambda: self.processed() == self.written, "all records are processed")

    def processed(self) -> int:
        return int(self.json("status")["totals"]["records_processed"])

    def newest(self) -> dict[TaskId, str | None]:
        """Return the newest checkpoint of each task, None if it has none."""
        return {task: next((each.name for each in self.manifests(task)), None) for task in TASKS}

    def ends(self) -> list[int]:
        topic = list(read_to_end(self.bootstrap_servers, self.source))
        return [sum(message.partition() == number for message in topic) for number in range(PARTITIONS)]

    def records(self, task: TaskId) -> list[RawRecord]:
        """Return all records of a task's partition; their offsets count from 0."""
        found = [
            each for each in read_to_end(self.bootstrap_servers, self.source) if each.partition() == task.partition
        ]
        return [
            RawRecord(self.source, task.partition, offset, each.timestamp()[1], each.key(), each.value())
            for offset, each in enumerate(found)
        ]

    def record(self, task: TaskId, offset: int) -> RawRecord:
        return self.records(task)[offset]

    def json_of(self, *arguments: str) -> Any:
        """Return the JSON on stdout of a debug session in which the record is only continued."""
        environment = {"PENSTOCK_CONFIG": str(self.config_file)}
        result = CliRunner(env=environment).invoke(cli, [*arguments, "--json"], "continue\n", prog_name="penstock")
        assert result.exit_code == 0, (result.output, result.exc_info)
        return json.loads(result.stdout)

    def debug(self, *arguments: str, typed: tuple[str, ...] = ("continue",)) -> str:
        text = "".join(f"{line}\n" for line in typed)
        result = self.run("debug", self.topology, *arguments, input_text=text)
        assert result.exit_code == 0, (result.output, result.exc_info)
        return result.output


@contextmanager
def debugged(folder: Path, bootstrap_servers: str, seeds: Iterable[int]) -> Iterator[Debugged]:
    """Yield an application that has run, taken checkpoints, processed the records of each seed, and was stopped."""
    stage = Debugged(folder, bootstrap_servers)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(stage.folder)
        patch.syspath_prepend(stage.folder)
        try:
            stage.make_topics(stage.source, stage.sink, f"{stage.application_id}.dead")
            stage.start()
            for seed in seeds:
                stage.feed(seed)
            stage.stop()
            yield stage
        finally:
            stage.stop()
            stage.delete_topics()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[Debugged]:
    with debugged(tmp_path_factory.mktemp("stage"), bootstrap_servers, range(ROUNDS)) as running:
        yield running


def test_ten_random_records_have_the_state_of_a_replay_from_the_beginning(stage: Debugged, tmp_path: Path) -> None:
    """The nearest checkpoint is one that the application took; the other replay uses none."""
    config, rng = load_config(stage.config_file, {}, ()), random.Random(5)
    quiet = ReplayProgress(lambda _: None)
    with ReplayedApplication(TopologySource.of(stage.topology).load(config), config) as application:
        used = set()
        for number in range(10):
            task = application.task(rng.choice(TASKS))
            bounds = application.bounds(task)
            (partition,) = task.inputs
            stop = (partition, rng.randrange(1, bounds[partition].end))
            found = list(application.starts(task, Wanted(stop), bounds, print))
            states: list[object] = []
            for start in (found[0], found[-1]):
                directory = tmp_path / f"{number}-{len(states)}"
                application.load(task, start, directory, lambda _: None)
                with application.replica(task, start, directory, bounds) as replica:
                    run_until(replica, stop, quiet)
                    states.append(rows(replica.task))
            used.add(found[0].manifest is not None)
            assert states[0] == states[1], (stop, found[0])
        assert True in used


def test_a_replay_to_the_end_has_the_rows_of_the_application(stage: Debugged, tmp_path: Path) -> None:
    """From each checkpoint of each task: the rows are those on the application's disk."""
    config = load_config(stage.config_file, {}, ())
    kept = {
        (row["task_id"], row["key"]): (row["value"], row["timestamp"])
        for row in map(
            json.loads, stage.run("state", "export", "totals", "--topology", stage.topology).stdout.splitlines()
        )
    }
    with ReplayedApplication(TopologySource.of(stage.topology).load(config), config) as application:
        for task_id in TASKS:
            task = application.task(task_id)
            bounds = application.bounds(task)
            for number, start in enumerate(application.starts(task, Wanted(), bounds, print)):
                directory = tmp_path / f"{task_id}-{number}"
                application.load(task, start, directory, lambda _: None)
                with application.replica(task, start, directory, bounds) as replica:
                    while replica.head() is not None:
                        replica.process_next()
                    found = {(str(task_id), key): tuple(value) for key, value in replica.task.stores["totals"].all()}
                assert found == {place: row for place, row in kept.items() if place[0] == str(task_id)}
            assert number > 1


def test_it_stops_in_the_function_with_the_state_before_the_record(stage: Debugged) -> None:
    task = TaskId(0, 1)
    manifests, every = stage.manifests(task), stage.records(task)
    bounds = [len(every), *(each.inputs[0].offset for each in manifests)]  # the newest checkpoint comes first
    manifest, after, record = next(
        (manifest, after, record)
        for end, manifest in zip(bounds, manifests, strict=False)
        for records in [every[manifest.inputs[0].offset : end]]
        for after, record in enumerate(records)
        if after >= 3
        and record.key() in [earlier.key() for earlier in records[:after]]  # so that it has a row
        and record.value() != b"none"
    )
    first = manifest.inputs[0].offset
    offset = first + after
    key, value = (record.key() or b"").decode(), (record.value() or b"").decode()
    typed = ("p value", f"penstock store totals {key}", "break add", "continue", "p total", "continue")
    shown = stage.debug("--task", "0_1", "--offset", str(offset), typed=typed)
    assert f"Task 0_1 begins at checkpoint {manifest.name}: offset {first} of {stage.source}-1" in shown
    assert f"Replayed {after} records" in shown
    assert f"Stopped before offset {offset} of {stage.source}-1" in shown
    assert "number()\n-> parsed = int(value)" in shown
    assert f"(Pdb) {value!r}\n" in shown
    before = json.loads(re.search(r'\(Pdb\) (\{"key".*\})', shown).group(1))["value"]  # type: ignore[union-attr]
    assert f"add()\n-> total = total + value\n(Pdb) {before}\n" in shown
    assert f'{stage.sink}: key "{key}", value {before + int(value)}\n' in shown


def test_a_step_back_stops_one_record_earlier(stage: Debugged) -> None:
    offset = stage.ends()[2] - 1
    found = stage.json_of(
        "debug", stage.topology, "--task", "0_2", "--offset", str(offset), "--step", "back", "--step", "back"
    )
    assert found["record"]["offset"] == offset - 2
    first = stage.run("debug", stage.topology, "--task", "0_2", "--offset", "0", "--step", "back")
    assert first.exit_code == ExitCode.FAILED
    assert "The task has processed fewer than 1 records before offset 0" in first.output


def test_a_dead_letter_names_the_record(stage: Debugged) -> None:
    letter = stage.json("dlq", "list")[0]
    shown = stage.debug("--letter", letter["letter"], typed=("next", "penstock record", "quit"))
    assert "ValueError: invalid literal for int()" in shown
    assert 'value: "none"' in shown
    assert letter["source"].rpartition("@")[2] == re.search(r"Stopped before offset (\d+)", shown).group(1)  # type: ignore[union-attr]
    assert "Nothing was written" in shown


def test_a_function_that_raises_ends_the_command_with_its_error(stage: Debugged) -> None:
    letter = stage.json("dlq", "list")[0]
    fails = ("-c", "processing.exception.handler=log_and_fail", "-c", "errors.dead.letter.queue.topic.name=")
    offset, task = letter["source"].rpartition("@")[2], letter["source"].partition("@")[0].rpartition("-")[2]
    arguments = ("debug", stage.topology, "--task", f"0_{task}", "--offset", offset, *fails)
    result = stage.run(*arguments, input_text="continue\n")
    assert result.exit_code == ExitCode.FAILED
    assert "invalid literal for int() with base 10: 'none'" in result.output


def test_a_mask_hides_texts(stage: Debugged) -> None:
    module = stage.topology.partition(":")[0]
    shown = stage.debug("--task", "0_0", "--offset", "1", "--mask", f"{module}:hide", typed=("p value", "continue"))
    assert "(Pdb) '***'" in shown
    assert 'key: "***"' in shown


def test_nothing_is_written(stage: Debugged) -> None:
    before = len(list(read_to_end(stage.bootstrap_servers, stage.sink))), sorted(stage.folder.rglob("*"))
    committed = stage.run("lag", "--json").output
    stage.debug("--task", "0_3", "--offset", "5")
    assert (len(list(read_to_end(stage.bootstrap_servers, stage.sink))), sorted(stage.folder.rglob("*"))) == before
    assert stage.run("lag", "--json").output == committed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--task", "0_0"], ExitCode.USAGE, "Name the record: --task TASK --offset OFFSET, or --letter LETTER."),
        (["--letter", "0:0", "--offset", "1"], ExitCode.USAGE, "--letter names the record"),
        (["--task", "x", "--offset", "1"], ExitCode.USAGE, "'x' is not a task such as 1_3"),
        (["--task", "0_9", "--offset", "1"], ExitCode.USAGE, "has no task 0_9; its tasks are 0_0, 0_1, 0_2, 0_3."),
        (
            ["--task", "0_0", "--offset", "1", "--topic", "no"],
            ExitCode.USAGE,
            "name the topic of the record with --topic",
        ),
        (["--task", "0_0", "--offset", "1", "--port", "1", "--mask", "a:b"], ExitCode.USAGE, "exclude each other"),
        (["--task", "0_0", "--offset", "1", "--mask", "no:no"], ExitCode.USAGE, "--mask=no:no: cannot be imported"),
        (["--task", "0_0", "--offset", "99999"], ExitCode.FAILED, ", not 99999."),
        (["--letter", "0:9999"], ExitCode.FAILED, "There is no letter 0:9999"),
        (["--task", "0_0", "--offset", "1", "--from", "no.json"], ExitCode.FAILED, "has no checkpoint no.json that"),
    ],
)
def test_what_cannot_be_debugged_is_refused(stage: Debugged, arguments: list[str], code: int, message: str) -> None:
    result = stage.run("debug", stage.topology, *arguments)
    assert (result.exit_code, message in result.output) == (code, True), result.output
