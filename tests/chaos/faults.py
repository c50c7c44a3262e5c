"""The base of all faults: they take effect at once, record proof of it, and end later if they are lasting ones."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.chaos.agenda import Agenda
from tests.chaos.hosts import Host
from tests.chaos.recovery import Recovery
from tests.chaos.schedule import Action, Event

#: How much longer a fault lasts that had no effect yet, and the interval at which that is checked.
UNSEEN_SECONDS, LOOK_AGAIN_MS = 30.0, 200.0


@dataclass(frozen=True)
class Stage:
    """The environment of faults. say: prints a line. fail: prints one and makes the run a failure.

    excuses: whether a bug of a broker explains the error with which a host has ended.
    """

    agenda: Agenda
    recovery: Recovery
    say: Callable[[str], None]
    fail: Callable[[str], None]
    excuses: Callable[[str], bool] = lambda _error: False

    def report_end(self, host: Host, how: str, code: int) -> None:
        """Report an exit code other than 0. It is a failure, unless faults of the machine or of a broker explain it."""
        error = host.last_error()
        ended = f"{host.name} {how} with exit code {code}: {error}"
        if host.may_end or self.excuses(error):
            self.say(f"{'':10} {ended}")
        else:
            self.fail(ended)


class Faults(ABC):
    """Kinds of faults that need the same resources."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lasting: dict[str, Callable[[], None]] = {}

    @property
    @abstractmethod
    def actions(self) -> Mapping[Action, Callable[[Event], str]]:
        """Return a function for each kind; it returns what it hit, for the event's line."""

    def carry_out(self, event: Event) -> str:
        """Carry out one event; it counts as healed unless ``_heal_later`` was called."""
        recovery, self._lasts = self._stage.recovery, False
        recovery.begin(event.action)
        what = self.actions[event.action](event)
        if not self._lasts:
            recovery.end(event.action)
        return what

    def _see(self, event: Event, count: int, unit: str) -> None:
        self._stage.recovery.see(event.action, count, unit)

    def _heal_now(self, owner: str) -> None:
        """End an owner's lasting fault, of which there is at most one."""
        self._stage.agenda.drop(owner)
        if (finish := self._lasting.pop(owner, None)) is not None:
            finish()

    def _heal_later(
        self, event: Event, heal: Callable[[], object], owner: str = "", seen: Callable[[], bool] = lambda: True
    ) -> None:
        """End the fault after the event's duration, or, if it has no effect yet, a little later."""
        self._lasts = True
        latest = time.monotonic() + event.duration_ms / 1000 + UNSEEN_SECONDS

        def finish() -> None:
            heal()
            self._stage.recovery.end(event.action)

        def end() -> None:
            if not seen() and time.monotonic() < latest:
                self._stage.agenda.add(LOOK_AGAIN_MS, end, owner)
                return
            self._lasting.pop(owner, None)
            finish()

        self._lasting[owner] = finish
        self._stage.agenda.add(event.duration_ms, end, owner)


def turn_until(condition: Callable[[], bool], turn: Callable[[], object], seconds: float) -> None:
    """Let the run continue until the condition holds or the time is over. turn: see BrokerFaults."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        turn()
