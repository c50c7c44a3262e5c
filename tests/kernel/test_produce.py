"""Which records the kernel hands to librdkafka itself; tests/workers/test_record_collector.py says how they arrive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from penstock import Serdes, StreamsBuilder, TimeWindows, kernel
from penstock.testing import TopologyTestDriver
from penstock.testing.driver_task import DriverTask
from penstock.topology.partitioners import WindowedHashes, WindowedStreamPartitioner, partition_for_key
from penstock.topology.records import Windowed
from penstock.topology.windowed_serdes import SessionWindowedSerde, TimeWindowedSerde, WindowedSerde

pytestmark = pytest.mark.skipif(
    kernel.produce is None or not kernel.produce.USABLE, reason="the compiled kernel is not built here"
)
WAIT_SECONDS = 10.0
TOPIC = "topic"
#: Of a topic in librdkafka's mock. Once it knows them, it takes no record for another partition.
PARTITIONS = 4


@pytest.fixture
def reports() -> list[Any]:
    """What confluent-kafka reports by its callback."""
    return []


@pytest.fixture
def client(reports: list[Any]) -> Iterator[Producer]:
    """A producer as the stream thread makes it, over librdkafka's own mock of a broker."""
    made = Producer(
        {
            "bootstrap.servers": "",
            "test.mock.num.brokers": 1,
            "on_delivery": lambda error, message: reports.append((error, message)),
            "delivery.report.only.error": True,
            "message.max.bytes": 1_000,
            "linger.ms": 60_000,  # what is handed over stays in librdkafka until it is purged
            **kernel.produce.SETTINGS,
        }
    )
    yield made
    made.purge()


def writer(client: Producer, plain: Any, errors: list[Any] | None = None, **producer: Any) -> Any:
    records = kernel.produce.record_producer_for(client)
    owner = SimpleNamespace(**{"transactional": False, "in_transaction": False, **producer})
    return kernel.sinks.RecordWriter(records, plain, [] if errors is None else errors, owner, {"store": (TOPIC, 1)})


@pytest.mark.parametrize(
    ("usual", "arguments"),
    [
        (True, (TOPIC, b"k", b"v", 1, None)),
        (True, (TOPIC, None, None, None, ())),
        (True, (TOPIC, b"", b"", 0, [], 2)),
        (False, (TOPIC, b"k", b"v", 1, [("name", b"x")])),
        (True, (TOPIC, "k", b"v", 1, None)),  # a text that is ASCII is its own bytes
        (False, (TOPIC, "ключ", b"v", 1, None)),
        (False, (TOPIC, b"k", bytearray(b"v"), 1, None)),
        (False, (TOPIC, b"k", b"x" * 2_000, 1, None)),  # librdkafka does not take it
    ],
)
def test_what_is_not_usual_is_left_to_python(client: Producer, usual: bool, arguments: tuple[Any, ...]) -> None:
    left: list[Any] = []
    writer(client, lambda *record: left.append(record)).send(*arguments)
    assert bool(left) is not usual
    assert len(client) == usual, "handed over at most once"
    assert not left or left[0][: len(arguments)] == arguments


def test_errors_and_the_beginning_of_a_transaction_are_left_to_python(client: Producer) -> None:
    left: list[Any] = []
    change = "store", b"k", b"v", 1
    writer(client, lambda *record: left.append(record), errors=["an error"]).log_change(*change)
    writer(client, lambda *record: left.append(record), transactional=True).log_change(*change)
    assert len(left) == 2
    writer(client, lambda *record: left.append(record), transactional=True, in_transaction=True).log_change(*change)
    assert len(left) == 2
    assert len(client) == 1


