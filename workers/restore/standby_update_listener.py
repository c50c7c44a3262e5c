"""How a user's code can watch standby tasks (Kafka Streams: StandbyUpdateListener; KIP-988)."""

from __future__ import annotations

from enum import Enum

from penstock.topology.records import TaskId, TopicPartition


class SuspendReason(Enum):
    """Why a standby task stops to follow a changelog (Kafka Streams: StandbyUpdateListener.SuspendReason).

    MIGRATED: it left this thread, to another one or for good. PROMOTED: it continues here as the active task.
    """

    MIGRATED = "MIGRATED"
    PROMOTED = "PROMOTED"


class StandbyUpdateListener:
    """Override what is of interest. See KafkaStreams.set_standby_update_listener for its caller and time.

    end_offset: where the changelog ended when the last record was fetched, None if that is not known yet.
    """

    def on_update_start(self, partition: TopicPartition, store: str, starting_offset: int) -> None:
        """A standby task begins to follow a changelog, from this offset."""

    def on_batch_loaded(
        self,
        partition: TopicPartition,
        store: str,
        task_id: TaskId,
        batch_end_offset: int,
        batch_size: int,
        end_offset: int | None,
    ) -> None:
        """A batch was applied. batch_end_offset: the offset behind it; batch_size: its number of records."""

    def on_update_suspended(
        self, partition: TopicPartition, store: str, store_offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        """The standby task follows no longer. store_offset: up to which offset its store is."""
