"""Streams grouped by key, or by key and window, for aggregation: one stream, or several into one table (KIP-150)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Self, Unpack, overload

from typing_extensions import TypeVar

from ..common.arguments import check_type
from ..common.durations import Duration
from ..common.naming import Named
from ..common.user_functions import Aggregator
from ..context.idle_time import IdleTimeout
from ..errors import TopologyError
from ..graph.graph_nodes import ProcessorGraphNode
from ..graph.internal_streams_builder import InternalStreamsBuilder
from ..operators.aggregate import KStreamAggregate, KStreamReduce
from ..operators.counting import ReducerAsAggregator, count_aggregator, count_initializer, count_merger
from ..operators.session_windowed import KStreamSessionWindowAggregate
from ..operators.sliding_windowed import KStreamSlidingWindowAggregate
from ..operators.table import KTablePassThrough
from ..operators.table_operator import TableOperator
from ..operators.windowed import KStreamWindowAggregate
from ..records import Windowed
from ..serdes.serdes import Serde
from ..serdes.windowed_serdes import SessionWindowedSerde, TimeWindowedSerde
from ..stores.materialized import MaterializedInternal, StoreFactory, key_value_store, session_store, window_store
from ..stores.windows import (
    CalendarWindows,
    CountWindows,
    EmitStrategy,
    SessionWindows,
    SlidingWindows,
    UnlimitedWindows,
    Windows,
)
from ..type_variables import VR, K, V
from .abstract_stream import AbstractStream
from .agg import Aggregate
from .aggregate_builder import AGGREGATE_NAME, REDUCE_NAME, AggregateBuilder, merger_for_reducer, reduce_initializer
from .aggregated import Functions, Input, cogrouped_functions, functions_of, joined_inputs
from .count_windowed_kstream import CountWindowedKStream
from .options import TableOptions, shows_options, table_options

if TYPE_CHECKING:
    from .ktable import KTable

W = TypeVar("W", default=Any)

#: Accepted types of windowed_by().
WINDOWS_HINT = "TimeWindows, SlidingWindows, SessionWindows or the like"

COGROUP_AGGREGATE_NAME = "COGROUPKSTREAM-AGGREGATE-"
COGROUP_MERGE_NAME = "COGROUPKSTREAM-MERGE-"


class KGroupedStream(AggregateBuilder, Generic[K, V]):
    """A stream grouped by key (Kafka Streams: KGroupedStream). Records without key or value are not aggregated.

    All aggregations take ``name=`` for the operator, ``store=`` for the name of the store or a Materialized, and
    ``key_serde=`` and ``value_serde=`` of the store.
    """

    @shows_options(TableOptions)
    def count(self, **options: Unpack[TableOptions]) -> KTable[K, int]:
        """Count the records of each key."""
        name, kept = self.kept_count(options)
        operator = KStreamAggregate(kept.store_name, count_initializer, count_aggregator)
        return self._aggregate(name, AGGREGATE_NAME, operator, kept)

    @shows_options(TableOptions)
    def reduce(self, reducer: Callable[[V, V], V], **options: Unpack[TableOptions]) -> KTable[K, V]:
        """Combine the values of each key: reducer(aggregate, value) -> aggregate.

        The first value is the first aggregate. A None deletes the aggregate.
        """
        name, kept = self.kept(options, REDUCE_NAME, self.value_serde)
        return self._aggregate(name, REDUCE_NAME, KStreamReduce(kept.store_name, reducer), kept)

    @overload
    def aggregate(
        self, initializer: Callable[[], VR], aggregator: Callable[[K, V, VR], VR], **options: Unpack[TableOptions]
    ) -> KTable[K, VR]: ...
    @overload
    def aggregate(self, initializer: Aggregate[VR], **options: Unpack[TableOptions]) -> KTable[K, VR]: ...
    @overload
    def aggregate(
        self, initializer: Mapping[str, Aggregate], **options: Unpack[TableOptions]
    ) -> KTable[K, dict[str, Any]]: ...
    @shows_options(TableOptions)
    def aggregate(
        self, initializer: object, aggregator: Callable[..., object] | None = None, **options: Unpack[TableOptions]
    ) -> KTable[K, Any]:
        """Aggregate the values of each key: aggregator(key, value, aggregate) -> aggregate.

        It starts from initializer(). A None deletes the aggregate. Aggregates of ``penstock.agg`` replace both: a dict
        of them by name makes rows of their results, a single one its result. value_serde is then that of the results.
        Raises TopologyError for other arguments.
        """
        name, kept = self.kept(options, AGGREGATE_NAME)
        functions = functions_of(kept, initializer, aggregator=aggregator)
        operator = KStreamAggregate(kept.store_name, functions.initializer, functions.aggregator)
        return functions.table(self._aggregate(name, AGGREGATE_NAME, operator, kept), name)

    def _aggregate(
        self, name: str | None, prefix: str, operator: TableOperator, kept: MaterializedInternal
    ) -> KTable[K, Any]:
        return self.build(name, prefix, operator, key_value_store(kept), kept, kept.key_serde)

    @overload
    def cogroup(self, aggregator: Callable[[K, V, VR], VR]) -> CogroupedKStream[K, VR]: ...
    @overload
    def cogroup(self, aggregator: Mapping[str, Aggregate]) -> CogroupedKStream[K, dict[str, Any]]: ...
    def cogroup(self, aggregator: Any) -> CogroupedKStream[K, Any]:
        """Start an aggregation of several grouped streams into one table.

        aggregator(key, value, aggregate) -> aggregate is called for this stream's records. Or a dict of aggregates of
        ``penstock.agg``, by the names of their results in the rows of the table. Raises TopologyError for other dicts.
        """
        cogrouped: CogroupedKStream[K, Any] = CogroupedKStream(self.builder)
        return cogrouped.cogroup(self, aggregator)

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...
    @overload
    def windowed_by(self, windows: CountWindows) -> CountWindowedKStream[K, V]: ...
    @overload
    def windowed_by(self, windows: Windows | SlidingWindows) -> TimeWindowedKStream[K, V]: ...
    def windowed_by(
        self, windows: Windows | SlidingWindows | SessionWindows | CountWindows
    ) -> TimeWindowedKStream[K, V] | SessionWindowedKStream[K, V] | CountWindowedKStream[K, V]:
        """Aggregate per key and window."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedKStream(self, windows)
        if isinstance(windows, CountWindows):
            return CountWindowedKStream(self, windows)
        return TimeWindowedKStream(self, time_windows(windows))


