"""KGroupedTable: a table whose rows are grouped by another key for aggregation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload

from ..common.naming import Named
from ..graph.graph_nodes import GroupedTableOperationRepartitionNode, ProcessorGraphNode
from ..graph.repartition import REPARTITION_SUFFIX
from ..operators.aggregate import KTableAggregate, KTableReduce
from ..operators.counting import count_aggregator, count_initializer
from ..operators.table_operator import TableOperator
from ..serdes.serdes import Serde, Serdes
from ..stores.materialized import MaterializedInternal, key_value_store
from ..type_variables import VR, K, V
from .abstract_stream import AbstractStream
from .agg import Aggregate
from .aggregated import functions_of
from .options import TableOptions, shows_options, table_options

if TYPE_CHECKING:
    from .ktable import KTable


AGGREGATE_NAME = "KTABLE-AGGREGATE-"
REDUCE_NAME = "KTABLE-REDUCE-"


def _count_subtractor(key: object, value: object, aggregate: int) -> int:
    return aggregate - 1


class KGroupedTable(AbstractStream, Generic[K, V]):
    """A table grouped by another key (Kafka Streams: KGroupedTable).

    An aggregation handles an update of a row in two steps: it subtracts the old value and adds the new one, possibly in
    another group. Options as in KGroupedStream.
    """

    def __init__(self, *args: Any, repartition_name: str | None) -> None:
        super().__init__(*args)
        self._repartition_name = repartition_name
        self._repartition: GroupedTableOperationRepartitionNode | None = None

    @shows_options(TableOptions)
    def count(self, **options: Unpack[TableOptions]) -> KTable[K, int]:
        """Count the rows of each group."""
        name, kept = self._kept(options, Serdes.int64())
        operator = KTableAggregate(kept.store_name, count_initializer, count_aggregator, _count_subtractor)
        return self._aggregate(name, AGGREGATE_NAME, operator, kept)

    @shows_options(TableOptions)
    def reduce(
        self, adder: Callable[[V, V], V], subtractor: Callable[[V, V], V], **options: Unpack[TableOptions]
    ) -> KTable[K, V]:
        """Combine the values of each group: adder and subtractor take (aggregate, value), return the new aggregate."""
        name, kept = self._kept(options, self.value_serde)
        return self._aggregate(name, REDUCE_NAME, KTableReduce(kept.store_name, adder, subtractor), kept)

    @overload
    def aggregate(
        self,
        initializer: Callable[[], VR],
        adder: Callable[[K, V, VR], VR],
        subtractor: Callable[[K, V, VR], VR],
        **options: Unpack[TableOptions],
    ) -> KTable[K, VR]: ...
    @overload
    def aggregate(self, initializer: Aggregate[VR], **options: Unpack[TableOptions]) -> KTable[K, VR]: ...
    @overload
    def aggregate(
        self, initializer: Mapping[str, Aggregate], **options: Unpack[TableOptions]
    ) -> KTable[K, dict[str, Any]]: ...
    @shows_options(TableOptions)
    def aggregate(
        self,
        initializer: object,
        adder: Callable[..., object] | None = None,
        subtractor: Callable[..., object] | None = None,
        **options: Unpack[TableOptions],
    ) -> KTable[K, Any]:
        """Aggregate the values of each group: adder and subtractor take (key, value, aggregate), return the new one.

        It starts from initializer(). A None deletes the aggregate. Aggregates of ``penstock.agg`` replace all three, as
        in KGroupedStream; they remove the old value of a row themselves.
        """
        name, kept = self._kept(options)
        functions = functions_of(kept, initializer, retracts=True, aggregator=adder, subtractor=subtractor)
        operator = KTableAggregate(kept.store_name, functions.initializer, functions.aggregator, functions.subtractor)
        return functions.table(self._aggregate(name, AGGREGATE_NAME, operator, kept), name)

    def _kept(self, options: TableOptions, value_serde: Serde | None = None) -> tuple[str | None, MaterializedInternal]:
        name, given = table_options(**options)
        keys = self.key_serde
        return name, MaterializedInternal(given, self.builder, AGGREGATE_NAME, key_serde=keys, value_serde=value_serde)

    def _aggregate(
        self, name: str | None, prefix: str, operator: TableOperator, kept: MaterializedInternal
    ) -> KTable[K, Any]:
        from .ktable import kept_table

        repartition, function_name = self._repartitioned(Named(name), prefix, kept)
        node = ProcessorGraphNode(function_name, operator, stores=[key_value_store(kept)])
        node.output_versioned = kept.versioned
        self.builder.add_graph_node(repartition, node)
        return kept_table(kept, self.builder, node, frozenset([repartition.node_name]), operator)

    def _repartitioned(
        self, named: Named, prefix: str, kept: MaterializedInternal
    ) -> tuple[GroupedTableOperationRepartitionNode, str]:
        """Return the repartition node, and the name of the operator after it."""
        sink_name = named.suffix_or_generate("-sink", self.builder, "KSTREAM-SINK-")
        source_name = named.suffix_or_generate("-source", self.builder, "KSTREAM-SOURCE-")
        function_name = named.or_generate(self.builder, prefix)
        if self._repartition is None or self._repartition_name is None:
            self._repartition = GroupedTableOperationRepartitionNode(
                source_name,
                sink_name,
                (self._repartition_name or kept.store_name) + REPARTITION_SUFFIX,
                self.key_serde,
                self.value_serde,
                named=self._repartition_name is not None or kept.queryable_store_name is not None,
            )
        self.builder.add_graph_node(self.graph_node, self._repartition)
        return self._repartition, function_name
