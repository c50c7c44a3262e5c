"""The states of a classic group member."""

from __future__ import annotations

from enum import Enum

from ..log_context import PrefixedLogger
from ..state_machine import StateMachine, Transitions


class MemberState(Enum):
    """The state of a member in its group.

    ::

        UNJOINED --> JOINING, FATAL
        JOINING ---> STABLE, LOST, FATAL
        STABLE ----> REBALANCE, JOINING, LOST, FATAL
        REBALANCE -> JOINING, LOST, FATAL
        LOST ------> JOINING, FATAL
        FATAL ----->

    - STABLE to JOINING: a rebalance that this member requests (a probing one, or after it released tasks).
    - JOINING to LOST: the group had already removed the member.
    """

    UNJOINED = "UNJOINED"
    JOINING = "JOINING"
    STABLE = "STABLE"
    REBALANCE = "REBALANCE"
    LOST = "LOST"
    FATAL = "FATAL"


_S = MemberState

MEMBER_TRANSITIONS: Transitions[MemberState] = {
    _S.UNJOINED: (_S.JOINING, _S.FATAL),
    _S.JOINING: (_S.STABLE, _S.LOST, _S.FATAL),
    _S.STABLE: (_S.REBALANCE, _S.JOINING, _S.LOST, _S.FATAL),
    _S.REBALANCE: (_S.JOINING, _S.LOST, _S.FATAL),
    _S.LOST: (_S.JOINING, _S.FATAL),
    _S.FATAL: (),
}

#: The states in which the member heartbeats and may commit.
MEMBER_STATES = frozenset({_S.STABLE, _S.REBALANCE})


def member_states(log: PrefixedLogger) -> StateMachine[MemberState]:
    """Return a member's state machine; changes are reported by an Event (membership.py)."""
    return StateMachine(_S.UNJOINED, MEMBER_TRANSITIONS, log)
