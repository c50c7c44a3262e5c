"""CogroupedKStream: several grouped streams that are aggregated into one table (KIP-150)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from ..common.arguments import check_type
from ..common.naming import Named
from ..errors import TopologyError
from ..graph.graph_nodes import ProcessorGraphNode
from ..graph.internal_streams_builder import InternalStreamsBuilder
from ..operators.aggregate import KStreamAggregate
from ..operators.session_windowed import KStreamSessionWindowAggregate
from ..operators.table import KTablePassThrough
from ..operators.table_operator import TableOperator
from ..records import Windowed
from ..serdes.serdes import Serde
from ..serdes.windowed_serdes import SessionWindowedSerde, TimeWindowedSerde
from ..stores.materialized import MaterializedInternal, StoreFactory, key_value_store, session_store, window_store
from ..stores.windows import EmitStrategy, SessionWindows, SlidingWindows, Windows
from .abstract_stream import AbstractStream
from .kgrouped_stream import WINDOWS_HINT, KGroupedStream, window_operator, window_size_ms
from .options import TableOptions, table_options
from .type_variables import VR, K, V

if TYPE_CHECKING:
    from .ktable import KTable


AGGREGATE_NAME = "COGROUPKSTREAM-AGGREGATE-"
MERGE_NAME = "COGROUPKSTREAM-MERGE-"

Aggregator = Callable[[Any, Any, Any], Any]


class CogroupedKStream(Generic[K, VR]):
    """Grouped streams with an aggregator for each (Kafka Streams: CogroupedKStream); see KGroupedStream.cogroup."""

    def __init__(self, builder: InternalStreamsBuilder) -> None:
        self.builder = builder
        self._inputs: dict[KGroupedStream[Any, Any], Aggregator] = {}
        self._parents: dict[KGroupedStream[Any, Any], AbstractStream] = {}

    def cogroup(self, grouped: KGroupedStream[K, V], aggregator: Callable[[K, V, VR], VR]) -> CogroupedKStream[K, VR]:
        """Add a grouped stream with its aggregator(key, value, aggregate) -> aggregate."""
        check_type(grouped, KGroupedStream, "What is cogrouped", "a KGroupedStream: group it first")
        self._inputs[grouped] = aggregator
        return self

    def aggregate(self, initializer: Callable[[], VR], **options: Unpack[TableOptions]) -> KTable[K, VR]:
        """Aggregate all streams into one table, from initializer() for each key. Options as in KGroupedStream."""
        name, kept = self.kept(options)
        return self.build(
            name,
            kept,
            key_value_store(kept),
            lambda aggregator: KStreamAggregate(kept.store_name, initializer, aggregator),
            kept.key_serde,
        )

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
        if not isinstance(windows, Windows | SlidingWindows):
            raise TopologyError(f"windowed_by() needs {WINDOWS_HINT}, got {windows!r}")
        return TimeWindowedCogroupedKStream(self, windows)

    def kept(self, options: TableOptions) -> tuple[str | None, MaterializedInternal]:
        """Return the name of the aggregation, and how its table is kept; for the DSL itself.

        Keys are those of the first grouped stream that knows.
        """
        name, given = table_options(**options)
        keys = next((grouped.key_serde for grouped in self._inputs if grouped.key_serde is not None), None)
        return name, MaterializedInternal(given, self.builder, AGGREGATE_NAME, key_serde=keys)

    def build(
        self,
        name: str | None,
        kept: MaterializedInternal,
        store: StoreFactory,
        operator_for: Callable[[Aggregator], TableOperator],
        key_serde: Serde[Any] | None,
    ) -> KTable[Any, VR]:
        """Put an aggregation behind each stream and merge them; for the DSL itself."""
        from .ktable import kept_table

        named = Named(name)
        self._repartition(store)
        operators, nodes = [], []
        for number, (grouped, aggregator) in enumerate(self._inputs.items()):
            operator = operator_for(aggregator)
            node_name = named.suffix_or_generate(f"-cogroup-agg-{number}", self.builder, AGGREGATE_NAME)
            # The first one brings the store along, the others are connected to it.
            node = ProcessorGraphNode(node_name, operator, [store.name] if number else [], [] if number else [store])
            # Windowed ones are left open, as in Kafka Streams: behind a versioned table they count as versioned.
            node.output_versioned = kept.versioned if key_serde is kept.key_serde else None
            self.builder.add_graph_node(self._parents[grouped].graph_node, node)
            operators.append(operator)
            nodes.append(node)
        merge_name = named.suffix_or_generate("-cogroup-merge", self.builder, MERGE_NAME)
        merge = KTablePassThrough(operators, store.name)
        merge_node = ProcessorGraphNode(merge_name, merge)
        self.builder.add_graph_node(nodes, merge_node)
        sources = self._sources(self._parents.values())
        listed = self.builder.topology.listed_as(merge_node.node_name, sources)
        return kept_table(kept, self.builder, merge_node, listed, merge, key_serde)

    def _repartition(self, store: StoreFactory) -> None:
        """Repartition the streams whose keys have changed; all must have the same number of partitions."""
        for grouped in self._inputs:
            if not grouped.repartition_required:
                self._parents[grouped] = grouped
            elif grouped in self._parents:
                grouped.new_repartition_node(store)  # for its numbers; the first one stays
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

    def aggregate(self, initializer: Callable[[], VR], **options: Unpack[TableOptions]) -> KTable[Windowed, VR]:
        """Aggregate all streams into one table per key and window, from initializer(). Options as in KGroupedStream."""
        name, kept = self._cogrouped.kept(options)
        windows, emit = self._windows, EmitStrategy.ON_WINDOW_UPDATE
        return self._cogrouped.build(
            name,
            kept,
            window_store(kept, windows, emit),
            lambda aggregator: window_operator(windows, kept.store_name, emit, initializer, aggregator),
            TimeWindowedSerde(kept.key_serde, window_size_ms(windows)),
        )


class SessionWindowedCogroupedKStream(Generic[K, VR]):
    """Cogrouped streams by session (Kafka Streams: SessionWindowedCogroupedKStream)."""

    def __init__(self, cogrouped: CogroupedKStream[K, VR], windows: SessionWindows) -> None:
        self._cogrouped = cogrouped
        self._windows = windows

    def aggregate(
        self, initializer: Callable[[], VR], session_merger: Callable[[K, VR, VR], VR], **options: Unpack[TableOptions]
    ) -> KTable[Windowed, VR]:
        """Aggregate all streams into one table per key and session, from initializer().

        session_merger(key, one, other) -> aggregate makes one of two sessions that a record connects.
        """
        name, kept = self._cogrouped.kept(options)
        windows, emit = self._windows, EmitStrategy.ON_WINDOW_UPDATE
        return self._cogrouped.build(
            name,
            kept,
            session_store(kept, windows, emit),
            lambda aggregator: KStreamSessionWindowAggregate(
                windows, kept.store_name, emit, initializer, aggregator, session_merger
            ),
            SessionWindowedSerde(kept.key_serde),
        )
