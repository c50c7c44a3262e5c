"""A partition that a real consumer stops fetching: it is reported, its task is reopened,
then the process is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from broker_stage import PARTITIONS, Counting, shared_by
from deaf_clients import COUNT_FILE, DeafClientSupplier
from stage import LogLines

from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.queries.metric import by_name
from tests.waiting import eventually

pytestmark = pytest.mark.broker

#: Short, but longer than a consumer takes to start.
STALL_TIMEOUT_MS = 2_000


@pytest.fixture
def counting(bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path) -> Counting:
    """An application that does not fetch partition 0 after its next assignments, as many as the test says."""
    made = Counting(
        bootstrap_servers, application_id, make_topic("in", PARTITIONS), make_topic("out", PARTITIONS), tmp_path
    )
    made.config |= {
        "default.client.supplier": DeafClientSupplier,
        "penstock.partition.stall.timeout.ms": STALL_TIMEOUT_MS,
    }
    return made


@pytest.mark.slow
def test_a_stalled_partition_is_read_again_after_its_task_is_reopened(
    counting: Counting, tmp_path: Path, log: LogLines
) -> None:
    (tmp_path / COUNT_FILE).write_text("1")
    counting.produce(3)
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 1), "the thread has the tasks")
        (before,) = streams.status()
        line = log.wait_for("is stalled")
        assert f"partition {counting.source}-0 of task 0_0 is stalled: its position has been at offset 0" in line
        assert line.endswith("its task is reopened")
        counting.wait_for_all_counts()
        (after,) = streams.status()
        assert after.pid == before.pid
        eventually(lambda: by_name(streams.metrics(), "stalled-partitions") == [0], "it is over")
        eventually(lambda: by_name(streams.metrics(), "partition-stall-total") == [1], "it is counted")
    assert streams.exit_code is ExitCode.OK


@pytest.mark.slow
def test_the_process_is_replaced_if_that_does_not_help(counting: Counting, tmp_path: Path, log: LogLines) -> None:
    (tmp_path / COUNT_FILE).write_text("2")
    counting.produce(3)
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 1), "the thread has the tasks")
        (before,) = streams.status()
        log.wait_for("the process is replaced")
        counting.wait_for_all_counts()
        (after,) = streams.status()
        assert after.pid != before.pid
        assert after.restarts == 1
    assert streams.exit_code is ExitCode.OK
