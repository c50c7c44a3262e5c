"""The memory of this host, and the budget of its stream threads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from penstock.topology.config.streams_config import StreamsConfig

#: The path of cgroups, and the file with a container's limit in v1.
CGROUPS, CGROUP_V1_FILE = "sys/fs/cgroup", "sys/fs/cgroup/memory/memory.limit_in_bytes"


def host_bytes(root: Path = Path("/")) -> int:
    """Return the memory of the machine, or of the container that this runs in. root: of the file system."""
    found = [psutil.virtual_memory().total]
    for file in (root / CGROUP_V1_FILE, *(cgroup / "memory.max" for cgroup in _cgroups(root))):
        text = _text(file).strip()
        if text.isdigit() and int(text) > 0:  # "max": no limit
            found.append(int(text))
    return min(found)


def _cgroups(root: Path) -> Iterator[Path]:
    """Yield the directories of this process's cgroup (v2) and of its parents: each may have a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            inner = root / CGROUPS / line.removeprefix("0::").strip("/")
            yield from (path for path in (inner, *inner.parents) if path.is_relative_to(root / CGROUPS))


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # not Linux, or no such controller
        return ""


def budget_bytes(config: StreamsConfig, host: int) -> int:
    """Return the budget of all stream threads together: ``penstock.memory.bytes``, or half of the host's memory."""
    given: int | None = config["penstock.memory.bytes"]
    return host // 2 if given is None else given
