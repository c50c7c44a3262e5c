"""A separate stack for each simulated process, so that it can be left in the middle of a call and taken up later.

Python's generators cannot suspend code that knows nothing of them; greenlets can. Only one runs at any time, and it is
said which: the resumer of a strand continues when it parks or ends. Nothing is left to a scheduler, so a run is
the same every time.
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
        """Called inside of it: give control back to the one that resumed it, until it is resumed again."""
        assert self._stack.parent is not None
        self._stack.parent.switch()
