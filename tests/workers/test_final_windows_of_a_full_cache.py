"""A full cache flushes changes in the order in which they were made, because their times become stream time.

A window that `suppress` has closed because of later changes must have no change left in the cache.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Serdes, SessionWindows, StreamsBuilder, Suppressed, TimeWindows, Windows
from tests.direct_kafka import DirectKafka
from tests.workers.thread_stage import Application

KEYS, RECORDS, STEP_MS = 40, 4_000, 7
WINDOWS: dict[str, tuple[Any, int]] = {
    "tumbling": (TimeWindows.of_size_with_no_grace(2_000), 1),
    "hopping": (TimeWindows.of_size_and_grace(2_000, 0).advance_by(500), 4),
    "sessions": (SessionWindows.of_inactivity_gap_with_no_grace(200), 1),
}


def topology(windows: Windows | SessionWindows) -> Any:
    """Count, and send each final count with its window."""
    builder = StreamsBuilder()
    grouped = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.string()).group_by_key()
    final = grouped.windowed_by(windows).count().suppress(Suppressed.until_window_closes())
    named = final.to_stream(lambda key, _: f"{key.key} {key.start}")
    named.to("out", key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("cache_bytes", [2_000, 10_000, 30_000])
def test_each_window_has_one_result_which_is_final(
    kind: str, cache_bytes: int, cluster: DirectKafka, application: Callable[..., Application]
) -> None:
    for topic in ("in", "out"):
        cluster.create_topic(topic, 1)
    windows, overlap = WINDOWS[kind]
    app = application(topology(windows), statestore_cache_max_bytes=cache_bytes, commit_interval_ms=3_600_000)
    thread, chance = app.thread().until_running(), random.Random(cache_bytes)
    for number in range(RECORDS):
        cluster.append("in", 0, b"key %d" % chance.randrange(KEYS), b"", 10_000 + number * STEP_MS)
    cluster.append("in", 0, b"last", b"", 1_000_000)
    thread.until_idle().commit()
    found = [(each.key(), int.from_bytes(each.value() or b"", "big")) for each in cluster.records("out")]
    assert max(Counter(key for key, _ in found).values()) == 1, "one result of each window"
    assert sum(count for _, count in found) == RECORDS * overlap
