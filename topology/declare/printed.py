"""The action of ``KStream.print`` (Kafka Streams: Printed)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from ..common.arguments import check_function
from ..errors import TopologyError
from ..type_variables import K, V


def print_action(
    label: str, file: str | TextIO | None, mapper: Callable[[K, V], str] | None
) -> tuple[Callable[[K, V], None], Callable[[], None] | None]:
    """Return a function (key, value) that prints a line, and one that closes the file, None if there is none to close.

    A path is opened for appending with the first record of a task, so that building a topology does no I/O. Raises
    TopologyError if its folder does not exist.
    """
    check_function(mapper, "The mapper of print()", optional=True)
    if isinstance(file, str) and not (file and Path(file).absolute().parent.is_dir()):
        raise TopologyError(f"print() cannot write to {file!r}: give the path of a file in an existing folder")
    text = mapper or (lambda key, value: f"{key}, {value}")
    opened: list[TextIO] = []

    def target() -> TextIO:
        if file is None:
            return sys.stdout
        if not isinstance(file, str):
            return file
        if not opened:
            opened.append(Path(file).open("a", encoding="utf-8"))  # noqa: SIM115 - closed with the task
        return opened[0]

    def action(key: K, value: V) -> None:
        print(f"[{label}]: {text(key, value)}", file=target(), flush=True)

    def close() -> None:
        while opened:
            opened.pop().close()

    return action, close if isinstance(file, str) else None
