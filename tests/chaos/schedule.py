"""The faults, their targets and times: a pure function of the seed, the number of rounds, and the fault families.

Exactly-once holds while each partition has a leader. Kafka treats a partition without a leader as deleted and drops the
markers of its transactions (see dropped_markers.py). With three replicas, of which two must be in sync, two brokers may
be down at a time. So with exactly-once LEADERLESS is left out, and brokers go down only if each broker has all
partitions, in sync (BrokerFaults). With at-least-once all brokers may be down, and acknowledged records must still be
processed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import chain, count, islice

#: Two hosts, so that tasks can move; each is one `penstock run` with its own state directory.
HOSTS = 2
#: Session timeout and transaction timeout: SIGSTOPs sometimes last longer than either.
SESSION_TIMEOUT_MS = 4_000
TRANSACTION_TIMEOUT_MS = 6_000


class Action(Enum):
    """The kinds of faults."""

    KILL_WORKER = "kill-worker"  # SIGKILL to one stream thread's process
    KILL_SUPERVISOR = "kill-supervisor"  # SIGKILL to the parent alone: its workers must end by themselves
    KILL_HOST = "kill-host"  # SIGKILL to the supervisor and all its workers at once
    DELETE_STATE = "delete-state"  # the same, and then task directories are deleted
    CORRUPT_STATE = "corrupt-state"  # the same, and then files of task directories are damaged
    KILL_BROKER = "kill-broker"  # SIGKILL to the broker
    STOP_WORKER = "stop-worker"  # SIGSTOP, and SIGCONT after a while
    RESTART_BROKER = "restart-broker"  # cleanly
    RESTART_HOST = "restart-host"  # SIGTERM, and a new start after a while
    ADD_WORKER = "add-worker"  # SIGTTIN: one more stream thread
    REMOVE_WORKER = "remove-worker"  # SIGTTOU: one fewer
    # With three brokers:
    KILL_TWO_BROKERS = "kill-two-brokers"  # SIGKILL to two of them at once
    KILL_ALL_BROKERS = "kill-all-brokers"  # SIGKILL to all of them at once
    KILL_CONTROLLER = "kill-controller"  # SIGKILL to the active controller
    RESTART_TWO_BROKERS = "restart-two-brokers"  # cleanly, both away at the same time
    RESTART_ALL_BROKERS = "restart-all-brokers"  # cleanly, all away at the same time
    ROLL_CLUSTER = "roll-cluster"  # cleanly, controllers and brokers one after the other
    STOP_BROKER = "stop-broker"  # SIGSTOP, and SIGCONT before or after the end of its session with the controller
    MOVE_LEADERS = "move-leaders"  # other preferred leaders, and their election
    UPGRADE_CLUSTER = "upgrade-cluster"  # the same, with a newer Kafka; in no family, see Options.upgrade_from
    UNCLEAN_ELECTION = "unclean-election"  # a replica that lacks acknowledged records becomes leader; see unclean.py
    REASSIGN = "reassign"  # a replica of some partitions is taken away, and put back after a while
    # In the network between a host and the brokers:
    CUT_COORDINATOR = "cut-coordinator"  # the group's coordinator is unreachable, leaders are reachable
    CUT_LEADERS = "cut-leaders"  # leaders are unreachable, the group's coordinator is reachable
    CUT_HOST = "cut-host"  # no broker is reachable
    LOSE_REQUESTS = "lose-requests"  # packets to the brokers are lost, those from them arrive
    LOSE_ANSWERS = "lose-answers"  # the reverse
    SLOW_NETWORK = "slow-network"  # 200 ms each way, with jitter
    HALF_OPEN = "half-open"  # a broker is replaced while all packets are lost: the host still has its connections
    # In the machine of a host:
    CLOCK_APART = "clock-apart"  # its clock is minutes ahead or behind
    CLOCK_JUMPS = "clock-jumps"  # its clock jumps forward and back while it runs
    SHORT_OF_MEMORY = "short-of-memory"  # a memory limit below its current usage
    SLOW_DISK = "slow-disk"  # each write of its state takes longer
    FULL_DISK = "full-disk"  # ENOSPC for each write of its state
    BROKEN_DISK = "broken-disk"  # EIO for each write of its state
    # In the program of a host:
    OTHER_VERSION = "other-version"  # a restart with the previous version of Penstock, or back with this one
    OTHER_PROTOCOL = "other-protocol"  # all hosts stop, and start again with the other group.protocol
    # Of checkpoints, in a directory that all hosts see:
    KILL_UPLOAD = "kill-upload"  # SIGKILL to a stream thread's process while it uploads one
    KILL_LOAD = "kill-load"  # a host loses its state; SIGKILL to a process, of any host, while it loads one


#: Relative frequency of each.
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


@dataclass(frozen=True, slots=True)
class Family:
    """Kinds of faults that need the same resources. kills, others: relative frequency of each."""

    kills: Mapping[Action, int]
    others: Mapping[Action, int]

    @property
    def actions(self) -> tuple[Action, ...]:
        """Return all kinds of faults of this family."""
        return (*self.kills, *self.others)


PROCESSES, BROKERS, NETWORK, MACHINES, VERSIONS = "processes", "brokers", "network", "machines", "versions"
CHECKPOINTS, UNCLEAN = "checkpoints", "unclean"
#: By name, as ``--faults`` has it.
FAMILIES = {
    PROCESSES: Family(KILLS, OTHERS),
    BROKERS: Family(
        {Action.KILL_TWO_BROKERS: 4, Action.KILL_ALL_BROKERS: 2, Action.KILL_CONTROLLER: 4},
        {
            Action.MOVE_LEADERS: 14,
            Action.REASSIGN: 8,
            Action.STOP_BROKER: 10,
            Action.RESTART_TWO_BROKERS: 3,
            Action.RESTART_ALL_BROKERS: 2,
            Action.ROLL_CLUSTER: 2,
        },
    ),
    NETWORK: Family(
        {Action.HALF_OPEN: 8},
        {
            Action.CUT_COORDINATOR: 10,
            Action.CUT_LEADERS: 10,
            Action.CUT_HOST: 10,
            Action.LOSE_REQUESTS: 6,
            Action.LOSE_ANSWERS: 6,
            Action.SLOW_NETWORK: 10,
        },
    ),
    MACHINES: Family(
        {Action.SHORT_OF_MEMORY: 6},
        {
            Action.CLOCK_APART: 8,
            Action.CLOCK_JUMPS: 8,
            Action.SLOW_DISK: 8,
            Action.FULL_DISK: 6,
            Action.BROKEN_DISK: 6,
        },
    ),
    VERSIONS: Family({}, {Action.OTHER_VERSION: 8, Action.OTHER_PROTOCOL: 4}),
    CHECKPOINTS: Family({Action.KILL_UPLOAD: 30, Action.KILL_LOAD: 30}, {}),
    UNCLEAN: Family({Action.UNCLEAN_ELECTION: 1}, {}),
}
#: Kinds that always leave partitions without a leader.
LEADERLESS = frozenset({Action.KILL_ALL_BROKERS, Action.RESTART_ALL_BROKERS})
#: For runs in which no record may be lost.
LOSSLESS = tuple(name for name in FAMILIES if name != UNCLEAN)
#: Probabilities: that a fault without a kill precedes a kill, and that outputs are awaited before an event.
OTHER_BEFORE_A_KILL = 0.5
SETTLE = 0.75
#: The wait before an event, in ms: from "in the middle of the recovery from the last one" to "some commits later".
PAUSE_MS = (50, 1_500)
#: How long a host stays down, in ms.
ABSENCE_MS = (0, 2_500)
#: How long a process is suspended, in ms: unnoticed; until its session is over; until its transaction has timed out
#: too.
STOP_MS = (
    (100, 1_500),
    (SESSION_TIMEOUT_MS + 500, SESSION_TIMEOUT_MS + 1_500),
    (TRANSACTION_TIMEOUT_MS + 2_500, TRANSACTION_TIMEOUT_MS + 5_000),
)


#: How long a broker is suspended, in ms: unnoticed, and until its session with the controller (5 s) is over.
STOP_BROKER_MS = ((500, 3_000), (6_500, 10_000))
#: Duration of faults of network, disk or clock, in ms: sometimes unnoticed, or until the session and the transaction
#: have timed out, but shorter than request.timeout.ms (30 s).
TROUBLE_MS = ((500, 2_500), (SESSION_TIMEOUT_MS + 1_000, TRANSACTION_TIMEOUT_MS + 6_000))
#: Lasting kinds with their duration, in ms; for all others: ABSENCE_MS.
DURATIONS_MS: Mapping[Action, tuple[tuple[int, int], ...]] = {
    Action.STOP_WORKER: STOP_MS,
    Action.STOP_BROKER: STOP_BROKER_MS,
    **dict.fromkeys(FAMILIES[NETWORK].actions, TROUBLE_MS),
    **dict.fromkeys(FAMILIES[MACHINES].actions, TROUBLE_MS),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a schedule. settle: first wait until every partition has a new output; then pause_ms.

    host: its number. victim: selects one of its processes or of the brokers, in 0…1. duration_ms: of a lasting fault.
    seed: for random choices during the event (which files are damaged, and how).
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
        """True if it counts as a kill."""
        return any(self.action in family.kills for family in FAMILIES.values())


def schedule(
    seed: int, kills: int, families: Collection[str] = (PROCESSES,), without: Collection[Action] = ()
) -> tuple[Event, ...]:
    """Return the events up to this many kills; if no family has kills, each round counts.

    without: kinds that are not available here.
    """
    return tuple(chain.from_iterable(islice(_rounds(seed, families, without), kills)))


def endless(seed: int, families: Collection[str], without: Collection[Action] = ()) -> Iterator[Event]:
    """Yield the same endlessly."""
    return chain.from_iterable(_rounds(seed, families, without))


def each_once(seed: int, families: Collection[str], without: Collection[Action] = ()) -> tuple[Event, ...]:
    """Return every kind of fault of these families once, in an order that the seed decides."""
    rng = random.Random(seed)
    actions = [action for name in families for action in FAMILIES[name].actions if action not in without]
    rng.shuffle(actions)
    return tuple(_event(rng, number, action) for number, action in enumerate(actions, start=1))


def _rounds(seed: int, families: Collection[str], without: Collection[Action]) -> Iterator[tuple[Event, ...]]:
    """Yield one kill per round, sometimes preceded by a fault without a kill."""
    rng = random.Random(seed)
    chosen = [FAMILIES[name] for name in families]
    others = {a: parts for family in chosen for a, parts in family.others.items() if a not in without}
    kills = {a: parts for family in chosen for a, parts in family.kills.items() if a not in without}
    numbers = count(1)
    while True:
        tables = [others, kills] if rng.random() < OTHER_BEFORE_A_KILL else [kills or others]
        yield tuple(
            _event(rng, next(numbers), rng.choices(list(table), list(table.values()))[0])
            for table in filter(None, tables)
        )


def _event(rng: random.Random, number: int, action: Action) -> Event:
    settle, pause_ms = rng.random() < SETTLE, rng.randint(*PAUSE_MS)
    host, victim = rng.randrange(HOSTS), rng.random()
    durations = DURATIONS_MS.get(action, (ABSENCE_MS,))
    between = rng.choice(durations) if len(durations) > 1 else durations[0]
    return Event(number, settle, pause_ms, action, host, victim, rng.randint(*between), rng.randrange(2**32))
