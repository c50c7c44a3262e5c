"""Each action in front of a real broker, observed by a plain client.

A producer's epoch shows whether the broker has acted: each InitProducerId for a transactional id raises it by one.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest as OldFindCoordinatorRequest
from kio.schema.find_coordinator.v4.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v4.request import InitProducerIdRequest
from kio.schema.init_producer_id.v4.response import InitProducerIdResponse
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32Timedelta

from penstock.clients.connection.listener_probe import security_mismatch
from penstock.testing.wire import (
    Action,
    Blackhole,
    Delay,
    Direction,
    Dribble,
    Drop,
    Event,
    Exchange,
    Fail,
    Hold,
    Reset,
    Rule,
    WireError,
    WireProxy,
)
from tests.free_port import free_port
from tests.waiting import PATIENCE_SECONDS
from tests.wire.plain_client import PlainClient

pytestmark = pytest.mark.broker

REQUEST, ANSWER = Direction.REQUEST, Direction.ANSWER
Name = Callable[[str], str]


def metadata(topics: tuple[MetadataRequestTopic, ...] | None) -> MetadataRequest:
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False)


ALL_TOPICS = metadata(None)


@pytest.fixture
def proxy(bootstrap_servers: str) -> Iterator[WireProxy]:
    """A proxy without rules."""
    with WireProxy(bootstrap_servers) as made:
        yield made


def init_producer_id(transactional_id: str) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=TransactionalId(transactional_id),
        transaction_timeout=i32Timedelta.parse(timedelta(minutes=1)),
        producer_id=ProducerId(-1),
        producer_epoch=i16(-1),
    )


def new_epoch(address: str, transactional_id: str) -> int:
    """Raise a producer's epoch and return it; a new producer's is 0."""
    with PlainClient(address) as client:
        while True:  # the coordinator may have to load first
            answer = client.ask(init_producer_id(transactional_id))
            if answer.error_code is ErrorCode.none:
                return int(answer.producer_epoch)
            assert answer.error_code.retriable, answer


@pytest.fixture
def producer_id(unique_name: Name, bootstrap_servers: str) -> InitProducerIdRequest:
    """Return a request of a producer whose coordinator is ready and whose epoch is 0: the next one gets 1."""
    name = unique_name("txn")
    assert new_epoch(bootstrap_servers, name) == 0
    return init_producer_id(name)


def epochs_since(bootstrap_servers: str, request: InitProducerIdRequest) -> int:
    """Return how often the broker has executed a request."""
    return new_epoch(bootstrap_servers, str(request.transactional_id)) - 1


def is_at(what: str) -> Callable[[Event], bool]:
    return lambda event: what in str(event)


# -- addresses


def test_clients_learn_only_the_proxys_addresses_of_brokers(proxy: WireProxy, bootstrap_servers: str) -> None:
    shown = proxy.bootstrap_servers.split(",")
    with PlainClient(shown[0]) as client:
        group = FindCoordinatorRequest(key_type=i8(0), coordinator_keys=("g",))
        old = client.ask(OldFindCoordinatorRequest(key="g", key_type=i8(0)))
        while old.error_code is ErrorCode.coordinator_not_available:  # the first request creates the offsets topic
            old = client.ask(OldFindCoordinatorRequest(key="g", key_type=i8(0)))
        nodes = [
            *client.ask(ALL_TOPICS).brokers,
            *client.ask(DescribeClusterRequest(include_cluster_authorized_operations=False)).brokers,
            *client.ask(group).coordinators,
            old,
        ]
    assert len(nodes) >= 4
    for node in nodes:
        assert f"{node.host}:{node.port}" not in bootstrap_servers
        PlainClient(f"{node.host}:{node.port}").socket.close()


def test_librdkafkas_clients_work_behind_it(
    proxy: WireProxy, make_topic: Callable[[str], str], unique_name: Name
) -> None:
    topic = make_topic("in")
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": unique_name("txn")})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"1")
    producer.commit_transaction(PATIENCE_SECONDS)
    assert values(proxy.bootstrap_servers, topic, unique_name("group"), 1) == [b"1"]
    assert {"Produce", "Fetch", "EndTxn", "JoinGroup"} <= {api for api, _ in proxy.requests}
    assert proxy.events == []


def values(address: str, topic: str, group: str, count: int) -> list[bytes]:
    """Return the first values of a topic, as a member of a group that commits."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[Message] = []
    while len(found) < count:
        message = consumer.poll(PATIENCE_SECONDS)
        assert message is not None
        assert message.error() is None, message.error()
        found.append(message)
    consumer.commit(asynchronous=False)
    consumer.close()
    return [message.value() or b"" for message in found]


