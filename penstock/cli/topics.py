"""The topics of a cluster: create, list, read, write. No application is involved."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import click
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import NewTopic

from penstock.clients.connection.listener_probe import security_mismatch
from penstock.clients.errors import ClientError
from penstock.clients.librdkafka import as_writer
from penstock.clients.writing.writer import BY_KEY, Lost, Writer
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import BrokerUnavailableError, MissingSourceTopicError, StreamsError
from penstock.topology.records import TopicPartition as Partition
from penstock.workers.queries.record_lines import Record
from penstock.workers.tasks.partition_offsets import OFFSET_BEGINNING, PartitionOffsets
from penstock.workers.thread.client_supplier import KafkaClientSupplier

#: Time limit for one response from the brokers.
TIMEOUT_SECONDS = 10.0
#: Time limit for all partitions of a new topic to have a leader, and for a reader without any response.
READY_SECONDS = 30.0
#: Time limit until a broker knows a topic that another program has just created.
HEARD_SECONDS = 3.0
#: How long a reader waits for a record before it checks is_wanted().
IDLE_SECONDS = 0.2
LOOK_SECONDS = 0.05
_CLIENT_ID = "penstock-topic"
_CLIENTS = ("admin.", "consumer.")


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A topic in a list. records: from the first to the last offset, None while a partition has no leader."""

    topic: str
    partitions: int
    replicas: int
    records: int | None


