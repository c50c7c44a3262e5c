"""Every recorded case in TopologyTestDriver ends as in Kafka Streams: outputs, changelogs, stores, errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.goldens.case import files, read
from tests.goldens.compare import compare_run

CASES = Path(__file__).parent / "cases"
#: Cases of wide_generator.py, recorded with the same recorder: those that found faults, others for their breadth, and
#: of merged streams, which the optimizer splits.
WIDE = Path(__file__).parent / "wide"


@pytest.mark.parametrize("path", list(files([CASES, WIDE])), ids=lambda path: path.stem)
def test_a_recorded_case_runs_like_kafka_streams(path: Path) -> None:
    assert compare_run(read(path)) is None


def test_a_difference_of_one_byte_is_detected() -> None:
    case = read(CASES / "everything_named.json")
    topic = next(iter(case["outputs"]))
    case["outputs"][topic][0]["value_b64"] = "AA=="
    difference = compare_run(case)
    assert difference is not None
    assert difference.startswith(f"outputs of {topic}, number 0")
