"""The clients of a stream thread, and what is built from them alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

from penstock.clients.cluster.offsets import LATEST
from penstock.clients.librdkafka import as_reader, as_writer
from penstock.clients.network_settings import limit_ms
from penstock.topology.config.config_keys import EXACTLY_ONCE_V2
from penstock.topology.context.exception_handlers import asks_for_sources
from penstock.topology.records import TopicPartition

from ..group.assignment.changelog_offsets import ChangelogOffsets
from ..stalls.stall_watchdog import END_OFFSETS_TIMEOUT_MS, StallWatchdog
from ..tasks.partition_consumer import PartitionConsumer
from ..tasks.partition_offsets import PartitionOffsets
from ..tasks.record_collector import production_error_handler
from ..tasks.sink_topics import SinkTopics
from ..tasks.streams_producer import StreamsProducer
from .thread_context import ThreadContext

#: Time limit for the group leader's requests of offsets, in ms.
OFFSETS_TIMEOUT_MS = 10_000


class ThreadClients:
    """Creates the clients of a stream thread. Raises ConfigError for settings that a client refuses."""

    def __init__(self, context: ThreadContext) -> None:
        self._context = context
        self._config = context.config
        # The group waits for the leader's requests, and this member sends no heartbeats: two must fit into a session.
        self._leader_timeout_ms = min(OFFSETS_TIMEOUT_MS, self._config["session.timeout.ms"] // 4)
        self.admin = context.supplier.get_admin(f"{context.name}-admin")
        self.offsets_reader = context.supplier.get_offsets_reader(f"{context.name}-offsets", self._leader_timeout_ms)
        self.offsets = PartitionOffsets(self.admin, context.committed_only)

    def partition_consumer(self, make: Callable[[str], Any], purpose: str) -> PartitionConsumer:
        """Return a new consumer. make: one of the supplier's methods."""
        reader = as_reader(make(f"{self._context.name}-{purpose}"))
        return PartitionConsumer(reader, self._context.logger("partition_consumer"), self.offsets)

    def producer(self, in_doubt: Callable[[], bool]) -> StreamsProducer:
        """Return the thread's producer. in_doubt: whether others may own its tasks."""
        context, config = self._context, self._config
        transactional = config["processing.guarantee"] == EXACTLY_ONCE_V2
        transactional_id = f"{context.application_id}-{context.spec.process_id}-{context.spec.slot}"
        given = transactional_id if transactional else None
        sinks_age_ms = limit_ms(config.of_client("metadata.max.age.ms", "producer."))
        return StreamsProducer(
            lambda: as_writer(context.supplier.get_producer(f"{context.name}-producer", transactional_id=given)),
            context.logger("streams_producer"),
            topics=SinkTopics(self.admin, context.clock, sinks_age_ms),
            transactional=transactional,
            handler=production_error_handler(config),
            keeps_sources=asks_for_sources(config),
            clock=context.clock,
            transaction_timeout_ms=config["transaction.timeout.ms"],
            timeout_ms=config["task.timeout.ms"],
            in_doubt=in_doubt,
        )

    def changelog_offsets(self, timeout_ms: int | None = None) -> ChangelogOffsets:
        """Return what asks for offsets of changelogs. timeout_ms: None for that of a group's leader."""
        return ChangelogOffsets(self.admin, self.offsets_reader, timeout_ms or self._leader_timeout_ms)

    def stall_watchdog(self, consumer: PartitionConsumer) -> StallWatchdog:
        """Return what notices that a consumer's partitions do not get on."""
        return StallWatchdog(
            self._config["penstock.partition.stall.timeout.ms"],
            self._config["penstock.partition.stall.reopen.max"],
            self._ask_ends,
            consumer.throttled_ago_ms,
            self._context.log,
        )

    def _ask_ends(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Future[int]]:
        """Request the end offsets that readers can reach, without blocking."""
        ends = dict.fromkeys(partitions, LATEST)
        return self.admin.offsets(ends, END_OFFSETS_TIMEOUT_MS, self._context.committed_only)
