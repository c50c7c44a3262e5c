"""README and docs/getting-started.md are one story, and it is true: a reader types it into an empty folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.first_steps import ROOT, reader

FIVE_MINUTES = 300.0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_pages_lead_from_an_empty_folder_to_counts_that_change(tmp_path: Path) -> None:
    with reader(tmp_path, Path(sys.executable).resolve()) as new_user:
        assert new_user.follow(ROOT / "README.md") < FIVE_MINUTES
        new_user.follow(ROOT / "docs" / "getting-started.md")
        new_user.stop()
