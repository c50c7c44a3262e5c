"""Deduplication in stream threads that crash: no record is lost, and duplicates stay duplicates."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.serdes.serdes import Serdes
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT, feed
from tests.workers.thread_stage import Application

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


def deduplicating() -> Any:
    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).deduplicate_by_key(60_000, name="once").to(OUT, **TEXT)
    return builder.build()


def keys(cluster: DirectKafka) -> str:
    return b"".join(record.key() or b"" for record in cluster.records(OUT)).decode()


@pytest.mark.parametrize("wiped", [False, True])
@pytest.mark.parametrize(("guarantee", "expected"), [("at_least_once", "abab"), ("exactly_once_v2", "ab")])
def test_a_record_that_was_not_committed_is_forwarded_again(
    cluster: DirectKafka, application: Callable[..., Application], guarantee: str, expected: str, wiped: bool
) -> None:
    """With at-least-once its row is in the changelog, while its output may be lost. Its duplicates are dropped."""
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    app = application(deduplicating(), processing_guarantee=guarantee)
    thread = app.thread().until_running()
    feed(cluster, "ab")
    thread.step(3)
    thread.crash()
    if wiped:
        shutil.rmtree(app.stage.state_dir)
    feed(cluster, "bab", timestamp=3_000)
    app.thread(slot=2).until_idle().commit()
    assert keys(cluster) == expected
