"""The state of the whole application (Kafka Streams: KafkaStreams.State)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from enum import Enum

from penstock.clients.log_context import PrefixedLogger
from penstock.clients.state_machine import StateMachine, Transitions
from penstock.workers.control.stream_thread_state import StreamThreadState


class ApplicationState(Enum):
    """The states of an application.

    ::

        CREATED ----------> REBALANCING, PENDING_SHUTDOWN
        REBALANCING ------> RUNNING, PENDING_SHUTDOWN, PENDING_ERROR
        RUNNING ----------> REBALANCING, RUNNING, PENDING_SHUTDOWN, PENDING_ERROR
        PENDING_SHUTDOWN -> NOT_RUNNING
        NOT_RUNNING ------>
        PENDING_ERROR ----> ERROR
        ERROR ------------>

    - REBALANCING when any stream thread is in PARTITIONS_REVOKED or PARTITIONS_ASSIGNED; RUNNING when all are RUNNING.
    - The last four refuse other transitions without an error: reports of stream threads may still arrive.
    - ERROR when the application has failed: an exception, a topology that cannot be built, too many replacements.
    """

    CREATED = "CREATED"
    REBALANCING = "REBALANCING"
    RUNNING = "RUNNING"
    PENDING_SHUTDOWN = "PENDING_SHUTDOWN"
    NOT_RUNNING = "NOT_RUNNING"
    PENDING_ERROR = "PENDING_ERROR"
    ERROR = "ERROR"

    @property
    def is_running_or_rebalancing(self) -> bool:
        """True while stream threads may be added and removed, and stores queried."""
        return self in (ApplicationState.RUNNING, ApplicationState.REBALANCING)

    @property
    def has_completed_shutdown(self) -> bool:
        """True in the two final states."""
        return self in (ApplicationState.NOT_RUNNING, ApplicationState.ERROR)


_A = ApplicationState

APPLICATION_TRANSITIONS: Transitions[ApplicationState] = {
    _A.CREATED: (_A.REBALANCING, _A.PENDING_SHUTDOWN),
    _A.REBALANCING: (_A.RUNNING, _A.PENDING_SHUTDOWN, _A.PENDING_ERROR),
    _A.RUNNING: (_A.REBALANCING, _A.RUNNING, _A.PENDING_SHUTDOWN, _A.PENDING_ERROR),
    _A.PENDING_SHUTDOWN: (_A.NOT_RUNNING,),
    _A.NOT_RUNNING: (),
    _A.PENDING_ERROR: (_A.ERROR,),
    _A.ERROR: (),
}
#: States that ignore invalid transitions.
ENDING = (_A.PENDING_SHUTDOWN, _A.NOT_RUNNING, _A.PENDING_ERROR, _A.ERROR)

#: Called with (new state, old state), as Kafka Streams' StateListener.onChange.
StateListener = Callable[[ApplicationState, ApplicationState], None]


class ApplicationStates:
    """The application's state machine. The supervisor's loop moves it; any thread may read it and wait for a state."""

    def __init__(self, log: PrefixedLogger) -> None:
        self.listener: StateListener | None = None
        self._log = log
        self._changed = threading.Condition()
        self._machine = StateMachine(
            _A.CREATED, APPLICATION_TRANSITIONS, log, ending=ENDING, listener=self._on_transition
        )

    @property
    def state(self) -> ApplicationState:
        """The current state."""
        return self._machine.state

    def transition_to(self, new: ApplicationState) -> ApplicationState | None:
        """Change the state and notify the listener; returns the old state, None if the state refuses.

        Raises StreamsError for a transition that is not in the table.
        """
        if new is self.state is _A.REBALANCING:  # as in Kafka Streams, one rebalance is reported once
            return None
        return self._machine.transition_to(new)

    def wait_for(self, wanted: Collection[ApplicationState], timeout: float | None = None) -> bool:
        """Wait until the state is one of these; returns False if timeout (seconds) passes first."""
        with self._changed:
            return self._changed.wait_for(lambda: self.state in wanted, timeout)

    def _on_transition(self, old: ApplicationState, new: ApplicationState) -> None:
        with self._changed:
            self._changed.notify_all()
        if self.listener is not None:
            try:
                self.listener(new, old)
            except Exception:  # noqa: BLE001  the user's listener must not end the supervision
                self._log.exception("The state listener failed at the transition from %s to %s", old.name, new.name)


def state_after(new: StreamThreadState, all_threads: Iterable[StreamThreadState]) -> ApplicationState | None:
    """Return the application's state after one stream thread went to ``new``; None: no change.

    Kafka Streams' StreamStateListener: RUNNING needs all threads to be RUNNING or DEAD; a thread that shuts down does
    not count while another one runs.
    """
    if new in (StreamThreadState.PARTITIONS_REVOKED, StreamThreadState.PARTITIONS_ASSIGNED):
        return ApplicationState.REBALANCING
    if new is not StreamThreadState.RUNNING:
        return None
    settled = (StreamThreadState.RUNNING, StreamThreadState.DEAD, StreamThreadState.PENDING_SHUTDOWN)
    return ApplicationState.RUNNING if all(state in settled for state in all_threads) else None
