"""A progress bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Called with the progress: the current step, the number of finished parts, and their total.
Progress = Callable[[str, int, int], None]


@contextmanager
def progress_bar(wanted: bool, first: str) -> Iterator[Progress]:
    """Provide a progress display on a terminal; elsewhere it does nothing. first: the description of the first step."""
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not (wanted and console.is_terminal)) as bar:
        task = bar.add_task(first, total=None)

        def progress(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield progress
