"""A state machine: its state changes only along a table of transitions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum
from typing import Generic, TypeVar

from penstock.topology.errors import StreamsError

from .log_context import PrefixedLogger

S = TypeVar("S", bound=Enum)

#: Which states may follow each state, by name.
Transitions = Mapping[S, Collection[S]]
#: Called with (old state, new state) after a transition.
StateListener = Callable[[S, S], None]


@dataclass(eq=False)
class StateMachine(Generic[S]):
    """The current state of an object, and the only way to change it.

    ending: states that ignore an invalid transition instead of raising, because a request already in flight may still
    trigger it (Kafka's StreamThread: PENDING_SHUTDOWN and DEAD). level: the log level of a transition.
    """

    state: S
    transitions: Transitions[S]
    log: PrefixedLogger
    _: KW_ONLY
    ending: Collection[S] = ()
    listener: StateListener[S] | None = None
    level: int = logging.INFO

    def transition_to(self, new: S) -> S | None:
        """Change the state and notify the listener. Returns the old state, or None if the current state is an ending
        one that ignored the transition.

        Raises StreamsError for a transition that is not in the table.
        """
        old = self.state
        if new not in self.transitions[old]:
            self._refuse(new)
            return None
        self.log.log(self.level, "State transition from %s to %s", old.name, new.name)
        self.state = new
        if self.listener is not None:
            self.listener(old, new)
        return old

    def _refuse(self, new: S) -> None:
        old = self.state
        if old not in self.ending:
            self.log.error("Unexpected state transition from %s to %s", old.name, new.name)
            raise StreamsError(f"{self.log.prefix}Unexpected state transition from {old.name} to {new.name}")
        allowed = [state.name for state in self.transitions[old]]
        rule = f"only {allowed[0]} state is a valid next state" if allowed else f"no valid next state after {old.name}"
        self.log.debug("Ignoring request to transit from %s to %s: %s", old.name, new.name, rule)
