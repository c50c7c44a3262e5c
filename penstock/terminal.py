"""What is safe to print, and whether anyone still reads it.

Keys, values and headers of records come from anyone, and a terminal obeys what it is sent.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


def printable(text: str) -> str:
    r"""Return a text in which control characters and others without a glyph are spelled as JSON does: ``\u001b``."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def _spelled(character: str) -> str:
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def print_line(text: str) -> None:
    """Print a line of untrusted text: as it is into a file or a pipe, printable() on a terminal. JSON stays JSON."""
    if sys.stdout.isatty():
        text = "\t".join(map(printable, text.split("\t")))
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
