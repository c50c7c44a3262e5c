"""A broker restarts during a rebalance: no record is lost, and with exactly-once none is counted twice."""

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
from tests.clients.group_settings import configure_streams_group
from tests.topics import create_topics
from tests.waiting import PATIENCE_SECONDS
from tests.workers.test_stream_thread_broker import Case, Runner

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: Seconds between two reads of the changelog.
PAUSE_SECONDS = 0.2


class RestartCase(Case):
    """An application with one protocol and one guarantee."""

    def __init__(
        self, broker: DevBroker, admin: AdminClient, name: str, state_dir: Path, protocol: str, guarantee: str
    ):
        def make_topic(purpose: str, partitions: int = 1) -> str:
            topic = f"{name}-user-{purpose}"
            create_topics(admin, NewTopic(topic, partitions, 1))
            return topic

        if protocol == "streams":
            configure_streams_group(broker.bootstrap_servers, name)
        super().__init__(broker.bootstrap_servers, name, make_topic, state_dir, protocol)
        self.guarantee = guarantee

    def run_member(self, slot: int) -> Runner:
        return self.start(slot=slot, processing_guarantee=self.guarantee)

    def counted(self) -> bool:
        """Check that all records are counted and committed; with at-least-once, uncommitted ones are counted again."""
        found = self.changelog()
        if self.guarantee == "exactly_once_v2":
            return found == self.expected
        return all(found.get(name, 0) >= count for name, count in self.expected.items())

    def wait_until_counted(self) -> None:
        """Wait for the committed counts; the number of processed records is no measure, because aborted ones are
        repeated.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.counted():
            assert time.monotonic() < deadline, (self, self.changelog())
            time.sleep(PAUSE_SECONDS)

    def stop(self) -> None:
        for runner in self.runners:
            runner.stop()

    def __repr__(self) -> str:
        return f"{self.protocol}, {self.guarantee}"


def test_a_coordinator_restart_while_tasks_move_loses_nothing(
    stoppable_broker: DevBroker, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    """With both protocols and both guarantees: four applications at once, because the broker's restart takes
    longest.
    """
    broker = stoppable_broker
    with ThreadPoolExecutor() as pool:
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
            # Any assignment is possible now: a leader that cannot get the lags leaves all tasks where they are for a
            # while.
            for case in cases:
                case.feed(300)
            for case in cases:
                case.wait_until_counted()
        finally:
            list(pool.map(RestartCase.stop, cases))
        assert [
            case for case in cases if not case.counted()
        ] == []  # and it stays so: with exactly-once not one record more
    gc.collect()
