"""Type hints hold: mypy --strict infers what examples.py says, and finds what is wrong in mistakes.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mypy import api

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def mypy(path: Path) -> tuple[str, int]:
    """Return what mypy says of a file, not of what it imports, with the project's settings, and its exit status."""
    settings = ["--config-file", str(ROOT / "setup.cfg"), "--strict", "--cache-dir", str(ROOT / ".mypy_cache")]
    output, errors, status = api.run([*settings, "--follow-imports=silent", str(path)])
    assert not errors
    return output, status


@pytest.mark.parametrize("name", ["examples", "mistakes"])
def test_mypy_agrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    output, status = mypy(HERE / f"{name}.py")
    assert status == 0, output


def test_a_wrong_expectation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two checks above can fail: a type that is not so, and a mistake that is none."""
    monkeypatch.chdir(ROOT)
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from typing import assert_type\n"
        "from penstock import KStream, KTable, Serdes, StreamsBuilder\n"
        "text = StreamsBuilder().stream('in', key_serde=Serdes.string(), value_serde=Serdes.string())\n"
        "assert_type(text.map_values(len), KStream[str, float])\n"
        "reveal_type(text.group_by_key().count())\n"
        "text.map_values(len)  # type: ignore[arg-type]\n"
    )
    output, status = mypy(wrong)
    assert status == 1
    assert 'Expression is of type "KStream[str, int]", not "KStream[str, float]"' in output
    assert re.search(r"Revealed type is .*KTable\[(builtins\.)?str, (builtins\.)?int\]", output)
    assert 'Unused "type: ignore" comment' in output
