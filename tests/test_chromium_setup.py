"""bin/test installs Chromium, or says why it cannot: it neither fails nor waits long because of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
SCRIPT = """
set -euo pipefail
say() { printf '%s\\n' "$*" >&2; }
source bin/_chromium
prepare_chromium
echo "the run continues"
"""
TOOLS = ("bash", "env", "timeout", "tail", "mktemp", "rm", "chmod", "sleep", "cp")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory that is the whole $PATH: the standard tools of Debian, without apt-get and Chromium."""
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    return tmp_path


def add(programs: Path, name: str, *lines: str) -> None:
    (programs / name).write_text("\n".join(("#!/usr/bin/env bash", f'echo "{name} $*" >> {programs}/called', *lines)))
    (programs / name).chmod(0o755)


def run(programs: Path, seconds: int = 60) -> str:
    """Run this part of bin/test, as root or with passwordless sudo; return its output."""
    if os.geteuid() != 0:
        add(programs, "sudo", "[[ $1 != -n ]] || shift", '[[ $1 == true ]] || exec "$@"')
    environment = {"PATH": str(programs), "CHROMIUM_SECONDS": str(seconds), "TMPDIR": str(programs)}
    done = subprocess.run(
        ["bash", "-c", SCRIPT],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "the run continues\n"), done.stderr
    return done.stderr


def calls(programs: Path) -> list[str]:
    called = programs / "called"
    return called.read_text().splitlines() if called.exists() else []


def test_an_installed_chromium_is_kept(programs: Path) -> None:
    for name in ("chromium", "chromedriver", "apt-get"):
        add(programs, name)
    assert run(programs) == ""
    assert calls(programs) == []


def test_it_is_installed_if_that_is_permitted(programs: Path) -> None:
    makes = [f"cp {programs}/apt-get {programs}/{name}" for name in ("chromium", "chromedriver")]
    add(programs, "apt-get", "[[ $* != *--download-only* || -e $TMPDIR/lists ]] || exit 100",
        "[[ $* != *update* ]] || echo > $TMPDIR/lists", "[[ $* != *--no-download* ]] || {", *makes, "}")  # fmt: skip
    assert run(programs).startswith("Installing Chromium")
    asked = [call.split()[-4:] for call in calls(programs) if call.startswith("apt-get")]
    assert [words[-1] for words in asked] == ["chromium-driver", "update", "chromium-driver", "chromium-driver"]


def test_without_a_network_the_run_continues_with_a_message(programs: Path) -> None:
    add(programs, "apt-get", "echo Could not resolve deb.debian.org", "exit 100")
    said = run(programs)
    assert "WITHOUT CHROMIUM: the dashboard's tests are skipped." in said
    log = Path(said.rstrip().rstrip(".").rpartition(" ")[2])
    assert "Could not resolve" in log.read_text()


def test_without_apt_a_message_appears_at_once(programs: Path) -> None:
    assert "this is no Debian or Ubuntu" in run(programs)


def test_the_installation_has_a_time_limit(programs: Path) -> None:
    add(programs, "apt-get", "exec sleep 600")
    began = time.monotonic()
    assert "WITHOUT CHROMIUM" in run(programs, seconds=3)
    assert time.monotonic() - began < 300, "the program that it calls sleeps longer"
