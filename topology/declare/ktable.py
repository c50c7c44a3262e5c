"""KTable: a table maintained from a stream of updates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, Unpack, overload

from ..common.arguments import check_type
from ..common.naming import Named
from ..context.partitioners import Partitioner
from ..context.store_interfaces import StoreBuilder, StoreKind
from ..errors import TopologyError
from ..graph.graph_nodes import GraphNode
from ..graph.internal_streams_builder import InternalStreamsBuilder
from ..operators.aggregate import KTableRepartitionMap
from ..operators.stateless import KTableToStream
from ..operators.suppress import KTableSuppressProcessor
from ..operators.table import KTableFilter, KTableMapValues, KTableTransformValues
from ..operators.table_operator import TableOperator
from ..operators.table_store import KTableValueGetterSupplier
from ..processor_api import ValueTransformerWithKey, stores_of
from ..serdes.serdes import Serde, SerdeLike, as_serde
from ..stores.materialized import (
    Materialized,
    MaterializedInternal,
    StoreFactory,
    key_value_store,
)
from ..type_variables import KO, KR, VO, VR, K, V
from .abstract_stream import AbstractStream
from .kgrouped_table import KGroupedTable
from .kstream import KStream
from .ktable_joins import foreign_key_join, table_join
from .options import ForeignKeyOptions, TableJoinOptions, TableOptions, shows_options, table_options
from .suppressed import Suppressed
from .window_grace import find_window_grace


class KTable(AbstractStream, Generic[K, V]):
    """A table: the latest value of each key (Kafka Streams: KTable). Null values delete rows.

    Operations return new tables or streams. All of them take ``name=`` for the operator; those that yield a table take
    ``store=``, the name of a store or a Materialized (without it the result is not stored but computed on demand), and
    ``key_serde=`` and ``value_serde=``. queryable_store_name is the name under which the rows can be queried, or
    None.
    """

    def __init__(
        self, *args: Any, operator: TableOperator, queryable_store_name: str | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.operator = operator
        self.queryable_store_name = queryable_store_name
        self._sends_old_values = False

    @shows_options(TableOptions)
    def filter(self, predicate: Callable[[K, V], object], **options: Unpack[TableOptions]) -> KTable[K, V]:
        """Keep the rows for which predicate(key, value) holds; the others are deleted."""
        return self._filter(predicate, False, *table_options(**options))

    @shows_options(TableOptions)
    def filter_not(self, predicate: Callable[[K, V], object], **options: Unpack[TableOptions]) -> KTable[K, V]:
        """Delete the rows for which predicate(key, value) holds."""
        return self._filter(predicate, True, *table_options(**options))

    def _filter(
        self, predicate: Callable[[K, V], object], negate: bool, name: str | None, given: Materialized | None
    ) -> KTable[K, V]:
        prefix = "KTABLE-FILTER-"
        kept = self._kept(given, prefix, self.value_serde)
        operator = KTableFilter(self, predicate, negate, kept.queryable_store_name)
        return self._derived(name, prefix, operator, given, kept)

    @overload
    def map_values(
        self, mapper: Callable[[V], VR], *, with_key: Literal[False] = False, **options: Unpack[TableOptions]
    ) -> KTable[K, VR]: ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], VR], *, with_key: Literal[True], **options: Unpack[TableOptions]
    ) -> KTable[K, VR]: ...
    @shows_options(TableOptions)
    def map_values(
        self, mapper: Callable[..., object], *, with_key: bool = False, **options: Unpack[TableOptions]
    ) -> KTable[K, Any]:
        """Replace values by mapper(value), or with with_key by mapper(key, value); it is not called for deletions."""
        prefix = "KTABLE-MAPVALUES-"
        name, given = table_options(**options)
        kept = self._kept(given, prefix, None)
        operator = KTableMapValues(self, mapper, kept.queryable_store_name, with_key)
        return self._derived(name, prefix, operator, given, kept)

    @shows_options(TableOptions)
    def transform_values(
        self,
        supplier: Callable[[], ValueTransformerWithKey[K, V, VR]],
        *state_stores: str,
        **options: Unpack[TableOptions],
    ) -> KTable[K, VR]:
        """Replace values by those of a custom ValueTransformerWithKey; state_stores names the stores it uses.

        supplier: the transformer's class, or a function without arguments that creates one per task. Transformers are
        called for deletions too. store is where the result is kept; a transformer with state needs it if a join or
        grouping follows, because without it the transformer is called again whenever a row is read.
        """
        prefix = "KTABLE-TRANSFORMVALUES-"
        name, given = table_options(**options)
        kept = MaterializedInternal(given, key_serde=self.key_serde)
        operator = KTableTransformValues(self, supplier, kept.queryable_store_name)
        return self._derived(name, prefix, operator, given, kept, state_stores, stores_of(supplier))

    def _kept(self, given: Materialized | None, prefix: str, value_serde: Serde | None) -> MaterializedInternal:
        if given is not None and given.store_name is None:
            self.builder.new_store_name(prefix)  # consumes a number, as in Kafka Streams
        return MaterializedInternal(given, key_serde=self.key_serde, value_serde=value_serde)

    def _derived(
        self,
        name: str | None,
        prefix: str,
        operator: TableOperator,
        given: Materialized | None,
        kept: MaterializedInternal,
        used: Sequence[str] = (),
        own: Sequence[StoreBuilder] = (),
    ) -> KTable[K, Any]:
        """Return the table of an operator, materialized only if it has a store name.

        used: names of other operators' stores that this one reads. own: the stores that it declares.
        """
        stores = [key_value_store(kept)] if kept.queryable_store_name is not None else []
        stores += [StoreFactory(builder) for builder in own]
        versioned = None if given is None else kept.versioned
        node = self.attach(name, prefix, operator, store_names=used, stores=stores, output_versioned=versioned)
        return kept_table(kept, self.builder, node, self.source_nodes, operator)

    @overload
    def to_stream(self, key_selector: None = None, *, name: str | None = None) -> KStream[K, V]: ...
    @overload
    def to_stream(self, key_selector: Callable[[K, V], KR], *, name: str | None = None) -> KStream[KR, V]: ...
    def to_stream(
        self, key_selector: Callable[[K, V], object] | None = None, *, name: str | None = None
    ) -> KStream[Any, V]:
        """Return the updates of the table as a stream, re-keyed by key_selector(key, value) if that is given."""
        node = self.attach(name, "KTABLE-TOSTREAM-", KTableToStream())
        stream: KStream[Any, V] = KStream(self.builder, node, self.key_serde, self.value_serde, self.source_nodes)
        return stream if key_selector is None else stream.select_key(key_selector)

    def suppress(self, suppressed: Suppressed) -> KTable[K, V]:
        """Hold back updates; see Suppressed. Raises TopologyError for versioned tables, and if no window closes."""
        check_type(suppressed, Suppressed, f"{self.name}: the argument of suppress()", "a Suppressed")
        if self.graph_node.output_versioned:
            raise TopologyError(f"{self.name}: suppress() is only supported for non-versioned KTables")
        prefix = "KTABLE-SUPPRESS-"
        name = suppressed.name or self.builder.new_processor_name(prefix)
        grace_ms = find_window_grace(self.graph_node) if suppressed.time_to_wait_ms is None else 0
        store_name = f"{suppressed.name}-store" if suppressed.name else self.builder.new_store_name(prefix)
        operator = KTableSuppressProcessor(suppressed.resolve(grace_ms), store_name, self)
        operator.idle_timeout = suppressed.idle_timeout
        store = StoreFactory(
            StoreBuilder(
                store_name,
                StoreKind.SUPPRESS_BUFFER,
                self.key_serde,
                self.value_serde,
                logging=suppressed.buffer.logging,
                log_config=suppressed.buffer.log_config,
            ),
            named=suppressed.name is not None,
        )
        node = self.attach_named(name, operator, stores=[store], output_versioned=False)
        sources = self.builder.topology.listed_as(name, self.source_nodes)
        return KTable(self.builder, node, self.key_serde, self.value_serde, sources, operator=operator)

    def group_by(
        self,
        key_value_selector: Callable[[K, V], tuple[KR, VR]],
        *,
        name: str | None = None,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
    ) -> KGroupedTable[KR, VR]:
        """Group by another key: key_value_selector(key, value) -> (group key, value to aggregate).

        name is that of the operator and of the repartition topic.
        """
        operator_name = Named(name).or_generate(self.builder, "KTABLE-SELECT-")
        node = self.attach_named(operator_name, KTableRepartitionMap(key_value_selector))
        self.enable_sending_old_values(True)
        return KGroupedTable(
            self.builder,
            node,
            as_serde(key_serde),
            as_serde(value_serde),
            self.source_nodes,
            repartition_name=name,
        )

    @overload
    def join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO], VR],
        *,
        foreign_key: None = None,
        **options: Unpack[TableOptions],
    ) -> KTable[K, VR]: ...
    @overload
    def join(
        self,
        other: KTable[KO, VO],
        joiner: Callable[[V, VO], VR],
        *,
        foreign_key: Callable[[V], KO | None],
        with_key: Literal[False] = False,
        **options: Unpack[ForeignKeyOptions],
    ) -> KTable[K, VR]: ...
    @overload
    def join(
        self,
        other: KTable[KO, VO],
        joiner: Callable[[V, VO], VR],
        *,
        foreign_key: Callable[[K, V], KO | None],
        with_key: Literal[True],
        **options: Unpack[ForeignKeyOptions],
    ) -> KTable[K, VR]: ...
    @shows_options(TableJoinOptions, with_key=False)
    def join(self, other: KTable, joiner: Callable[..., object], **options: Unpack[TableJoinOptions]) -> KTable[K, Any]:
        """Join with a table: rows that both have.

        joiner(left, right) -> value. Options: name, store, key_serde, value_serde. With ``foreign_key=`` the left value
        says which key of the other table belongs to it: foreign_key(value), or with with_key foreign_key(key, value),
        -> that key, None for none; then also partitioner and other_partitioner, which choose the partitions of the two
        internal topics; they get no value, and return one partition.
        """
        return self._join(other, joiner, "inner", **options)

    @overload
    def left_join(
        self,
        other: KTable[K, VO],
        joiner: Callable[[V, VO | None], VR],
        *,
        foreign_key: None = None,
        **options: Unpack[TableOptions],
    ) -> KTable[K, VR]: ...
    @overload
    def left_join(
        self,
        other: KTable[KO, VO],
        joiner: Callable[[V, VO | None], VR],
        *,
        foreign_key: Callable[[V], KO | None],
        with_key: Literal[False] = False,
        **options: Unpack[ForeignKeyOptions],
    ) -> KTable[K, VR]: ...
    @overload
    def left_join(
        self,
        other: KTable[KO, VO],
        joiner: Callable[[V, VO | None], VR],
        *,
        foreign_key: Callable[[K, V], KO | None],
        with_key: Literal[True],
        **options: Unpack[ForeignKeyOptions],
    ) -> KTable[K, VR]: ...
    @shows_options(TableJoinOptions, with_key=False)
    def left_join(
        self, other: KTable, joiner: Callable[..., object], **options: Unpack[TableJoinOptions]
    ) -> KTable[K, Any]:
        """Join like join(), but keep rows of this table without a counterpart: joiner(left, None) makes their value.

        foreign_key(value) and the other options are those of join().
        """
        return self._join(other, joiner, "left", **options)

    @shows_options(TableOptions)
    def outer_join(
        self, other: KTable[K, VO], joiner: Callable[[V | None, VO | None], VR], **options: Unpack[TableOptions]
    ) -> KTable[K, VR]:
        """Join like join(), but keep rows of both tables: joiner(left, right) gets None for a side that has none.

        There is no outer join by foreign key: TopologyError.
        """
        if "foreign_key" in options:
            raise TopologyError("There is no outer join by foreign key; use join() or left_join()")
        return self._join(other, joiner, "outer", **options)

    def _join(
        self,
        other: KTable,
        joiner: Callable[..., object],
        kind: str,
        *,
        foreign_key: Callable[..., object] | None = None,
        with_key: bool = False,
        partitioner: Partitioner | None = None,
        other_partitioner: Partitioner | None = None,
        **options: Unpack[TableOptions],
    ) -> KTable[K, Any]:
        if not isinstance(other, KTable):
            raise TopologyError(f"{self.name}: a KTable joins only KTables, got {other!r}")
        name, given = table_options(**options)
        if foreign_key is None:
            return table_join(self, other, joiner, kind, name, given)
        return foreign_key_join(
            self, other, foreign_key, with_key, joiner, kind == "left", name, given, (partitioner, other_partitioner)
        )

    def value_getter_supplier(self) -> KTableValueGetterSupplier:
        """Return the supplier by which operators read the table; this materializes a source table."""
        return self.operator.view()

    def enable_sending_old_values(self, force_materialization: bool) -> bool:
        """Include the old value in updates; returns False if that needs a store and none is forced."""
        self._sends_old_values = self._sends_old_values or self.operator.enable_sending_old_values(
            force_materialization
        )
        return self._sends_old_values


def kept_table(
    kept: MaterializedInternal,
    builder: InternalStreamsBuilder,
    node: GraphNode,
    sources: frozenset[str],
    operator: TableOperator,
    key_serde: Serde | None = None,
) -> KTable:
    """Return the table of an operator. kept: how its results are kept. key_serde: of windowed keys; overrides kept."""
    return KTable(
        builder,
        node,
        key_serde or kept.key_serde,
        kept.value_serde,
        sources,
        operator=operator,
        queryable_store_name=kept.queryable_store_name,
    )
