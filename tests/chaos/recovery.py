"""Measures, for each kind of fault, how long it takes from its end until records flow again in all partitions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median

from tests.chaos.agenda import Agenda
from tests.chaos.schedule import FAMILIES, MACHINES, NETWORK, Action

#: In seconds, on a busy machine. Any recovery may need: a session (4 s), the timeout of an abandoned transaction (6 s)
#: and the broker's check for it (every 10 s), a start of processes, and a rebalance.
USUAL_SECONDS = 60.0
#: Kinds with another limit.
BUDGETS: Mapping[Action, float] = {
    Action.KILL_WORKER: 45.0,  # a static member is replaced: no session has to end
    Action.ADD_WORKER: 45.0,
    Action.REMOVE_WORKER: 45.0,
    # Leaders are elected, their logs are recovered, transactions and the group are loaded, and clients find them.
    Action.KILL_BROKER: 90.0,
    Action.RESTART_BROKER: 90.0,
    Action.KILL_TWO_BROKERS: 90.0,
    Action.KILL_ALL_BROKERS: 120.0,
    Action.RESTART_TWO_BROKERS: 90.0,
    Action.RESTART_ALL_BROKERS: 120.0,
    Action.ROLL_CLUSTER: 90.0,
    Action.HALF_OPEN: 90.0,
    # A request on a dead connection times out after request.timeout.ms (30 s); only then the usual time begins.
    **dict.fromkeys((a for a in FAMILIES[NETWORK].actions if a is not Action.HALF_OPEN), 90.0),
    # Tasks whose disk failed restore from their changelogs.
    **dict.fromkeys(FAMILIES[MACHINES].actions, 90.0),
    Action.OTHER_PROTOCOL: 90.0,  # both hosts stop cleanly, and the group must be empty before it changes
}


def budget(action: Action) -> float:
    """Return how long the recovery from this kind of fault may take, in seconds."""
    return BUDGETS.get(action, USUAL_SECONDS)


@dataclass(slots=True)
class Kind:
    """Facts about one kind of fault. seen: how often it had an effect."""

    events: int = 0
    seen: int = 0
    unit: str = ""
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stalled:
    """Outputs, by name, without a record for this many seconds after the end of a fault."""

    action: Action
    seconds: float
    outputs: tuple[str, ...]

    def __str__(self) -> str:
        stalled = ", ".join(self.outputs)
        return f"{self.seconds:.0f} s after the end of {self.action.value} nothing has come out of {stalled}"


@dataclass(frozen=True, slots=True)
class _Open:
    action: Action
    since: float
    before: Mapping[str, int]


class Recovery:
    """Measures recoveries.

    agenda: has the ends of lasting faults. outputs: number of records by output name. stalled: called with outputs that
    do not recover within the budget. restore_seconds: how much longer recoveries take because of the workload's state.
    """

    def __init__(
        self,
        agenda: Agenda,
        outputs: Callable[[], Mapping[str, int]],
        stalled: Callable[[Stalled], None],
        restore_seconds: float = 0.0,
    ) -> None:
        self.kinds: dict[Action, Kind] = {}
        self._agenda = agenda
        self._outputs = outputs
        self._stalled = stalled
        self._restore_seconds = restore_seconds
        self._open: _Open | None = None

    def begin(self, action: Action) -> None:
        """Record the start of a fault; an unfinished recovery from the last one is not measured."""
        self.kinds.setdefault(action, Kind()).events += 1
        self._open = None

    def end(self, action: Action) -> None:
        """Record the end of a fault: the measurement starts unless another fault lasts."""
        if not self._agenda:
            self._open = _Open(action, time.monotonic(), self._outputs())

    def see(self, action: Action, count: int, unit: str) -> None:
        """Record observations that prove that a fault had an effect."""
        kind = self.kinds.setdefault(action, Kind())
        kind.seen += count
        kind.unit = unit

    def look(self) -> None:
        """Check whether records flow again in all partitions, or should by now."""
        if self._agenda:
            self._open = None  # a fault lasts, so recovery cannot start
        if self._open is None:
            return
        outputs, seconds = self._outputs(), time.monotonic() - self._open.since
        action, before = self._open.action, self._open.before
        if all(count > before[output] for output, count in outputs.items()):
            self.kinds[action].seconds.append(seconds)
            self._open = None
        elif seconds > (allowed := self._budget(action)):
            stalled = tuple(output for output, count in sorted(outputs.items()) if count == before[output])
            self._stalled(Stalled(action, allowed, stalled))
            self.kinds[action].seconds.append(seconds)
            self._open = None

    def _budget(self, action: Action) -> float:
        return budget(action) + self._restore_seconds

    def waits(self) -> bool:
        """Return True if a fault lasts, or a recovery is unfinished."""
        return self._open is not None or bool(self._agenda)

    def not_injected(self) -> list[str]:
        """Return the scheduled kinds of faults without an observed effect."""
        return [action.value for action, kind in self.kinds.items() if kind.events and not kind.seen]

    def table(self) -> Iterator[str]:
        """Yield lines: for each kind its number, the proof of its effect, and the duration of recoveries."""
        yield f"{'fault':20} {'events':>6}  {'seen':34} {'measured':>8} {'median':>8} {'longest':>8} {'budget':>7}"
        for action in sorted(self.kinds, key=lambda action: action.value):
            kind = self.kinds[action]
            took = kind.seconds
            times = f"{median(took):6.1f} s {max(took):6.1f} s" if took else f"{'-':>8} {'-':>8}"
            seen = f"{kind.seen} {kind.unit}"
            yield f"{action.value:20} {kind.events:6}  {seen:34} {len(took):8} {times} {self._budget(action):5.0f} s"
