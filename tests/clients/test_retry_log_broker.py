"""Every retry loop of the client logs its request, and the end: each request fails at a real broker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.clients import retry_log
from penstock.clients.cluster.admin import NewTopic
from penstock.clients.cluster.offsets import LATEST
from penstock.clients.errors import RetriableError
from penstock.clients.group.membership import Assigned, MemberSubscription
from penstock.clients.protocol.offset_commits import OffsetAndMetadata
from penstock.testing.wire import Fail, Rule, WireProxy
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import TopicPartition
from penstock.workers.thread.client_supplier import KafkaClientSupplier
from tests.clients.joining import joining
from tests.clients.test_membership import split
from tests.waiting import PATIENCE_SECONDS

pytestmark = [
    pytest.mark.broker,
]


@dataclass
class Clients:
    """A stream thread's clients, connected to brokers whose responses a test changes."""

    proxy: WireProxy
    supplier: KafkaClientSupplier
    topic: str
    closing: ExitStack

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, 0)

    def fetch(self) -> Callable[[], Any]:
        self.produce(PATIENCE_SECONDS)()  # a broker names a partition in each response only if it has a record
        reader: Any = self.supplier.get_consumer("c")
        self.closing.callback(reader.close)
        reader.assign({self.partition: 0})
        return lambda: reader.fetch(10, 0.02)

    def produce(self, seconds: float = 0.1) -> Callable[[], Any]:
        writer: Any = self.supplier.get_producer("p")
        self.closing.callback(writer.close)

        def step() -> None:
            writer.produce(self.topic, b"k", b"v", 0, 5)
            writer.flush(seconds)

        return step

    def transaction(self) -> Callable[[], Any]:
        writer: Any = self.supplier.get_producer("p", self.topic)
        self.closing.callback(writer.close)

        def transact() -> None:
            writer.init_transactions(PATIENCE_SECONDS)
            writer.begin_transaction()
            writer.produce(self.topic, b"k", b"v", 0, 5)
            writer.commit_transaction(PATIENCE_SECONDS)

        committing = threading.Thread(target=transact)
        self.closing.callback(committing.join)
        committing.start()
        return lambda: None

    def list_offsets(self) -> Callable[[], Any]:
        admin = self.supplier.get_admin("a")
        self.closing.callback(admin.close)

        def step() -> None:
            asked: Future[int] = admin.offsets({self.partition: LATEST}, 2_000)[self.partition]
            asked.exception(PATIENCE_SECONDS)

        return step

    def create_topic(self) -> Callable[[], Any]:
        admin = self.supplier.get_admin("a")
        self.closing.callback(admin.close)

        def step() -> None:
            with suppress(RetriableError):  # after all attempts
                admin.create_topics([NewTopic(self.topic, 1, 1, {})], 2_000)

        return step

    def member(self) -> Callable[[], Any]:
        member = self.supplier.get_group_member("m", split([self.partition]))
        self.closing.callback(member.close, leave=False)
        member.join(joining(MemberSubscription(b"", frozenset({self.topic}))), "test")
        seen: list[Any] = []
        commits: list[Future[None]] = []

        def step() -> None:
            seen.extend(member.poll())
            if any(isinstance(event, Assigned) for event in seen) and all(commit.done() for commit in commits):
                commits.append(member.commit_async({self.partition: OffsetAndMetadata(1)}))

        return step


@pytest.fixture
def clients(
    monkeypatch: pytest.MonkeyPatch,
    bootstrap_servers: str,
    make_topic: Callable[..., str],
    unique_name: Callable[[str], str],
) -> Iterator[Clients]:
    monkeypatch.setattr(retry_log, "TELL_AFTER_MS", 300)
    with WireProxy(bootstrap_servers) as proxy, ExitStack() as closing:
        settings = {
            "application.id": unique_name("app"),
            "bootstrap.servers": proxy.bootstrap_servers,
            "linger.ms": 0,
            "heartbeat.interval.ms": 100,
        }
        yield Clients(proxy, KafkaClientSupplier(StreamsConfig(settings)), make_topic("in"), closing)


class Said(logging.Handler):
    """The log lines about retries; any thread may write one."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.changed = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if " retried" in record.getMessage():
            self.lines.append(record.getMessage())
            self.changed.set()


@pytest.fixture
def said() -> Iterator[Said]:
    handler, logger = Said(), logging.getLogger("penstock")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("kind", "api", "error", "name"),
    [
        (Clients.fetch, "Fetch", "UNKNOWN_SERVER_ERROR", "Fetch of {topic}-0"),
        (Clients.fetch, "Fetch", "KAFKA_STORAGE_ERROR", "Fetch of {topic}-0"),
        (Clients.produce, "Produce", "NOT_ENOUGH_REPLICAS", "Produce to {topic}-0"),
        (Clients.produce, "InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS", "InitProducerId"),
        (Clients.transaction, "InitProducerId", "COORDINATOR_LOAD_IN_PROGRESS", "InitProducerId for {topic}"),
        (Clients.transaction, "EndTxn", "COORDINATOR_LOAD_IN_PROGRESS", "EndTxn for {topic}"),
        (Clients.list_offsets, "ListOffsets", "OFFSET_NOT_AVAILABLE", "ListOffsets of {topic}-0"),
        (Clients.create_topic, "CreateTopics", "NOT_CONTROLLER", "CreateTopics"),
        (Clients.member, "FindCoordinator", "COORDINATOR_NOT_AVAILABLE", "The coordinator of group "),
        (Clients.member, "JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS", "JoinGroup"),
        (Clients.member, "SyncGroup", "REBALANCE_IN_PROGRESS", "JoinGroup"),
        (Clients.member, "Heartbeat", "COORDINATOR_LOAD_IN_PROGRESS", "Heartbeat"),
        (Clients.member, "OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS", "OffsetCommit"),
    ],
)
def test_each_request_that_fails_for_long_is_logged(
    clients: Clients, said: Said, kind: Callable[[Clients], Callable[[], Any]], api: str, error: str, name: str
) -> None:
    clients.proxy.set_rules([Rule(Fail(error), api=api)])
    step, name = kind(clients), name.format(topic=clients.topic)
    until(step, lambda: any(name in line and error in line for line in said.lines), said)
    clients.proxy.heal()
    until(step, lambda: any(name in line and "is no longer retried" in line for line in said.lines), said)
    begun = [line for line in said.lines if name in line and " is retried for " in line]
    assert len(begun) == 1, "once"


def until(step: Callable[[], Any], condition: Callable[[], bool], said: Said) -> None:
    """Run a client until a line is logged."""
    for _ in range(500):
        if condition():
            return
        step()
        said.changed.wait(0.02)
        said.changed.clear()
    raise AssertionError(said.lines)
