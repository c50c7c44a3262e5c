"""The states of a task."""

from __future__ import annotations

from enum import Enum

from penstock.clients.state_machine import Transitions


class TaskState(Enum):
    """Where a task is in its life.

    ::

        CREATED ---> RESTORING, SUSPENDED
        RESTORING -> RUNNING, SUSPENDED
        RUNNING ---> SUSPENDED
        SUSPENDED -> RESTORING, CLOSED
        CLOSED ---->

    A closed task is not used again: its successor is a new object (Kafka Streams revives corrupted ones).
    """

    CREATED = "CREATED"
    RESTORING = "RESTORING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    CLOSED = "CLOSED"


_S = TaskState

TASK_TRANSITIONS: Transitions[TaskState] = {
    _S.CREATED: (_S.RESTORING, _S.SUSPENDED),
    _S.RESTORING: (_S.RUNNING, _S.SUSPENDED),
    _S.RUNNING: (_S.SUSPENDED,),
    _S.SUSPENDED: (_S.RESTORING, _S.CLOSED),
    _S.CLOSED: (),
}
