"""penstock rehearse, on checkpoints and input of a real application."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.supervisor.exit_codes import ExitCode
from tests.read_to_end import read_to_end
from tests.replay.test_debug_command import APP, Debugged, debugged
from tests.replay.written_tests import run_pytest

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, bootstrap_servers: str) -> Iterator[Debugged]:
    with debugged(tmp_path_factory.mktemp("stage"), bootstrap_servers, (1, 2)) as running:
        yield running


def version(stage: Debugged, folder: str, old: str = "", new: str = "") -> Path:
    """Write another version of the application into a folder, under the same name, and return the folder."""
    path = stage.folder / folder
    path.mkdir()
    text = APP.replace("@SOURCE@", stage.source).replace("@SINK@", stage.sink).replace(old, new)
    (path / f"{stage.topology.partition(':')[0]}.py").write_text(text)
    return path


def test_a_refactoring_has_no_difference_and_nothing_is_written(stage: Debugged) -> None:
    path = version(stage, "refactored", "total = total + value", "total = value + total")
    before = len(list(read_to_end(stage.bootstrap_servers, stage.sink)))
    result = stage.run("rehearse", stage.topology, stage.topology, "--new-path", str(path), "--from", "oldest")
    assert result.exit_code == ExitCode.OK, result.output
    assert result.output.count(" no difference\n") == stage.tasks
    assert "begins at checkpoint" in result.output
    assert len(list(read_to_end(stage.bootstrap_servers, stage.sink))) == before


def test_a_difference_is_found_and_its_test_repeats_it(stage: Debugged) -> None:
    """The old version is in another folder, as after a checkout of it; the state is that of a checkpoint."""
    path = version(stage, "faulty", "total = total + value", "total = total + value if value % 10 else 0")
    test = stage.folder / "found" / "test_found.py"
    test.parent.mkdir()
    arguments = ("rehearse", stage.topology, stage.topology, "--new-path", str(path), "--from", "oldest")
    result = stage.run(*arguments, "--test", str(test))
    assert result.exit_code == 1, result.output
    assert "The node whose results differ: KSTREAM-AGGREGATE-" in result.output
    found = [each for each in json.loads(stage.run(*arguments, "--json").stdout) if each["verdict"] == "different"]
    assert found
    assert all(each["first"]["record"]["value"].endswith("0") for each in found)
    repeated = run_pytest(test)
    assert repeated.returncode == 1, repeated.stdout + repeated.stderr
    assert "The node whose results differ: KSTREAM-AGGREGATE-" in repeated.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "none.json"], "has no checkpoint none.json that can be used"),
        (["--task", "0_9"], "has no task 0_9; its tasks are 0_0, 0_1, 0_2, 0_3."),
        (["--old-path", "nowhere"], "does not exist"),
        (["--records", "0"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(stage: Debugged, arguments: list[str], message: str) -> None:
    result = stage.run("rehearse", stage.topology, stage.topology, *arguments)
    assert result.exit_code in (ExitCode.USAGE, ExitCode.FAILED)
    assert message in result.output


def test_a_version_that_cannot_use_the_state_is_refused(stage: Debugged) -> None:
    path = version(
        stage, "other", 'store="totals", value_serde=Serdes.int64()', 'store="totals", value_serde=Serdes.json()'
    )
    result = stage.run("rehearse", stage.topology, stage.topology, "--new-path", str(path), "--task", "0_0")
    assert result.exit_code == ExitCode.USAGE, result.output
    assert "cannot use the checkpoint: it is from another version of the topology: totals" in result.output
