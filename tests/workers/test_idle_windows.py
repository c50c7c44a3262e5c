"""Windows that close without input in a stream thread: by an idle timeout of a source, of suppress(), or on close."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import EmitStrategy, Serdes, StreamsBuilder, Suppressed, TimeWindows
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, feed
from tests.workers.thread_stage import Application

SERDES: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
TIMEOUT = timedelta(seconds=5)
HOUR_MS = 3_600_000


def counted(how: str) -> Any:
    """Return a topology that passes on final counts of windows of 10 seconds."""
    builder = StreamsBuilder()
    stream = builder.stream(IN, **SERDES, idle_timeout=TIMEOUT if how == "source" else None)
    windows = stream.group_by_key().windowed_by(TimeWindows.of_size_with_no_grace(timedelta(seconds=10)))
    if how == "on close":
        counts = windows.emit_strategy(EmitStrategy.ON_WINDOW_CLOSE, wall_clock=TIMEOUT).count()
    else:
        wall_clock = TIMEOUT if how == "suppress" else None
        counts = windows.count().suppress(Suppressed.until_window_closes(wall_clock=wall_clock))
    counts.to_stream(lambda window, count: window.key).to(OUT, key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


def sent(cluster: DirectKafka) -> list[int]:
    return [struct.unpack(">q", record.value() or b"")[0] for record in cluster.records(OUT)]


@pytest.mark.parametrize("how", ["source", "suppress", "on close"])
def test_a_window_closes_once_with_the_updates_that_wait_in_the_cache(
    how: str, cluster: DirectKafka, application: Callable[..., Application], clock: ManualClock
) -> None:
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    thread = application(counted(how), commit_interval_ms=HOUR_MS).thread().until_running()
    feed(cluster, "a", timestamp=100_000)
    thread.step(3)
    thread.commit()
    feed(cluster, "a", timestamp=101_000)
    thread.step(3)
    clock.advance(4_999)
    thread.step(3)
    thread.commit()
    feed(cluster, "a", timestamp=102_000)
    thread.step(3)
    clock.advance(12_000)
    thread.step(3)
    thread.commit()
    assert sent(cluster) == [3]
    feed(cluster, "a", timestamp=103_000)  # late
    thread.step(3)
    clock.advance(60_000)
    thread.step(3)
    thread.commit()
    assert sent(cluster) == [3]


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("how", ["source", "suppress", "on close"])
def test_a_window_that_was_open_at_a_restart_closes(
    how: str, crashes: bool, cluster: DirectKafka, application: Callable[..., Application], clock: ManualClock
) -> None:
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    app = application(counted(how), commit_interval_ms=HOUR_MS)
    thread = app.thread().until_running()
    feed(cluster, "aa", timestamp=100_000)
    thread.step(3)
    thread.commit()
    if crashes:
        thread.crash()
    else:
        thread.close()
    clock.advance(60_000)
    again = app.thread().until_running().step(3)
    clock.advance(4_999)
    again.step(3)
    again.commit()
    assert sent(cluster) == []
    clock.advance(7_000)
    again.step(3)
    again.commit()
    assert sent(cluster) == [2]
    feed(cluster, "a", timestamp=103_000)  # late
    clock.advance(60_000)
    again.step(3)
    again.commit()
    assert sent(cluster) == [2]
