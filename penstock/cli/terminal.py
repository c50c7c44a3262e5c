"""Prints text that may come from records, and detects that stdout was closed."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from penstock.statestore.view.spelling import printable_lines


def print_text(text: str, err: bool = False) -> None:
    """Print a message that may quote a record."""
    click.echo(printable_lines(text), err=err)


def print_line(text: str) -> None:
    """Print data: unchanged to a file or pipe; on a terminal as one line without control characters except tabs.

    JSON stays JSON.
    """
    if sys.stdout.isatty():
        text = printable_lines(text).replace("\n", "\\u000a")
    # As bytes, because click strips colors from text if stdout is not a terminal; a value must arrive unchanged.
    click.echo(text.encode(sys.stdout.encoding, "backslashreplace"))


def is_stdout_read() -> bool:
    """Return False once the other end of the pipe or terminal that is stdout has been closed."""
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always reported
    return not stdout.poll(0)


@contextmanager
def until_stdout_closes() -> Iterator[None]:
    """End the block without an error when the reader of stdout, e.g. ``head``, closes it."""
    try:
        yield
    except BrokenPipeError:
        # Buffered data must not fail again when Python exits.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
