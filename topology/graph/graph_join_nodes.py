"""The nodes of joins in the graph of DSL operations; see graph_nodes.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from typing_extensions import override

from ..errors import TopologyError
from ..operators.operator import Operator
from ..operators.table_join import KTableKTableAbstractJoin, KTableKTableJoinMerger
from ..stores.materialized import StoreFactory
from .graph_nodes import GraphNode, check_functions
from .internal_topology_builder import InternalTopologyBuilder


class StreamJoinSide(NamedTuple):
    """One side of a stream-stream join: the node before it that fills the window store, and the join itself."""

    windowed_name: str
    join_name: str
    operator: Operator
    window_store: StoreFactory


@dataclass(eq=False, repr=False)
class StreamStreamJoinNode(GraphNode):
    """Joins two streams; named after the node that merges both sides.

    outer_store holds records that have not been joined yet, None in an inner join. self_join replaces both sides where
    a stream is joined with itself (single.store.self.join).
    """

    this: StreamJoinSide
    other: StreamJoinSide
    merge: Operator
    outer_store: StoreFactory | None
    self_join: Operator
    is_self_join: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        check_functions(self.node_name, self.this.operator)

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        this, other = self.this, self.other
        if self.is_self_join:
            topology.add_processor(self.node_name, self.self_join, [this.windowed_name])
            topology.add_state_store(this.window_store, [this.windowed_name, self.node_name])
            return
        topology.add_processor(this.join_name, this.operator, [this.windowed_name])
        topology.add_processor(other.join_name, other.operator, [other.windowed_name])
        topology.add_processor(self.node_name, self.merge, [this.join_name, other.join_name])
        topology.add_state_store(this.window_store, [this.windowed_name, other.join_name])
        topology.add_state_store(other.window_store, [other.windowed_name, this.join_name])
        if self.outer_store is not None:
            topology.add_state_store(self.outer_store, [this.join_name, other.join_name])


@dataclass(eq=False, repr=False)
class StreamTableJoinNode(GraphNode):
    """Joins a stream with a table, whose stores it reads; with a grace period through a buffer (KIP-923).

    grace_ms is None without a grace period; store_names is empty for a global table.
    """

    operator: Operator
    store_names: Sequence[str] = ()
    grace_ms: int | None = None
    buffer: StoreFactory | None = None

    def __post_init__(self) -> None:
        check_functions(self.node_name, self.operator)

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        topology.add_processor(self.node_name, self.operator, self.parent_names())
        if self.buffer is not None:
            topology.add_state_store(self.buffer, [self.node_name])
        if self.store_names:
            topology.connect_processor_and_state_stores(self.node_name, *self.store_names)
        if self.grace_ms is not None:
            for store in self.store_names:
                self._check_history(topology, store, self.grace_ms)

    def _check_history(self, topology: InternalTopologyBuilder, store: str, grace_ms: int) -> None:
        if not topology.is_store_versioned(store):
            raise TopologyError(
                f"{self.node_name}: the KTable must be versioned to use a grace period in a stream-table join; store "
                f"{store} is not. Materialize it with Stores.persistent_versioned_key_value_store"
            )
        retention = topology.history_retention_ms(store)
        if grace_ms > retention:
            raise TopologyError(
                f"{self.node_name}: the history retention of store {store}, {retention} ms, must be at least the "
                f"grace period of the join, {grace_ms} ms"
            )


class TableJoinSide(NamedTuple):
    """One side of a table-table join: the join, behind which node it stands, and the stores of that table."""

    join_name: str
    operator: KTableKTableAbstractJoin
    parent_name: str
    store_names: tuple[str, ...]


@dataclass(eq=False, repr=False)
class KTableKTableJoinNode(GraphNode):
    """Joins two tables by their keys; named after the node that merges both sides."""

    this: TableJoinSide
    other: TableJoinSide
    merger: KTableKTableJoinMerger
    store: StoreFactory | None

    def __post_init__(self) -> None:
        check_functions(self.node_name, self.this.operator)

    @override
    def enable_versioned_semantics(self, parent_name: str) -> None:
        """Enable them for the side behind that parent only."""
        for side in (self.this, self.other):
            if side.parent_name == parent_name:
                side.operator.use_versioned_semantics = True

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        """Each side reads the other's stores."""
        this, other = self.this, self.other
        topology.add_processor(this.join_name, this.operator, [this.parent_name])
        topology.add_processor(other.join_name, other.operator, [other.parent_name])
        topology.add_processor(self.node_name, self.merger, [this.join_name, other.join_name])
        topology.connect_processor_and_state_stores(this.join_name, *other.store_names)
        topology.connect_processor_and_state_stores(other.join_name, *this.store_names)
        if self.store is not None:
            topology.add_state_store(self.store, [self.node_name])
