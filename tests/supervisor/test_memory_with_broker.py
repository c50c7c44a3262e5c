"""The memory that the stores of a running application got out of penstock.memory.bytes."""

from __future__ import annotations

import pytest
from broker_stage import PARTITIONS, Counting, shared_by

from penstock.supervisor.queries.queries import Answers
from penstock.topology.config.streams_config import StreamsConfig
from penstock.workers.control.messages import Measure
from penstock.workers.metrics.memory_budget import MIB, stores_config
from tests.waiting import eventually

pytestmark = pytest.mark.broker


def test_each_process_has_one_block_cache_of_its_share(counting: Counting) -> None:
    budget = 600 * MIB
    counting.config["penstock.memory.bytes"] = budget
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "both have their tasks")
        results = streams._supervisor.ask(Measure, Answers(), 30)
    caches = [
        [group.values["block-cache-capacity"] for group in result.value if "block-cache-capacity" in group.values]
        for result in results
    ]
    expected = stores_config(StreamsConfig(counting.config), 2, 0).block_cache_bytes
    assert expected < 128 * MIB
    assert [set(found) for found in caches] == [{expected}] * 2
    assert sum(map(len, caches)) == PARTITIONS  # each store reports the one cache of its process
