"""Log lines about brokers' bugs are kept, although a restart renames a log and the next one deletes it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.broker_logs import BrokerLogs
from tests.chaos.checkers.dropped_markers import milliseconds

TIME = "2026-11-28T10:00:00,123"
DROPPED = (
    f"{TIME} INFO  [x] Couldn't find leader endpoint for partitions Set(in-0) while trying to send transaction markers "
    "for app-1, these partitions are likely deleted already and hence can be skipped\n"
)
FORGOTTEN = f"{TIME} WARN  [x] The coordinator of __consumer_offsets-1 is out of sync with the underlying log\n"


@dataclass
class Broker:
    """Replaces a Node."""

    log_file: Path
    name: str = "broker-1"


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    return Broker(tmp_path / "broker.log")


@pytest.fixture
def logs(broker: Broker, tmp_path: Path) -> BrokerLogs:
    made = BrokerLogs(tmp_path / "kept")
    made.follow([broker])  # type: ignore[list-item]
    return made


def test_each_line_about_a_bug_is_kept_once(broker: Broker, logs: BrokerLogs, tmp_path: Path) -> None:
    assert logs.look() == []
    broker.log_file.write_text("something else\n" + DROPPED)
    assert logs.look() == ["broker-1 has dropped markers of app-1 in in-0"]
    with broker.log_file.open("a") as log:
        log.write(FORGOTTEN)
    assert logs.look() == ["broker-1 has forgotten committed offsets"]
    assert logs.look() == []
    logs.close()
    assert [markers.partitions for markers in logs.dropped] == [{("in", 0)}]
    assert [forgotten.at for forgotten in logs.forgotten] == [milliseconds(TIME)]
    assert (tmp_path / "kept").read_text() == f"broker-1: {DROPPED}broker-1: {FORGOTTEN}"


def test_lines_from_before_a_restart_are_read_after_it(broker: Broker, logs: BrokerLogs) -> None:
    broker.log_file.write_text("begin\n")
    logs.look()
    with broker.log_file.open("a") as log:
        log.write(DROPPED)
    broker.log_file.replace(broker.log_file.with_suffix(".log.1"))
    assert len(logs.look()) == 1
    broker.log_file.write_text(FORGOTTEN)
    assert len(logs.look()) == 1
    logs.close()


def test_a_line_is_read_once_it_is_complete(broker: Broker, logs: BrokerLogs) -> None:
    broker.log_file.write_text(DROPPED[:40])
    assert logs.look() == []
    with broker.log_file.open("a") as log:
        log.write(DROPPED[40:])
    assert len(logs.look()) == 1
    logs.close()
