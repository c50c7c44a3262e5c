"""Cogroups of aggregates in a stream thread, whose record cache merges updates of both streams between commits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Serdes, SessionWindows, SlidingWindows, StreamsBuilder, TimeWindows
from tests.direct_kafka import DirectKafka
from tests.operators.test_agg import ALL, model
from tests.workers.thread_stage import Application

SERDES: Any = {"key_serde": Serdes.string(), "value_serde": Serdes.json()}
TOPICS = ("orders", "visits")
WINDOWS: dict[str, Any] = {
    "by key": None,
    "hopping": TimeWindows(10, grace=100, advance=4),
    "sliding": SlidingWindows(10, grace=100),
    "sessions": SessionWindows(3, grace=100),
}


def topology(windows: Any) -> Any:
    """Keep rows of aggregates, and lists of the values, of both topics."""
    builder = StreamsBuilder()
    streams = [builder.stream(topic, **SERDES) for topic in TOPICS]

    def cogrouped(one: Any, other: Any) -> Any:
        both = streams[0].group_by_key().cogroup(one).cogroup(streams[1].group_by_key(), other)
        return both if windows is None else both.windowed_by(windows)

    def noted(topic: str) -> Any:
        return lambda _key, value, values: [*values, [topic, value]]

    merger = (lambda _key, one, other: one + other,) if isinstance(windows, SessionWindows) else ()
    rows = cogrouped(*({f"{topic} {name}": each for name, each in ALL.items()} for topic in TOPICS)).aggregate()
    lists = cogrouped(*map(noted, TOPICS)).aggregate(list, *merger, value_serde=Serdes.json())
    rows.to_stream(lambda key, row: str(key)).to("rows", **SERDES)
    lists.to_stream(lambda key, values: str(key)).to("lists", **SERDES)
    return builder.build()


@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("cache_bytes", [0, 300, 10_485_760])
def test_rows_are_those_of_lists_of_the_values(
    kind: str, cache_bytes: int, cluster: DirectKafka, application: Callable[..., Application]
) -> None:
    for topic in (*TOPICS, "rows", "lists"):
        cluster.create_topic(topic, 1)
    app = application(topology(WINDOWS[kind]), statestore_cache_max_bytes=cache_bytes, commit_interval_ms=3_600_000)
    thread, chance = app.thread().until_running(), random.Random(cache_bytes)
    for number in range(100):
        value = {"n": chance.choice([None, 1, 2, 3]), "x": chance.randrange(100)}
        topic, key = chance.choice(TOPICS), chance.choice([b"a", b"b"])
        cluster.append(topic, 0, key, json.dumps(value).encode(), chance.randrange(60))
        if number % 7 == 0:
            thread.step(2)
        if number % 20 == 0:
            thread.commit()
        if number == 50:
            thread.close()
            thread = app.thread().until_running()
    thread.until_idle().commit()
    lists = table(cluster, "lists")
    assert len(lists) > 1
    assert table(cluster, "rows") == {key: row_of(values) for key, values in lists.items()}


def table(cluster: DirectKafka, topic: str) -> dict[bytes | None, Any]:
    return {key: json.loads(data) for key, data in cluster.table(topic).items() if data is not None}


def row_of(values: list[Any]) -> dict[str, Any]:
    """Return the expected row of [topic, value] pairs."""
    by_topic = {topic: model([value for found, value in values if found == topic]) for topic in TOPICS}
    return {f"{topic} {name}": result for topic, row in by_topic.items() for name, result in row.items()}
