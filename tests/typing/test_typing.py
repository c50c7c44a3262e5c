"""Type hints are correct: mypy --strict and pyright infer the types of users' programs, and find the errors in
mistakes.py.

pyright's own package downloads its program at the first run; basedpyright is the same checker in one wheel. Its
settings are in pyrightconfig.json beside this file.
"""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from mypy import api

pytestmark = pytest.mark.medium

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAMS = sorted(HERE.glob("programs/*.py"))


def mypy(*paths: Path) -> tuple[str, int]:
    """Return mypy's messages about files, without those that they import, with the project's settings, and its exit
    status.
    """
    settings = ["--config-file", str(ROOT / "setup.cfg"), "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    output, errors, status = api.run([*settings, "--follow-imports=silent", *map(str, paths)])
    assert not errors
    return output, status


def pyright(folder: Path) -> list[tuple[str, int, str]]:
    """Return file, line and text of pyright's findings in a folder with a pyrightconfig.json."""
    command = [sys.executable, "-m", "basedpyright", "--project", str(folder), "--pythonpath", sys.executable]
    done = subprocess.run([*command, "--outputjson"], capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"], done.stdout + done.stderr
    return [
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["message"])
        for found in report["generalDiagnostics"]
    ]


def mistaken_lines() -> Iterator[int]:
    for number, line in enumerate((HERE / "mistakes.py").read_text().splitlines(), 1):
        if "# type: ignore[" in line:
            yield number


def test_mypy_agrees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    output, status = mypy(HERE / "examples.py", HERE / "mistakes.py", *PROGRAMS)
    assert status == 0, output


def test_pyright_agrees() -> None:
    found = pyright(HERE)
    unexpected = [f"{file}:{line}: {text}" for file, line, text in found if file != "mistakes.py"]
    assert not unexpected, "\n".join(unexpected)
    assert {line for file, line, _ in found if file == "mistakes.py"} == set(mistaken_lines())


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that the checkers accept also work."""
    monkeypatch.syspath_prepend(HERE)
    program = importlib.import_module(f"programs.{path.stem}")
    program.topology()
    getattr(program, "try_it", lambda: None)()


WRONG = """\
from typing import assert_type
from penstock import KStream, KTable, Serdes, StreamsBuilder
text = StreamsBuilder().stream('in', key_serde=Serdes.string(), value_serde=Serdes.string())
assert_type(text.map_values(len), KStream[str, float])
reveal_type(text.group_by_key().count())
text.map_values(len)  # type: ignore[arg-type]
"""


def test_a_wrong_expectation_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks above can fail: with a wrong type, and with a mistake that is none."""
    monkeypatch.chdir(ROOT)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    output, status = mypy(wrong)
    assert status == 1
    assert 'Expression is of type "KStream[str, int]", not "KStream[str, float]"' in output
    assert re.search(r"Revealed type is .*KTable\[(builtins\.)?str, (builtins\.)?int\]", output)
    assert 'Unused "type: ignore" comment' in output


def test_pyright_detects_a_wrong_expectation(tmp_path: Path) -> None:
    config = json.loads((HERE / "pyrightconfig.json").read_text())
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({**config, "extraPaths": [str(ROOT)]}))
    (tmp_path / "wrong.py").write_text(WRONG)
    found = {line: text for _, line, text in pyright(tmp_path)}
    assert 'expected "KStream[str, float]" but received "KStream[str, int]"' in found[4]
    assert found[5] == 'Type of "text.group_by_key().count()" is "KTable[str, int]"'
    assert 6 not in found
