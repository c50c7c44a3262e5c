"""The files that this process has open."""

from __future__ import annotations

import os
from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """Return the files of a folder that this process has open."""
    descriptors = [Path("/proc/self/fd") / number for number in os.listdir("/proc/self/fd")]
    targets = [os.readlink(descriptor) for descriptor in descriptors if descriptor.is_symlink()]
    return sorted(target for target in targets if target.startswith(f"{folder}/"))
