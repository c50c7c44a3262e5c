"""A request of interactive queries v2 (KIP-796; Kafka Streams: StateQueryRequest)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Generic, NamedTuple, Self

from ..type_variables import R
from .isolation_level import IsolationLevel
from .position import PositionBound
from .state_queries import Query


class InStore(NamedTuple):
    """The first half of a request: its store."""

    store_name: str

    def with_query(self, query: Query[R]) -> StateQueryRequest[R]:
        """Return the request of a query to all partitions of the store on this host."""
        return StateQueryRequest(self.store_name, query)


@dataclass(frozen=True)
class StateQueryRequest(Generic[R]):
    """A query, and the partitions of a store that are to answer it; methods return a changed copy.

    partitions: None for all on this host. isolation_level: None for ``default.interactive.query.isolation.level``.
    """

    store_name: str
    query: Query[R]
    position_bound: PositionBound = PositionBound()  # noqa: RUF009  a value
    partitions: frozenset[int] | None = None
    is_require_active: bool = False
    execution_info_enabled: bool = False
    isolation_level: IsolationLevel | None = None

    @staticmethod
    def in_store(name: str) -> InStore:
        """Begin a request: ``StateQueryRequest.in_store("counts").with_query(KeyQuery.with_key("a"))``."""
        return InStore(name)

    @property
    def is_all_partitions(self) -> bool:
        """Whether all partitions on this host are to answer."""
        return self.partitions is None

    def with_position_bound(self, bound: PositionBound) -> Self:
        """Let only rows answer that have reached a bound; the others fail with NOT_UP_TO_BOUND."""
        return replace(self, position_bound=bound)

    def with_all_partitions(self) -> Self:
        """Ask all partitions on this host; the default."""
        return replace(self, partitions=None)

    def with_partitions(self, partitions: Collection[int]) -> Self:
        """Ask some partitions; those that are not on this host fail with NOT_PRESENT."""
        return replace(self, partitions=frozenset(partitions))

    def require_active(self) -> Self:
        """Let only running active tasks answer; as in Kafka Streams, the position bound then does not count."""
        return replace(self, is_require_active=True)

    def enable_execution_info(self) -> Self:
        """Let each answer say which task has read its rows, and in which time."""
        return replace(self, execution_info_enabled=True)

    def with_isolation_level(self, isolation: IsolationLevel) -> Self:
        """Read the rows as of now, or as of the last commit (KIP-892)."""
        return replace(self, isolation_level=isolation)
