"""The user's listener for restores (Kafka Streams: StateRestoreListener; KIP-167, KIP-869)."""

from __future__ import annotations

from penstock.topology.records import TopicPartition


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
