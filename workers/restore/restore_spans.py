"""OpenTelemetry spans for restores of stores."""

from __future__ import annotations

from typing_extensions import override

from penstock.topology.records import TopicPartition

from ..metrics.spans import Attributes, Spans
from .listeners import StateRestoreListener


class RestoreSpans(StateRestoreListener):
    """Records the spans, and forwards the calls to another listener. A store that is up to date when opened has no
    span.
    """

    def __init__(self, spans: Spans, listener: StateRestoreListener) -> None:
        self._spans = spans
        self._listener = listener
        self._began: dict[TopicPartition, tuple[int, int]] = {}

    @override
    def on_restore_start(self, partition: TopicPartition, store: str, starting_offset: int, ending_offset: int) -> None:
        self._began[partition] = self._spans.began(), ending_offset - starting_offset
        self._listener.on_restore_start(partition, store, starting_offset, ending_offset)

    @override
    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        self._listener.on_batch_restored(partition, store, batch_end_offset, restored)

    @override
    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        self._end(partition, store, total_restored, suspended=False)
        self._listener.on_restore_end(partition, store, total_restored)

    @override
    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        self._end(partition, store, total_restored, suspended=True)
        self._listener.on_restore_suspended(partition, store, total_restored)

    def _end(self, partition: TopicPartition, store: str, restored: int, suspended: bool) -> None:
        began, offsets = self._began.pop(partition)
        if not offsets:
            return
        attributes: Attributes = {
            "messaging.destination.name": partition.topic,
            "messaging.destination.partition.id": str(partition.partition),
            "kafka.streams.store": store,
            "kafka.streams.restore.records": restored,
            "kafka.streams.restore.suspended": suspended,
        }
        self._spans.record("restore", began, attributes)
