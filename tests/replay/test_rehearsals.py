"""Rehearsals find and blame planted mutants of operators, and nothing in refactorings."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.replay.rehearsal import Rehearsal, TaskResult, Verdict, Version, write_test
from penstock.replay.rehearsal_report import as_plain, lines_of
from penstock.replay.rehearsal_run import RehearsalRun, Run
from penstock.replay.rehearsed_slice import GLOBALS, RECORDS, RehearsedSlice, write_records
from penstock.replay.starts import Start
from penstock.topology.errors import ConfigError
from penstock.topology.records import RawRecord, TopicPartition
from tests.replay.mutants import MUTANTS, REFACTORINGS, TABLE, TOPICS, source
from tests.replay.replayed import CONFIG, TASK
from tests.replay.written_tests import run_pytest

RECORDS_EACH = 120


def execute(run: Run) -> None:
    """Carry out a run in this process: starting one takes longer than the run."""
    RehearsalRun(run).write()


class Stage:
    """Versions of an application in a folder, and a slice of its input."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._versions = 0

    def version(self, text: str) -> Version:
        self._versions += 1
        name = f"version_{self.folder.name.replace('-', '_')}_{self._versions}"
        (self.folder / f"{name}.py").write_text(text)
        return Version(f"{name}:topology", self.folder)

    def slice(self, limit: int = 10_000) -> RehearsedSlice:
        directory = self.folder / f"slice-{self._versions}"
        directory.mkdir()
        rng, records = random.Random(4), []
        for number in range(RECORDS_EACH):
            for topic in TOPICS:
                value = rng.randrange(40).to_bytes(8, "big")
                key, time = rng.choice("abcde").encode(), number * 700 + rng.randrange(700)
                records.append(RawRecord(topic, 0, number, time, key, value))
        write_records(directory / RECORDS, records)
        write_records(directory / GLOBALS, ())
        counts = dict.fromkeys(TOPICS, 1)
        start = Start({TopicPartition(topic, 0): 0 for topic in TOPICS})
        made = RehearsedSlice(directory, TASK, start, counts, limit)
        made.write(CONFIG)
        return made

    def rehearsal(
        self, old: str, new: str, run: Callable[[Run], None] = execute, ignore: tuple[str, ...] = ()
    ) -> Rehearsal:
        scratch = self.folder / f"scratch-{self._versions}"
        scratch.mkdir()
        return Rehearsal(self.version(old), self.version(new), ignore, scratch, lambda _: None, 1, run)

    def rehearse(self, old: str, new: str, **options: object) -> TaskResult:
        of = self.slice()
        (result,) = self.rehearsal(old, new, **options).run([of])  # type: ignore[arg-type]
        return result


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.syspath_prepend(tmp_path)
    return Stage(tmp_path)


#: A part of them runs each time.
VARIANTS = [
    pytest.param(*each, id=": ".join(each), marks=pytest.mark.slow if number % 10 else pytest.mark.medium)
    for number, each in enumerate(MUTANTS)
]


@pytest.mark.parametrize(("name", "mutant"), VARIANTS)
def test_a_mutant_of_an_operator_is_found_and_blamed(stage: Stage, name: str, mutant: str) -> None:
    result = stage.rehearse(source({}), source({name: mutant}))
    assert result.verdict is Verdict.DIFFERENT
    assert result.way is not None
    node = TABLE[name][0]
    assert result.way.blamed.startswith(node), "\n".join(lines_of(result))


@pytest.mark.parametrize("changes", REFACTORINGS, ids=str)
def test_a_refactoring_makes_no_difference(stage: Stage, changes: dict[str, str]) -> None:
    result = stage.rehearse(source({}), source(changes))
    assert result.verdict is Verdict.EQUAL, "\n".join(lines_of(result))
    assert result.comparison.records == RECORDS_EACH * len(TOPICS)


def test_the_first_record_and_its_way_are_shown(stage: Stage) -> None:
    """The mutant differs for the value 11 only."""
    result = stage.rehearse(source({}), source({"doubled": "value * 2 + (value == 11)"}))
    assert result.way is not None
    record = result.way.record
    assert record["value"] == 11
    lines = list(lines_of(result))
    assert lines[0].startswith(f"Task 0_0: {RECORDS_EACH * 3} records, differences in doubled: ")
    assert lines[1].startswith(
        f"The first record that makes a difference: offset {record['offset']} of in-0, 1970-01-01T"
    )
    assert f'  doubled gets key "{record["key"]}", value 11, time {record["timestamp"]}' in lines
    assert (
        f'- to doubled: key "{record["key"]}", value 22, time {record["timestamp"]}   <- the first difference' in lines
    )
    assert f'+ to doubled: key "{record["key"]}", value 23, time {record["timestamp"]}' in lines
    assert "The node whose results differ: doubled" in lines


