"""A broker that goes away in the middle of a rebalance: no record is lost, and none counted twice with exactly-once."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.dev.dev_broker import DevBroker
from tests.workers.group_settings import DEADLINE_SECONDS, configure_streams_group
from tests.workers.test_stream_thread_broker import Case, Runner

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: The broker's restart, and a producer's give-up and return, on a busy machine.
PATIENCE_SECONDS = 120.0
#: Between two looks at the changelog.
PAUSE_SECONDS = 0.2


class RestartCase(Case):
    """An application with one protocol and one guarantee."""

    def __init__(
        self, broker: DevBroker, admin: AdminClient, name: str, state_dir: Path, protocol: str, guarantee: str
    ):
        def make_topic(purpose: str, partitions: int = 1) -> str:
            topic = f"{name}-user-{purpose}"
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_SECONDS)
            return topic

        if protocol == "streams":
            configure_streams_group(broker.bootstrap_servers, name, session_timeout_ms=30_000)
        super().__init__(broker.bootstrap_servers, name, make_topic, state_dir, protocol)
        self.guarantee = guarantee

    def run_member(self, slot: int) -> Runner:
        return self.start(slot=slot, processing_guarantee=self.guarantee)

    def counted(self) -> bool:
        """All is counted and committed; without exactly-once what was not committed before is counted again."""
        found = self.changelog()
        if self.guarantee == "exactly_once_v2":
            return found == self.expected
        return all(found.get(name, 0) >= count for name, count in self.expected.items())

    def wait_until_counted(self) -> None:
        """Wait for what is committed; how many records were processed says little, since aborted ones are repeated."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.counted():
            assert time.monotonic() < deadline, (self, self.changelog())
            time.sleep(PAUSE_SECONDS)

    def stop(self) -> None:
        for runner in self.runners:
            runner.stop()

    def __repr__(self) -> str:
        return f"{self.protocol}, {self.guarantee}"


def test_a_coordinator_that_restarts_while_tasks_move_costs_nothing(
    tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    """With both protocols and both guarantees: four applications at once, since the broker's restart takes longest."""
    with DevBroker("restarted", tmp_path / "broker") as broker, ThreadPoolExecutor() as pool:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        cases = [
            RestartCase(broker, admin, unique_name(f"{p}-{g}"), tmp_path / f"state-{p}-{g}", p, g)
            for p, g in product(("classic", "streams"), ("at_least_once", "exactly_once_v2"))
        ]
        try:
            for case in cases:
                case.feed(300)
            first = [case.run_member(1) for case in cases]
            for runner in first:
                runner.until(lambda runner=runner: runner.processed == 300)  # type: ignore[misc]
            for case in cases:
                case.run_member(2)
            broker.stop()
            broker.start()
            # Who has which task now is open: a leader that cannot ask for the lags leaves all where it was for a while.
            for case in cases:
                case.feed(300)
            for case in cases:
                case.wait_until_counted()
        finally:
            list(pool.map(RestartCase.stop, cases))
        assert [case for case in cases if not case.counted()] == []  # then too: with exactly-once not one more
    gc.collect()
