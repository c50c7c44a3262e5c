"""The metrics of the dashboard and the alerts exist in a stream thread.

For the supervisor's see test_http_with_broker.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.supervisor.http.prometheus import metric_name
from penstock.supervisor.queries.metric import CLIENT_GROUP, DISK_GROUP, PROCESS_GROUP
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.serdes.serdes import Serdes
from penstock.workers.control.messages import CommandResult, Measure
from tests.direct_kafka import DirectKafka
from tests.waiting import eventually
from tests.walls import shown_metrics
from tests.workers.counting import IN, OUT, counting, feed
from tests.workers.thread_stage import Application

LETTERS = "letters"


def failing_and_counting() -> object:
    builder = StreamsBuilder()
    stream = builder.stream(IN, key_serde=Serdes.string(), value_serde=Serdes.string())
    stream.map_values(lambda value: 1 // (value != "value")).foreach(print)
    stream.group_by_key().count(store="counts")
    return builder.build()


def test_the_named_metrics_exist(cluster: DirectKafka, application: Callable[..., Application], tmp_path: Path) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(LETTERS, 1)
    settings = {
        "processing_exception_handler": "log_and_continue",
        "errors_dead_letter_queue_topic_name": LETTERS,
        "processing_guarantee": "exactly_once_v2",
        "penstock_checkpoint_uri": f"file://{tmp_path}/bucket",
    }
    thread = application(failing_and_counting(), **settings).thread()
    eventually(lambda: bool(thread.step().state.name == "RUNNING"), "the thread runs")
    feed(cluster, "abc")
    thread.step(3)
    thread.control.commands.append(Measure(7))
    thread.step()
    (answer,) = [report for report in thread.control.reports if isinstance(report, CommandResult)]
    assert answer.error is None
    known = {metric_name(group.group, name) for group in answer.value for name in group.values}
    client = {metric_name(CLIENT_GROUP, f"{which}-stream-threads") for which in ("alive", "failed")}
    supervisors = tuple(metric_name(group, "") for group in (DISK_GROUP, PROCESS_GROUP))
    assert {name for name in shown_metrics() - known - client if not name.startswith(supervisors)} == set()


def test_an_aborted_transaction_is_counted_once(cluster: DirectKafka, application: Callable[..., Application]) -> None:
    cluster.create_topic(IN, 1)
    cluster.create_topic(OUT, 1)
    thread = (
        application(counting(), processing_guarantee="exactly_once_v2", statestore_cache_max_bytes=0)
        .thread()
        .until_running()
    )
    feed(cluster, "abc")
    thread.step(2)
    producer = thread.thread.producer
    assert (producer.in_transaction, producer.transactions_aborted) == (True, 0)
    producer.abort_transaction()
    producer.abort_transaction()
    assert producer.transactions_aborted == 1
