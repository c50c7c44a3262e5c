"""``penstock run --engine spark`` is killed with all its processes, and continues from its checkpoint.

Once; ``python -m tests.differential.kills`` kills again and again.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from penstock.dev.dev_broker import DevBroker
from penstock.topology.config.config_keys import EXACTLY_ONCE_V2
from tests.differential.application import Application
from tests.differential.kills import count_more, finish, kill_executors, kill_the_driver
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_killed_application_continues_from_its_checkpoint(bootstrap_servers: str, tmp_path: Path) -> None:
    application = Application(bootstrap_servers, tmp_path)
    with application.topics():
        kill_the_driver(application, kills=1)


def test_with_exactly_once_each_result_is_written_once(bootstrap_servers: str, tmp_path: Path) -> None:
    application = Application(bootstrap_servers, tmp_path, guarantee=EXACTLY_ONCE_V2)
    with application.topics():
        kill_the_driver(application, kills=2)


def test_a_killed_executor_of_a_local_cluster_is_replaced(bootstrap_servers: str, tmp_path: Path) -> None:
    application = Application(bootstrap_servers, tmp_path, "local-cluster[2,1,1024]")
    with application.topics():
        kill_executors(application, kills=1)


@pytest.mark.long
def test_brokers_that_are_away_for_two_minutes_cost_nothing_but_time(
    stoppable_broker: DevBroker, tmp_path: Path
) -> None:
    application = Application(stoppable_broker.bootstrap_servers, tmp_path, guarantee=EXACTLY_ONCE_V2)
    with application.topics(), application.running() as process:
        count_more(application)
        application.produce()
        stoppable_broker.stop()
        eventually(lambda: "the brokers do not respond" in application.log.read_text(), application.log.read_text)
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 120, patience_seconds=240)
        stoppable_broker.start(PATIENCE_SECONDS)
        application.await_counts()
        finish(application, process)
