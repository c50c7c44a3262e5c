"""What happens, to whom and when: a pure function of seed and number of kills."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

#: Two hosts, so that tasks have somewhere to go; each is one `penstock run` with a state directory of its own.
HOSTS = 2
#: How long a member may be silent, and how long a transaction may stay open: SIGSTOPs last longer than either at times.
SESSION_TIMEOUT_MS = 4_000
TRANSACTION_TIMEOUT_MS = 6_000


class Action(Enum):
    """What can happen."""

    KILL_WORKER = "kill-worker"  # SIGKILL to one stream thread's process
    KILL_SUPERVISOR = "kill-supervisor"  # SIGKILL to the parent alone: its workers have to end by themselves
    KILL_HOST = "kill-host"  # SIGKILL to the supervisor and all its workers at once
    DELETE_STATE = "delete-state"  # the same, and task directories are gone afterwards
    CORRUPT_STATE = "corrupt-state"  # the same, and files of task directories are damaged afterwards
    KILL_BROKER = "kill-broker"  # SIGKILL to the broker
    STOP_WORKER = "stop-worker"  # SIGSTOP, and SIGCONT after a while
    RESTART_BROKER = "restart-broker"  # in good order
    RESTART_HOST = "restart-host"  # SIGTERM, and a new start after a while
    ADD_WORKER = "add-worker"  # SIGTTIN: one more stream thread
    REMOVE_WORKER = "remove-worker"  # SIGTTOU: one fewer


#: How often each comes, in parts.
KILLS = {
    Action.KILL_WORKER: 50,
    Action.KILL_HOST: 14,
    Action.KILL_SUPERVISOR: 10,
    Action.DELETE_STATE: 10,
    Action.CORRUPT_STATE: 10,
    Action.KILL_BROKER: 6,
}
OTHERS = {
    Action.STOP_WORKER: 40,
    Action.ADD_WORKER: 20,
    Action.REMOVE_WORKER: 20,
    Action.RESTART_HOST: 12,
    Action.RESTART_BROKER: 8,
}
#: Chances: that something that kills nothing comes before a kill, and that outputs are awaited before an event.
OTHER_BEFORE_A_KILL = 0.5
SETTLE = 0.75
#: The wait before an event, in ms: from "in the middle of the recovery from the last one" to "some commits later".
PAUSE_MS = (50, 1_500)
#: How long a host stays away, in ms.
ABSENCE_MS = (0, 2_500)
#: How long a process is stopped, in ms: unnoticed; until its session is over; until its transaction has timed out too.
STOP_MS = (
    (100, 1_500),
    (SESSION_TIMEOUT_MS + 500, SESSION_TIMEOUT_MS + 1_500),
    (TRANSACTION_TIMEOUT_MS + 2_500, TRANSACTION_TIMEOUT_MS + 5_000),
)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a schedule. settle: first wait until every partition has given a new output; then pause_ms.

    host: which one; victim: which of its processes, in 0…1 of however many there are; duration_ms: how long something
    is stopped or away; seed: for what is chosen on the spot (which files are damaged, and how).
    """

    number: int
    settle: bool
    pause_ms: int
    action: Action
    host: int
    victim: float
    duration_ms: int
    seed: int

    @property
    def kills(self) -> bool:
        """Whether it counts as a kill."""
        return self.action in KILLS


def schedule(seed: int, kills: int) -> tuple[Event, ...]:
    """Return what happens until so many kills are done."""
    return tuple(_events(random.Random(seed), kills))


def _events(rng: random.Random, kills: int) -> Iterator[Event]:
    number = 0
    for _ in range(kills):
        tables = [OTHERS, KILLS] if rng.random() < OTHER_BEFORE_A_KILL else [KILLS]
        for table in tables:
            number += 1
            yield _event(rng, number, rng.choices(list(table), list(table.values()))[0])


def _event(rng: random.Random, number: int, action: Action) -> Event:
    settle, pause_ms = rng.random() < SETTLE, rng.randint(*PAUSE_MS)
    host, victim = rng.randrange(HOSTS), rng.random()
    between = rng.choice(STOP_MS) if action is Action.STOP_WORKER else ABSENCE_MS
    return Event(number, settle, pause_ms, action, host, victim, rng.randint(*between), rng.randrange(2**32))
