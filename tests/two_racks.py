"""A second broker, in another rack, that joins a dev broker: for tests of racks and of leaders that move."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.dev.dev_broker import DevBroker
from tests.brokers import LedBroker

RACKS = ("red", "blue")
FIRST = 1
#: Both brokers replicate internal topics, so that either may die; its leaders move after this silence.
CONFIG = {
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "500",
}


@dataclass(frozen=True)
class TwoRacks:
    """Broker FIRST in rack red, broker SECOND in rack blue."""

    bootstrap_servers: str
    second: LedBroker


@contextmanager
def two_racks(directory: Path) -> Iterator[TwoRacks]:
    """Run both brokers."""
    with DevBroker("first", directory / "first", config={**CONFIG, "broker.rack": RACKS[0]}) as first:
        config = {**CONFIG, "broker.rack": RACKS[1]}
        with LedBroker(first, "second", directory / "second", config) as second:
            yield TwoRacks(f"{first.bootstrap_servers},{second.bootstrap_servers}", second)
