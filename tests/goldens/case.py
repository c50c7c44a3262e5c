"""Reads cases, and compares the parts that need no driver: the description and refused topologies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from penstock import PenstockError, TopologyError

from . import interpreter

Case = dict[str, Any]

FORMAT = "penstock-golden/1"

#: Penstock's exceptions for Java's when a topology is refused.
BUILD_ERRORS = {
    "StreamsException": TopologyError,  # the optimizer fails
    "TopologyException": TopologyError,
    "IllegalArgumentException": TopologyError,
}


def read(path: Path) -> Case:
    """Return the case in a file; raises ValueError for another format."""
    case: Case = json.loads(path.read_text())
    if case.get("format") != FORMAT:
        raise ValueError(f"{path} is not a case of {FORMAT}")
    return case


def files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files of cases, those of a folder by name."""
    for path in paths:
        if path.is_dir():
            yield from sorted(path.glob("*.json"))
        else:
            yield path


def compare_topology(case: Case) -> str | None:
    """Build the topology of a case; return the first difference from the recording, None if there is none."""
    error = case["error"]
    expected = error if error is not None and error["stage"] == "build" else None
    try:
        description = str(interpreter.build(case).describe())
    except PenstockError as failure:
        return _compare_error(expected, failure)
    if expected is not None:
        return f"error: expected {expected['class']} at build, got none"
    return _first_difference(case["describe"], description)


def _compare_error(expected: dict[str, Any] | None, failure: PenstockError) -> str | None:
    got = f"{type(failure).__name__}: {failure}"
    if expected is None:
        return f"error: expected none, got {got}"
    if not isinstance(failure, BUILD_ERRORS[expected["class"]]):
        return f"error: expected {expected['class']}, got {got}"
    return None


def _first_difference(expected: str, got: str) -> str | None:
    if expected == got:
        return None
    expected_lines, got_lines = expected.splitlines(), got.splitlines()
    for number, (want, have) in enumerate(zip(expected_lines, got_lines, strict=False), start=1):
        if want != have:
            return f"describe line {number}: expected {want.strip()!r}, got {have.strip()!r}"
    return f"describe: expected {len(expected_lines)} lines, got {len(got_lines)}"