def time_windows(windows: object) -> Windows | SlidingWindows:
    """Return the argument of a windowed_by(); raises TopologyError for anything but windows."""
    if not isinstance(windows, Windows | SlidingWindows):
        raise TopologyError(f"windowed_by() needs {WINDOWS_HINT}, got {windows!r}")
    return windows


def window_operator(
    windows: Windows | SlidingWindows,
    store_name: str,
    emit: EmitStrategy,
    initializer: Callable[[], object],
    aggregator: Aggregator,
) -> TableOperator:
    """Return the operator that aggregates in these windows."""
    if isinstance(windows, SlidingWindows):
        return KStreamSlidingWindowAggregate(windows, store_name, emit, initializer, aggregator)
    return KStreamWindowAggregate(windows, store_name, emit, initializer, aggregator)


def windowed_serde(inner: Serde | None, windows: Windows | SlidingWindows) -> TimeWindowedSerde:
    """Return the serde of the keys of a table with these windows."""
    if isinstance(windows, SlidingWindows):
        return TimeWindowedSerde(inner, windows.time_difference_ms)
    end_of = windows.window_end if isinstance(windows, CalendarWindows) else None
    return TimeWindowedSerde(inner, windows.size_ms, end_of)


class _WindowedKStream(Generic[K, V, W]):
    """The common part of time and session windows."""

    def __init__(self, grouped: AggregateBuilder, windows: W) -> None:
        self._grouped = grouped
        self._windows = windows
        self._emit = EmitStrategy.ON_WINDOW_UPDATE
        self._idle_timeout: IdleTimeout | None = None

    def emit_strategy(self, strategy: EmitStrategy, *, wall_clock: Duration | None = None) -> Self:
        """Set when results are emitted: with each update, or once when the window closes (KIP-825).

        wall_clock: for ON_WINDOW_CLOSE, as in Suppressed.until_window_closes. Raises TopologyError if windows never
        close, and for a wall_clock below a millisecond or with ON_WINDOW_UPDATE.
        """
        check_type(strategy, EmitStrategy, "The argument of emit_strategy()", "an EmitStrategy")
        if strategy is EmitStrategy.ON_WINDOW_CLOSE and isinstance(self._windows, UnlimitedWindows):
            raise TopologyError("ON_WINDOW_CLOSE cannot be used with UnlimitedWindows: they never close")
        if strategy is EmitStrategy.ON_WINDOW_UPDATE and wall_clock is not None:
            raise TopologyError("emit_strategy(): wall_clock= is for ON_WINDOW_CLOSE")
        self._emit = strategy
        self._idle_timeout = None if wall_clock is None else IdleTimeout(wall_clock)
        return self


