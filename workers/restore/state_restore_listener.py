"""How a user's code can watch restores (Kafka Streams: StateRestoreListener; KIP-167, KIP-869)."""

from __future__ import annotations

from penstock.topology.records import TopicPartition


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
