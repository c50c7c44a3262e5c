"""The seven states of a stream thread (Kafka Streams: StreamThread.State)."""

from __future__ import annotations

from enum import Enum

from penstock.clients.log_context import PrefixedLogger
from penstock.clients.state_machine import StateListener, StateMachine, Transitions


class StreamThreadState(Enum):
    """The states of a stream thread.

    ::

        CREATED ------------> STARTING, PENDING_SHUTDOWN
        STARTING -----------> PARTITIONS_REVOKED, PARTITIONS_ASSIGNED, PENDING_SHUTDOWN
        PARTITIONS_REVOKED -> PARTITIONS_REVOKED, PARTITIONS_ASSIGNED, PENDING_SHUTDOWN
        PARTITIONS_ASSIGNED > PARTITIONS_REVOKED, PARTITIONS_ASSIGNED, RUNNING, PENDING_SHUTDOWN
        RUNNING ------------> PARTITIONS_REVOKED, PARTITIONS_ASSIGNED, RUNNING, PENDING_SHUTDOWN
        PENDING_SHUTDOWN ---> DEAD
        DEAD --------------->

    - Any state can change to PENDING_SHUTDOWN: a stream thread can be closed at any time.
    - PENDING_SHUTDOWN and DEAD refuse other transitions without an error: the shutdown may come while the group
      rebalances, whose events are then still on their way.
    - PARTITIONS_REVOKED may follow itself: the group may fail again and again between revoking and assigning. What is
      revoked then is empty.
    """

    CREATED = "CREATED"
    STARTING = "STARTING"
    PARTITIONS_REVOKED = "PARTITIONS_REVOKED"
    PARTITIONS_ASSIGNED = "PARTITIONS_ASSIGNED"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    DEAD = "DEAD"

    @property
    def is_alive(self) -> bool:
        """True in STARTING, PARTITIONS_REVOKED, PARTITIONS_ASSIGNED and RUNNING."""
        return self in ALIVE


_S = StreamThreadState

STREAM_THREAD_TRANSITIONS: Transitions[StreamThreadState] = {
    _S.CREATED: (_S.STARTING, _S.PENDING_SHUTDOWN),
    _S.STARTING: (_S.PARTITIONS_REVOKED, _S.PARTITIONS_ASSIGNED, _S.PENDING_SHUTDOWN),
    _S.PARTITIONS_REVOKED: (_S.PARTITIONS_REVOKED, _S.PARTITIONS_ASSIGNED, _S.PENDING_SHUTDOWN),
    _S.PARTITIONS_ASSIGNED: (_S.PARTITIONS_REVOKED, _S.PARTITIONS_ASSIGNED, _S.RUNNING, _S.PENDING_SHUTDOWN),
    _S.RUNNING: (_S.PARTITIONS_REVOKED, _S.PARTITIONS_ASSIGNED, _S.RUNNING, _S.PENDING_SHUTDOWN),
    _S.PENDING_SHUTDOWN: (_S.DEAD,),
    _S.DEAD: (),
}
ALIVE = frozenset({_S.STARTING, _S.PARTITIONS_REVOKED, _S.PARTITIONS_ASSIGNED, _S.RUNNING})


def stream_thread_states(
    log: PrefixedLogger, listener: StateListener[StreamThreadState] | None = None
) -> StateMachine[StreamThreadState]:
    """Return the state machine of a new stream thread, in CREATED."""
    ending = (_S.PENDING_SHUTDOWN, _S.DEAD)
    return StateMachine(_S.CREATED, STREAM_THREAD_TRANSITIONS, log, ending=ending, listener=listener)
