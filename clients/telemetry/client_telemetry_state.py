"""The states of a client's telemetry (Kafka: ClientTelemetryState)."""

from __future__ import annotations

from enum import Enum, auto

from ..state_machine import Transitions


class ClientTelemetryState(Enum):
    """What a client does next about its metrics.

    SUBSCRIPTION_NEEDED: ask a broker which metrics it wants, once that is due. SUBSCRIPTION_IN_PROGRESS: it was asked.
    PUSH_NEEDED: push metrics, once that is due. PUSH_IN_PROGRESS: they were pushed and are not acknowledged.
    TERMINATING_PUSH_NEEDED, TERMINATING_PUSH_IN_PROGRESS: the same for the last push of a client that closes.
    TERMINATED: nothing follows.

    ::

        SUBSCRIPTION_NEEDED ----------> SUBSCRIPTION_IN_PROGRESS, TERMINATED
        SUBSCRIPTION_IN_PROGRESS -----> PUSH_NEEDED, SUBSCRIPTION_NEEDED, TERMINATING_PUSH_NEEDED, TERMINATED
        PUSH_NEEDED ------------------> PUSH_IN_PROGRESS, SUBSCRIPTION_NEEDED, TERMINATING_PUSH_NEEDED, TERMINATED
        PUSH_IN_PROGRESS -------------> PUSH_NEEDED, SUBSCRIPTION_NEEDED, TERMINATING_PUSH_NEEDED, TERMINATED
        TERMINATING_PUSH_NEEDED ------> TERMINATING_PUSH_IN_PROGRESS, TERMINATED
        TERMINATING_PUSH_IN_PROGRESS -> TERMINATED
        TERMINATED ------------------->
    """

    SUBSCRIPTION_NEEDED = auto()
    SUBSCRIPTION_IN_PROGRESS = auto()
    PUSH_NEEDED = auto()
    PUSH_IN_PROGRESS = auto()
    TERMINATING_PUSH_NEEDED = auto()
    TERMINATING_PUSH_IN_PROGRESS = auto()
    TERMINATED = auto()


_S = ClientTelemetryState
TELEMETRY_TRANSITIONS: Transitions[ClientTelemetryState] = {
    _S.SUBSCRIPTION_NEEDED: (_S.SUBSCRIPTION_IN_PROGRESS, _S.TERMINATED),
    _S.SUBSCRIPTION_IN_PROGRESS: (
        *(_S.PUSH_NEEDED, _S.SUBSCRIPTION_NEEDED),
        *(_S.TERMINATING_PUSH_NEEDED, _S.TERMINATED),
    ),
    _S.PUSH_NEEDED: (
        *(_S.PUSH_IN_PROGRESS, _S.SUBSCRIPTION_NEEDED),
        *(_S.TERMINATING_PUSH_NEEDED, _S.TERMINATED),
    ),
    _S.PUSH_IN_PROGRESS: (
        *(_S.PUSH_NEEDED, _S.SUBSCRIPTION_NEEDED),
        *(_S.TERMINATING_PUSH_NEEDED, _S.TERMINATED),
    ),
    _S.TERMINATING_PUSH_NEEDED: (_S.TERMINATING_PUSH_IN_PROGRESS, _S.TERMINATED),
    _S.TERMINATING_PUSH_IN_PROGRESS: (_S.TERMINATED,),
    _S.TERMINATED: (),
}
