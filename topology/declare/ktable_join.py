"""Joins of two tables by their keys, as they are put into the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..common.naming import Named
from ..graph.graph_join_nodes import KTableKTableJoinNode, TableJoinSide
from ..operators.table_join import (
    KTableKTableAbstractJoin,
    KTableKTableInnerJoin,
    KTableKTableJoinMerger,
    KTableKTableLeftJoin,
    KTableKTableOuterJoin,
    KTableKTableRightJoin,
)
from ..stores.materialized import Materialized, MaterializedInternal, key_value_store

if TYPE_CHECKING:
    from .ktable import KTable

#: The operators of this and of the other side, for each kind of join.
_SIDES: dict[str, tuple[type[KTableKTableAbstractJoin], type[KTableKTableAbstractJoin]]] = {
    "inner": (KTableKTableInnerJoin, KTableKTableInnerJoin),
    "left": (KTableKTableLeftJoin, KTableKTableRightJoin),
    "outer": (KTableKTableOuterJoin, KTableKTableOuterJoin),
}

_MERGE_NAME = "KTABLE-MERGE-"


def table_join(
    this: KTable[Any, Any],
    other: KTable[Any, Any],
    joiner: Callable[[Any, Any], Any],
    kind: str,
    name: str | None,
    given: Materialized | None,
) -> KTable[Any, Any]:
    """Join two tables; kind is "inner", "left" or "outer", joiner takes (left, right)."""
    from .ktable import KTable

    builder, named = this.builder, Named(name)
    kept = None
    if given is not None:
        kept = MaterializedInternal(given, builder, _MERGE_NAME, key_serde=this.key_serde)
    merge_name = named.or_generate(builder, _MERGE_NAME)
    sources = this.copartition_with(other)
    if kind != "inner":
        this.enable_sending_old_values(True)
    if kind == "outer":
        other.enable_sending_old_values(True)
    this_operator, other_operator = _SIDES[kind]
    left = this_operator(this, other, joiner)
    right = other_operator(other, this, lambda value, other_value: joiner(other_value, value))
    this_name = named.suffix_or_generate("-join-this", builder, "KTABLE-JOINTHIS-")
    other_name = named.suffix_or_generate("-join-other", builder, "KTABLE-JOINOTHER-")
    merger = KTableKTableJoinMerger(left, right, None if kept is None else kept.store_name)
    node = KTableKTableJoinNode(
        merge_name,
        TableJoinSide(this_name, left, this.name, this.value_getter_supplier().store_names),
        TableJoinSide(other_name, right, other.name, other.value_getter_supplier().store_names),
        merger,
        None if kept is None else key_value_store(kept),
    )
    node.output_versioned = kept is not None and kept.versioned
    builder.add_graph_node([this.graph_node], node)
    builder.add_graph_node([other.graph_node], node)
    return KTable(
        builder,
        node,
        this.key_serde if kept is None else kept.key_serde,
        None if kept is None else kept.value_serde,
        sources,
        operator=merger,
        queryable_store_name=None if kept is None else kept.store_name,
    )