class TimeWindowedKStream(_WindowedKStream[K, V, Windows | SlidingWindows]):
    """A stream grouped by key and tumbling, hopping, sliding or unlimited window (Kafka Streams: TimeWindowedKStream).

    Options as in KGroupedStream. The keys of the resulting tables are Windowed.
    """

    @shows_options(TableOptions)
    def count(self, **options: Unpack[TableOptions]) -> KTable[Windowed[K], int]:
        """Count the records of each key and window; null values count too."""
        name, kept = self._grouped.kept_count(options, numbered=not isinstance(self._windows, SlidingWindows))
        return self._build(name, AGGREGATE_NAME, count_initializer, count_aggregator, kept)

    @shows_options(TableOptions)
    def reduce(self, reducer: Callable[[V, V], V], **options: Unpack[TableOptions]) -> KTable[Windowed[K], V]:
        """Combine the values of each key and window: reducer(aggregate, value) -> aggregate."""
        name, kept = self._grouped.kept(options, REDUCE_NAME, self._grouped.value_serde)
        return self._build(name, REDUCE_NAME, reduce_initializer, ReducerAsAggregator(reducer), kept)

    @overload
    def aggregate(
        self, initializer: Callable[[], VR], aggregator: Callable[[K, V, VR], VR], **options: Unpack[TableOptions]
    ) -> KTable[Windowed[K], VR]: ...
    @overload
    def aggregate(self, initializer: Aggregate[VR], **options: Unpack[TableOptions]) -> KTable[Windowed[K], VR]: ...
    @overload
    def aggregate(
        self, initializer: Mapping[str, Aggregate], **options: Unpack[TableOptions]
    ) -> KTable[Windowed[K], dict[str, Any]]: ...
    @shows_options(TableOptions)
    def aggregate(
        self, initializer: object, aggregator: Callable[..., object] | None = None, **options: Unpack[TableOptions]
    ) -> KTable[Windowed[K], Any]:
        """Aggregate the values of each key and window: aggregator(key, value, aggregate) -> aggregate.

        It starts from initializer(). A None deletes the aggregate. Aggregates of ``penstock.agg`` replace both, as in
        KGroupedStream.
        """
        name, kept = self._grouped.kept(options, AGGREGATE_NAME)
        functions = functions_of(kept, initializer, aggregator=aggregator)
        states = self._build(name, AGGREGATE_NAME, functions.initializer, functions.aggregator, kept)
        return functions.table(states, name)

    def _build(
        self,
        name: str | None,
        prefix: str,
        initializer: Callable[[], object],
        aggregator: Aggregator,
        kept: MaterializedInternal,
    ) -> KTable[Windowed[K], Any]:
        store = window_store(kept, self._windows, self._emit)
        operator = window_operator(self._windows, kept.store_name, self._emit, initializer, aggregator)
        operator.idle_timeout = self._idle_timeout
        serde = windowed_serde(kept.key_serde, self._windows)
        return self._grouped.build(name, prefix, operator, store, kept, serde)


