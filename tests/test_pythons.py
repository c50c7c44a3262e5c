"""The first app with the newest Python on the machine, and with -m long with all others.

Penstock's wheel is built, installed and run there.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.first_steps import ROOT, reader
from tests.waiting import PATIENCE_SECONDS

OLDEST = (3, 11)
#: Where pyenv keeps its builds.
PYENV = Path.home() / ".pyenv" / "versions"
LOOK = "import ensurepip, sys, venv; print(*sys.version_info[:2], sys.implementation.name)"


def other_pythons() -> dict[str, Path]:
    """Return an interpreter for each other minor version: from PATH, otherwise pyenv's."""
    names = [f"python3.{minor}" for minor in range(OLDEST[1], OLDEST[1] + 10)]
    on_path = [Path(found) for name in names if (found := shutil.which(name))]
    pythons: dict[str, Path] = {}
    for python in [*on_path, *sorted(PYENV.glob("3.*/bin/python3"), reverse=True)]:
        version = version_of(python)
        if version >= OLDEST and version != sys.version_info[:2]:
            pythons.setdefault(".".join(map(str, version)), python)
    return pythons


def version_of(python: Path) -> tuple[int, ...]:
    """Return the minor version of a CPython that can create environments, () for anything else."""
    done = subprocess.run([python, "-c", LOOK], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    match = re.fullmatch(r"(\d+) (\d+) cpython\n", done.stdout)
    return tuple(map(int, match.groups())) if match and done.returncode == 0 else ()


PYTHONS = other_pythons()
#: Oldest first.
VERSIONS = sorted(PYTHONS, key=lambda version: int(version.split(".")[1]))
#: Prints the version if the kernel is compiled for it.
KERNEL = """\
import sys, penstock
print("{}.{}".format(*sys.version_info))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not PYTHONS, reason=f"this machine has no other Python from {'.'.join(map(str, OLDEST))} on")
@pytest.mark.parametrize(
    "version", [*(pytest.param(version, marks=pytest.mark.long) for version in VERSIONS[:-1]), *VERSIONS[-1:]]
)
def test_the_first_app_runs_with_another_python(version: str, tmp_path: Path) -> None:
    with reader(tmp_path, PYTHONS[version]) as new_user:
        new_user.follow(ROOT / "README.md")
        new_user.stop()
        python = tmp_path / "empty" / ".venv" / "bin" / "python"
        ran = subprocess.run([python, "-c", KERNEL], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ran.stdout.strip() == version
