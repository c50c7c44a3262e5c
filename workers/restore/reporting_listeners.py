"""Listeners in a stream thread's process that forward each call to the supervisor, where the user's listeners run."""

from __future__ import annotations

from typing import ClassVar

from typing_extensions import override

from penstock.topology.records import TaskId, TopicPartition

from ..control.messages import ListenerCall, ThreadControl
from .listeners import StandbyUpdateListener, StateRestoreListener, SuspendReason


class _Reporting:
    #: The supervisor's name for the user's listener.
    listener: ClassVar[str]

    def __init__(self, control: ThreadControl) -> None:
        self._control = control

    def _report(self, method: str, *arguments: object) -> None:
        self._control.report(ListenerCall(self.listener, method, arguments))


class ReportingRestoreListener(_Reporting, StateRestoreListener):
    """Reports the calls for the user's StateRestoreListener."""

    listener = "restore"

    @override
    def on_restore_start(self, partition: TopicPartition, store: str, starting_offset: int, ending_offset: int) -> None:
        self._report("on_restore_start", partition, store, starting_offset, ending_offset)

    @override
    def on_batch_restored(self, partition: TopicPartition, store: str, batch_end_offset: int, restored: int) -> None:
        self._report("on_batch_restored", partition, store, batch_end_offset, restored)

    @override
    def on_restore_end(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        self._report("on_restore_end", partition, store, total_restored)

    @override
    def on_restore_suspended(self, partition: TopicPartition, store: str, total_restored: int) -> None:
        self._report("on_restore_suspended", partition, store, total_restored)


class ReportingUpdateListener(_Reporting, StandbyUpdateListener):
    """Reports the calls for the user's StandbyUpdateListener."""

    listener = "standby"

    @override
    def on_update_start(self, partition: TopicPartition, store: str, starting_offset: int) -> None:
        self._report("on_update_start", partition, store, starting_offset)

    @override
    def on_batch_loaded(
        self,
        partition: TopicPartition,
        store: str,
        task_id: TaskId,
        batch_end_offset: int,
        batch_size: int,
        end_offset: int | None,
    ) -> None:
        self._report("on_batch_loaded", partition, store, task_id, batch_end_offset, batch_size, end_offset)

    @override
    def on_update_suspended(
        self, partition: TopicPartition, store: str, store_offset: int, end_offset: int | None, reason: SuspendReason
    ) -> None:
        self._report("on_update_suspended", partition, store, store_offset, end_offset, reason)
