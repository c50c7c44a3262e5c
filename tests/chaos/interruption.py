"""Ctrl-C: the first one ends a run early, with a verdict, the second one at once."""

from __future__ import annotations

import signal
from collections.abc import Callable


def end_early_at_sigint(interrupt: Callable[[], None]) -> None:
    """Call ``interrupt`` at the first SIGINT, and let the second one end the process.

    Also where SIGINT is ignored, as in a shell's background.
    """

    def end_early(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupt()

    signal.signal(signal.SIGINT, end_early)
