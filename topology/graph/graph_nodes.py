"""The graph of DSL operations, which the optimizer rewrites before it is written into a topology.

One node is one operation, or a join; it may become several nodes of the topology (Kafka Streams:
kstream.internals.graph).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from typing_extensions import override

from ..common.arguments import check_function
from ..context.partitioners import Partitioner, WindowedStreamPartitioner
from ..context.timestamp_extractors import fail_on_invalid_timestamp
from ..errors import TopologyError
from ..operators.operator import Operator
from ..operators.sink_operator import SinkOperator
from ..operators.stateless import KStreamFilter, PassThrough
from ..operators.table import KTableSource
from ..operators.table_join import KTableKTableAbstractJoin, KTableKTableJoinMerger
from ..serdes.serdes import Serde
from ..serdes.windowed_serdes import ChangedSerde, WindowedSerde
from ..stores.materialized import StoreFactory
from .declarations import Consumed, Produced
from .internal_topology_builder import InternalTopologyBuilder


@runtime_checkable
class VersionedSemantics(Protocol):
    """An operator that works differently after a versioned table."""

    use_versioned_semantics: bool


#: Attributes of operators that hold users' functions.
_FUNCTIONS = (
    "predicate",
    "mapper",
    "action",
    "initializer",
    "aggregator",
    "session_merger",
    "reducer",
    "add",
    "remove",
    "add_reducer",
    "remove_reducer",
    "joiner",
    "foreign_key_extractor",
    "supplier",
)


def check_functions(name: str, *operators: Operator) -> None:
    """Raise TopologyError for an attribute that should be a function and is not, before the first record fails."""
    for operator in operators:
        for attribute in _FUNCTIONS:
            given = getattr(operator, attribute, check_functions)
            if not callable(given):
                hint = "; give the class, not an instance" if attribute == "supplier" else ""
                raise TopologyError(f"{name}: {attribute} must be a function, got {given!r}{hint}")
            check_function(given, f"{name}: {attribute}")


@dataclass(eq=False, repr=False)
class GraphNode:
    """A DSL operation with its parents and children.

    build_priority: nodes are written in the order in which they were added, parents first; 0 for as soon as possible.
    output_versioned: whether the resulting table keeps versions; None if that depends on the parents.
    accepts_null_keys: a left or outer join, or a deduplication, which needs records without a key.
    """

    node_name: str
    parents: dict[GraphNode, None] = field(default_factory=dict, init=False)
    children: dict[GraphNode, None] = field(default_factory=dict, init=False)
    build_priority: int = field(default=0, init=False)
    written: bool = field(default=False, init=False)
    key_changing: bool = field(default=False, init=False)
    value_changing: bool = field(default=False, init=False)
    merge_node: bool = field(default=False, init=False)
    output_versioned: bool | None = field(default=None, init=False)
    accepts_null_keys: bool = field(default=False, init=False)

    def add_child(self, child: GraphNode) -> None:
        """Add a child to this node."""
        self.children[child] = None
        child.parents[self] = None

    def remove_child(self, child: GraphNode) -> None:
        """Remove a child."""
        self.children.pop(child, None)
        child.parents.pop(self, None)

    def clear_children(self) -> None:
        """Remove all children."""
        for child in list(self.children):
            self.remove_child(child)

    def parent_names(self) -> list[str]:
        """Return the parents' names in order."""
        return [parent.node_name for parent in self.parents]

    def enable_versioned_semantics(self, parent_name: str) -> None:
        """Record that a parent's output is versioned."""

    def write_to(self, topology: InternalTopologyBuilder) -> None:
        """Add the nodes and stores of this operation to the topology."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.node_name}, parents={self.parent_names()})"


@dataclass(eq=False, repr=False)
class ProcessorGraphNode(GraphNode):
    """One operator, with stores that were added elsewhere and its own stores."""

    operator: Operator
    store_names: Sequence[str] = ()
    stores: Sequence[StoreFactory] = ()

    def __post_init__(self) -> None:
        check_functions(self.node_name, self.operator)

    @override
    def enable_versioned_semantics(self, parent_name: str) -> None:
        if isinstance(self.operator, VersionedSemantics):
            self.operator.use_versioned_semantics = True

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        """Add the operator; a table without readers has no store."""
        topology.add_processor(self.node_name, self.operator, self.parent_names())
        kept = not isinstance(self.operator, KTableSource) or self.operator.materialized
        for store in self.stores if kept else ():
            topology.add_state_store(store, [self.node_name])
        if self.store_names:
            topology.connect_processor_and_state_stores(self.node_name, *self.store_names)


class StreamSourceNode(GraphNode):
    """Reads topics, or all topics that match a pattern."""

    def __init__(self, node_name: str, topics: Sequence[str] | re.Pattern[str], consumed: Consumed) -> None:
        super().__init__(node_name)
        self.topics = topics if isinstance(topics, re.Pattern) else tuple(topics)
        self.consumed = consumed

    def merge(self, other: StreamSourceNode) -> None:
        """Move the children of another source of the same topics here, so that the topics are read once."""
        if self.consumed.offset_reset != other.consumed.offset_reset:
            raise TopologyError(
                f"Sources {self.node_name} and {other.node_name} read the same topics {self.topics} with different "
                "offset reset policies; give both the same"
            )
        if self.consumed.idle_timeout != other.consumed.idle_timeout:
            raise TopologyError(
                f"Sources {self.node_name} and {other.node_name} read the same topics {self.topics} with different "
                "idle timeouts; give both the same"
            )
        for child in list(other.children):
            other.remove_child(child)
            self.add_child(child)

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        topology.add_source(self.node_name, self.topics, self.consumed)


@dataclass(eq=False, repr=False)
class TableSourceNode(GraphNode):
    """Reads a topic as a table: a source followed by a KTableSource."""

    source_name: str
    topic: str
    consumed: Consumed
    operator: KTableSource
    store: StoreFactory
    is_global: bool = False
    reuse_source_topic_for_changelog: bool = field(default=False, init=False)

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        if self.is_global:
            topology.add_global_store(
                self.store, self.source_name, self.topic, self.node_name, self.operator, self.consumed
            )
            return
        StreamSourceNode(self.source_name, [self.topic], self.consumed).write_to(topology)
        topology.add_processor(self.node_name, self.operator, [self.source_name])
        if self.operator.materialized:
            topology.add_state_store(self.store, [self.node_name])
            # The topic does not say which rows a ttl has ended: they would return when the store is restored.
            if self.reuse_source_topic_for_changelog and self.store.builder.ttl is None:
                topology.connect_source_store_and_topic(self.store.name, self.topic)


@dataclass(eq=False, repr=False)
class StreamSinkNode(GraphNode):
    """Writes a topic."""

    topic: str | Callable[..., str]
    key_serde: Serde | None
    value_serde: Serde | None
    partitioner: Partitioner | None = None

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        """Add the sink; windowed keys are partitioned by the key inside."""
        partitioner = self.partitioner
        if partitioner is None and isinstance(self.key_serde, WindowedSerde):
            partitioner = WindowedStreamPartitioner(self.key_serde)
        produced = Produced(self.key_serde, self.value_serde, partitioner)
        topology.add_sink(self.node_name, self.topic, self.parent_names(), produced)


@dataclass(eq=False, repr=False)
class OutsideSinkNode(GraphNode):
    """Writes to a sink outside of Kafka, in a sub-topology without anything else; see isolate_sinks."""

    operator: SinkOperator
    named: bool

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        topology.add_processor(self.node_name, self.operator, self.parent_names())


class StateStoreNode(GraphNode):
    """A store that processors are connected to later."""

    def __init__(self, store: StoreFactory) -> None:
        super().__init__(store.name)
        self.store = store

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        topology.add_state_store(self.store)


@dataclass(eq=False, repr=False)
class GlobalStoreNode(GraphNode):
    """A global store with a user's processor that maintains it."""

    store: StoreFactory
    source_name: str
    topic: str
    consumed: Consumed
    processor_name: str
    operator: Operator

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        topology.add_global_store(
            self.store,
            self.source_name,
            self.topic,
            self.processor_name,
            self.operator,
            self.consumed,
            reprocess_on_restore=True,
        )


