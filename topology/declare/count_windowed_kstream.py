"""A stream grouped by key and windows of a number of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from ..common.user_functions import Aggregator
from ..errors import TopologyError
from ..operators.count_windowed import KStreamCountWindowAggregate
from ..operators.counting import ReducerAsAggregator, count_aggregator, count_initializer
from ..records import Windowed
from ..serdes.count_windows_serde import CountWindowsSerde
from ..serdes.serdes import Serde, Serdes
from ..serdes.windowed_serdes import SessionWindowedSerde
from ..stores.materialized import MaterializedInternal, key_value_store
from ..stores.windows import CountWindows
from ..type_variables import VR, K, V
from .agg import Aggregate
from .aggregate_builder import AGGREGATE_NAME, REDUCE_NAME, AggregateBuilder, reduce_initializer
from .aggregated import functions_of
from .options import TableOptions, shows_options

if TYPE_CHECKING:
    from .kstream import KStream


class CountWindowedKStream(Generic[K, V]):
    """A stream grouped by key and windows of a number of records; Kafka Streams has none.

    Results are streams: each full window is sent once, and then forgotten. Its key is a Windowed from the smallest to
    the largest timestamp of its records, written as those of sessions are. Options as in KGroupedStream; the store has
    the windows that wait for more records, and a ttl ends those of keys that are no longer written.
    """

    def __init__(self, grouped: AggregateBuilder, windows: CountWindows) -> None:
        self._grouped = grouped
        self._windows = windows

    @shows_options(TableOptions)
    def count(self, **options: Unpack[TableOptions]) -> KStream[Windowed[K], int]:
        """Count the records of each window: the windows' size. The keys are what matters."""
        name, kept = self._grouped.kept(options, AGGREGATE_NAME, Serdes.int64())
        return self._build(name, AGGREGATE_NAME, count_initializer, count_aggregator, kept, kept.value_serde)

    @shows_options(TableOptions)
    def reduce(self, reducer: Callable[[V, V], V], **options: Unpack[TableOptions]) -> KStream[Windowed[K], V]:
        """Combine the values of each window: reducer(aggregate, value) -> aggregate."""
        name, kept = self._grouped.kept(options, REDUCE_NAME, self._grouped.value_serde)
        return self._build(name, REDUCE_NAME, reduce_initializer, ReducerAsAggregator(reducer), kept, kept.value_serde)

    @overload
    def aggregate(
        self, initializer: Callable[[], VR], aggregator: Callable[[K, V, VR], VR], **options: Unpack[TableOptions]
    ) -> KStream[Windowed[K], VR]: ...
    @overload
    def aggregate(self, initializer: Aggregate[VR], **options: Unpack[TableOptions]) -> KStream[Windowed[K], VR]: ...
    @overload
    def aggregate(
        self, initializer: Mapping[str, Aggregate], **options: Unpack[TableOptions]
    ) -> KStream[Windowed[K], dict[str, Any]]: ...
    @shows_options(TableOptions)
    def aggregate(
        self, initializer: object, aggregator: Callable[..., object] | None = None, **options: Unpack[TableOptions]
    ) -> KStream[Windowed[K], Any]:
        """Aggregate the values of each window: aggregator(key, value, aggregate) -> aggregate.

        It starts from initializer(). Aggregates of ``penstock.agg`` replace both, as in KGroupedStream.
        """
        name, kept = self._grouped.kept(options, AGGREGATE_NAME)
        functions = functions_of(kept, initializer, aggregator=aggregator)
        serde = functions.value_serde if functions.results is not None else kept.value_serde
        states = self._build(name, AGGREGATE_NAME, functions.initializer, functions.aggregator, kept, serde)
        if functions.results is None:
            return states
        results_name = None if name is None else f"{name}-results"
        results: KStream[Windowed[K], Any] = states.map_values(functions.results, name=results_name)
        results.value_serde = serde
        return results

    def _build(
        self,
        name: str | None,
        prefix: str,
        initializer: Callable[[], object],
        aggregator: Aggregator,
        kept: MaterializedInternal,
        value_serde: Serde | None,
    ) -> KStream[Windowed[K], Any]:
        from .kstream import KStream

        if kept.versioned:
            raise TopologyError(f'Store "{kept.store_name}": windows of a number of records have no versions')
        operator = KStreamCountWindowAggregate(self._windows, kept.store_name, initializer, aggregator)
        kept.value_serde = CountWindowsSerde(kept.value_serde)
        node, sources = self._grouped.attached(name, prefix, operator, key_value_store(kept))
        return KStream(self._grouped.builder, node, SessionWindowedSerde(kept.key_serde), value_serde, sources)
