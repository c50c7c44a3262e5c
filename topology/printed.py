"""What ``KStream.print`` does with each record (Kafka Streams: Printed)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO


def print_action(
    label: str, file: str | TextIO | None, mapper: Callable[[Any, Any], str] | None
) -> tuple[Callable[[Any, Any], None], Callable[[], None] | None]:
    """Return a function (key, value) that prints a line, and one that closes what it has opened, None if nothing.

    A path is opened with the first record of a task, for appending, so that building a topology touches no disk.
    """
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

    def action(key: Any, value: Any) -> None:
        print(f"[{label}]: {text(key, value)}", file=target(), flush=True)

    def close() -> None:
        while opened:
            opened.pop().close()

    return action, close if isinstance(file, str) else None
