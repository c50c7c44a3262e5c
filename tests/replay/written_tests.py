"""Runs the tests that rehearsals write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(file: Path) -> subprocess.CompletedProcess[str]:
    """Run a test file in its folder, in its own process."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-vv",
        str(file),
        "--rootdir",
        str(file.parent),
    ]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=file.parent, env=environment, capture_output=True, text=True, check=False)
