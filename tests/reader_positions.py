"""The base of in-memory Readers: their partitions and positions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping

from penstock.clients.throttle import Health
from penstock.topology.records import TopicPartition


class ReaderPositions:
    """The part of a Reader that stepped threads and the simulation share.

    positions: the next offset of each partition; told_end: the end offsets that were already reported. woken: whether
    wake() was called.
    """

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.told_end: dict[TopicPartition, int] = {}
        self.woken = threading.Event()

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        assert not offsets.keys() & self.positions.keys(), f"some of {offsets} are assigned already"
        self.positions |= offsets

    def set_epochs(self, epochs: Mapping[TopicPartition, int]) -> None:
        pass

    def epoch_before(self, partition: TopicPartition, offset: int) -> int:
        return -1

    def topic_id(self, partition: TopicPartition) -> bytes | None:
        return None

    def health(self) -> Health:
        return Health()

    def throttled_ago_ms(self, partition: TopicPartition) -> float | None:
        return None

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        self.resume(partitions)
        for partition in partitions:
            del self.positions[partition]
            self.told_end.pop(partition, None)

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        self.paused.update(partitions)

    def watch(self, descriptor: int, serve: Callable[[], bool]) -> None:
        self.serve = serve  # fetch() does not wait, so it need not call it

    def wake(self) -> None:
        self.woken.set()  # fetch() does not block, so it need not check

    def resume(self, partitions: Collection[TopicPartition]) -> None:
        self.paused.difference_update(partitions)
