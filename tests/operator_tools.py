"""Programs that bin/operator-tools builds; tests that need a missing one are skipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def tool(name: str) -> str:
    """Return the path of a program; skips the test if it is not installed."""
    found = shutil.which(name, path=str(ROOT / "build" / "bin")) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: bin/operator-tools builds it")
    return found
