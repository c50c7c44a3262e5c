"""A broker that does not respond for a while: stream threads wait for it, and nothing is lost or counted twice."""

from __future__ import annotations

import struct
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from uuid import uuid4

import pytest
from broker_stage import PARTITIONS, Counting, shared_by
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from stage import LogLines

from penstock.dev.dev_broker import DevBroker
from penstock.supervisor.exit_codes import ExitCode
from tests.read_to_end import read_to_end
from tests.suspended import suspended
from tests.topics import create_topics
from tests.waiting import eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: Longer than the request timeout here, shorter than a session: no member is removed from the group.
OUTAGE_SECONDS = 8.0
REQUEST_TIMEOUT_MS = 2_000
SESSION_TIMEOUT_MS = 30_000
ROUNDS = 500


def stopped(broker: DevBroker) -> AbstractContextManager[None]:
    """Suspend the broker's process; it keeps its connections and does not respond."""
    pid = broker.status().pid
    assert pid is not None
    return suspended(pid)


def newest(counting: Counting) -> dict[str, int]:
    """Return the last committed count of each key."""
    return {
        (message.key() or b"").decode(): struct.unpack(">q", message.value() or b"")[0]
        for message in read_to_end(counting.bootstrap_servers, counting.sink)
    }


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_processing_continues_when_the_broker_responds_again(
    stoppable_broker: DevBroker, tmp_path: Path, log: LogLines, guarantee: str
) -> None:
    broker = stoppable_broker
    source, sink = f"in-{uuid4().hex[:8]}", f"out-{uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    create_topics(admin, *(NewTopic(topic, PARTITIONS, 1) for topic in (source, sink)))
    counting = Counting(broker.bootstrap_servers, f"app-{uuid4().hex[:8]}", source, sink, tmp_path)
    counting.config |= {
        "processing.guarantee": guarantee,
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "request.timeout.ms": REQUEST_TIMEOUT_MS,
        "transaction.timeout.ms": SESSION_TIMEOUT_MS,
        "max.poll.records": 50,  # so that the outage falls into the middle of the processing
    }
    counting.produce(ROUNDS)
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        eventually(lambda: any(thread.records_processed for thread in streams.status()), "they have begun")
        before = [thread.pid for thread in streams.status()]
        with stopped(broker):
            threading.Event().wait(OUTAGE_SECONDS)
            assert all(thread.pid in before for thread in streams.status())
        counting.produce(1)
        eventually(lambda: newest(counting) == counting.expected, "all is counted, each once")
        assert [thread.pid for thread in streams.status()] == before, "no thread has died"
    assert streams.exit_code is ExitCode.OK
    assert not log.has("died")