def test_a_version_that_fails_is_different(stage: Stage) -> None:
    result = stage.rehearse(source({}), source({"doubled": "value * 2 // (value != 11)"}))
    assert result.verdict is Verdict.DIFFERENT
    assert result.way is not None
    lines = list(lines_of(result))
    assert any(line.startswith("+ fails: FailedProcessingError: ") and "division" in line for line in lines), "\n".join(
        lines
    )


def test_what_is_not_deterministic_is_named(stage: Stage) -> None:
    unstable = source({"doubled": "__import__('random').randrange(10**9)"})
    result = stage.rehearse(unstable, unstable)
    assert result.verdict is Verdict.UNSTABLE
    assert next(lines_of(result)).startswith(
        "Task 0_0: the old version is not deterministic, two runs of it differ (differences in doubled: "
    )


FIELDS = """\
from penstock import Serdes, StreamsBuilder

def topology():
    builder = StreamsBuilder()
    numbers = builder.stream(["in", "other"], key_serde=Serdes.string(), value_serde=Serdes.int64())
    names = builder.table("names", key_serde=Serdes.string(), value_serde=Serdes.int64(), store="names")
    numbers = numbers.left_join(names, lambda value, name: value)
    objects = numbers.map_values(lambda value: {"value": value, "meta": {"version": @version@, "id": @id@}})
    objects.to("objects", key_serde=Serdes.string(), value_serde=Serdes.json())
    objects.group_by_key(value_serde=Serdes.json()).reduce(lambda one, two: two, store="latest")
    return builder.build()
"""


def test_fields_of_outputs_and_rows_can_be_ignored(stage: Stage) -> None:
    old = FIELDS.replace("@version@", "1").replace("@id@", "0")
    new = FIELDS.replace("@version@", "2").replace("@id@", "__import__('random').random()")
    assert stage.rehearse(old, new).verdict is Verdict.DIFFERENT
    assert stage.rehearse(old, new, ignore=("version", "id")).verdict is Verdict.EQUAL
    assert stage.rehearse(old, new, ignore=("version",)).verdict is Verdict.DIFFERENT
    wrong = old.replace('"value": value', '"value": value + 1')
    assert stage.rehearse(old, wrong, ignore=("version", "id")).verdict is Verdict.DIFFERENT


KINDS = """\
from penstock import Materialized, Serde, Serdes, SessionWindows, Stores, StreamsBuilder, TimeWindows

TEXT = {"key_serde": Serdes.string(), "value_serde": Serdes.int64()}
VERSIONS = Stores.persistent_versioned_key_value_store("versions", 60_000)

def last(one, two):
    return two

class Secret(Serde):
    def serialize(self, topic, value):
        return None if value is None else b"!%d" % value
    def deserialize(self, topic, data):
        raise ValueError("it cannot be read")

def topology():
    builder = StreamsBuilder()
    numbers = builder.stream(["in", "other", "names"], **TEXT)
    counted = numbers.map_values(lambda value: @value@)
    grouped = counted.group_by_key(**TEXT)
    @store@
    counted.map_values(lambda value: value if value == 5 else None).to("deleted", **TEXT)
    counted.filter(lambda key, value: value == 5).to("fewer", **TEXT)
    counted.to("secrets", key_serde=Serdes.string(), value_serde=Secret())
    return builder.build()
"""


#: A store of each kind, and its first row that differs.
STORES = {
    "latest": (
        'grouped.reduce(last, store="latest")',
        r'"\w":\n- \{"value": 5, "timestamp": \d+\}\n\+ \{"value": 6, "timestamp": \d+\}',
    ),
    "windows": (
        'grouped.windowed_by(TimeWindows(1_000_000_000)).reduce(last, store="windows")',
        r'\{"key": "\w", "window": \{"start": 0, "end": 1000000000\}\}:\n- \{"value": 5, "timestamp": \d+\}',
    ),
    "sessions": (
        'grouped.windowed_by(SessionWindows(1_000_000_000)).reduce(last, store="sessions")',
        r'\{"key": "\w", "window": \{"start": \d+, "end": \d+\}\}:\n- 5\n\+ 6',
    ),
    "versions": (
        "grouped.reduce(last, store=Materialized(VERSIONS, **TEXT))",
        r'"\w":\n- \{"value": 5, "timestamp": \d+, "valid_to": \d+\}\n\+ \{"value": 6',
    ),
}


