"""Another version of Penstock, beside this one: the files of a commit, with its compiled kernel."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.chaos.hosts import ROOT, Host

#: The module of the topology, which comes from this version, because all hosts must run the same one.
PROGRAM = "tests/chaos/program.py"
KERNEL = "kernel"


def why_not(commit: str) -> str | None:
    """Return why this commit is not available here, None if it is."""
    result = _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    return None if result.returncode == 0 else f"git knows no commit {commit} in {ROOT}"


def check_out(commit: str, directory: Path) -> Path:
    """Check out a commit into a directory, build its kernel, and return the path. Raises CalledProcessError."""
    root = directory / "previous"
    root.mkdir(parents=True)
    archive = _git("archive", commit)
    archive.check_returncode()
    subprocess.run(["tar", "-x", "-C", root], input=archive.stdout, check=True)
    shutil.copy(ROOT / PROGRAM, root / PROGRAM)
    same_kernel = _git("diff", "--quiet", commit, "--", KERNEL).returncode == 0
    libraries = list((ROOT / KERNEL).glob("*.so"))
    if same_kernel and libraries:
        for library in libraries:
            shutil.copy(library, root / KERNEL)
    else:
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=root, check=True, capture_output=True)
    return root


def processes_of(host: Host, root: Path) -> int:
    """Return how many processes of a host run this version's code: those that have mapped its kernel."""
    return sum(f"{root / KERNEL}/" in Path(f"/proc/{pid}/maps").read_text() for pid in host.pids())


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
