"""The sinks of Spark's tasks with a real broker that refuses requests. Without Spark: they run as in an executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from penstock import StreamsConfig, StreamsError
from penstock.pipeline.tasks import kafka_sink
from penstock.pipeline.tasks.kafka_sink import KafkaSink, Sinks
from penstock.pipeline.tasks.transactional_sink import BatchMark, TransactionalSinks, transaction_config
from penstock.testing.wire import Fail, Rule, WireProxy
from penstock.topology.records import TopicPartition
from tests.read_to_end import read_to_end

pytestmark = [pytest.mark.broker]
RECORDS = 20_000
SENDERS = ["auto", "librdkafka"]

Open = Callable[..., KafkaSink]
MakeTopic = Callable[..., str]


@pytest.fixture
def proxy(bootstrap_servers: str) -> Iterator[WireProxy]:
    with WireProxy(bootstrap_servers) as made:
        yield made
    kafka_sink.idle.take("")  # closes those of the test


def config(proxy: WireProxy, sender: str) -> StreamsConfig:
    return StreamsConfig(
        {
            "application.id": "app",
            "bootstrap.servers": proxy.bootstrap_servers,
            "penstock.sender": sender,
            "linger.ms": 0,
            "producer.batch.size": 10_000,  # of RECORDS, many batches
        }
    )


def at_least_once(proxy: WireProxy, topic: str, sender: str = "auto") -> KafkaSink:
    return Sinks(config(proxy, sender)).of_tasks()


def exactly_once(proxy: WireProxy, topic: str, sender: str = "auto") -> KafkaSink:
    given = config(proxy, sender).with_overrides({"processing.guarantee": "exactly_once_v2"})
    sinks = TransactionalSinks(transaction_config(given), "app", topic, 1)
    return sinks.opened(BatchMark(topic, f"{topic}-group", TopicPartition(topic, 0), "c0ffee", 7))


def write(sink: KafkaSink, topic: str, count: int = RECORDS) -> None:
    for number in range(count):
        sink.send(topic, b"k", b"%d" % number, number, None)
    with closing(sink):
        sink.finish()


def seen(bootstrap_servers: str, topic: str) -> list[int]:
    return [int(message.value() or b"") for message in read_to_end(bootstrap_servers, topic)]


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("opened", [at_least_once, exactly_once])
def test_no_record_is_lost_or_overtaken_if_the_first_batch_of_a_partition_is_refused(
    bootstrap_servers: str, proxy: WireProxy, make_topic: MakeTopic, opened: Open, sender: str
) -> None:
    """A broker is shown as the leader of a new partition a moment before it serves it."""
    topic = make_topic("out")
    proxy.set_rules([Rule(Fail("NOT_LEADER_OR_FOLLOWER"), api="Produce", times=1)])
    sink = opened(proxy, topic, sender)
    write(sink, topic)
    assert [event.api for event in proxy.events] == ["Produce"]
    assert seen(bootstrap_servers, topic) == list(range(RECORDS))


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("InitProducerId", "NOT_COORDINATOR"),
        ("OffsetFetch", "UNSTABLE_OFFSET_COMMIT"),
        ("TxnOffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("EndTxn", "CONCURRENT_TRANSACTIONS"),
    ],
)
def test_a_transaction_survives_errors_that_pass(
    bootstrap_servers: str, proxy: WireProxy, make_topic: MakeTopic, api: str, error: str
) -> None:
    topic = make_topic("out")
    proxy.set_rules([Rule(Fail(error), api=api, times=2)])
    write(exactly_once(proxy, topic), topic, 3)
    assert [event.api for event in proxy.events] == [api, api]
    assert seen(bootstrap_servers, topic) == [0, 1, 2]


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("Produce", "INVALID_REQUIRED_ACKS"),
        ("TxnOffsetCommit", "OFFSET_METADATA_TOO_LARGE"),
        ("TxnOffsetCommit", "INVALID_PRODUCER_EPOCH"),
        ("EndTxn", "PRODUCER_FENCED"),
    ],
)
@pytest.mark.parametrize("sender", SENDERS)
def test_after_a_refused_commit_nothing_is_visible_and_the_next_attempt_writes(
    bootstrap_servers: str, proxy: WireProxy, make_topic: MakeTopic, api: str, error: str, sender: str
) -> None:
    topic = make_topic("out")
    proxy.set_rules([Rule(Fail(error), api=api, times=1)])
    reason = f"the first to {topic}: " if api == "Produce" else "Micro-batch 7 could not commit its transaction"
    with pytest.raises(StreamsError, match=reason):
        write(exactly_once(proxy, topic, sender), topic, 3)
    write(exactly_once(proxy, topic, sender), topic, 2)
    assert seen(bootstrap_servers, topic) == [0, 1]


def test_a_sink_writes_again_after_its_connections_were_closed(
    bootstrap_servers: str, proxy: WireProxy, make_topic: MakeTopic
) -> None:
    """Brokers close connections that idle between two micro-batches (connections.max.idle.ms)."""
    topic, sinks = make_topic("out"), Sinks(config(proxy, "auto"))
    first = sinks.of_tasks()
    first.send(topic, b"k", b"1", 1, None)
    sinks.finish(first)
    proxy.heal()
    again = sinks.of_tasks()
    assert again is first
    again.send(topic, b"k", b"2", 1, None)
    sinks.finish(again)
    assert seen(bootstrap_servers, topic) == [1, 2]


def test_the_micro_batches_of_many_tasks_use_the_connections_of_a_process(
    bootstrap_servers: str, proxy: WireProxy, make_topic: MakeTopic
) -> None:
    """Each is a new producer; between two of them another process may write, and connections may break."""
    topic = make_topic("out")
    given = config(proxy, "auto").with_overrides({"processing.guarantee": "exactly_once_v2"})
    sinks = TransactionalSinks(transaction_config(given), "app", topic, 1)
    used = set()
    for number in range(12):
        batch_id, task = divmod(number, 2)
        mark = BatchMark(f"{topic}-{task}", f"{topic}-group-{task}", TopicPartition(topic, 0), "c0ffee", batch_id)
        if number == 6:
            proxy.heal()
        sink = sinks.opened(mark)
        used.add(sink)
        sink.send(topic, b"k", b"%d" % number, number, None)
        sinks.finish(sink)
    assert len(used) == 1
    assert seen(bootstrap_servers, topic) == list(range(12))
