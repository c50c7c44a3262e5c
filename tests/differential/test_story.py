"""docs/spark-story.md, typed word by word into an empty folder, with the standalone cluster that it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.first_steps import ROOT, reader
from tests.free_port import free_port


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_history_from_lines_parquet_and_kafka_is_counted_on_a_cluster_and_then_live(tmp_path: Path) -> None:
    words = {"7077": str(free_port())}
    with reader(tmp_path, Path(sys.executable).resolve(), words) as data_engineer:
        data_engineer.follow(ROOT / "docs" / "spark-story.md")
        data_engineer.stop()
