"""The measurement of recoveries: from the end of the last fault, and against a limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos import agenda, faults, recovery
from tests.chaos.agenda import Agenda
from tests.chaos.faults import UNSEEN_SECONDS, Faults, Stage
from tests.chaos.recovery import Recovery, budget
from tests.chaos.schedule import Action, Event

OUTPUTS = {"copies-0": 1, "copies-1": 1}


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (agenda, faults, recovery):
        monkeypatch.setattr(module, "time", clock)
    return clock


class Measured:
    """A recovery of two partitions, whose outputs the test controls."""

    def __init__(self) -> None:
        self.outputs = dict(OUTPUTS)
        self.failures: list[str] = []
        self.agenda = Agenda()
        self.recovery = Recovery(
            self.agenda, lambda: dict(self.outputs), lambda stalled: self.failures.append(str(stalled))
        )

    def move(self, *partitions: int) -> None:
        for partition in partitions:
            self.outputs[f"copies-{partition}"] += 1
        self.recovery.look()


def test_the_measurement_ends_when_all_partitions_have_output(clock: Clock) -> None:
    run = Measured()
    run.recovery.begin(Action.KILL_WORKER)
    run.recovery.end(Action.KILL_WORKER)
    clock.now += 2
    run.move(0)
    assert run.recovery.waits()
    clock.now += 3
    run.move(1)
    assert not run.recovery.waits()
    assert run.recovery.kinds[Action.KILL_WORKER].seconds == [5.0]
    assert run.failures == []


def test_a_partition_without_output_beyond_the_limit_is_named(clock: Clock) -> None:
    run = Measured()
    run.recovery.begin(Action.KILL_BROKER)
    run.recovery.end(Action.KILL_BROKER)
    clock.now += budget(Action.KILL_BROKER) + 1
    run.move(0)
    assert run.failures == ["90 s after the end of kill-broker nothing has come out of copies-1"]
    assert not run.recovery.waits(), "it is said once"


def test_a_recovery_interrupted_by_a_fault_is_not_measured(clock: Clock) -> None:
    run = Measured()
    run.recovery.begin(Action.KILL_WORKER)
    run.recovery.end(Action.KILL_WORKER)
    clock.now += 1
    run.recovery.begin(Action.KILL_HOST)
    run.move(0, 1)
    assert run.recovery.kinds[Action.KILL_WORKER].seconds == []


def test_the_measurement_starts_when_the_last_fault_has_ended(clock: Clock) -> None:
    run = Measured()
    run.recovery.begin(Action.SLOW_DISK)
    run.agenda.add(0.0, lambda: run.recovery.end(Action.SLOW_DISK))
    run.recovery.begin(Action.KILL_WORKER)
    run.recovery.end(Action.KILL_WORKER)
    clock.now += 30
    run.move(0, 1)
    assert run.recovery.waits()
    run.agenda.run_due()
    clock.now += 4
    run.move(0, 1)
    assert run.recovery.kinds[Action.SLOW_DISK].seconds == [4.0]
    assert run.recovery.kinds[Action.KILL_WORKER].seconds == []


class Trouble(Faults):
    """A fault that lasts for a second, and shows an effect when the test says so."""

    def __init__(self, run: Measured) -> None:
        super().__init__(Stage(run.agenda, run.recovery, print, run.failures.append))
        self.healed: list[Action] = []
        self.shown = True

    @property
    def actions(self) -> dict[Action, Callable[[Event], str]]:
        return {Action.SLOW_DISK: self._begin, Action.FULL_DISK: self._begin}

    def _begin(self, event: Event) -> str:
        self._heal_now("disk")
        self._heal_later(event, lambda: self.healed.append(event.action), "disk", lambda: self.shown)
        return ""


def event(action: Action) -> Event:
    return Event(1, False, 0, action, 0, 0.0, 1_000, 0)


def test_a_fault_ends_the_previous_one_of_the_same_owner(clock: Clock) -> None:
    run = Measured()
    trouble = Trouble(run)
    trouble.carry_out(event(Action.SLOW_DISK))
    trouble.carry_out(event(Action.FULL_DISK))
    assert trouble.healed == [Action.SLOW_DISK]
    run.move(0, 1)
    assert run.recovery.waits(), "the second one lasts"
    clock.now += 1
    run.agenda.run_due()
    assert trouble.healed == [Action.SLOW_DISK, Action.FULL_DISK]
    assert not run.agenda


def test_a_fault_without_an_effect_lasts_longer_but_not_forever(clock: Clock) -> None:
    run = Measured()
    trouble = Trouble(run)
    for shown_after in (5, None):
        trouble.healed.clear()
        trouble.shown = False
        trouble.carry_out(event(Action.FULL_DISK))
        for second in range(1, 40):
            clock.now += 1
            trouble.shown = second == shown_after
            run.agenda.run_due()
            if trouble.healed:
                break
        assert second == (shown_after or 1 + UNSEEN_SECONDS)


def test_a_kind_without_an_effect_is_named_and_the_table_has_a_line_for_each() -> None:
    run = Measured()
    for action in (Action.CUT_HOST, Action.KILL_WORKER):
        run.recovery.begin(action)
        run.recovery.end(action)
    run.recovery.see(Action.KILL_WORKER, 1, "processes killed")
    assert run.recovery.not_injected() == ["cut-host"]
    lines = list(run.recovery.table())
    assert len(lines) == 3
    assert lines[2].split()[:5] == ["kill-worker", "1", "1", "processes", "killed"]
