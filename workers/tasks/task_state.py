"""The states of a task."""

from __future__ import annotations

from enum import Enum

from penstock.clients.state_machine import Transitions


class TaskState(Enum):
    """The states of a task.

    ::

        CREATED ---> RESTORING, SUSPENDED
        RESTORING -> RUNNING, SUSPENDED
        RUNNING ---> SUSPENDED
        SUSPENDED -> RESTORING, CLOSED
        CLOSED ---->

    A closed task is never reused: its successor is a new object (Kafka Streams revives corrupted tasks).
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