def test_records_without_acknowledgement_have_no_response(
    proxy: WireProxy, make_topic: Callable[[str], str], unique_name: Name
) -> None:
    topic = make_topic("in")
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "acks": 0})
    for number in range(3):
        producer.produce(topic, b"%d" % number)
        assert producer.flush(PATIENCE_SECONDS) == 0
    assert values(proxy.bootstrap_servers, topic, unique_name("group"), 3) == [b"0", b"1", b"2"]


# -- actions


def test_a_delay_applies_to_a_request_or_a_response(
    proxy: WireProxy, producer_id: InitProducerIdRequest, bootstrap_servers: str
) -> None:
    for direction in Direction:
        proxy.set_rules([Rule(Delay(direction, 0.5), api="InitProducerId", times=1)])
        begin = time.monotonic()
        with PlainClient(proxy.bootstrap_servers) as client:
            client.ask(producer_id)
        assert time.monotonic() - begin >= 0.5
    assert [event.what for event in proxy.events] == [str(Delay(direction, 0.5)) for direction in Direction]
    assert epochs_since(bootstrap_servers, producer_id) == 2


def test_a_held_request_reaches_the_broker_after_a_later_one_was_answered(
    proxy: WireProxy, producer_id: InitProducerIdRequest, bootstrap_servers: str
) -> None:
    proxy.set_rules([Rule(Hold(until="Metadata"), api="InitProducerId")])
    with PlainClient(proxy.bootstrap_servers) as held, PlainClient(proxy.bootstrap_servers) as other:
        number = held.send(producer_id)
        proxy.wait_for(is_at("Hold"))
        assert epochs_since(bootstrap_servers, producer_id) == 0
        other.ask(ALL_TOPICS)
        assert held.receive(InitProducerIdRequest, number).producer_epoch == 2


def test_a_held_request_of_a_dropped_client_is_delivered_late(
    proxy: WireProxy, producer_id: InitProducerIdRequest, bootstrap_servers: str
) -> None:
    proxy.set_rules([Rule(Hold(until="Metadata", drop=True), api="InitProducerId", nth=1)])
    with PlainClient(proxy.bootstrap_servers) as client, pytest.raises(ConnectionError):
        client.ask(producer_id)
    with PlainClient(proxy.bootstrap_servers) as again:
        assert again.ask(producer_id).producer_epoch == 1, "it has overtaken the held one"
        again.ask(ALL_TOPICS)
    proxy.wait_for(is_at("the broker answers: no error"))
    assert epochs_since(bootstrap_servers, producer_id) == 2


@pytest.mark.parametrize("acted", [False, True])
def test_a_connection_is_dropped_before_or_after_the_broker_acts(
    proxy: WireProxy, producer_id: InitProducerIdRequest, bootstrap_servers: str, acted: bool
) -> None:
    proxy.set_rules([Rule(Drop(acted=acted), api="InitProducerId")])
    with PlainClient(proxy.bootstrap_servers) as client, pytest.raises(ConnectionError):
        client.ask(producer_id)
    assert epochs_since(bootstrap_servers, producer_id) == acted


def test_an_error_is_returned_and_the_broker_does_not_act(
    proxy: WireProxy, producer_id: InitProducerIdRequest, bootstrap_servers: str
) -> None:
    proxy.set_rules([Rule(Fail("NOT_COORDINATOR"), api="InitProducerId", times=1)])
    with PlainClient(proxy.bootstrap_servers) as client:
        assert client.ask(producer_id).error_code is ErrorCode.not_coordinator
        assert client.ask(producer_id).producer_epoch == 1
    assert epochs_since(bootstrap_servers, producer_id) == 1


