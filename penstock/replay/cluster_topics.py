"""The topics of the application's cluster, which a replay only reads."""

from __future__ import annotations

import time
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as ClientPartition

from penstock.clients.cluster.admin import answered, results
from penstock.clients.cluster.offsets import EARLIEST, LATEST
from penstock.clients.cluster.topics import NO_ID
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import BrokerUnavailableError
from penstock.topology.records import Message, TopicPartition
from penstock.workers.thread.client_supplier import KafkaClientSupplier

#: Time limit of each request to the brokers, in ms.
TIMEOUT_MS = 30_000
#: A reader without any response for this long has failed, in seconds.
SILENCE_SECONDS = 30.0
#: Records that are read at a time, and how long a read waits for them, in seconds.
RECORDS_AT_ONCE, WAIT_SECONDS = 1_000, 0.2


@dataclass(frozen=True, slots=True)
class Bounds:
    """first: the oldest offset of a partition that can be read; end: the one after the newest committed record."""

    first: int
    end: int


class ClusterTopics:
    """counts, ids: of all topics, by name; an id is in hex. close() ends its connections.

    Raises ConfigError for settings that a client refuses, BrokerUnavailableError if no broker answers.
    """

    def __init__(self, config: StreamsConfig) -> None:
        config.require("application.id", "bootstrap.servers")
        self._servers: str = config["bootstrap.servers"]
        self._client_id = f"{config['application.id']}-replay"
        self._committed_only = config["isolation.level"] == "read_committed"
        self._supplier = KafkaClientSupplier(config)
        self._admin = self._supplier.get_admin(self._client_id)
        try:
            with answered(f"The brokers at {self._servers} did not describe their topics"):
                found = self._admin.describe(None, TIMEOUT_MS)
        except BaseException:
            self._admin.close()
            raise
        self.counts: Mapping[str, int] = found.partition_counts
        self.ids: Mapping[str, str] = {
            name: topic.id.hex() for name, topic in found.topics.items() if topic.id != NO_ID
        }

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()

    def bounds(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the offsets that partitions have now. Raises BrokerUnavailableError, StreamsError."""
        with answered(f"The brokers at {self._servers} did not list the offsets of the input"):
            firsts = results(self._admin.offsets(dict.fromkeys(partitions, EARLIEST), TIMEOUT_MS), TIMEOUT_MS)
            asked = self._admin.offsets(dict.fromkeys(partitions, LATEST), TIMEOUT_MS, self._committed_only)
            ends = results(asked, TIMEOUT_MS)
        return {partition: Bounds(firsts[partition], ends[partition]) for partition in partitions}

    def records(self, partition: TopicPartition, start: int, end: int) -> Generator[Sequence[Message], None, None]:
        """Yield the records from an offset up to end (exclusive) in batches; close the generator or exhaust it.

        Raises BrokerUnavailableError if the brokers stop to answer, or refuse the read.
        """
        if start >= end:
            return
        consumer = self._supplier.command_consumer(self._client_id)
        try:
            consumer.assign([ClientPartition(*partition, start)])
            heard, ended = time.monotonic(), False
            while not ended:
                found = cast("list[Message]", consumer.consume(RECORDS_AT_ONCE, WAIT_SECONDS))
                if found:
                    heard = time.monotonic()
                elif time.monotonic() - heard > SILENCE_SECONDS:
                    raise BrokerUnavailableError(
                        f"The brokers at {self._servers} have not answered for {SILENCE_SECONDS:.0f} s while "
                        f"{partition} was read."
                    )
                records = [message for message in found if self._is_record(message, partition)]
                ended = len(records) < len(found) or any(message.offset() >= end - 1 for message in records)
                batch = [message for message in records if message.offset() < end]
                if batch:
                    yield batch
        finally:
            consumer.close()

    def _is_record(self, message: Any, partition: TopicPartition) -> bool:
        """Return False for the end of the partition; raises BrokerUnavailableError for an error."""
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            raise BrokerUnavailableError(
                f"The brokers at {self._servers} refuse to read {partition}: {error.str()}."
            ) from KafkaException(error)
        return error is None
