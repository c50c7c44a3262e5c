"""The lag in a status: all records not processed yet, wherever they wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import ProcessorStateError
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import Status
from tests.direct_kafka import DirectKafka
from tests.workers.counting import IN, OUT, counting, feed
from tests.workers.thread_stage import Application

MakeApplication = Callable[..., Application]


def test_records_in_the_buffer_count_until_they_are_processed(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    thread = application(counting()).thread().until_running()
    feed(cluster, "abc")
    thread.thread.paused = True  # it reads, but processes nothing
    thread.step(3)
    reporter = thread.thread.status
    status = reporter.status(thread.thread.time.now_ms)
    assert isinstance(status, Status)
    assert status.lag == 3
    thread.thread.paused = False
    thread.step(3)
    assert reporter.status(thread.thread.time.now_ms).lag == 0


def test_the_error_names_a_failing_operator_behind_a_cache_and_its_store(
    cluster: DirectKafka, application: MakeApplication
) -> None:
    cluster.create_topic(IN, 1)
    builder = StreamsBuilder()
    stream = builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.string())
    counted = stream.group_by_key().count(store="counts").to_stream()
    counted.map_values(lambda count: 1 // (count - 2), name="divide").foreach(lambda key, value: None)
    thread = application(builder.build()).thread().until_running()
    feed(cluster, "aa")
    thread.step(3)
    with pytest.raises(ProcessorStateError) as caught:
        thread.commit()
    assert "Failed to flush cache of store counts, in processor divide: ZeroDivisionError" in str(caught.value)