def test_a_lost_record_is_known_once_with_all_that_it_was(client: Producer, reports: list[Any]) -> None:
    sends = writer(client, pytest.fail)
    client.produce(TOPIC, b"with a callback")
    sends.send(TOPIC, b"key", b"value", 5, None, 3)
    sends.send(TOPIC, None, None, 7, None, 3)
    client.purge()
    client.flush(WAIT_SECONDS)
    records = kernel.produce.record_producer_for(client)
    lost = [(error.code(), *record) for error, record in records.take_lost()]
    purged = KafkaError._PURGE_QUEUE
    assert lost == [(purged, TOPIC, 3, b"key", b"value"), (purged, TOPIC, 3, None, None)]
    assert not records.take_lost()
    assert [message.value() for _, message in reports] == [b"with a callback"], "confluent-kafka's own"


def sink(client: Producer, plain: Any, to_key: Any, to_value: Any, **more: Any) -> Any:
    return kernel.sinks.sink_for(writer(client, plain, **more).send, TOPIC, to_key, to_value)


def produced(client: Producer) -> list[Any]:
    """Return (key, value) of what was handed to librdkafka; it is lost by that."""
    client.purge()
    client.flush(WAIT_SECONDS)
    return [tuple(record[2:]) for _, record in kernel.produce.record_producer_for(client).take_lost()]


def test_a_sink_serializes_and_sends(client: Producer) -> None:
    send = sink(client, pytest.fail, str.encode, orjson.dumps)
    given = [("k", [1]), ("ключ", {"a": 2}), (None, 3), ("", None)]
    assert [send(key, value, 5, None) for key, value in given] == [None] * 4
    assert sorted(produced(client), key=repr) == sorted(
        [(b"k", b"[1]"), ("ключ".encode(), b'{"a":2}'), (None, b"3"), (b"", None)], key=repr
    )


def test_only_keys_whose_bytes_are_the_texts_are_sent_as_texts(client: Producer) -> None:
    sink(client, pytest.fail, orjson.dumps, orjson.dumps)("k", 1, 5, None)
    assert produced(client) == [(b'"k"', b"1")]


@pytest.mark.parametrize(("key", "value"), [(5, 1), ("\ud800", 1), ("k", {1, 2})])
def test_a_sink_returns_why_it_cannot_serialize(client: Producer, key: Any, value: Any) -> None:
    error = sink(client, pytest.fail, str.encode, orjson.dumps)(key, value, 5, None)
    assert isinstance(error, TypeError | UnicodeEncodeError)
    assert not len(client)


def test_a_sink_leaves_to_python_what_is_not_usual_serialized(client: Producer) -> None:
    left: list[Any] = []
    plain = lambda *record: left.append(record)  # noqa: E731
    sink(client, plain, str.encode, orjson.dumps)("k", 1, 5, [("name", b"x")])
    sink(client, plain, str.encode, orjson.dumps, transactional=True)("ключ", 2, 6, None)
    assert left == [
        (TOPIC, b"k", b"1", 5, [("name", b"x")]),
        (TOPIC, "ключ".encode(), b"2", 6, None),
    ]
    assert not len(client)


def windowed_sink(client: Producer, plain: Any, serde: WindowedSerde, to_key: Any, **more: Any) -> Any:
    send = writer(client, plain, **more).send
    return kernel.sinks.sink_for(send, TOPIC, to_key, orjson.dumps, serde.times)


@pytest.mark.parametrize("serde", [TimeWindowedSerde(Serdes.string(), 10), SessionWindowedSerde(Serdes.string())])
def test_a_windowed_sink_does_what_serde_and_partitioner_do(client: Producer, serde: WindowedSerde) -> None:
    keys = [*(f"key-{number}" for number in range(20)), "", "ключ", "k" * 300]
    windows = [(0, 10), (-10, 0), (1_700_000_000_000, 1_700_000_000_010), (-(2**63), 2**63 - 1)]
    given = [Windowed(key, *times) for key in keys for times in windows]
    send = windowed_sink(client, pytest.fail, serde, str.encode)
    assert [send(key, {"a": 1}, 5, None, PARTITIONS) for key in given] == [None] * len(given)
    partition = WindowedStreamPartitioner(serde)
    client.purge()
    client.flush(WAIT_SECONDS)
    lost = [record[1:3] for _, record in kernel.produce.record_producer_for(client).take_lost()]
    assert sorted(lost) == sorted((partition(TOPIC, key, 1, PARTITIONS), serde.serialize(TOPIC, key)) for key in given)