class SessionWindowedKStream(_WindowedKStream[K, V, SessionWindows]):
    """A stream grouped by key and session (Kafka Streams: SessionWindowedKStream). Options as in KGroupedStream."""

    @shows_options(TableOptions)
    def count(self, **options: Unpack[TableOptions]) -> KTable[Windowed[K], int]:
        """Count the records of each key and session; null values count too."""
        name, kept = self._grouped.kept_count(options)
        return self._build(name, AGGREGATE_NAME, count_initializer, count_aggregator, count_merger, kept)

    @shows_options(TableOptions)
    def reduce(self, reducer: Callable[[V, V], V], **options: Unpack[TableOptions]) -> KTable[Windowed[K], V]:
        """Combine the values of each key and session: reducer(aggregate, value) -> aggregate, for merging too."""
        name, kept = self._grouped.kept(options, REDUCE_NAME, self._grouped.value_serde)
        return self._build(
            name, REDUCE_NAME, reduce_initializer, ReducerAsAggregator(reducer), merger_for_reducer(reducer), kept
        )

    @overload
    def aggregate(
        self,
        initializer: Callable[[], VR],
        aggregator: Callable[[K, V, VR], VR],
        session_merger: Callable[[K, VR, VR], VR],
        **options: Unpack[TableOptions],
    ) -> KTable[Windowed[K], VR]: ...
    @overload
    def aggregate(self, initializer: Aggregate[VR], **options: Unpack[TableOptions]) -> KTable[Windowed[K], VR]: ...
    @overload
    def aggregate(
        self, initializer: Mapping[str, Aggregate], **options: Unpack[TableOptions]
    ) -> KTable[Windowed[K], dict[str, Any]]: ...
    @shows_options(TableOptions)
    def aggregate(
        self,
        initializer: object,
        aggregator: Callable[..., object] | None = None,
        session_merger: Callable[..., object] | None = None,
        **options: Unpack[TableOptions],
    ) -> KTable[Windowed[K], Any]:
        """Aggregate the values of each key and session: aggregator(key, value, aggregate) -> aggregate.

        It starts from initializer(). session_merger(key, one, other) -> aggregate merges two sessions that a record
        connects. Aggregates of ``penstock.agg`` replace all three, as in KGroupedStream.
        """
        name, kept = self._grouped.kept(options, AGGREGATE_NAME)
        functions = functions_of(kept, initializer, aggregator=aggregator, merger=session_merger)
        states = self._build(name, AGGREGATE_NAME, functions.initializer, functions.aggregator, functions.merger, kept)
        return functions.table(states, name)

    def _build(
        self,
        name: str | None,
        prefix: str,
        initializer: Callable[[], object],
        aggregator: Aggregator,
        merger: Aggregator,
        kept: MaterializedInternal,
    ) -> KTable[Windowed[K], Any]:
        store = session_store(kept, self._windows, self._emit)
        operator = KStreamSessionWindowAggregate(
            self._windows, kept.store_name, self._emit, initializer, aggregator, merger
        )
        operator.idle_timeout = self._idle_timeout
        return self._grouped.build(name, prefix, operator, store, kept, SessionWindowedSerde(kept.key_serde))


