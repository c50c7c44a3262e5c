"""Settings at values with a special meaning."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.brokers import UNUSUAL
from tests.clients.application import Topics, wait_for_values
from tests.clients.conftest import MakeApplication, MakeTopic

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_connections_without_an_idle_limit_work(topics: Topics, run: MakeApplication, make_topic: MakeTopic) -> None:
    source, sink = make_topic("in"), make_topic("out")
    topics.write(source, ["a"])
    application = run(
        "copy", source, sink, topics.bootstrap_servers, connections_max_idle_ms=0, auto_offset_reset="earliest"
    )
    wait_for_values(application, topics, sink, ["a"])


def test_a_response_as_large_as_fetch_max_bytes_is_read(
    unusual_broker: str, run: MakeApplication, unique_name: Callable[[str], str]
) -> None:
    """150 MB, where receive.message.max.bytes is 100 MB by default; the broker allows it and has that much data."""
    size, count = 1_000_000, 120
    limit = int(UNUSUAL["fetch.max.bytes"])
    topics = Topics(unusual_broker)
    source, sink = topics.create(unique_name("in")), topics.create(unique_name("out"))
    noise = random.Random(1)
    topics.write(source, [noise.randbytes(size) for _ in range(count)], message_max_bytes=size + 1_000)
    application = run(
        "sizes",
        source,
        sink,
        unusual_broker,
        consumer_fetch_max_bytes=limit,
        consumer_max_partition_fetch_bytes=limit,
        auto_offset_reset="earliest",
    )
    wait_for_values(application, topics, sink, [str(size)] * count)
