"""The topics of the application's cluster, which a replay only reads."""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass

from penstock.clients.cluster.admin import answered, results
from penstock.clients.cluster.offsets import EARLIEST, LATEST
from penstock.clients.cluster.topics import NO_ID
from penstock.clients.librdkafka import as_reader
from penstock.clients.log_context import PrefixedLogger
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.records import Message, TopicPartition
from penstock.workers.tasks.partition_consumer import PartitionConsumer
from penstock.workers.tasks.partition_range import read_range
from penstock.workers.thread.client_supplier import KafkaClientSupplier

#: Time limit of each request to the brokers, in ms.
TIMEOUT_MS = 30_000
#: A reader without any response for this long has failed, in seconds.
SILENCE_SECONDS = 30.0


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

        Raises as read_range.
        """
        if start >= end:
            return
        log = PrefixedLogger(__name__, f"[{self._client_id}] ")
        consumer = PartitionConsumer(as_reader(self._supplier.get_consumer(self._client_id)), log)
        yield from read_range(consumer, partition, start, end, SILENCE_SECONDS)