class CogroupedKStream(Generic[K, VR]):
    """Grouped streams, each with an aggregator (Kafka Streams: CogroupedKStream); see KGroupedStream.cogroup."""

    def __init__(self, builder: InternalStreamsBuilder) -> None:
        self.builder = builder
        self._inputs: dict[KGroupedStream, Input] = {}
        self._parents: dict[KGroupedStream, AbstractStream] = {}

    @overload
    def cogroup(
        self, grouped: KGroupedStream[K, V], aggregator: Callable[[K, V, VR], VR]
    ) -> CogroupedKStream[K, VR]: ...
    @overload
    def cogroup(
        self, grouped: KGroupedStream[K, Any], aggregator: Mapping[str, Aggregate]
    ) -> CogroupedKStream[K, dict[str, Any]]: ...
    def cogroup(self, grouped: KGroupedStream[K, Any], aggregator: object) -> CogroupedKStream[K, Any]:
        """Add a grouped stream with its aggregator(key, value, aggregate) -> aggregate, or with its aggregates.

        All streams have functions, or all have aggregates. Raises TopologyError if not, and for a name of another
        aggregate.
        """
        check_type(grouped, KGroupedStream, "The argument of cogroup()", "a KGroupedStream: group it first")
        self._inputs[grouped] = joined_inputs(self._inputs, grouped, aggregator)
        return self

    @overload
    def aggregate(self, initializer: Callable[[], VR], **options: Unpack[TableOptions]) -> KTable[K, VR]: ...
    @overload
    def aggregate(
        self: CogroupedKStream[K, dict[str, Any]], **options: Unpack[TableOptions]
    ) -> KTable[K, dict[str, Any]]: ...
    @shows_options(TableOptions)
    def aggregate(
        self, initializer: Callable[[], object] | None = None, **options: Unpack[TableOptions]
    ) -> KTable[K, Any]:
        """Aggregate all streams into one table, from initializer() for each key; aggregates need none.

        Options as in KGroupedStream. Raises TopologyError without an initializer of functions, or with one of
        aggregates.
        """
        name, kept = self.kept(options)
        functions, aggregators = self.functions(kept, initializer)
        states = self.build(
            name,
            kept,
            key_value_store(kept),
            [KStreamAggregate(kept.store_name, functions.initializer, aggregator) for aggregator in aggregators],
            kept.key_serde,
        )
        return functions.table(states, name)

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream[K, VR]: ...
    @overload
    def windowed_by(self, windows: Windows | SlidingWindows) -> TimeWindowedCogroupedKStream[K, VR]: ...
    def windowed_by(
        self, windows: Windows | SlidingWindows | SessionWindows
    ) -> TimeWindowedCogroupedKStream[K, VR] | SessionWindowedCogroupedKStream[K, VR]:
        """Aggregate per key and window."""
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self, windows)
        return TimeWindowedCogroupedKStream(self, time_windows(windows))

    def kept(self, options: TableOptions) -> tuple[str | None, MaterializedInternal]:
        """Return the name of the aggregation and its table's materialization; internal.

        The key serde is that of the first grouped stream that has one.
        """
        name, given = table_options(**options)
        keys = next((grouped.key_serde for grouped in self._inputs if grouped.key_serde is not None), None)
        return name, MaterializedInternal(given, self.builder, COGROUP_AGGREGATE_NAME, key_serde=keys)

    def functions(
        self, kept: MaterializedInternal, initializer: object, **others: object
    ) -> tuple[Functions, list[Aggregator]]:
        """Return the functions of all streams, and the aggregator of each; internal. See cogrouped_functions."""
        return cogrouped_functions(kept, list(self._inputs.values()), initializer, **others)

    def build(
        self,
        name: str | None,
        kept: MaterializedInternal,
        store: StoreFactory,
        operators: Sequence[TableOperator],
        key_serde: Serde | None,
    ) -> KTable[Any, VR]:
        """Attach its aggregation to each stream and merge them; internal."""
        from .ktable import kept_table

        named = Named(name)
        self._repartition(store)
        nodes = []
        for number, (grouped, operator) in enumerate(zip(self._inputs, operators, strict=True)):
            node_name = named.suffix_or_generate(f"-cogroup-agg-{number}", self.builder, COGROUP_AGGREGATE_NAME)
            # The first node adds the store, the others are connected to it.
            node = ProcessorGraphNode(node_name, operator, [store.name] if number else [], [] if number else [store])
            # None for windowed ones, as in Kafka Streams: after a versioned table they count as versioned.
            node.output_versioned = kept.versioned if key_serde is kept.key_serde else None
            self.builder.add_graph_node(self._parents[grouped].graph_node, node)
            nodes.append(node)
        merge_name = named.suffix_or_generate("-cogroup-merge", self.builder, COGROUP_MERGE_NAME)
        merge = KTablePassThrough(operators, store.name)
        merge_node = ProcessorGraphNode(merge_name, merge)
        self.builder.add_graph_node(nodes, merge_node)
        sources = self._sources(self._parents.values())
        listed = self.builder.topology.listed_as(merge_node.node_name, sources)
        return kept_table(kept, self.builder, merge_node, listed, merge, key_serde)

    def _repartition(self, store: StoreFactory) -> None:
        """Repartition the streams whose keys have changed; all streams must have the same number of partitions."""
        for grouped in self._inputs:
            if not grouped.repartition_required:
                self._parents[grouped] = grouped
            elif grouped in self._parents:
                grouped.new_repartition_node(store)  # consumes its numbers; the first node stays
            else:
                self._parents[grouped] = grouped.repartitioned(store)
        sources = self._sources(self._parents.values())
        self.builder.topology.require_copartition(sources, listed=self._sources(self._inputs))

    @staticmethod
    def _sources(streams: Iterable[AbstractStream]) -> frozenset[str]:
        return frozenset().union(*(stream.source_nodes for stream in streams))