def kinds(store: str, value: str) -> str:
    """Return a version with a store, whose values are 5 or another one."""
    return KINDS.replace("@store@", STORES[store][0]).replace("@value@", value)


@pytest.mark.parametrize("store", STORES)
def test_rows_are_shown_as_the_serdes_read_them(stage: Stage, store: str) -> None:
    result = stage.rehearse(kinds(store, "5"), kinds(store, "6 if value >= 11 else 5"))
    text = "\n".join(lines_of(result))
    assert re.search(f"\nstore {store}, row {STORES[store][1]}", text), text
    assert json.loads(json.dumps(as_plain(result)))["rows"][0]["old"]["value"] == 5


def test_sent_records_are_shown_as_the_serdes_read_them(stage: Stage) -> None:
    """What a serde cannot read stays bytes, and a tombstone is not the same as nothing."""
    text = "\n".join(lines_of(stage.rehearse(kinds("latest", "5"), kinds("latest", "6 if value == 11 else 5"))))
    assert re.search(r'\ndeleted, key "\w", time \d+:\n- 5\n\+ null\n', text), text
    assert re.search(r'\nfewer, key "\w", time \d+:\n- 5\n\+ nothing\n', text), text
    assert re.search(r'\nsecrets, key "\w", time \d+:\n- "!5"\n\+ "!6"\n', text), text
    assert re.search(r'\n\+ to app-latest-changelog: key "\w", value 6, time', text), text


@pytest.mark.parametrize("ignore", ["value", "timestamp"])
def test_rows_without_ignored_fields_are_shown_as_they_are(stage: Stage, ignore: str) -> None:
    """JSON that consists of digits is no text in hexadecimal digits."""
    versions = (kinds("latest", each) for each in ("5", "6 if value >= 11 else 5"))
    result = stage.rehearse(*versions, ignore=(ignore,))
    text = "\n".join(lines_of(result))
    assert re.search(r'\ndeleted, key "\w", time \d+:\n- 5\n\+ null\n', text), text
    assert ("store latest, row" in text) is (ignore == "timestamp"), text


def test_a_failure_alone_is_a_difference(stage: Stage) -> None:
    """Up to the record that fails, both versions have sent the same."""
    old = FIELDS.replace("@version@", "1").replace("@id@", "0")
    result = stage.rehearse(old, old.replace("reduce(lambda one, two: two", "reduce(lambda one, two: 1 // 0"))
    assert result.verdict is Verdict.DIFFERENT
    assert not result.comparison.sent
    assert "one version fails" in next(lines_of(result))


def test_versions_that_read_other_topics_are_refused(stage: Stage) -> None:
    other = source({}).replace('builder.stream("other"', 'builder.stream("in2"')
    with pytest.raises(Exception, match="There is no topic in2"):
        stage.rehearse(source({}), other)


@pytest.mark.slow
def test_the_written_test_repeats_the_difference(stage: Stage) -> None:
    """In its own processes: it fails with the report while the versions differ, and passes once they do not."""
    old, new = source({}), source({"total": "total - value"})
    of = stage.slice()
    rehearsal = stage.rehearsal(old, new)
    (result,) = rehearsal.run([of])
    assert result.way is not None
    assert result.comparison.first is not None
    file = stage.folder / "test_found.py"
    write_test(file, of, rehearsal, result.way, result.comparison.first)
    with pytest.raises(ConfigError, match=r"test_found.py exists: delete it, or give another name with --test"):
        write_test(file, of, rehearsal, result.way, result.comparison.first)

    failing = run_pytest(file)
    assert failing.returncode == 1, failing.stdout + failing.stderr
    assert "The node whose results differ: total" in failing.stdout
    (stage.folder / f"{rehearsal.new.topology.partition(':')[0]}.py").write_text(old)
    passing = run_pytest(file)
    assert passing.returncode == 0, passing.stdout + passing.stderr
