"""The output of bin/_setup during the installation. Every fresh clone tests the installation itself."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The functions of bin/_setup, without the set-up at its end.
SOURCED = 'source <(sed "/^setup$/,\\$d" bin/_setup); '
FUNCTIONS = SOURCED + "root=$PWD began=$SECONDS; show_progress"
PIP = """Looking in links: /x
Collecting click
  Downloading click-8.whl
Building wheels for collected packages: penstock-streams
Installing collected packages: click
Done
"""


def test_without_a_terminal_each_step_is_a_line() -> None:
    shown = subprocess.run(
        ["bash", "-c", FUNCTIONS], cwd=ROOT, input=PIP, stderr=subprocess.PIPE, text=True, check=True
    ).stderr
    assert shown.splitlines() == [
        "  making the environment ...",
        "  collecting packages ...",
        "  compiling the kernel ...",
        "  installing packages ...",
    ]


def read_to_the_end(terminal: int) -> Iterator[str]:
    """Yield the output until no process has the terminal open; it arrives in pieces."""
    try:
        while shown := os.read(terminal, 65536):
            yield shown.decode()
    except OSError as error:
        if error.errno != errno.EIO:  # Linux reports the end this way
            raise


def test_a_terminal_shows_a_progress_bar_that_is_erased_at_the_end() -> None:
    ours, terminal = pty.openpty()
    try:
        try:
            subprocess.run(["bash", "-c", FUNCTIONS], cwd=ROOT, input=PIP, stderr=terminal, text=True, check=True)
        finally:
            os.close(terminal)
        shown = "".join(read_to_the_end(ours))
    finally:
        os.close(ours)
    steps = shown.split("\r")
    assert any("%  collecting packages" in step for step in steps)
    assert any(step.startswith("  [") and "installing packages" in step for step in steps)
    assert steps[-1] == "\033[K"


def test_one_set_up_of_a_checkout_runs_at_a_time(tmp_path: Path) -> None:
    wait = (
        f'{SOURCED} root="{tmp_path}"; wait_for_others "{sys.executable}"; echo begins; read -r; exec 9>&-; echo ended'
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(["bash", "-c", wait], cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "begins\n"
        with subprocess.Popen(
            ["bash", "-c", wait], cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        ) as second:
            assert second.stdin is not None
            assert second.stdout is not None
            assert second.stderr is not None
            assert second.stderr.readline() == f"Another command sets up {tmp_path}/.venv; waiting for it ...\n"
            first.stdin.write("\n")
            first.stdin.flush()
            assert first.stdout.readline() == "ended\n"
            assert second.stdout.readline() == "begins\n"
            second.stdin.close()
