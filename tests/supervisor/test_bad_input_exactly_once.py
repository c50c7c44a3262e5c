"""Problems with brokers and topics under exactly-once, with the user's command: an error, or a reported wait."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from broker_stage import STATELESS, App, last_line, produce, read_until, wait_for_line
from confluent_kafka import Producer

from penstock.supervisor.exit_codes import ExitCode
from tests.waiting import PATIENCE_SECONDS

pytestmark = [pytest.mark.broker, pytest.mark.slow]

EXACTLY_ONCE = "exactly_once_v2"
#: Begins a transaction in a topic, and dies in the middle of it. Arguments: broker, topic, transactional id.
DYING_PRODUCER = """\
import os, signal, sys
from confluent_kafka import Producer
address, topic, transactional_id = sys.argv[1:]
settings = {"bootstrap.servers": address, "transactional.id": transactional_id, "transaction.timeout.ms": 900_000}
producer = Producer(settings)
producer.init_transactions()
producer.begin_transaction()
producer.produce(topic, "never committed", "k", 0)
assert producer.flush() == 0
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_broker_that_cannot_create_its_transaction_log_is_an_error(app: App, unusual_broker: str) -> None:
    code, log = app.module(STATELESS).fails(
        threads=1, bootstrap_servers=unusual_broker, processing_guarantee=EXACTLY_ONCE, task_timeout_ms="1000"
    )
    assert code == ExitCode.FAILED, log
    assert "Transactions could not be initialized within 1000 ms" in last_line(log)
    assert "transaction.state.log.replication.factor above the number of brokers" in last_line(log)


def test_a_transaction_timeout_above_that_of_the_broker_is_an_error_at_once(app: App) -> None:
    code, log = app.module(STATELESS).fails(
        threads=1, processing_guarantee=EXACTLY_ONCE, transaction_timeout_ms="1000000"
    )
    assert code == ExitCode.TOPOLOGY, log
    assert "The broker refuses transaction.timeout.ms: it is above the broker's" in last_line(log)
    assert "is replaced" not in log


def test_a_missing_output_topic_is_an_error(app: App, make_topic: Callable[..., str]) -> None:
    source = make_topic("in")
    produce(app.config["bootstrap.servers"], source, "1")
    code, log = app.module(STATELESS.replace("'in'", repr(source)).replace("'out'", "'not-there'")).fails(
        threads=1, processing_guarantee=EXACTLY_ONCE, transaction_timeout_ms="3000"
    )
    assert code == ExitCode.FAILED, log
    assert "Error encountered sending record to topic not-there, written by [0_0]" in last_line(log)
    assert "The topic does not exist: create it" in last_line(log)


def test_an_open_transaction_of_a_dead_producer_is_reported_and_waited_for(
    app: App, make_topic: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    """The other partition continues meanwhile; after the transaction has ended, the records behind it follow."""
    address, dead = app.config["bootstrap.servers"], unique_name("dead")
    source, sink = make_topic("in", 2), make_topic("out")
    command = [sys.executable, "-c", DYING_PRODUCER, address, source, dead]
    assert subprocess.run(command, timeout=PATIENCE_SECONDS, check=False).returncode == -signal.SIGKILL
    produce(address, source, "behind")
    produce(address, source, "beside", partition=1)
    text = STATELESS.replace("'in'", repr(source)).replace("'out'", repr(sink))
    process = app.module(text).start(threads=1, processing_guarantee=EXACTLY_ONCE)
    assert read_until(address, sink, "beside") == ["beside"]
    log = wait_for_line(process, "is held at offset 0, although there are records up to 2")
    assert f"{source}-0" in log
    Producer({"bootstrap.servers": address, "transactional.id": dead}).init_transactions(PATIENCE_SECONDS)
    assert read_until(address, sink, "behind") == ["beside", "behind"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK
