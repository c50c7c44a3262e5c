"""How a user's code can watch restores (Kafka Streams: StateRestoreListener; KIP-167, KIP-869)."""

from __future__ import annotations

from penstock.topology.records import TopicPartition


class StateRestoreListener:
    """Override what is of interest; each call comes from the stream thread's own loop, so that it should be quick."""

    def on_restore_start(self, partition: TopicPartition, store: str, starting_offset: int, ending_offset: int) -> None:
        """Restoring a store begins."""

    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        """A batch was applied. batch_end_offset: the offset behind it; restored: its number of records."""

    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """The store is up to date."""

    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        """The task left this thread before its store was up to date."""