def test_responses_keep_the_order_of_requests_if_one_is_generated(
    proxy: WireProxy, producer_id: InitProducerIdRequest
) -> None:
    proxy.set_rules([Rule(Fail("NOT_COORDINATOR"), api="InitProducerId")])
    with PlainClient(proxy.bootstrap_servers) as client:
        first, second, third = client.send(ALL_TOPICS), client.send(producer_id), client.send(ALL_TOPICS)
        assert client.receive(MetadataRequest, first).brokers
        answer: InitProducerIdResponse = client.receive(InitProducerIdRequest, second)
        assert answer.error_code is ErrorCode.not_coordinator
        assert client.receive(MetadataRequest, third).brokers


def test_an_error_replaces_the_codes_of_read_only_responses(proxy: WireProxy, make_topic: Callable[[str], str]) -> None:
    topic = make_topic("in")
    proxy.set_rules([Rule(Fail("LEADER_NOT_AVAILABLE"), api="Metadata")])
    asked = MetadataRequestTopic(topic_id=None, name=TopicName(topic))
    with PlainClient(proxy.bootstrap_servers) as client:
        answer = client.ask(metadata((asked,)))
    (found,) = answer.topics
    assert found.name == topic
    assert {found.error_code, *(part.error_code for part in found.partitions)} == {ErrorCode.leader_not_available}


def test_a_producer_sees_the_error_of_its_partition(
    proxy: WireProxy, make_topic: Callable[[str], str], unique_name: Name
) -> None:
    topic = make_topic("in")
    proxy.set_rules([Rule(Fail("MESSAGE_TOO_LARGE"), api="Produce", times=1)])
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers})
    errors: list[KafkaError | None] = []
    for value in (b"refused", b"written"):
        producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(PATIENCE_SECONDS) == 0
    assert [error and error.code() for error in errors] == [KafkaError.MSG_SIZE_TOO_LARGE, None]
    assert values(proxy.bootstrap_servers, topic, unique_name("group"), 1) == [b"written"]


@pytest.mark.parametrize("direction", Direction)
def test_a_blackhole_swallows_one_direction_and_leaves_the_connection_open(
    proxy: WireProxy, producer_id: InitProducerIdRequest, bootstrap_servers: str, direction: Direction
) -> None:
    proxy.set_rules([Rule(Blackhole(direction), api="InitProducerId")])
    with PlainClient(proxy.bootstrap_servers, timeout_seconds=1.0) as client:
        with pytest.raises(TimeoutError):
            client.ask(producer_id)
        with pytest.raises(TimeoutError):
            client.ask(ALL_TOPICS)  # and all following requests
        assert epochs_since(bootstrap_servers, producer_id) == (direction is ANSWER)
        proxy.heal()
        with pytest.raises(ConnectionError):
            client.ask(ALL_TOPICS)
    with PlainClient(proxy.bootstrap_servers) as client:
        assert client.ask(ALL_TOPICS).brokers


def test_a_dribbled_response_arrives_in_pieces(proxy: WireProxy) -> None:
    proxy.set_rules([Rule(Dribble(ANSWER, pieces=4, seconds=1.0), api="Metadata")])
    with PlainClient(proxy.bootstrap_servers) as client:
        client.send(ALL_TOPICS)
        begin, pieces, size = time.monotonic(), 0, 1
        data = b""
        while len(data) < size:
            data += client.socket.recv(1 << 20)
            pieces += 1
            size = 4 + int.from_bytes(data[:4], "big")
    assert pieces >= 3, "pieces that arrive together count as one"
    assert time.monotonic() - begin >= 0.5


def test_a_dribbled_request_is_understood(
    proxy: WireProxy, producer_id: InitProducerIdRequest, bootstrap_servers: str
) -> None:
    proxy.set_rules([Rule(Dribble(REQUEST, pieces=5, seconds=0.5), api="InitProducerId")])
    begin = time.monotonic()
    with PlainClient(proxy.bootstrap_servers) as client:
        assert client.ask(producer_id).producer_epoch == 1
    assert time.monotonic() - begin >= 0.4


