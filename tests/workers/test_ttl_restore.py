"""Tables with a ttl in stream threads that stop and start again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock import Materialized, Punctuation, Serdes, StreamsBuilder, Ttl
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.workers.counting import IN, OUT
from tests.workers.thread_stage import Application, Thread

TEXTS: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


@pytest.mark.parametrize("optimization", ["none", "all"])
def test_a_row_that_has_ended_does_not_return(
    optimization: str, cluster: DirectKafka, application: Callable[..., Application]
) -> None:
    """With all optimizations the topic of a table is its changelog; it has no deletions of ended rows."""
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    builder = StreamsBuilder()
    users = builder.table(IN, **TEXTS, store=Materialized("users", ttl=100))
    cities = users.group_by(lambda user, city: (city, user), **TEXTS).count(store="cities")
    cities.to_stream().map_values(str).to(OUT, **TEXTS)
    topology = builder.build({"topology.optimization": optimization})
    app = application(topology, topology_optimization=optimization)
    thread = app.thread().until_running()
    for user, at in (("ann", 0), ("bob", 50), ("eve", 120)):
        put(cluster, thread, user, at)
    assert counts(cluster) == [b"1", b"2", b"2"]  # ann's row has ended
    thread.close()
    shutil.rmtree(app.stage.state_dir / "app")
    again = app.thread().until_running()
    put(cluster, again, "joe", 140)
    assert counts(cluster) == [b"1", b"2", b"2", b"3"]


def put(cluster: DirectKafka, thread: Thread, user: str, at: int) -> None:
    """Write a row of a user in Oslo; process it, and what follows from it behind the repartition topic."""
    cluster.append(IN, 0, user.encode(), b"Oslo", at)
    for _ in range(2):
        thread.step(3)
        thread.commit()


def counts(cluster: DirectKafka) -> list[bytes | None]:
    return [message.value() for message in cluster.records(OUT)]


def test_a_row_that_has_ended_during_a_pause_is_not_read(
    cluster: DirectKafka, application: Callable[..., Application], clock: ManualClock
) -> None:
    for topic in (IN, OUT):
        cluster.create_topic(topic, 1)
    builder = StreamsBuilder()
    ttl = Ttl(timedelta(hours=8), Punctuation.WALL_CLOCK_TIME)
    visits = builder.stream(IN, **TEXTS).group_by_key().count(store=Materialized("visits", ttl=ttl))
    visits.to_stream().map_values(str).to(OUT, **TEXTS)
    app = application(builder.build())
    thread = app.thread().until_running()
    put(cluster, thread, "ann", 0)
    thread.close()
    clock.advance(24 * 3_600_000)
    cluster.append(IN, 0, b"ann", b"Oslo", 1)
    app.thread().until_idle().commit()
    assert counts(cluster) == [b"1", b"None", b"1"]
