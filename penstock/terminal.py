"""How text that may come from records is printed, and whether anyone still reads it."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from penstock.statestore.spelling import printable_lines


def print_text(text: str, err: bool = False) -> None:
    """Print a message that may quote a record."""
    click.echo(printable_lines(text), err=err)


def print_line(text: str) -> None:
    """Print data: as it is into a file or a pipe; on a terminal as one line without control characters but tabs.

    JSON stays JSON.
    """
    if sys.stdout.isatty():
        text = printable_lines(text).replace("\n", "\\u000a")
    # As bytes, since click takes colours out of text for what is no terminal; a value is to arrive as it is.
    click.echo(text.encode(sys.stdout.encoding, "backslashreplace"))


def is_stdout_read() -> bool:
    """Return False once the other end of the pipe or terminal that is stdout has been closed."""
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)  # errors and hang-ups are always reported
    return not stdout.poll(0)


@contextmanager
def until_stdout_closes() -> Iterator[None]:
    """End the block without an error when the reader of stdout, e.g. ``head``, has enough."""
    try:
        yield
    except BrokenPipeError:
        # What is still buffered must not fail again when Python ends.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
