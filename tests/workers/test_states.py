"""State machines: the tables against the diagrams in their docstrings, and the effect of a wrong transition."""

from __future__ import annotations

import logging
import re
from enum import Enum
from itertools import pairwise, product
from typing import Any

import pytest

from penstock.clients.log_context import PrefixedLogger
from penstock.clients.telemetry.client_telemetry_state import TELEMETRY_TRANSITIONS, ClientTelemetryState
from penstock.clients.writing.transactions import TRANSACTION_TRANSITIONS, TransactionState
from penstock.topology.errors import StreamsError
from penstock.workers.control.stream_thread_state import (
    STREAM_THREAD_TRANSITIONS,
    StreamThreadState,
    stream_thread_states,
)
from penstock.workers.restore.changelog import CHANGELOG_TRANSITIONS, ChangelogState
from penstock.workers.tasks.task_state import TASK_TRANSITIONS, TaskState

MACHINES: list[tuple[type[Enum], Any]] = [
    (StreamThreadState, STREAM_THREAD_TRANSITIONS),
    (TaskState, TASK_TRANSITIONS),
    (ChangelogState, CHANGELOG_TRANSITIONS),
    (TransactionState, TRANSACTION_TRANSITIONS),
    (ClientTelemetryState, TELEMETRY_TRANSITIONS),
]
S = StreamThreadState
LOG = PrefixedLogger("penstock.test", "100% [t] ")


def diagram(states: type[Enum]) -> dict[str, set[str]]:
    """Read lines such as ``CREATED --> STARTING, DEAD``; several arrows in a line are a chain."""
    found: dict[str, set[str]] = {state.name: set() for state in states}
    for line in (states.__doc__ or "").splitlines():
        parts = [part.strip() for part in re.split(r"-*>", line)]
        for left, right in pairwise(parts):
            after = re.split(r",\s*", right.rstrip(" -"))
            found[left.split(",")[0].rstrip(" -")].update(name for name in after if name)
    return found


@pytest.mark.parametrize(("states", "table"), MACHINES)
def test_the_table_is_the_diagram(states: type[Enum], table: Any) -> None:
    assert {state.name: {after.name for after in table[state]} for state in states} == diagram(states)


def test_the_seven_states_of_a_thread_are_those_of_kafka_streams() -> None:
    """StreamThread.State: CREATED(1, 5), STARTING(2, 3, 5), … by their ordinals."""
    ordinals = [(1, 5), (2, 3, 5), (2, 3, 5), (2, 3, 4, 5), (2, 3, 4, 5), (6,), ()]
    order = [S.CREATED, S.STARTING, S.PARTITIONS_REVOKED, S.PARTITIONS_ASSIGNED, S.RUNNING, S.PENDING_SHUTDOWN, S.DEAD]
    expected = {state: {order[number] for number in numbers} for state, numbers in zip(order, ordinals, strict=True)}
    assert {state: set(after) for state, after in STREAM_THREAD_TRANSITIONS.items()} == expected


@pytest.mark.parametrize(("old", "new"), list(product(S, S)))
def test_each_transition_is_made_or_refused_quietly_or_an_error(
    old: StreamThreadState, new: StreamThreadState, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[tuple[StreamThreadState, StreamThreadState]] = []
    machine = stream_thread_states(LOG, lambda before, after: heard.append((before, after)))
    machine.state = old
    with caplog.at_level(logging.DEBUG):
        if new in STREAM_THREAD_TRANSITIONS[old]:
            assert machine.transition_to(new) is old
            assert (machine.state, heard) == (new, [(old, new)])
            assert f"100% [t] State transition from {old.name} to {new.name}" in caplog.messages
        elif old in (S.PENDING_SHUTDOWN, S.DEAD):
            assert machine.transition_to(new) is None
            assert (machine.state, heard) == (old, [])
            assert f"Ignoring request to transit from {old.name} to {new.name}" in caplog.text
        else:
            with pytest.raises(StreamsError, match=f"Unexpected state transition from {old.name} to {new.name}"):
                machine.transition_to(new)
            assert (machine.state, heard) == (old, [])


def test_errors_name_the_possible_transitions(caplog: pytest.LogCaptureFixture) -> None:
    machine = stream_thread_states(LOG)
    with caplog.at_level(logging.DEBUG):
        machine.state = S.PENDING_SHUTDOWN
        machine.transition_to(S.RUNNING)
        machine.state = S.DEAD
        machine.transition_to(S.STARTING)
    assert "only DEAD state is a valid next state" in caplog.text
    assert "no valid next state after DEAD" in caplog.text


def test_a_started_thread_is_alive_until_its_shutdown() -> None:
    assert {state for state in S if state.is_alive} == {
        S.STARTING,
        S.PARTITIONS_REVOKED,
        S.PARTITIONS_ASSIGNED,
        S.RUNNING,
    }
