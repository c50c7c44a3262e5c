"""Three brokers, of which one is their controller and stays: for leaders and coordinators that move, and cut logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.dev_broker import DevBroker
from tests.brokers import LedBroker
from tests.clients.application import Topics

#: Node ids. STAYS never dies in these tests, and is the controller.
STAYS, FIRST, SECOND = 1, 2, 3
#: Three brokers start on a machine that may have much else to do.
START_SECONDS = 240.0
_CONFIG = {
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "1",
    "unclean.leader.election.enable": "true",
}
_OFFSETS = "__consumer_offsets"


@dataclass(frozen=True)
class Trio:
    """The running brokers: topics of all of them, and those that may die by their node ids."""

    topics: Topics
    brokers: dict[int, LedBroker]


@contextmanager
def trio(directory: Path, coordinators: list[int]) -> Iterator[Trio]:
    """Run all. coordinators: nodes that keep committed offsets; the first that lives is every group's coordinator."""
    with ExitStack() as running:
        stays = DevBroker("stays", directory / "stays", config=_CONFIG)
        running.callback(stays.stop)
        addresses = [stays.start(START_SECONDS, detached=False)]
        brokers = {}
        for node in (FIRST, SECOND):
            brokers[node] = LedBroker(stays, f"node-{node}", directory / str(node), dict(_CONFIG), node=node)
            running.callback(brokers[node].stop)
            addresses.append(brokers[node].start(START_SECONDS, detached=False))
        topics = Topics(",".join(addresses))
        topics.create(_OFFSETS, replicas=coordinators, cleanup_policy="compact")
        yield Trio(topics, brokers)
