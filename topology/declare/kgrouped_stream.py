"""KGroupedStream: a stream grouped by key, to be aggregated."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from ..common.arguments import check_type
from ..operators.aggregate import KStreamAggregate, KStreamReduce
from ..operators.counting import count_aggregator, count_initializer
from ..operators.table_operator import TableOperator
from ..stores.materialized import MaterializedInternal, key_value_store
from ..stores.windows import SessionWindows, SlidingWindows, Windows
from .aggregate_builder import AGGREGATE_NAME, REDUCE_NAME, AggregateBuilder
from .options import TableOptions
from .windowed_kstream import WINDOWS_HINT, SessionWindowedKStream, TimeWindowedKStream

if TYPE_CHECKING:
    from .cogrouped_kstream import CogroupedKStream
    from .ktable import KTable

K = TypeVar("K")
V = TypeVar("V")
VR = TypeVar("VR")


class KGroupedStream(AggregateBuilder, Generic[K, V]):
    """A stream grouped by key (Kafka Streams: KGroupedStream). Records without key or value are not aggregated.

    All aggregations take ``name=`` for the operator, ``store=`` for the name of the store or a Materialized, and
    ``key_serde=`` and ``value_serde=`` of the store.
    """

    def count(self, **options: Unpack[TableOptions]) -> KTable[K, int]:
        """Count the records of each key."""
        name, kept = self.kept_count(options)
        operator = KStreamAggregate(kept.store_name, count_initializer, count_aggregator)
        return self._aggregate(name, AGGREGATE_NAME, operator, kept)

    def reduce(self, reducer: Callable[[V, V], V], **options: Unpack[TableOptions]) -> KTable[K, V]:
        """Combine the values of each key: reducer(aggregate, value) -> aggregate.

        The first value is the first aggregate. A None deletes the aggregate.
        """
        name, kept = self.kept(options, REDUCE_NAME, self.value_serde)
        return self._aggregate(name, REDUCE_NAME, KStreamReduce(kept.store_name, reducer), kept)

    def aggregate(
        self, initializer: Callable[[], VR], aggregator: Callable[[K, V, VR], VR], **options: Unpack[TableOptions]
    ) -> KTable[K, VR]:
        """Aggregate the values of each key: aggregator(key, value, aggregate) -> aggregate.

        It starts from initializer(). A None deletes the aggregate.
        """
        name, kept = self.kept(options, AGGREGATE_NAME)
        return self._aggregate(name, AGGREGATE_NAME, KStreamAggregate(kept.store_name, initializer, aggregator), kept)

    def _aggregate(
        self, name: str | None, prefix: str, operator: TableOperator, kept: MaterializedInternal
    ) -> KTable[K, Any]:
        return self.build(name, prefix, operator, key_value_store(kept), kept, kept.key_serde)

    def cogroup(self, aggregator: Callable[[K, V, VR], VR]) -> CogroupedKStream[K, VR]:
        """Start an aggregation of several grouped streams into one table.

        aggregator(key, value, aggregate) -> aggregate is that of this stream's records.
        """
        from .cogrouped_kstream import CogroupedKStream

        cogrouped: CogroupedKStream[K, VR] = CogroupedKStream(self.builder)
        return cogrouped.cogroup(self, aggregator)

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...
    @overload
    def windowed_by(self, windows: Windows | SlidingWindows) -> TimeWindowedKStream[K, V]: ...
    def windowed_by(
        self, windows: Windows | SlidingWindows | SessionWindows
    ) -> TimeWindowedKStream[K, V] | SessionWindowedKStream[K, V]:
        """Aggregate per key and window."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self, windows)
        check_type(windows, (Windows, SlidingWindows), "The argument of windowed_by()", WINDOWS_HINT)
        return TimeWindowedKStream(self, windows)
