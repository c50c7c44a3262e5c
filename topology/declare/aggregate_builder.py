"""The common part of all aggregations of grouped streams (Kafka Streams: GroupedStreamAggregateBuilder)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common.naming import Named
from ..common.user_functions import Aggregator, Reducer
from ..graph.graph_nodes import GraphNode, OptimizableRepartitionNode, ProcessorGraphNode
from ..graph.repartition import repartition_node
from ..operators.operator import Operator
from ..operators.table_operator import TableOperator
from ..serdes.serdes import Serde, Serdes
from ..stores.materialized import MaterializedInternal, StoreFactory
from .abstract_stream import AbstractStream
from .options import TableOptions, table_options

if TYPE_CHECKING:
    from .ktable import KTable

AGGREGATE_NAME = "KSTREAM-AGGREGATE-"
REDUCE_NAME = "KSTREAM-REDUCE-"


def reduce_initializer() -> None:
    """Return None, the initial aggregate of a reduction."""


def merger_for_reducer(reducer: Reducer) -> Aggregator:
    """Return a reducer as a session merger(key, one aggregate, other)."""

    def merge(key: object, one: object, other: object) -> object:
        return other if one is None else reducer(one, other)

    return merge


class AggregateBuilder(AbstractStream):
    """A grouped stream: repartitions it if its key has changed, and attaches aggregations.

    repartition_name: the user's name of the grouping; all its aggregations then share one repartition topic.
    """

    def __init__(self, *args: Any, repartition_required: bool, repartition_name: str | None) -> None:
        super().__init__(*args)
        self.repartition_required = repartition_required
        self.repartition_name = repartition_name
        self._repartition: GraphNode | None = None

    def kept(
        self, options: TableOptions, prefix: str, value_serde: Serde | None = None
    ) -> tuple[str | None, MaterializedInternal]:
        """Return the name of an aggregation and its table's materialization; internal."""
        name, given = table_options(**options)
        keys = self.key_serde
        return name, MaterializedInternal(given, self.builder, prefix, key_serde=keys, value_serde=value_serde)

    def kept_count(self, options: TableOptions, numbered: bool = True) -> tuple[str | None, MaterializedInternal]:
        """Return the same for a count. numbered: an unnamed Materialized consumes a number, as in Kafka Streams."""
        _, given = table_options(**options)
        if numbered and given is not None and given.store_name is None:
            self.builder.new_store_name(AGGREGATE_NAME)
        return self.kept(options, AGGREGATE_NAME, Serdes.int64())

    def build(
        self,
        name: str | None,
        prefix: str,
        operator: TableOperator,
        store: StoreFactory,
        kept: MaterializedInternal,
        key_serde: Serde | None,
    ) -> KTable:
        """Attach an aggregation to this stream, and return its table; key_serde: of the table's keys."""
        from .ktable import kept_table

        node, sources = self.attached(name, prefix, operator, store)
        node.output_versioned = kept.versioned
        return kept_table(kept, self.builder, node, sources, operator, key_serde)

    def attached(
        self, name: str | None, prefix: str, operator: Operator, store: StoreFactory
    ) -> tuple[GraphNode, frozenset[str]]:
        """Attach an operator with a store to this stream; return its node and the stream's sources; internal."""
        function_name = Named(name).or_generate(self.builder, prefix)
        parent: AbstractStream = self.repartitioned(store) if self.repartition_required else self
        node = ProcessorGraphNode(function_name, operator, stores=[store])
        self.builder.add_graph_node(parent.graph_node, node)
        return node, parent.source_nodes

    def repartitioned(self, store: StoreFactory) -> AbstractStream:
        """Return this stream after a repartition topic, named after the store unless the user named it."""
        node = self.new_repartition_node(store)
        if self._repartition is None or self.repartition_name is None:
            self._repartition = node
        self.builder.add_graph_node(self.graph_node, self._repartition)
        return AbstractStream(
            self.builder, self._repartition, self.key_serde, self.value_serde, frozenset([self._repartition.node_name])
        )

    def new_repartition_node(self, store: StoreFactory) -> GraphNode:
        """Return a new repartition node, not yet in the graph; it takes the next numbers of names in any case."""
        return repartition_node(
            OptimizableRepartitionNode,
            self.builder,
            self.repartition_name or store.name,
            self.key_serde,
            self.value_serde,
            named=self.repartition_name is not None or store.named,
        )
