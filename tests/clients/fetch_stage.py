"""Brokers that a test plays for a Fetcher: it reads the requests and chooses the responses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import FetchRequest

from penstock.clients.cluster.brokers import Leader
from penstock.clients.errors import BrokerError
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.reading.fetch_settings import FetchSettings
from penstock.clients.reading.fetcher import Fetcher
from penstock.clients.reading.reader import ReaderEvent
from penstock.clients.served_clock import STEP_MS
from penstock.topology.records import TopicPartition
from tests.clients.played_brokers import PlayedBrokers
from tests.manual_clock import ManualClock
from tests.record_bytes import TOPIC_ID, Given, GivenAnswer, GivenBatch, GivenResponse, encoded_log, encoded_response

IN_0, IN_1 = TopicPartition("in", 0), TopicPartition("in", 1)
LOG = PrefixedLogger("penstock.test", "")


class Request:
    """A received request. asked: by partition, with fetch_offset, current_leader_epoch, last_fetched_epoch.

    Topic ids are replaced by names.
    """

    def __init__(self, data: bytes, names: Mapping[UUID, str]) -> None:
        self.size = len(data)
        self.version = int.from_bytes(data[2:4], "big")
        self.fields = FetchRequest.decode(data, version=self.version, header=True)
        self.correlation_id: int = self.fields.header.correlation_id
        by_id = self.version >= 13
        self.asked: dict[TopicPartition, Any] = {
            TopicPartition(names[topic.topic_id] if by_id else topic.topic, partition.partition): partition
            for topic in self.fields.topics
            for partition in topic.partitions
        }
        self.forgotten = {
            TopicPartition(names[topic.topic_id] if by_id else topic.topic, number)
            for topic in self.fields.forgotten_topics_data
            for number in topic.partitions
        }

    @property
    def session(self) -> tuple[int, int]:
        """Return the session's id and epoch."""
        return self.fields.session_id, self.fields.session_epoch

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Return the requested offset of each partition."""
        return {partition: asked.fetch_offset for partition, asked in self.asked.items()}


class FetchedBrokers(PlayedBrokers):
    """Brokers that receive Fetch requests. names: of all topics that ever existed, by id."""

    def __init__(self, leaders: Mapping[TopicPartition, Leader]) -> None:
        super().__init__(leaders)
        self.names = {TOPIC_ID: "in"}

    def request(self, node: int = 1) -> Request:
        """Return the request that a broker has received."""
        return Request(self.received(node), self.names)

    def reply(self, request: Request, *answers: GivenAnswer, node: int = 1, **response: Any) -> None:
        """Respond to a request."""
        given = GivenResponse(list(answers), **response)
        self.say(encoded_response(given, request.correlation_id, request.version), node)


def shown(event: ReaderEvent) -> tuple[str | None, int | None, int, Any]:
    """Return topic, partition, offset and the error of an event: None, the broker's code, or the class."""
    error = event.error
    told = error.code if isinstance(error, BrokerError) else error and type(error)
    topic, partition = event.partition or (None, None)
    return topic, partition, event.offset, told


class FetchStage:
    """A Fetcher, the brokers it reads from, and its clock."""

    def __init__(self, leaders: Mapping[TopicPartition, Leader], **settings: Any) -> None:
        self.clock = ManualClock()
        self.brokers = FetchedBrokers(leaders)
        self.settings = FetchSettings(max_wait_ms=100, queue_backoff_ms=10, check_crcs=True, **settings)
        self.fetcher = Fetcher(self.brokers, self.settings, self.clock, LOG)

    def fetch(self, limit: int = 1_000) -> tuple[dict[TopicPartition, list[int]], list[tuple[Any, ...]]]:
        """Return offsets by partition, and shown() of the events; does not block."""
        records, events = self.fetcher.fetch(limit, 0)
        offsets = {partition: [message.offset() for message in run] for partition, run in records.items()}
        return offsets, [shown(event) for event in events]

    def run(self, ms: int = 0) -> Any:
        """Advance the clock, and run the fetcher until it is idle: opening a connection takes three steps."""
        found: Any = ({}, [])
        for step in (*[STEP_MS] * (ms // STEP_MS), ms % STEP_MS, 0, 0):
            self.clock.advance(step)
            records, events = self.fetch()
            found = ({**found[0], **records}, [*found[1], *events])
        return found


def two_partitions() -> Iterator[FetchStage]:
    """A stage for a fixture: two partitions that broker 1 leads."""
    made = FetchStage({IN_0: Leader(1, 5), IN_1: Leader(1, 6)}, read_committed=False)
    yield made
    made.fetcher.close()


def log_of(count: int, base_offset: int = 0, **batch: Any) -> bytes:
    """Return this many records in one batch."""
    return encoded_log([GivenBatch([Given(b"k%d" % n) for n in range(count)], **batch)], base_offset)
