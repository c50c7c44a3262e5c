"""Stores that hold records until they are forwarded, and a crash when brokers have the tombstones but not the records.

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
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT, feed
from tests.workers.direct_io import DirectWriter
from tests.workers.thread_stage import Application

TEXT: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
OTHER = "other"


def suppressed() -> Any:
    """Forward the count of a window when it closes."""
    builder = StreamsBuilder()
    counted = builder.stream(IN, **TEXT).group_by_key().windowed_by(TimeWindows(10)).count()
    final = counted.suppress(Suppressed.until_window_closes())
    final.to_stream(lambda key, _: str(key.key)).to(OUT, key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()


def without_partner() -> Any:
    """Forward a record of one stream when no partner can arrive in the other stream any more."""
    builder = StreamsBuilder()
    other = builder.stream(OTHER, **TEXT)
    joined = builder.stream(IN, **TEXT).left_join(other, lambda value, _: value, JoinWindows(10), **TEXT)
    joined.to(OUT, **TEXT)
    return builder.build()


def after_grace() -> Any:
    """Forward a record when all updates of the table up to its time have arrived."""
    builder = StreamsBuilder()
    kept = Materialized(Stores.persistent_versioned_key_value_store("kept", 1000))
    table = builder.table(OTHER, store=kept, **TEXT)
    builder.stream(IN, **TEXT).left_join(table, lambda value, _: value, grace=10, **TEXT).to(OUT, **TEXT)
    return builder.build()


def keys(cluster: DirectKafka) -> list[bytes | None]:
    return [record.key() for record in cluster.records(OUT)]


@pytest.mark.parametrize("topology", [suppressed, without_partner, after_grace])
def test_held_records_are_sent_again_if_only_their_tombstones_have_arrived(
    cluster: DirectKafka,
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

    deliver = DirectWriter.flush

    class Killed(BaseException):
        """The process ends when brokers have the changelogs, but none of the output."""

    def torn(writer: DirectWriter, seconds: float) -> bool:
        writer.queue = {target: sent for target, sent in writer.queue.items() if target[0] != OUT}
        deliver(writer)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(DirectWriter, "poll", lambda writer: None)
        patched.setattr(DirectWriter, "flush", torn)
        clock.advance(2000)  # stream joins check for closed windows once a second
        feed(cluster, "b", timestamp=500)
        thread.step(2)
        with pytest.raises(Killed):
            thread.commit()
    thread.crash()
    assert keys(cluster) == []

    held.thread().until_idle().commit()
    assert keys(cluster) == [b"a"]
