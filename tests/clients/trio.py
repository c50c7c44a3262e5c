"""Three brokers and a controller of their own: for leaders and coordinators that move, and for logs that are cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.brokers import Controller, LedBroker
from tests.clients.application import Topics

#: Node ids. The third one never dies in these tests: what should stay is there.
FIRST, SECOND, THIRD = 2, 3, 4
_SESSION = {"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"}
_CONFIG = {**_SESSION, "offsets.topic.num.partitions": "1", "unclean.leader.election.enable": "true"}
_OFFSETS = "__consumer_offsets"


@dataclass(frozen=True)
class Trio:
    """The running brokers by node id."""

    brokers: dict[int, LedBroker]
    topics: Topics

    @property
    def bootstrap_servers(self) -> str:
        """All of them."""
        return self.topics.bootstrap_servers


@contextmanager
def trio(directory: Path, coordinators: list[int]) -> Iterator[Trio]:
    """Run all. coordinators: nodes that keep committed offsets; the first that lives is every group's coordinator."""
    with ExitStack() as running:
        controller = running.enter_context(Controller("controller", directory / "controller", config=_SESSION))
        brokers = {
            node: LedBroker(controller, f"node-{node}", directory / str(node), dict(_CONFIG), node=node)
            for node in (FIRST, SECOND, THIRD)
        }
        addresses = []
        for broker in brokers.values():
            running.enter_context(broker)
            addresses.append(broker.bootstrap_servers)
        topics = Topics(",".join(addresses))
        topics.create(_OFFSETS, replicas=coordinators, cleanup_policy="compact")
        yield Trio(brokers, topics)
