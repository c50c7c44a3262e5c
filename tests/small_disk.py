"""A small file system for one test, in a mount namespace, which the test can fill."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

#: Free space beside the ballast: enough to open the stores.
FREE_MB = 4
#: Creates the file system, and runs as long as it is needed.
HOLDER = "mount -t tmpfs -o size={size}m tmpfs {place} && echo mounted && exec sleep infinity"


class Disk:
    """A file system that is visible only to processes that run with ``prefix``."""

    def __init__(self, holder: subprocess.Popen[str], place: Path, size_mb: int) -> None:
        self._size_mb = size_mb
        self.prefix = (
            *("nsenter", "--preserve-credentials", "--user", "--mount", "--target", str(holder.pid)),
            f"--wd={place.parent}",
        )
        self._seen_from_here = Path(f"/proc/{holder.pid}/root{place}")

    def fill(self) -> None:
        (self._seen_from_here / "ballast").write_bytes(bytes((self._size_mb - FREE_MB) << 20))

    def free(self) -> None:
        (self._seen_from_here / "ballast").unlink()


@contextmanager
def small_disk(place: Path, size_mb: int) -> Iterator[Disk]:
    """Create a file system of size_mb at place, in memory, while the context is active."""
    place.mkdir()
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("unshare and nsenter (util-linux) are needed for a file system of the test's own")
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    with subprocess.Popen(
        [*command, HOLDER.format(size=size_mb, place=place)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() != "mounted\n":
                holder.wait()
                pytest.skip(f"this machine allows no mount namespaces: {holder.stderr and holder.stderr.read()}")
            yield Disk(holder, place, size_mb)
        finally:
            holder.kill()
