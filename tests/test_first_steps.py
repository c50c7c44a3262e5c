"""README and docs/getting-started.md form one tutorial that works: a reader types it into an empty folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.first_steps import ROOT, reader


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_pages_lead_from_an_empty_folder_to_changing_counts(tmp_path: Path) -> None:
    with reader(tmp_path, Path(sys.executable).resolve()) as new_user:
        print(f"README.md took {new_user.follow(ROOT / 'README.md'):.0f} s")  # five minutes at most, on a quiet machine
        new_user.follow(ROOT / "docs" / "getting-started.md")
        new_user.stop()
