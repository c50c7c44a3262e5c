"""The states of a task, and its steps when the group assigns tasks."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

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


class Step(Enum):
    """The next step of a task towards an assignment."""

    KEEP = "keep"
    SUSPEND = "suspend"
    RESUME = "resume"
    RECYCLE = "recycle"
    CLOSE = "close"


class Steps(NamedTuple):
    """stays: the task is assigned again, with the same partitions. changes_role: to this thread, but standby instead of
    active, or the reverse; without a changelog this is a task that leaves. leaves: neither.
    """

    stays: Step
    changes_role: Step
    leaves: Step


#: The step of a task in each state. A task that does not stay makes two: it is suspended while the thread revokes, and
#: closed, or recycled by its successor, while the thread assigns. Only running tasks have anything to suspend.
STEPS: Mapping[TaskState, Steps] = {
    _S.CREATED: Steps(Step.KEEP, Step.CLOSE, Step.CLOSE),
    _S.RESTORING: Steps(Step.KEEP, Step.CLOSE, Step.CLOSE),
    _S.RUNNING: Steps(Step.KEEP, Step.SUSPEND, Step.SUSPEND),
    _S.SUSPENDED: Steps(Step.RESUME, Step.RECYCLE, Step.CLOSE),
}
