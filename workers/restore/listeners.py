"""The user's listeners for restores and standby tasks (Kafka Streams; KIP-167, KIP-869, KIP-988)."""

from __future__ import annotations

from enum import Enum

from penstock.topology.records import TaskId, TopicPartition


class StateRestoreListener:
    """Override methods as needed. KafkaStreams.set_global_state_restore_listener describes where and when they are
    called.

    partition: of the changelog; store: the name of the restored store.
    """

    def on_restore_start(self, partition: TopicPartition, store: str, starting_offset: int, ending_offset: int) -> None:
        """The restore of a store starts. It ends before ending_offset."""

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        """A batch was applied. batch_end_offset: the offset after it; restored: its number of records."""

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """The store is up to date."""

    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """The task left this thread before its store was up to date; restored rows stay on disk."""


class SuspendReason(Enum):
    """Why a standby task stops reading a changelog (Kafka Streams: StandbyUpdateListener.SuspendReason).

    MIGRATED: the task left this thread. PROMOTED: it continues here as the active task.
    """

    MIGRATED = "MIGRATED"
    PROMOTED = "PROMOTED"


class StandbyUpdateListener:
    """Override methods as needed. KafkaStreams.set_standby_update_listener describes where and when they are called.

    end_offset: the end of the changelog as of the last fetch, None if it is not known yet.
    """

    def on_update_start(self, partition: TopicPartition, store: str, starting_offset: int) -> None:
        """A standby task starts to read a changelog, from this offset."""

    def on_batch_loaded(
        self,
        partition: TopicPartition,
        store: str,
        task_id: TaskId,
        batch_end_offset: int,
        batch_size: int,
        end_offset: int | None,
    ) -> None:
        """A batch was applied. batch_end_offset: the offset after it; batch_size: its number of records."""

    def on_update_suspended(
        self, partition: TopicPartition, store: str, store_offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        """The standby task stops reading. store_offset: the offset that its store has reached."""
