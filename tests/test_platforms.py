"""Checks for operating systems on which the tests do not run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_function_is_called_that_macos_lacks(tmp_path: Path) -> None:
    """Code under another sys.platform is left out."""
    options = ("--platform", "darwin", "--cache-dir", str(tmp_path), "--package", "penstock")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
