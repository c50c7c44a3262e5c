"""The files that this process has open."""

from __future__ import annotations

from pathlib import Path

import psutil


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    return sorted(file.path for file in psutil.Process().open_files() if file.path.startswith(f"{folder}/"))
