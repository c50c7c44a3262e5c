"""What bin/_setup shows while it installs. The installation itself is what every fresh clone does."""

from __future__ import annotations

import errno
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: The functions of bin/_setup without the set-up that its end begins.
FUNCTIONS = 'source <(sed "/^setup$/,\\$d" bin/_setup); root=$PWD began=$SECONDS; show_progress'
PIP = "Looking in links: /x\nCollecting click\n  Downloading click-8.whl\nInstalling collected packages: click\nDone\n"


def test_where_there_is_no_terminal_each_step_is_a_line() -> None:
    shown = subprocess.run(
        ["bash", "-c", FUNCTIONS], cwd=ROOT, input=PIP, stderr=subprocess.PIPE, text=True, check=True
    ).stderr
    assert shown.splitlines() == [
        "  making the environment ...",
        "  collecting packages ...",
        "  installing packages ...",
    ]


def read_to_the_end(terminal: int) -> Iterator[str]:
    """Yield what is shown, until no one has the terminal open; what was written arrives by and by."""
    try:
        while shown := os.read(terminal, 65536):
            yield shown.decode()
    except OSError as error:
        if error.errno != errno.EIO:  # the end, as Linux says it
            raise


def test_a_terminal_shows_a_bar_that_is_wiped_at_the_end() -> None:
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
