from collections.abc import Callable, Collection
from typing import Any, final

from penstock.kernel.sinks import RecordTaker

#: Names and values may be text, which is encoded as UTF-8.
_GivenHeaders = Collection[tuple[bytes | str, bytes | str | None]] | None

NO_HEADERS: bytes

@final
class ProducerBatch:
    created_ms: int
    stamp: Any  # the sender's own object
    is_uncertain: bool
    @property
    def count(self) -> int: ...
    @property
    def sources(self) -> list[Any] | None: ...
    @property
    def size(self) -> int: ...
    @property
    def packed_size(self) -> int: ...
    def add(
        self,
        key: bytes | None,
        value: bytes | None,
        timestamp: int,
        headers: _GivenHeaders,
        source: object = None,
    ) -> None: ...
    def pack(self, compression_type: str) -> None: ...
    def sealed(self, producer_id: int, epoch: int, sequence: int, in_transaction: bool) -> bytes: ...

@final
class PartitionRecords:
    queue: Any  # the sender's own object
    @property
    def index(self) -> int: ...
    @property
    def growing(self) -> ProducerBatch | None: ...
    @property
    def number(self) -> int: ...
    @property
    def topic(self) -> str: ...
    def close(self) -> ProducerBatch | None: ...

@final
class TopicRecords: ...

@final
class RecordAccumulator(RecordTaker):
    @property
    def begun(self) -> list[PartitionRecords]: ...
    def __init__(
        self,
        batch_bytes: int,
        record_bytes: int,
        on_full: Callable[[PartitionRecords], None],
        now_ms: Callable[[], int],
        seed: int = 0,
    ) -> None: ...
    def know(self, topic: str, count: int) -> list[PartitionRecords]: ...
    def partition_count(self, topic: str) -> int: ...
    def offer(
        self,
        topic: str,
        partition: int,
        key: bytes | str | None,
        value: bytes | None,
        timestamp: int | None,
        headers: _GivenHeaders,
        source: object = None,
    ) -> bool: ...
