"""A separate stack for each simulated process, so that it can be suspended in the middle of a call and resumed later.

Python's generators cannot suspend ordinary code; greenlets can. Only one strand runs at any time, and when it parks or
ends, its resumer continues. There is no scheduler, so every run is the same.
"""

from __future__ import annotations

from collections.abc import Callable

from greenlet import getcurrent, greenlet


class Strand:
    """Runs a function piece by piece: resume() runs it until it parks or ends. It must not raise."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._stack = greenlet(function)

    @property
    def ended(self) -> bool:
        """Whether the function has returned."""
        return bool(self._stack.dead)

    def resume(self) -> None:
        """Continue where it parked."""
        self._stack.parent = getcurrent()
        self._stack.switch()

    def park(self) -> None:
        """Called inside the strand: return control to its resumer until it is resumed again."""
        assert self._stack.parent is not None
        self._stack.parent.switch()