class TimeWindowedCogroupedKStream(Generic[K, VR]):
    """Cogrouped streams by time window (Kafka Streams: TimeWindowedCogroupedKStream)."""

    def __init__(self, cogrouped: CogroupedKStream[K, VR], windows: Windows | SlidingWindows) -> None:
        self._cogrouped = cogrouped
        self._windows = windows

    @overload
    def aggregate(self, initializer: Callable[[], VR], **options: Unpack[TableOptions]) -> KTable[Windowed[K], VR]: ...
    @overload
    def aggregate(
        self: TimeWindowedCogroupedKStream[K, dict[str, Any]], **options: Unpack[TableOptions]
    ) -> KTable[Windowed[K], dict[str, Any]]: ...
    @shows_options(TableOptions)
    def aggregate(
        self, initializer: Callable[[], object] | None = None, **options: Unpack[TableOptions]
    ) -> KTable[Windowed[K], Any]:
        """Aggregate all streams into one table per key and window, from initializer(); aggregates need none.

        Options as in KGroupedStream. Raises TopologyError as CogroupedKStream.aggregate does.
        """
        name, kept = self._cogrouped.kept(options)
        functions, aggregators = self._cogrouped.functions(kept, initializer)
        windows, emit = self._windows, EmitStrategy.ON_WINDOW_UPDATE
        states = self._cogrouped.build(
            name,
            kept,
            window_store(kept, windows, emit),
            [window_operator(windows, kept.store_name, emit, functions.initializer, each) for each in aggregators],
            windowed_serde(kept.key_serde, windows),
        )
        return functions.table(states, name)


class SessionWindowedCogroupedKStream(Generic[K, VR]):
    """Cogrouped streams by session (Kafka Streams: SessionWindowedCogroupedKStream)."""

    def __init__(self, cogrouped: CogroupedKStream[K, VR], windows: SessionWindows) -> None:
        self._cogrouped = cogrouped
        self._windows = windows

    @overload
    def aggregate(
        self, initializer: Callable[[], VR], session_merger: Callable[[K, VR, VR], VR], **options: Unpack[TableOptions]
    ) -> KTable[Windowed[K], VR]: ...
    @overload
    def aggregate(
        self: SessionWindowedCogroupedKStream[K, dict[str, Any]], **options: Unpack[TableOptions]
    ) -> KTable[Windowed[K], dict[str, Any]]: ...
    @shows_options(TableOptions)
    def aggregate(
        self,
        initializer: Callable[[], object] | None = None,
        session_merger: Aggregator | None = None,
        **options: Unpack[TableOptions],
    ) -> KTable[Windowed[K], Any]:
        """Aggregate all streams into one table per key and session, from initializer().

        session_merger(key, one, other) -> aggregate merges two sessions that a record connects. Aggregates need
        neither. Raises TopologyError as CogroupedKStream.aggregate does.
        """
        name, kept = self._cogrouped.kept(options)
        functions, aggregators = self._cogrouped.functions(kept, initializer, merger=session_merger)
        windows, emit = self._windows, EmitStrategy.ON_WINDOW_UPDATE
        states = self._cogrouped.build(
            name,
            kept,
            session_store(kept, windows, emit),
            [
                KStreamSessionWindowAggregate(
                    windows, kept.store_name, emit, functions.initializer, each, functions.merger
                )
                for each in aggregators
            ],
            SessionWindowedSerde(kept.key_serde),
        )
        return functions.table(states, name)
