"""The topics of an application and its branch, on the brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ConfigSource

from penstock.cli.topics import LOOK_SECONDS, READY_SECONDS, TIMEOUT_SECONDS, Topics
from penstock.clients.cluster.admin import answered
from penstock.clients.cluster.offsets import LATEST
from penstock.clients.cluster.topics import TopicDescription
from penstock.supervisor.queries.changelog_tail import ChangelogClients
from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.errors import BrokerUnavailableError, StreamsError
from penstock.topology.records import TopicPartition
from penstock.workers.thread.client_supplier import KafkaClientSupplier

REQUEST_MS = 10_000
#: Between two looks whether the markers of transactions have arrived, in seconds.
MARKER_SECONDS = 0.002


class BranchBrokers:
    """Describes and creates topics, and asks for offsets. A context manager that closes its client."""

    def __init__(self, config: StreamsConfig, clients: ChangelogClients) -> None:
        self._topics = Topics(config)
        self._librdkafka: AdminClient = KafkaClientSupplier(config).get_admin_client(f"{clients.client_id}-admin")
        self._admin = clients.admin()

    def close(self) -> None:
        """Close the client."""
        self._admin.close()

    def describe(self, topics: Collection[str]) -> Mapping[str, TopicDescription]:
        """Return those of the topics that exist."""
        with answered("The topics cannot be described"):
            return self._admin.describe(topics, REQUEST_MS).topics

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """Return the partitions of those of the topics that exist, by topic and number."""
        described = self.describe(topics) if topics else {}
        return [TopicPartition(topic, n) for topic in sorted(described) for n in sorted(described[topic].partitions)]

    # -- offsets

    def offsets(
        self, partitions: Collection[TopicPartition], at: int, committed_only: bool = False
    ) -> dict[TopicPartition, int]:
        """Return EARLIEST or LATEST of partitions. committed_only: LATEST is the last stable offset."""
        with answered("The offsets of topics cannot be read"):
            asked = self._admin.offsets(dict.fromkeys(partitions, at), REQUEST_MS, committed_only)
            return {partition: future.result(2 * REQUEST_MS / 1000) for partition, future in asked.items()}

    def settled_ends(
        self, partitions: Collection[TopicPartition], in_time: Callable[[], bool]
    ) -> dict[TopicPartition, int] | None:
        """Return the ends of partitions without open transactions; None if the time is over before.

        A transaction has ended for its producer before its markers are in all partitions: wait for them.
        """
        pace = threading.Event()
        while in_time():
            ends = self.offsets(partitions, LATEST)
            if self.offsets(partitions, LATEST, committed_only=True) == ends:
                return ends
            pace.wait(MARKER_SECONDS)
        return None

    # -- changes

    def create_like(self, topics: Mapping[str, str]) -> None:
        """Create topics with the partitions, replicas and own settings of others. topics: the new names by the others'.

        Raises StreamsError if one exists, or is still being deleted after READY_SECONDS.
        """
        described, settings = self.describe(topics.keys()), self._settings(topics.keys())
        for topic, new in topics.items():
            partitions = described[topic].partitions
            replicas = min(len(partition.replicas) for partition in partitions.values())
            self._create(new, len(partitions), replicas, settings[topic])

    def _create(self, topic: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> None:
        deadline, pace = time.monotonic() + READY_SECONDS, threading.Event()
        while not self._topics.create([topic], partitions, replicas, settings)[topic]:
            if time.monotonic() > deadline:
                raise StreamsError(f"The topic {topic} exists already. Choose another name, or delete it")
            pace.wait(LOOK_SECONDS)  # its deletion may not have ended

    def _settings(self, topics: Collection[str]) -> dict[str, dict[str, str]]:
        """Return the settings of topics that differ from the defaults of the brokers."""
        if not topics:
            return {}
        asked = self._librdkafka.describe_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics], request_timeout=TIMEOUT_SECONDS
        )
        return {resource.name: _own(self._answer(resource.name, future)) for resource, future in asked.items()}

    def _answer(self, topic: str, future: Any) -> Any:
        try:
            return future.result(TIMEOUT_SECONDS)
        except KafkaException as error:
            raise BrokerUnavailableError(
                f"The settings of the topic {topic} cannot be read: {error.args[0].str()}. Check that the brokers run"
            ) from error


def _own(entries: Mapping[str, Any]) -> dict[str, str]:
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG
    return {
        name: entry.value
        for name, entry in entries.items()
        if entry.source in (own, own.value) and entry.value is not None
    }
