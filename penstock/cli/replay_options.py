"""Shared by the commands that replay tasks: the name of a task, and where a command writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click
from typing_extensions import override

from penstock.cli.options import print_text
from penstock.replay.starts import Start
from penstock.topology.records import TaskId

MIB = 1 << 20
#: The progress of a load is printed after this many bytes.
LOADED_BYTES = 64 * MIB


class TaskName(click.ParamType[TaskId]):
    """A task such as 1_3."""

    name = "task"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> TaskId:
        try:
            return value if isinstance(value, TaskId) else TaskId.parse(value)
        except ValueError:
            self.fail(f"{value!r} is not a task such as 1_3; `penstock status --tasks` shows the tasks", param, ctx)


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command writes. json: only the result on stdout, everything else on stderr."""

    json: bool

    def say(self, text: str) -> None:
        """Print a message."""
        print_text(text, err=self.json)

    def skipped(self, task: TaskId, name: str, reason: str) -> None:
        """Print why a checkpoint of a task is not used."""
        self.say(f"Checkpoint {name} of task {task} is not used: {reason}")

    def loading(self, start: Start) -> Callable[[int], None]:
        """Return a function that counts the loaded bytes of a start, and prints progress."""
        arrived = 0

        def count(size: int) -> None:
            nonlocal arrived
            before, arrived = arrived, arrived + size
            if start.manifest is not None and before // LOADED_BYTES != arrived // LOADED_BYTES:
                total = start.manifest.total_bytes
                self.progress(f"Loading {start.manifest.name}: {arrived / MIB:.0f} of {total / MIB:.0f} MiB")

        return count

    def progress(self, text: str) -> None:
        """Print progress."""
        print_text(text, err=True)
