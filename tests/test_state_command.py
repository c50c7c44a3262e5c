"""penstock state: the contents of an application's stores, while it runs and afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from penstock.cli import state as state_command
from penstock.cli.running_application import RunningApplication
from penstock.cli.state import OpenState
from penstock.statestore.view.store_view import plain
from penstock.topology.errors import InvalidStateStoreError
from tests.command_stage import PARTITIONS, Stage, running
from tests.waiting import eventually

pytestmark = pytest.mark.broker
ROWS = 1_200  # more than one page of a task
TIMESTAMP = int(time.time()) // 60 * 60_000  # of all records: they are in one window, also if a minute ends meanwhile
APP = """\
from penstock import Serdes, StreamsBuilder, TimeWindows

def topology():
    builder = StreamsBuilder()
    words = builder.stream("@SOURCE@", key_serde=Serdes.string(), value_serde=Serdes.string())
    words.group_by_key().count(store="counts")
    words.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(60_000)).count(store="minutes")
    return builder.build()
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[Stage]:
    with running(tmp_path_factory.mktemp("stage"), bootstrap_servers, APP) as stage:
        stage.produce(*((f"k{number:04}", "x") for number in range(ROWS)), ("k0007", "x"), timestamp=TIMESTAMP)
        eventually(lambda: stage.json("status")["totals"]["records_processed"] == 2 * (ROWS + 1) // 2)
        yield stage


def rows(stage: Stage, *arguments: str) -> list[dict[str, object]]:
    result = stage.run(*arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def check_rows(stage: Stage, *more: str) -> None:
    """Check the output of get, range and export, which is the same for a running and for a stopped application."""
    (found,) = rows(stage, "state", "get", "counts", "k0007", "--json", *more)
    assert (found["key"], found["value"]) == ("k0007", 2)
    (windowed,) = rows(stage, "state", "get", "minutes", "k0007", "--json", *more)
    assert windowed["value"] == 2
    window = cast("dict[str, int]", windowed["window"])
    assert window["end"] - window["start"] == 60_000
    missing = stage.run("state", "get", "counts", "nobody", *more)
    assert (missing.exit_code, missing.stderr) == (1, "The store counts has no key nobody on this host.\n")

    ranged = rows(stage, "state", "range", "counts", "--from", "k0010", "--to", "k0019", "--json", *more)
    assert sorted(str(row["key"]) for row in ranged) == [f"k{number:04}" for number in range(10, 20)]
    everything = stage.run("state", "range", "counts", "--limit", "1000000", *more).stdout
    assert len([line for line in everything.splitlines() if line[:2] in ("k0", "k1")]) == ROWS
    assert everything.count("key ") == 2, "tables of 1,000 rows each: no list has to be kept"
    shown = stage.run("state", "range", "counts", "--limit", "3", *more)
    assert len(shown.stdout.splitlines()) == 2 + 3
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    assert shown.stderr.startswith("There are more than 3 rows")

    for store in ("counts", "minutes"):
        exported = rows(stage, "state", "export", store, *more)
        assert sorted(str(row["key"]) for row in exported) == [f"k{number:04}" for number in range(ROWS)]


def test_a_running_and_a_stopped_application_show_the_same(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = stage.json("state", "list")
    assert [(row["store"], row["task_id"]) for row in listed] == [
        (store, f"0_{partition}") for store in ("counts", "minutes") for partition in range(PARTITIONS)
    ]
    assert {row["kind"] for row in listed} == {"timestamped_key_value", "timestamped_window"}
    check_rows(stage)
    unknown = stage.run("state", "get", "cuonts", "x")
    assert unknown.exit_code == 1
    assert "no state store 'cuonts'; it has: counts, minutes." in unknown.stderr

    stage.stop()
    monkeypatch.syspath_prepend(stage.folder)
    closed = stage.json("state", "list", "--topology", stage.topology)
    assert [(row["store"], row["task_id"], row["kind"]) for row in closed] == [
        (row["store"], row["task_id"], row["kind"]) for row in listed
    ]
    assert sum(row["entries"] for row in closed if row["store"] == "counts") == ROWS
    check_rows(stage, "--topology", stage.topology)

    (raw,) = rows(stage, "state", "get", "counts", "k0007", "--json")  # without serdes: timestamp and count as stored
    assert str(raw["value"]).endswith("0000000000000002")


class Restless(RunningApplication):
    """An application whose second stream thread starts late, or never; it has the store's only row."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def ask(self, command: str, arguments: Mapping[str, Any] | None = None, *, timeout: float = 0) -> Any:
        there = self.looks <= 0
        if command == "status":
            self.looks -= 1
            second = "RUNNING" if there else "CREATED"
            return {"threads": [{"number": 1, "state": "RUNNING"}, {"number": 2, "state": second}]}
        if command == "stores":
            return [{"store": "counts", "task_id": "0_1", "task_kind": "active"}] if there else []
        rows = [{"key": "a"}] if there else []
        return rows if command == "store_get" else {"rows": rows, "after": None}


def test_rows_of_a_moving_task_are_waited_for_and_otherwise_an_error_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_command, "LOOK_SECONDS", 0.001)
    assert OpenState(Restless(2)).get("counts", "a") == [{"key": "a"}]
    assert list(OpenState(Restless(2)).rows("counts", None, None)) == [{"key": "a", "task_id": "0_1"}]
    monkeypatch.setattr(state_command, "SETTLED_SECONDS", 0.01)
    for read in (lambda state: state.get("counts", "a"), lambda state: list(state.rows("counts", None, None))):
        with pytest.raises(InvalidStateStoreError, match=r"stream thread 2 is CREATED\. Try again"):
            read(OpenState(Restless(10**9)))


def test_missing_state_is_reported(stage: Stage) -> None:
    result = stage.run("state", "list", "-c", "application.id=nobody")
    assert result.exit_code == 1
    assert "There is no state in " in result.stderr


def test_plain_values_fit_into_json() -> None:
    value = {"b": b"\xff", ("t", 1): {1.5, float("inf")}, "text": b"abc", "n": None}
    shown = plain(value)
    assert shown["b"] == "0xff"
    assert (shown["text"], shown["n"]) == ("abc", None)
    json.dumps(shown, allow_nan=False)
