"""A blocked fetch ends when another thread wakes it, in the fetcher and over librdkafka."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

from penstock.clients.librdkafka import LibrdkafkaReader
from penstock.clients.reading.reader import Reader
from tests.clients.fetch_stage import two_partitions
from tests.waiting import PATIENCE_SECONDS

#: No test waits so long: a fetch that is not woken fails after PATIENCE_SECONDS.
LONG = 3600.0


@pytest.fixture(params=["fetcher", "librdkafka"])
def reader(request: pytest.FixtureRequest) -> Iterator[Reader]:
    if request.param == "librdkafka":
        made = LibrdkafkaReader(Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "unused", "log_level": 0}))
        yield made
        made.close()
        return
    for stage in two_partitions():
        yield stage.fetcher


def fetches(reader: Reader) -> threading.Thread:
    thread = threading.Thread(target=reader.fetch, args=(10, LONG), daemon=True)
    thread.start()
    return thread


def test_a_blocked_fetch_is_woken_and_the_next_one_blocks_again(reader: Reader) -> None:
    reader.wake()  # a wake-up from before must not be waited for
    first = fetches(reader)
    first.join(PATIENCE_SECONDS)
    assert not first.is_alive()
    second = fetches(reader)
    second.join(0.2)
    assert second.is_alive(), "it was woken once"
    reader.wake()
    second.join(PATIENCE_SECONDS)
    assert not second.is_alive()
