"""Every recorded topology is described, or refused, as by Kafka Streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.goldens import interpreter
from tests.goldens.case import compare_topology, files, read

CASES = Path(__file__).parent.parent / "goldens" / "cases"


@pytest.mark.parametrize("path", list(files([CASES])), ids=lambda path: path.stem)
def test_a_topology_is_described_as_by_kafka_streams(path: Path) -> None:
    assert compare_topology(read(path)) is None


def test_all_recorded_cases_exist() -> None:
    assert len(list(files([CASES]))) == 230


def test_a_difference_is_detected_and_shown() -> None:
    case = read(CASES / "everything_named.json")
    case["describe"] = case["describe"].replace("Processor: up", "Processor: down")
    assert compare_topology(case) == (
        "describe line 8: expected 'Processor: down (stores: [])', got 'Processor: up (stores: [])'"
    )


def test_a_missing_error_is_detected() -> None:
    case = read(CASES / "everything_named.json")
    case["error"] = {"stage": "build", "class": "TopologyException", "cause": "TopologyException"}
    assert compare_topology(case) == "error: expected TopologyException at build, got none"


def test_an_unexpected_error_is_detected() -> None:
    case = read(CASES / "error_same_name_twice.json")
    case["error"] = None
    difference = compare_topology(case)
    assert difference is not None
    assert difference.startswith("error: expected none, got TopologyError: Processor same is already added")


def test_the_interpreter_knows_every_operation() -> None:
    ops = {op["op"] for path in files([CASES]) for op in read(path)["topology"]}
    assert ops <= set(dir(interpreter.Interpreter))