@dataclass(eq=False, repr=False)
class BaseRepartitionNode(GraphNode):
    """Writes an internal topic and reads it again; named after the source that reads the topic.

    filter_name: the processor before the sink, None in a grouped table. named: the user named the topic.
    """

    sink_name: str
    topic: str
    key_serde: Serde | None
    value_serde: Serde | None
    _: KW_ONLY
    filter_name: str | None = None
    partitioner: Partitioner | None = None
    partitions: int | None = None
    named: bool = True
    drops_null_keys: bool = field(default=False, init=False)

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        topology.add_internal_topic(self.topic, self.partitions, named=self.named)
        parents = self.parent_names()
        if self.filter_name is not None:
            operator = KStreamFilter(_has_key, False) if self.drops_null_keys else PassThrough()
            topology.add_processor(self.filter_name, operator, parents)
            parents = [self.filter_name]
        serdes = self.key_serde, self.value_serde
        topology.add_sink(self.sink_name, self.topic, parents, Produced(*serdes, self.partitioner))
        topology.add_source(self.node_name, [self.topic], Consumed(*serdes, fail_on_invalid_timestamp))


class OptimizableRepartitionNode(BaseRepartitionNode):
    """A repartition topic that an operation needs; merge.repartition.topics may merge it with others."""


class UnoptimizableRepartitionNode(BaseRepartitionNode):
    """A repartition topic that the user requested with repartition()."""


@dataclass(eq=False, repr=False)
class GroupedTableOperationRepartitionNode(BaseRepartitionNode):
    """A grouped table's repartition topic: its values are changes."""

    def __post_init__(self) -> None:
        self.value_serde = ChangedSerde(self.value_serde)


def _has_key(key: object, value: object) -> bool:
    return key is not None


class StreamJoinSide(NamedTuple):
    """One side of a stream-stream join: the node before it that fills the window store, and the join itself."""

    windowed_name: str
    join_name: str
    operator: Operator
    window_store: StoreFactory


@dataclass(eq=False, repr=False)
class StreamStreamJoinNode(GraphNode):
    """Joins two streams; named after the node that merges both sides.

    outer_store holds records that have not been joined yet, None in an inner join. self_join replaces both sides if a
    stream is joined with itself (single.store.self.join).
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
    """One side of a table-table join: the join, its parent node, and the stores of that table."""

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
        """Enable them for that parent's side only."""
        for side in (self.this, self.other):
            if side.parent_name == parent_name:
                side.operator.use_versioned_semantics = True

    @override
    def write_to(self, topology: InternalTopologyBuilder) -> None:
        """Add both sides, each of which reads the other's stores."""
        this, other = self.this, self.other
        topology.add_processor(this.join_name, this.operator, [this.parent_name])
        topology.add_processor(other.join_name, other.operator, [other.parent_name])
        topology.add_processor(self.node_name, self.merger, [this.join_name, other.join_name])
        topology.connect_processor_and_state_stores(this.join_name, *other.store_names)
        topology.connect_processor_and_state_stores(other.join_name, *this.store_names)
        if self.store is not None:
            topology.add_state_store(self.store, [self.node_name])
