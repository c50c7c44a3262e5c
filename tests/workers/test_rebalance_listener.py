"""How long a stream thread takes to apply a rebalance is measured (KIP-1216)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.clients.log_context import PrefixedLogger
from penstock.workers.group.assignment.subscription_info import AssignorError
from penstock.workers.group.rebalance_listener import RebalanceListener
from penstock.workers.metrics.sensors import ThreadMetrics
from tests.manual_clock import ManualClock

Bench = tuple[RebalanceListener, ThreadMetrics, ManualClock, list[Callable[[], None]]]


@pytest.fixture
def bench() -> Bench:
    """A listener whose task manager calls the functions of a list, one for each call."""
    clock, metrics, actions = ManualClock(), ThreadMetrics(), list[Callable[[], None]]()

    def act(*_: object) -> None:
        actions.pop(0)()

    none = SimpleNamespace(all_assigned_task_ids=set)
    manager: Any = SimpleNamespace(active=none, standby=none)
    manager.create_tasks = manager.suspend_tasks_and_state = manager.handle_lost_all = act
    states: Any = SimpleNamespace(transition_to=lambda state: state, state=SimpleNamespace(name="RUNNING"))
    log = PrefixedLogger("penstock.test", "")
    return RebalanceListener(manager, states, clock, lambda: None, log, metrics), metrics, clock, actions


def test_each_kind_of_call_is_measured(bench: Bench) -> None:
    listener, metrics, clock, actions = bench
    actions += [partial(clock.advance, ms) for ms in (10, 30, 7, 5)]
    listener.on_partitions_assigned((), AssignorError.NONE)
    listener.on_partitions_assigned((), AssignorError.NONE)
    listener.on_partitions_revoked((), (), ())
    listener.on_partitions_lost(())
    found = metrics.snapshot(clock.monotonic_ms())
    assert (found["tasks-assigned-latency-avg"], found["tasks-assigned-latency-max"]) == (20.0, 30.0)
    assert (found["tasks-revoked-latency-avg"], found["tasks-lost-latency-max"]) == (7.0, 5.0)


def test_a_call_that_fails_is_measured(bench: Bench) -> None:
    listener, metrics, clock, actions = bench

    def fail() -> None:
        clock.advance(8)
        raise OSError("the disk is full")

    actions.append(fail)
    with pytest.raises(OSError, match="the disk is full"):
        listener.on_partitions_assigned((), AssignorError.NONE)
    assert metrics.snapshot(clock.monotonic_ms())["tasks-assigned-latency-max"] == 8.0
