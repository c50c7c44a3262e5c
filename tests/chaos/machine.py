"""The machine of a host: faults of its clock, its disk and its memory.

Clock and disk faults use a shim that is compiled for the run (machine.c), memory faults a control group.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).with_name("machine.c")
COMPILERS = ("cc", "gcc", "clang")
SHIM_FLAGS = ("-O2", "-shared", "-fPIC")
CGROUPS = Path("/sys/fs/cgroup")


class Field(IntEnum):
    """The fields of machine.c's struct control: one 64-bit number each."""

    CLOCK_OFFSET_MS = 0
    DISK_ERRNO = 1
    DISK_DELAY_US = 2
    CLOCK_READINGS = 3
    DISK_FAILURES = 4
    DISK_DELAYS = 5


def compiler() -> str | None:
    """Return the C compiler, None if there is none."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def compile_shim(directory: Path) -> Path:
    """Compile and return the library; raises CalledProcessError, and FileNotFoundError without a compiler."""
    command = compiler()
    if command is None:
        raise FileNotFoundError(f"none of {', '.join(COMPILERS)} is there")
    directory.mkdir(parents=True, exist_ok=True)
    shim = directory / "machine.so"
    subprocess.run([command, *SHIM_FLAGS, "-o", shim, SOURCE, "-ldl"], check=True, capture_output=True, text=True)
    return shim


class Control:
    """Controls the clock and disk faults of the processes that are started with ``environment``.

    directory: of the file that they share. disk: only writes below it are affected.
    """

    def __init__(self, shim: Path, directory: Path, disk: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "machine.control"
        file.write_bytes(bytes(8 * len(Field)))
        with file.open("r+b") as shared:
            self._shared = mmap.mmap(shared.fileno(), 8 * len(Field))
        self.environment = {"LD_PRELOAD": str(shim), "MACHINE_CONTROL": str(file), "MACHINE_DISK": f"{disk}/"}

    def __getitem__(self, field: Field) -> int:
        value: int = struct.unpack_from("q", self._shared, 8 * field)[0]
        return value

    def __setitem__(self, field: Field, value: int) -> None:
        struct.pack_into("q", self._shared, 8 * field, value)


@dataclass(frozen=True, slots=True)
class _Version:
    """Names of a memory control group's files. limit_max: the value for no limit."""

    usage: str
    limit: str
    limit_max: str
    events: str
    kills: str


_V1 = _Version("memory.usage_in_bytes", "memory.limit_in_bytes", "-1", "memory.failcnt", "memory.oom_control")
_V2 = _Version("memory.current", "memory.max", "max", "memory.events", "memory.events")


class MemoryGroup:
    """A control group for one host. Raises OSError without permission to create one."""

    def __init__(self, name: str) -> None:
        parent, self._files = _own_group()
        self._path = parent / name
        self._path.mkdir()

    def adopt(self, pid: int) -> None:
        """Add a process that has just started; its children belong to the group too."""
        (self._path / "cgroup.procs").write_text(str(pid))

    def squeeze(self) -> int:
        """Set the limit to the current usage; return it, in bytes."""
        limit = int((self._path / self._files.usage).read_text())
        (self._path / self._files.limit).write_text(str(limit))
        return limit

    def free(self) -> None:
        """Remove the limit."""
        (self._path / self._files.limit).write_text(self._files.limit_max)

    def hits(self) -> int:
        """Return how often a process ran into the limit."""
        text = (self._path / self._files.events).read_text()
        return int(text) if text.strip().isdigit() else _value(text, "max")

    def kills(self) -> int:
        """Return how many processes were killed for their memory."""
        return _value((self._path / self._files.kills).read_text(), "oom_kill")

    def close(self) -> None:
        """Remove the group, whose processes have ended."""
        with suppress(FileNotFoundError):
            self._path.rmdir()


def _value(text: str, name: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[0] == name), 0)


def _own_group() -> tuple[Path, _Version]:
    """Return this process's own memory control group; raises FileNotFoundError."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return CGROUPS / "memory" / path.lstrip("/"), _V1
    group = CGROUPS / path.lstrip("/")
    if "memory" not in (group / "cgroup.subtree_control").read_text().split():
        raise FileNotFoundError(f"{group} does not let its groups limit memory")
    return group, _V2


def why_no_memory_group() -> str | None:
    """Return why memory control groups cannot be created here, None if they can."""
    try:
        MemoryGroup(f"penstock-chaos-{os.getpid()}-probe").close()
    except OSError as error:
        return str(error)
    return None
