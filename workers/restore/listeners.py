"""How a user's code can watch restores and standby tasks (KIP-167, KIP-869, KIP-988)."""

from __future__ import annotations

from enum import Enum

from penstock.topology.records import TaskId, TopicPartition


class StateRestoreListener:
    """Override what is of interest. See KafkaStreams.set_global_state_restore_listener for its caller and time.

    partition: of the changelog; store: the name of the store that is restored from it.
    """

    def on_restore_start(self, partition: TopicPartition, store: str, starting_offset: int, ending_offset: int) -> None:
        """Restoring a store begins; it ends at ending_offset, which is not restored any more."""

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        """A batch was applied. batch_end_offset: the offset behind it; restored: its number of records."""

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """The store is up to date."""

    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """The task left this thread before its store was up to date; what was restored stays on disk."""


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
