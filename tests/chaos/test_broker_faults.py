"""With exactly-once each partition keeps a leader, whichever brokers are killed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import program
from tests.chaos.agenda import Agenda
from tests.chaos.broker_faults import BrokerFaults
from tests.chaos.faults import Stage
from tests.chaos.means import why_not
from tests.chaos.recovery import Recovery
from tests.chaos.schedule import BROKERS, LEADERLESS, Action, Event


class Whole:
    """Replaces a cluster of three brokers that is in sync after some turns; no process is killed before."""

    def __init__(self, turns: int) -> None:
        self.turns = turns
        self.killed: list[int] = []
        status = SimpleNamespace(running=True)
        self.brokers = {
            n: SimpleNamespace(name=f"broker-{n}", status=lambda: status, kill=lambda n=n: self.kill(n))
            for n in (1, 2, 3)
        }

    def is_whole(self) -> bool:
        return self.turns <= 0

    def turn(self) -> None:
        self.turns -= 1

    def kill(self, number: int) -> None:
        assert number not in self.killed
        self.killed.append(number)


def kill_two(cluster: Any, *, keeps_leaders: bool) -> None:
    agenda, failures = Agenda(), list[str]()
    stage = Stage(agenda, Recovery(agenda, dict, lambda stalled: failures.append(str(stalled))), print, failures.append)
    faults = BrokerFaults(stage, cluster, cluster.turn, keeps_leaders=keeps_leaders)
    faults.carry_out(Event(1, False, 0, Action.KILL_TWO_BROKERS, 0, 0.0, 1_000, 0))


@pytest.mark.parametrize(("keeps_leaders", "turns_left"), [(True, 0), (False, 3)])
def test_brokers_are_killed_only_when_each_has_all_partitions(keeps_leaders: bool, turns_left: int) -> None:
    cluster = Whole(3)
    kill_two(cluster, keeps_leaders=keeps_leaders)
    assert (cluster.killed, cluster.turns) == ([1, 2], turns_left)


def test_with_exactly_once_one_broker_stays_up() -> None:
    assert why_not([BROKERS], 3, exact=True).keys() == LEADERLESS
    assert why_not([BROKERS], 3) == {}


class WithBranch:
    """Replaces a cluster whose topics of a branch are deleted while leaders are moved."""

    def __init__(self) -> None:
        self._replicas = {("copies", 0): [1, 2, 3], (f"{program.BRANCHES}1.copies", 0): [1, 2, 3]}
        self.moved: list[tuple[str, int]] = []

    def settled(self) -> bool:
        return True

    def replicas(self) -> dict[tuple[str, int], list[int]]:
        return self._replicas

    def leaders(self) -> dict[tuple[str, int], int]:
        return {partition: nodes[0] for partition, nodes in self._replicas.items()}

    def reassign(self, wanted: dict[tuple[str, int], list[int]]) -> None:
        self.moved += wanted
        self._replicas = {("copies", 0): wanted["copies", 0]}

    def elect_preferred(self, partitions: object) -> None:
        """Leaders are the preferred ones already."""


def test_leaders_of_a_branch_are_not_moved() -> None:
    """Its topics are deleted at any time: nothing may wait for them."""
    cluster: Any = WithBranch()
    agenda, failures = Agenda(), list[str]()
    stage = Stage(agenda, Recovery(agenda, dict, lambda stalled: failures.append(str(stalled))), print, failures.append)
    faults = BrokerFaults(stage, cluster, lambda: None, keeps_leaders=True)
    what = faults.carry_out(Event(1, False, 0, Action.MOVE_LEADERS, 0, 0.0, 1_000, 0))
    assert (cluster.moved, what.endswith(" of 1")) == ([("copies", 0)], True)
