"""Waits for effects of other processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicMetadata

#: Up to this many times the number of cores, the patience grows with the load.
LOAD_MAX = 5.0
#: How busy the machine is when the run begins, or will be because of the run's own processes.
BUSY = max(os.getloadavg()[0], float(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
PATIENCE_FACTOR = min(max(BUSY / (os.cpu_count() or 1), 1.0), LOAD_MAX)
#: Seconds until a test fails that waits for an effect; longer if the machine is busy when the run begins. A passing
#: test does not wait so long, and no measurement uses this.
PATIENCE_SECONDS = 300.0 * PATIENCE_FACTOR
LOOK_SECONDS = 0.05
#: What a broker answers that is not the leader yet, or not in the epoch that others name.
NOT_SERVED_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)


def eventually(
    check: Callable[[], bool], what: str | Callable[[], object] = "", patience_seconds: float = PATIENCE_SECONDS
) -> float:
    """Wait until check() is true; return the seconds that took. what: describes the condition, or its progress."""
    begin, pace = time.monotonic(), threading.Event()
    while not check():
        assert time.monotonic() - begin < patience_seconds, (
            f"it never came true that {what}" if isinstance(what, str) else f"it never came true; at last: {what()}"
        )
        pace.wait(LOOK_SECONDS)
    return time.monotonic() - begin


def wait_for_partitions(admin: AdminClient, topic: str, count: int) -> None:
    """Wait until all leaders of a new topic, or of a change, are shown and serve their partitions.

    A broker learns of both with a delay, and shows itself as a leader before it is one: it would refuse the first batch
    of a producer, and the batches that are in flight behind it would overtake it.
    """

    def is_shown() -> bool:
        found = admin.list_topics(topic, timeout=PATIENCE_SECONDS).topics.get(topic, TopicMetadata()).partitions or {}
        return len(found) == count and all(partition.leader >= 0 for partition in found.values())

    def is_served() -> bool:
        earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        asked = admin.list_offsets({TopicPartition(topic, number): earliest for number in range(count)})
        try:
            for answer in asked.values():
                answer.result(PATIENCE_SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in NOT_SERVED_YET:
                raise
            return False
        return True

    eventually(is_shown, f"{topic} has {count} partitions with leaders")
    eventually(is_served, f"the leaders of {topic} serve its partitions")
