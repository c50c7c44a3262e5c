"""Stores that users write themselves (Kafka Streams: StateStore, StateStoreContext, StateRestoreCallback)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from ..processor_api import StreamsMetrics
from ..query.state_queries import Query
from ..query.state_query_result import QueryResult
from ..records import HeadersLike, Record, RecordMetadata, TaskId, TopicPartition
from ..serdes.serdes import Serde

R = TypeVar("R")

#: Applies changelog records in order; value None deletes. It may get records that the store has applied before
#: (Kafka Streams: RecordBatchingStateRestoreCallback).
StateRestoreCallback: TypeAlias = Callable[[Sequence[Record[bytes, bytes | None]]], None]
#: Called at each commit of the task, once the group has its offsets.
CommitCallback: TypeAlias = Callable[[], None]


class StateStoreContext(Protocol):
    """The interface of a task for its stores (Kafka Streams: StateStoreContext)."""

    @property
    def application_id(self) -> str:
        """The application's id."""

    @property
    def task_id(self) -> TaskId:
        """The task."""

    @property
    def app_configs(self) -> Mapping[str, Any]:
        """The application's effective configuration."""

    def app_configs_with_prefix(self, prefix: str) -> Mapping[str, Any]:
        """Return the settings whose names begin with a prefix, by the rest of their names."""

    @property
    def key_serde(self) -> Serde:
        """The default serde of keys, ``default.key.serde``; raises ConfigError if there is none."""

    @property
    def value_serde(self) -> Serde:
        """The default serde of values, ``default.value.serde``; raises ConfigError if there is none."""

    @property
    def state_dir(self) -> Path:
        """This store's own directory, created if necessary; it is deleted with the task's state."""

    @property
    def metrics(self) -> StreamsMetrics:
        """The registry for custom metrics."""

    def record_metadata(self) -> RecordMetadata | None:
        """Return topic, partition and offset of the input record; None in a punctuation."""

    def register(self, store: StateStore, restore: StateRestoreCallback, commit: CommitCallback | None = None) -> None:
        """Name the functions that restore the store, and that are called at commits. A logged store must register."""

    def log_change(
        self, key: bytes, value: bytes | None, timestamp: int | None = None, headers: HeadersLike = None
    ) -> None:
        """Write a change to the changelog, None for a deletion. Does nothing if logging is disabled.

        timestamp: in ms, by default that of the record being processed.
        """


class StateStore(ABC):
    """A store of your own: one for each task. Its methods are called in the task's stream thread.

    name: given by the StoreBuilder.
    """

    name: str
    #: Whether it keeps its data in ``context.state_dir``; one in memory is restored from the beginning.
    persistent: bool = False
    #: True from after init() until close().
    is_open: bool = False
    #: Names of its methods that KafkaStreams.store and KafkaStreams.query may call.
    reads: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def init(self, context: StateStoreContext, root: StateStore) -> None:
        """Open the store, and call ``context.register``. root: the store itself."""

    def flush(self) -> None:  # noqa: B027  most stores log their changes at once
        """Log the changes that wait in memory. Called before each commit, sometimes twice."""

    def commit(self, changelog_offsets: Mapping[TopicPartition, int]) -> None:  # noqa: B027  nothing to do in memory
        """Write all changes and these offsets (the next to read) to disk, atomically (KIP-1035).

        Called when the changes are acknowledged and the group has the offsets of their input, but not at each commit.
        A store without a changelog gets an empty mapping.
        """

    def committed_offset(self, partition: TopicPartition) -> int | None:
        """Return the offset of the last commit() that is on disk, None for none.

        With None, the store's directory is emptied, and its changelog read from the beginning.
        """
        return None

    def approximate_num_uncommitted_bytes(self) -> int:
        """Return about how many bytes of memory the changes since the last commit take (KIP-892); by default 0.

        Asked after each batch of records. If they take more than a store's part of ``penstock.memory.bytes``, the task
        commits early.
        """
        return 0

    def query(self, query: Query[R]) -> QueryResult[R]:
        """Return the answer to a query of interactive queries v2 (KIP-796), by default that its type is unknown.

        Called for KafkaStreams.state_query; the position is added by the task.
        """
        return QueryResult.for_unknown_query_type(query, self.name)

    def close(self) -> None:  # noqa: B027  most have nothing to release
        """Release what the store holds. Writes nothing: what was not committed is dropped."""
