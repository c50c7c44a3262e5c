"""Stores that hold records until they are sent on, and a crash while brokers have the tombstones but not the records.

With at-least-once the records must be sent again. Found by the simulation, seed 35647; Kafka Streams loses them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.declare.suppressed import Suppressed
from penstock.topology.serdes.serdes import Serdes
from penstock.topology.stores.materialized import Materialized
from penstock.topology.stores.stores import Stores
from penstock.topology.stores.windows import JoinWindows, TimeWindows
from tests.workers.counting import IN, OUT, feed
from tests.workers.memory_io import MemoryWriter
from tests.workers.memory_kafka import Cluster, ManualClock
from tests.workers.thread_stage import Application

TEXT: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
OTHER = "other"


def suppressed() -> Any:
    """Pass on what was counted in a window when it closes."""
    builder = StreamsBuilder()
    counted = builder.stream(IN, **TEXT).group_by_key().windowed_by(TimeWindows(10)).count()
    final = counted.suppress(Suppressed.until_window_closes())
    final.to_stream(lambda key, _: str(key.key)).to(OUT, key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


def without_partner() -> Any:
    """Pass on a record of one stream when the other stream's can no longer come."""
    builder = StreamsBuilder()
    other = builder.stream(OTHER, **TEXT)
    joined = builder.stream(IN, **TEXT).left_join(other, lambda value, _: value, JoinWindows(10), **TEXT)
    joined.to(OUT, **TEXT)
    return builder.build()


def after_grace() -> Any:
    """Pass on a record when the table's updates until its time have come."""
    builder = StreamsBuilder()
    kept = Materialized(Stores.persistent_versioned_key_value_store("kept", 1000))
    table = builder.table(OTHER, store=kept, **TEXT)
    builder.stream(IN, **TEXT).left_join(table, lambda value, _: value, grace=10, **TEXT).to(OUT, **TEXT)
    return builder.build()


def keys(cluster: Cluster) -> list[bytes | None]:
    return [record.key() for record in cluster.records(OUT)]


@pytest.mark.parametrize("topology", [suppressed, without_partner, after_grace])
def test_what_was_held_is_sent_again_if_only_its_tombstone_has_arrived(
    cluster: Cluster,
    clock: ManualClock,
    application: Callable[..., Application],
    topology: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for topic in (IN, OTHER, OUT):
        cluster.create_topic(topic, 1)
    held = application(topology())
    thread = held.thread().until_running()
    feed(cluster, "a", timestamp=0)
    thread.step(2).commit()
    assert keys(cluster) == []

    deliver = MemoryWriter.flush

    class Killed(BaseException):
        """The process ends when brokers have the changelogs, but nothing of the output."""

    def torn(writer: MemoryWriter, seconds: float) -> bool:
        writer.queue = [record for record in writer.queue if record[0] != OUT]
        deliver(writer)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(MemoryWriter, "poll", lambda writer: None)
        patched.setattr(MemoryWriter, "flush", torn)
        clock.advance(2000)  # joins of streams look for closed windows once a second
        feed(cluster, "b", timestamp=500)
        thread.step(2)
        with pytest.raises(Killed):
            thread.commit()
    thread.crash()
    assert keys(cluster) == []

    held.thread().until_idle().commit()
    assert keys(cluster) == [b"a"]
