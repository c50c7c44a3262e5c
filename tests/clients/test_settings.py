"""Settings at the values that have their own meaning."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.dev.dev_broker import DevBroker
from tests.clients.application import Topics, wait_for_values
from tests.clients.conftest import MakeApplication, MakeTopic

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_connections_that_may_be_idle_without_a_limit_work(
    topics: Topics, run: MakeApplication, make_topic: MakeTopic
) -> None:
    source, sink = make_topic("in"), make_topic("out")
    topics.write(source, ["a"])
    application = run(
        "copy", source, sink, topics.bootstrap_servers, connections_max_idle_ms=0, auto_offset_reset="earliest"
    )
    wait_for_values(application, topics, sink, ["a"], 20)


def test_an_answer_as_large_as_fetch_max_bytes_allows_is_read(tmp_path: Path, run: MakeApplication) -> None:
    """150 MB, where receive.message.max.bytes is 100 MB by default; the broker allows it and has so much to send."""
    size, count = 1_000_000, 120
    limit = 150_000_000
    with DevBroker("large", tmp_path / "broker", config={"fetch.max.bytes": str(limit)}) as broker:
        topics = Topics(broker.bootstrap_servers)
        source, sink = topics.create("in"), topics.create("out")
        noise = random.Random(1)
        topics.write(source, [noise.randbytes(size) for _ in range(count)], message_max_bytes=size + 1_000)
        application = run(
            "sizes",
            source,
            sink,
            topics.bootstrap_servers,
            consumer_fetch_max_bytes=limit,
            consumer_max_partition_fetch_bytes=limit,
            auto_offset_reset="earliest",
        )
        wait_for_values(application, topics, sink, [str(size)] * count, 40)