class Topics:
    """The topics of the cluster that a configuration names.

    Raises ConfigError without ``bootstrap.servers`` and for settings that librdkafka refuses. All methods raise
    BrokerUnavailableError if no broker answers; the message names the brokers and the last failed connection.
    """

    def __init__(self, config: StreamsConfig) -> None:
        config.require("bootstrap.servers")
        self.servers: str = config["bootstrap.servers"]
        self._security_protocol: str = config["security.protocol"]
        self._failure = ""
        own: dict[str, object] = {"application.id": config["application.id"] or _CLIENT_ID}
        own |= {"isolation.level": "read_committed"}
        # librdkafka logs connections several times a second; error_cb reports each failure once.
        own |= {f"{client}{name}": value for client in _CLIENTS for name, value in self._reporting().items()}
        self._supplier = KafkaClientSupplier(config.with_overrides(own))

    def _reporting(self) -> Mapping[str, object]:
        return {"error_cb": self._on_error, "log_level": 2}

    def _on_error(self, error: KafkaError) -> None:
        """Print on stderr that a connection failed, once per reason; librdkafka keeps trying."""
        reason = error.str().partition(" (after ")[0]  # the rest is the elapsed time, which differs each time
        if error.code() != KafkaError._ALL_BROKERS_DOWN and reason != self._failure:
            self._failure = reason
            click.echo(f"Warning: {reason}", err=True)

    # -- create, list

    def create(
        self, names: Collection[str], partitions: int | None, replication: int | None, config: Mapping[str, str]
    ) -> dict[str, bool]:
        """Create topics and wait until they can be used; return the new ones.

        partitions, replication: None leaves it to the brokers. Raises StreamsError with the broker's reason.
        """
        admin = self._admin()
        self._metadata(admin)
        wanted = [NewTopic(name, partitions or -1, replication or -1, config=dict(config)) for name in names]
        created = {}
        for name, future in admin.create_topics(wanted, request_timeout=TIMEOUT_SECONDS).items():
            try:
                future.result()
                created[name] = True
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise self._refused(f"cannot create the topic {name}", error) from error
                created[name] = False
        ready = self._ready(admin, names, READY_SECONDS)
        if missing := set(names) - ready.keys():
            raise BrokerUnavailableError(
                f"{', '.join(sorted(missing))}: created on {self.servers}, but not all partitions have a leader after "
                f"{READY_SECONDS:.0f} s. Do all brokers run?"
            )
        # Leaders are shown before they serve a topic, and would refuse the first records of a writer.
        self._offsets_at(
            [Partition(name, number) for name in names for number in ready[name].partitions], OFFSET_BEGINNING
        )
        return created

    def list(self, internal: bool = False) -> list[TopicSummary]:
        """Return all topics by name; internal: Kafka's own too, whose names begin with ``__``."""
        admin = self._admin()
        found = self._metadata(admin)
        shown = {name: topic for name, topic in sorted(found.items()) if internal or not name.startswith("__")}
        partitions = [TopicPartition(name, number) for name, topic in shown.items() for number in topic.partitions]
        first = self._offsets(admin, partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
        last = self._offsets(admin, partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        summaries = []
        for name, topic in shown.items():
            ends = [(first.get((name, number)), last.get((name, number))) for number in topic.partitions]
            counts = [end - begin for begin, end in ends if begin is not None and end is not None]
            replicas = min((len(partition.replicas) for partition in topic.partitions.values()), default=0)
            records = sum(counts) if len(counts) == len(ends) else None
            summaries.append(TopicSummary(name, len(topic.partitions), replicas, records))
        return summaries

    def _offsets(
        self, admin: AdminClient, partitions: Collection[TopicPartition], spec: OffsetSpec
    ) -> dict[tuple[str, int], int]:
        """Return the first or last offsets, without those of partitions that have no leader now."""
        offsets = {}
        if partitions:
            asked = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=TIMEOUT_SECONDS)
            for partition, future in asked.items():
                with suppress(KafkaException):
                    offsets[partition.topic, partition.partition] = future.result().offset
        return offsets

    # -- read, write

    def read(
        self, topic: str, *, since_ms: int | None = None, is_wanted: Callable[[], bool] | None = None
    ) -> Generator[Message, None, None]:
        """Yield the committed records of a topic: see read_records. Raises MissingSourceTopicError, StreamsError."""
        consumer = self._supplier.command_consumer(_CLIENT_ID)
        try:
            partitions = [Partition(topic, number) for number in self._require(consumer, topic)]
            starts = {} if since_ms is None else self._offsets_at(partitions, since_ms)
            yield from read_records(consumer, topic, starts, is_wanted)
        except KafkaException as error:
            raise self._refused(f"cannot read the topic {topic}", error) from error
        finally:
            consumer.close()

    def writer(self, topic: str) -> TopicWriter:
        """Return a writer for a topic. Raises MissingSourceTopicError."""
        self._require(self._admin(), topic)
        return TopicWriter(as_writer(self._supplier.get_producer(_CLIENT_ID)), topic, self.servers)

    # -- the brokers

    def _admin(self) -> AdminClient:
        return self._supplier.get_admin_client(_CLIENT_ID)

    def _require(self, client: AdminClient | Consumer, topic: str) -> Collection[int]:
        """Return the partitions of a topic. Raises MissingSourceTopicError."""
        found = self._ready(client, (topic,), HEARD_SECONDS).get(topic)
        if found is None:
            raise MissingSourceTopicError(
                f"There is no topic {topic} on {self.servers}: `penstock topic list` lists the existing ones, "
                f"`penstock topic create {topic}` creates it."
            )
        partitions: Collection[int] = found.partitions
        return partitions

    def _offsets_at(self, partitions: Collection[Partition], timestamp: int) -> Mapping[Partition, int]:
        """Return the first offsets at or after a timestamp, once all leaders serve their partitions."""
        with closing(self._supplier.get_admin(_CLIENT_ID)) as leaders:
            offsets = PartitionOffsets(leaders, committed_only=False)
            return offsets.offsets_at(dict.fromkeys(partitions, timestamp), READY_SECONDS)

    def _ready(self, client: AdminClient | Consumer, names: Collection[str], seconds: float) -> Mapping[str, Any]:
        """Return the metadata of topics whose partitions have leaders; waits up to this time (s) for all of these.

        The controller knows a topic first.
        """
        deadline, pace = time.monotonic() + seconds, threading.Event()
        while True:
            found = self._metadata(client).items()
            ready = {name: topic for name, topic in found if all(p.leader >= 0 for p in topic.partitions.values())}
            if ready.keys() >= set(names) or time.monotonic() > deadline:
                return ready
            pace.wait(LOOK_SECONDS)

    def _metadata(self, client: AdminClient | Consumer) -> Mapping[str, Any]:
        try:
            topics: Mapping[str, object] = client.list_topics(timeout=TIMEOUT_SECONDS).topics
            return topics
        except KafkaException as error:
            client.poll(0)  # passes connection errors to _on_error
            wrong = security_mismatch(self.servers, self._security_protocol)
            advice = wrong or (
                "Check bootstrap.servers and the security settings; `penstock broker status` says where a broker for "
                "development runs"
            )
            raise BrokerUnavailableError(
                f"No broker of {self.servers} has answered within {TIMEOUT_SECONDS:.0f} s ({error.args[0].str()}). "
                f"{advice}."
            ) from error

    def _refused(self, what: str, error: KafkaException) -> StreamsError:
        return StreamsError(f"{self.servers} {what}: {error.args[0].str()}.")


class TopicWriter:
    """Writes records to one topic, partitioned as Java's producer does, by the runtime's own writer."""

    def __init__(self, writer: Writer, topic: str, servers: str) -> None:
        self._writer = writer
        self._topic = topic
        self._servers = servers
        self._accepted = 0
        self._lost: list[Lost] = []

    @property
    def written(self) -> int:
        """The number of records that the brokers have confirmed, as of the last flush."""
        return self._accepted - len(self._lost)

    def write(self, record: Record) -> None:
        """Enqueue a record. Raises StreamsError if the brokers have refused an earlier one."""
        self._writer.poll()
        self.check()
        try:
            self._writer.produce(
                self._topic, record.key, record.value, BY_KEY, record.timestamp, record.headers or None
            )
        except ClientError as error:  # e.g. larger than message.max.bytes
            raise self._refused(error) from error
        self._accepted += 1

    def check(self) -> None:
        """Raise StreamsError if a record was refused so far."""
        self._lost += self._writer.take_lost()
        if self._lost:
            raise self._refused(self._lost[0].error)

    def _refused(self, error: ClientError) -> StreamsError:
        return StreamsError(f"{self._servers} refused a record for {self._topic}: {error}.")

    def flush(self) -> None:
        """Wait until the brokers have confirmed or refused everything; delivery.timeout.ms bounds it."""
        while not self._writer.flush(IDLE_SECONDS):  # in steps, so that Ctrl-C is noticed
            pass
        self._lost += self._writer.take_lost()

    def close(self) -> None:
        """Close the connections."""
        self._writer.close()


def read_records(
    consumer: Consumer,
    topic: str,
    starts: Mapping[Partition, int] = MappingProxyType({}),
    is_wanted: Callable[[], bool] | None = None,
) -> Iterator[Message]:
    """Yield the committed records of a topic up to the current end of its partitions, or as long as is_wanted().

    consumer: one of a KafkaClientSupplier, which reports the end of a partition. starts: the first offsets; by default
    all is read. Raises KafkaException, and BrokerUnavailableError if it stalls before the end.
    """
    unread = {*consumer.list_topics(topic, TIMEOUT_SECONDS).topics[topic].partitions}
    places = (Partition(topic, number) for number in unread)
    consumer.assign([TopicPartition(*place, starts.get(place, OFFSET_BEGINNING)) for place in places])
    heard = time.monotonic()
    while unread or (is_wanted is not None and is_wanted()):
        message = consumer.poll(IDLE_SECONDS)
        if message is None:
            if is_wanted is None and time.monotonic() - heard > READY_SECONDS:
                raise BrokerUnavailableError(f"No response from {topic} within {READY_SECONDS:.0f} s.")
            continue
        heard = time.monotonic()
        error = message.error()
        if error is None:
            yield message
        elif error.code() == KafkaError._PARTITION_EOF:
            unread.discard(message.partition() or 0)
        else:
            raise KafkaException(error)
