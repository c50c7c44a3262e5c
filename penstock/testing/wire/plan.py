"""Random rules: the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from .actions import Blackhole, Delay, Dribble, Drop, Fail, Hold, Reset
from .exchange import Action, Direction
from .rules import Rule

#: Errors that real brokers return, and after which clients must continue.
ERRORS = {
    "AddOffsetsToTxn": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS"),
    "AddPartitionsToTxn": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS"),
    "EndTxn": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS"),
    "Fetch": ("NOT_LEADER_OR_FOLLOWER", "FETCH_SESSION_ID_NOT_FOUND", "KAFKA_STORAGE_ERROR"),
    "FindCoordinator": ("COORDINATOR_NOT_AVAILABLE",),
    "Heartbeat": ("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "REBALANCE_IN_PROGRESS"),
    "InitProducerId": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS"),
    "JoinGroup": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "ListOffsets": ("NOT_LEADER_OR_FOLLOWER", "LEADER_NOT_AVAILABLE"),
    "Metadata": ("LEADER_NOT_AVAILABLE",),
    "OffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "OffsetFetch": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "Produce": ("NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS", "REQUEST_TIMED_OUT"),
    "StreamsGroupHeartbeat": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
    "SyncGroup": ("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "REBALANCE_IN_PROGRESS"),
    "TxnOffsetCommit": ("COORDINATOR_LOAD_IN_PROGRESS", "NOT_COORDINATOR"),
}
_APIS = tuple(ERRORS)
_RULES = (2, 6)
_PROBABILITY = (0.1, 0.8)
#: Maximum number of applications of a rule: each silence, hold or delay uses up a client's timeouts.
_TIMES = (1, 8)
_DELAY_SECONDS = (0.05, 2.5)

_Make = Callable[[random.Random, str], Action]


@dataclass(frozen=True)
class Plan:
    """Rules, and the seed of the rules and of their probabilities."""

    seed: int
    rules: tuple[Rule, ...]

    @classmethod
    def random(cls, seed: int) -> Plan:
        """Return the plan of a seed."""
        rng = random.Random(seed)
        return cls(seed, tuple(_rule(rng) for _ in range(rng.randint(*_RULES))))


def _rule(rng: random.Random) -> Rule:
    api = rng.choice(_APIS)
    action = rng.choice(_ACTIONS)(rng, api)
    return Rule(action, api, probability=round(rng.uniform(*_PROBABILITY), 3), times=rng.randint(*_TIMES))


def _direction(rng: random.Random) -> Direction:
    return rng.choice(tuple(Direction))


def _seconds(rng: random.Random) -> float:
    return round(rng.uniform(*_DELAY_SECONDS), 3)


_ACTIONS: tuple[_Make, ...] = (
    lambda rng, _: Delay(_direction(rng), _seconds(rng)),
    lambda rng, _: Dribble(_direction(rng), rng.randint(2, 20), _seconds(rng)),
    lambda rng, _: Reset(_direction(rng)),
    lambda rng, _: Blackhole(_direction(rng)),
    lambda rng, _: Drop(acted=rng.random() < 0.5),
    lambda rng, api: Fail(rng.choice(ERRORS[api])),
    lambda rng, api: Hold(api, rng.randint(1, 3), drop=rng.random() < 0.5, seconds=_seconds(rng)),
)