@pytest.mark.parametrize("direction", Direction)
def test_a_reset_happens_in_the_middle_of_a_frame(
    proxy: WireProxy, producer_id: InitProducerIdRequest, bootstrap_servers: str, direction: Direction
) -> None:
    proxy.set_rules([Rule(Reset(direction), api="InitProducerId")])
    with PlainClient(proxy.bootstrap_servers) as client, pytest.raises(ConnectionResetError):
        client.ask(producer_id)
    assert epochs_since(bootstrap_servers, producer_id) == (direction is ANSWER)


def test_a_broker_is_cut_off_and_returns(proxy: WireProxy) -> None:
    with PlainClient(proxy.bootstrap_servers) as client:
        (node,) = (broker.node_id for broker in client.ask(ALL_TOPICS).brokers)
        proxy.cut(node)
        with pytest.raises(ConnectionError):
            client.ask(ALL_TOPICS)
    assert_refused(proxy)
    proxy.restore(node)
    with PlainClient(proxy.bootstrap_servers) as client:
        assert client.ask(ALL_TOPICS).brokers


def test_an_unreachable_broker_resets_connections() -> None:
    with WireProxy(f"127.0.0.1:{free_port()}") as proxy:
        assert_refused(proxy)


def assert_refused(proxy: WireProxy) -> None:
    """Connect, and accept a reset before or after the client knows that it is connected."""
    with pytest.raises(ConnectionError), PlainClient(proxy.bootstrap_servers) as client:
        client.ask(ALL_TOPICS)


# -- its output


def test_there_is_one_line_for_each_action(bootstrap_servers: str) -> None:
    out = io.StringIO()
    rules = [Rule(Drop(acted=True), api="Metadata", client="mine*")]
    with WireProxy(bootstrap_servers, rules, out=out) as proxy:
        with PlainClient(proxy.bootstrap_servers, "mine-1") as client, pytest.raises(ConnectionError):
            client.ask(ALL_TOPICS)
        with PlainClient(proxy.bootstrap_servers, "other") as client:
            assert client.ask(ALL_TOPICS).brokers
        (line,) = out.getvalue().splitlines()
        assert line == str(proxy.events[0])
        assert line.endswith("mine-1  Metadata v12  Drop(acted=True)")
        assert proxy.requests == {("Metadata", 12): 2}


def test_bytes_outside_kafkas_protocol_are_an_error_at_the_end(bootstrap_servers: str) -> None:
    with pytest.raises(WireError) as failed:
        begin_tls_through_a_proxy(bootstrap_servers)
    assert "without TLS" in str(failed.value.__cause__)


def test_a_tls_probe_is_no_error_while_other_requests_are_understood(
    bootstrap_servers: str,
) -> None:
    """Penstock's client sends such a probe when a broker is silent for long; a broker without TLS closes the
    connection.
    """
    with WireProxy(bootstrap_servers) as proxy:
        with PlainClient(proxy.bootstrap_servers, "client") as client:
            assert client.ask(ALL_TOPICS).brokers
        assert security_mismatch(proxy.bootstrap_servers, "PLAINTEXT") is None


def begin_tls_through_a_proxy(bootstrap_servers: str) -> None:
    with WireProxy(bootstrap_servers) as proxy:
        host, port = proxy.bootstrap_servers.split(":")
        with socket.create_connection((host, int(port)), 30) as client:
            client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
            with pytest.raises(ConnectionResetError):
                client.recv(1)


def test_admin_clients_see_the_clusters_own_name(proxy: WireProxy, admin: AdminClient) -> None:
    behind = AdminClient({"bootstrap.servers": proxy.bootstrap_servers}).list_topics(timeout=PATIENCE_SECONDS)
    assert behind.cluster_id == admin.list_topics(timeout=PATIENCE_SECONDS).cluster_id


def test_a_custom_action_sees_requests_and_responses(bootstrap_servers: str) -> None:
    class Keep(Action):
        async def on_answer(self, exchange: Exchange, answer: bytes) -> None:
            passed.append((exchange.request.data, answer))
            await exchange.give(answer)

    passed: list[tuple[bytes, bytes]] = []
    with WireProxy(bootstrap_servers, [Rule(Keep(), api="Metadata")]) as proxy:
        with PlainClient(proxy.bootstrap_servers, "me") as client:
            assert client.ask(ALL_TOPICS).brokers
        ((request, answer),) = passed
        assert b"me" in request
        assert answer[:4] == request[4:8], "the correlation id"