def test_a_windowed_sink_leaves_to_python_what_is_not_usual_serialized(client: Producer) -> None:
    left: list[Any] = []
    serde = TimeWindowedSerde(Serdes.string(), 10)
    send = windowed_sink(client, lambda *record: left.append(record), serde, str.encode)
    send(Windowed("k", 1, 11), None, 5, [("name", b"x")], 7)
    assert left == [(TOPIC, b"k" + bytes(7) + b"\1", None, 5, [("name", b"x")], partition_for_key(b"k", 7))]
    assert not len(client)


def test_a_windowed_sink_returns_why_a_value_cannot_be_serialized_and_raises_what_a_key_raises(
    client: Producer,
) -> None:
    serde = TimeWindowedSerde(Serdes.string(), 10)
    send = windowed_sink(client, pytest.fail, serde, str.encode)
    assert isinstance(send(Windowed("k", 1, 11), {1, 2}, 5, None, 7), TypeError)
    unreadable: list[Any] = [
        Windowed(None, 1, 11),
        Windowed(5, 1, 11),
        Windowed("\ud800", 1, 11),
        Windowed("k", 2**63, 11),
        ("k", None, 11),
        None,
    ]
    for key in unreadable:
        with pytest.raises((TypeError, UnicodeEncodeError, OverflowError)):
            send(key, 1, 5, None, 7)
    with pytest.raises(TypeError):
        windowed_sink(client, pytest.fail, serde, len)(Windowed("k", 1, 11), 1, 5, None, 7)
    assert not len(client)


def test_the_results_of_a_windowed_table_go_that_way(client: Producer, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.string()).group_by_key()
    stream.windowed_by(TimeWindows.of_size_with_no_grace(10)).count(store="windows").to_stream().to(TOPIC)
    sends = writer(client, pytest.fail)
    monkeypatch.setattr(DriverTask, "send", sends.send)
    monkeypatch.setattr(DriverTask, "log_change", lambda *_: None)
    monkeypatch.setattr(DriverTask, "partition_count", lambda *_: PARTITIONS)
    monkeypatch.setattr(WindowedHashes, "find", lambda *_: pytest.fail("hashed in Python"))
    with TopologyTestDriver(builder.build(), {"statestore.cache.max.bytes": 1_000_000}) as driver:
        topic = driver.create_input_topic("in", Serdes.string(), Serdes.string())
        for number in range(40):
            topic.pipe_input(f"key-{number % 13}", "v", number)
    client.purge()
    client.flush(WAIT_SECONDS)
    lost = [record[1:] for _, record in kernel.produce.record_producer_for(client).take_lost()]
    counts = Counter((f"key-{number % 13}".encode(), number // 10 * 10) for number in range(40))
    assert set(lost) == {
        (partition_for_key(key, PARTITIONS), key + start.to_bytes(8), count.to_bytes(8))
        for (key, start), count in counts.items()
    }


def test_what_sending_raises_is_raised_by_the_sink(client: Producer) -> None:
    def plain(*record: Any) -> None:
        raise KafkaException(KafkaError.MSG_SIZE_TOO_LARGE)

    with pytest.raises(KafkaException):
        sink(client, plain, str.encode, orjson.dumps)("k", "x" * 2_000, 5, None)


def test_a_task_that_sends_otherwise_has_no_compiled_sink() -> None:
    assert kernel.sinks.sink_for(pytest.fail, TOPIC, str.encode, orjson.dumps) is None
    assert kernel.sinks.sink_for(pytest.fail, TOPIC, str.encode, orjson.dumps, (1,)) is None


def test_only_a_producer_with_the_plugin_has_one(client: Producer) -> None:
    assert kernel.produce.record_producer_for(client) is not None
    assert kernel.produce.record_producer_for(Producer({"bootstrap.servers": ""})) is None
    assert kernel.produce.record_producer_for(object()) is None
