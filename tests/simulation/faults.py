"""Where faults can hit a process: at each call of a client or of the disk, before it or after it.

A *point* is one such call. At most one trigger is armed per process; it fires at the n-th point, or at the n-th point
of one kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


class Killed(BaseException):
    """The process ended here, as by SIGKILL. No handler for Exception catches it, and a finally has no effect."""


@dataclass
class Trigger:
    """A fault to come. kind: of the point, None for any; left: points until it fires; after: fire after the call."""

    name: str
    kind: str | None
    left: int
    after: bool
    go_off: Callable[[], None]

    def __str__(self) -> str:
        return f"{self.name} {'after' if self.after else 'before'} {self.kind or 'any call'} ({self.left} to go)"


class Points:
    """The points of one process. listen(kind): called at each, for the trace; happened: called when a fault fires."""

    def __init__(self, listen: Callable[[str], None], happened: Callable[[str], None]) -> None:
        self.trigger: Trigger | None = None
        self.alive = True
        self.passed = 0
        self._listen = listen
        self._happened = happened

    def call(self, kind: str, effect: Callable[[], T], counted: bool = True) -> T:
        """Call effect(), which changes the world outside of the process, unless a fault prevents it.

        counted: whether the point counts for triggers without a kind; newer points do not, which keeps known seeds
        valid.
        """
        if not self.alive:
            raise Killed
        self.passed += 1
        self._listen(kind)
        trigger = self.trigger
        if trigger is None or (trigger.kind != kind if trigger.kind is not None else not counted):
            return effect()
        trigger.left -= 1
        if trigger.left > 0:
            return effect()
        self.trigger = None
        if not trigger.after:
            self._hit(trigger, kind)
            return effect()
        result = effect()
        self._hit(trigger, kind)
        return result

    def _hit(self, trigger: Trigger, kind: str) -> None:
        self._happened(f"{trigger.name} {'after' if trigger.after else 'before'} {kind}")
        trigger.go_off()
        if not self.alive:
            raise Killed
