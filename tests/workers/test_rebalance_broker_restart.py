"""A broker that goes away in the middle of a rebalance: no record is lost, and none counted twice with exactly-once."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from group_settings import DEADLINE_SECONDS, configure_streams_group
from test_stream_thread_broker import Case

from penstock.dev_broker import DevBroker

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # kafka-python's, of failed attempts
]

#: The broker's restart, and a producer's give-up and return, on a busy machine.
PATIENCE_SECONDS = 120.0
#: Between two looks at the changelog.
PAUSE_SECONDS = 0.2


def counted(case: Case, exactly_once: bool) -> bool:
    """All is counted and committed; without exactly-once what was not committed before is counted again."""
    found = case.changelog()
    if exactly_once:
        return found == case.expected
    return all(found.get(name, 0) >= count for name, count in case.expected.items())


def wait_until_counted(case: Case, exactly_once: bool) -> None:
    """Wait for what is committed; how many records were processed says little, since aborted ones are repeated."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not counted(case, exactly_once):
        assert time.monotonic() < deadline, case.changelog()
        time.sleep(PAUSE_SECONDS)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
@pytest.mark.parametrize("protocol", ["classic", "streams"])
def test_a_coordinator_that_restarts_while_tasks_move_costs_nothing(
    tmp_path: Path, unique_name: Callable[[str], str], protocol: str, guarantee: str
) -> None:
    application_id = unique_name("app")
    with DevBroker("restarted", tmp_path / "broker") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

        def make_topic(purpose: str, partitions: int = 1) -> str:
            topic = f"{application_id}-user-{purpose}"
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(DEADLINE_SECONDS)
            return topic

        if protocol == "streams":
            configure_streams_group(broker.bootstrap_servers, application_id, session_timeout_ms=30_000)
        case = Case(broker.bootstrap_servers, application_id, make_topic, tmp_path / "state", protocol)
        try:
            case.feed(300)
            first = case.start(processing_guarantee=guarantee)
            first.until(lambda: first.processed == 300)
            case.start(slot=2, processing_guarantee=guarantee)
            broker.stop()
            broker.start()
            # Who has which task now is open: a leader that cannot ask for the lags leaves all where it was for a while.
            case.feed(300)
            wait_until_counted(case, guarantee == "exactly_once_v2")
        finally:
            for runner in case.runners:
                runner.stop()
        assert counted(case, guarantee == "exactly_once_v2")  # then too: with exactly-once not one more
    gc.collect()
