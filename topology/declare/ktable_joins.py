"""Joins of two tables, by their keys, or by a foreign key in the left value (KIP-213).

In a foreign-key join the left side *subscribes* to a foreign key through one internal topic; the right side answers
each subscription, and later each change, through another; the left side joins the answers with its current values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from ..common.naming import Named
from ..common.user_functions import ValueJoiner
from ..context.partitioners import OnePartition, Partitioner, check_partitioner
from ..context.store_interfaces import StoreBuilder, StoreKind
from ..context.timestamp_extractors import fail_on_invalid_timestamp
from ..graph.declarations import Consumed
from ..graph.graph_nodes import (
    GraphNode,
    KTableKTableJoinNode,
    ProcessorGraphNode,
    StateStoreNode,
    StreamSinkNode,
    StreamSourceNode,
    TableJoinSide,
)
from ..operators.foreign_key_join import (
    ForeignTableJoinProcessor,
    ResponseJoinProcessor,
    SubscriptionJoinProcessor,
    SubscriptionReceiveProcessor,
    SubscriptionSendProcessor,
)
from ..operators.foreign_key_serdes import (
    CombinedKeySchema,
    PrimaryPartitioner,
    SubscriptionResponseWrapperSerde,
    SubscriptionWrapperSerde,
)
from ..operators.table import KTableSource
from ..operators.table_join import (
    KTableKTableAbstractJoin,
    KTableKTableInnerJoin,
    KTableKTableJoinMerger,
    KTableKTableLeftJoin,
    KTableKTableOuterJoin,
    KTableKTableRightJoin,
)
from ..serdes.serdes import Serde, Serdes
from ..stores.materialized import Materialized, MaterializedInternal, StoreFactory, key_value_store

if TYPE_CHECKING:
    from .ktable import KTable

_FK_JOIN = "KTABLE-FK-JOIN-"
_REGISTRATION = _FK_JOIN + "SUBSCRIPTION-REGISTRATION-"
_PROCESSOR = _FK_JOIN + "SUBSCRIPTION-PROCESSOR-"
_RESPONSE = _FK_JOIN + "SUBSCRIPTION-RESPONSE-"
_RESOLVER = _FK_JOIN + "SUBSCRIPTION-RESPONSE-RESOLVER-PROCESSOR-"
_OUTPUT = _FK_JOIN + "OUTPUT-"
_SINK = "KTABLE-SINK-"
_SOURCE = "KTABLE-SOURCE-"


#: The operators of this and of the other side, for each kind of join.
_SIDES: dict[str, tuple[type[KTableKTableAbstractJoin], type[KTableKTableAbstractJoin]]] = {
    "inner": (KTableKTableInnerJoin, KTableKTableInnerJoin),
    "left": (KTableKTableLeftJoin, KTableKTableRightJoin),
    "outer": (KTableKTableOuterJoin, KTableKTableOuterJoin),
}

_MERGE_NAME = "KTABLE-MERGE-"


class _Join(NamedTuple):
    """The parameters of all steps of a join. value_hash_topic: a pseudo-topic, for serdes that depend on the topic."""

    this: KTable
    other: KTable
    joiner: Callable[..., Any]
    left_join: bool
    named: Named
    value_hash_topic: str

    def name(self, suffix: str, prefix: str) -> str:
        return self.named.suffix_or_generate(suffix, self.this.builder, prefix)

    def attach(self, parent: GraphNode, node: GraphNode) -> GraphNode:
        self.this.builder.add_graph_node(parent, node)
        return node

    def internal_topic(self, topic: str, serdes: tuple[Serde | None, Serde], source: str) -> StreamSourceNode:
        """Declare an internal topic, and return the node that reads it."""
        self.this.builder.topology.add_internal_topic(topic, named=self.named.name is not None)
        consumed = Consumed(*serdes, timestamp_extractor=fail_on_invalid_timestamp)
        return StreamSourceNode(source, [topic], consumed)


def foreign_key_join(
    this: KTable,
    other: KTable,
    foreign_key: Callable[..., object],
    with_key: bool,
    joiner: Callable[..., object],
    left_join: bool,
    name: str | None,
    given: Materialized | None,
    partitioners: tuple[Partitioner | None, Partitioner | None],
) -> KTable:
    """Join two tables by foreign key; partitioners are those of the response and of the subscription topic."""
    # The right side detects unchanged values, and the left side unsubscribes from the old foreign key.
    other.enable_sending_old_values(True)
    this.enable_sending_old_values(True)
    named = Named(name)
    topic = named.suffix_or_generate("-subscription-registration", this.builder, _REGISTRATION) + "-topic"
    join = _Join(this, other, joiner, left_join, named, f"{topic}-vh")
    schema = CombinedKeySchema(f"{topic}-fk", other.key_serde, f"{topic}-pk", this.key_serde)
    send = SubscriptionSendProcessor(
        foreign_key, f"{topic}-fk", join.value_hash_topic, other.key_serde, this.value_serde, left_join, with_key
    )
    subscribed = _subscribe(join, topic, send, partitioners[1])
    answers = _answer(join, subscribed, schema)
    return _resolve(join, answers, partitioners[0], given)


def _subscribe(
    join: _Join, topic: str, send: SubscriptionSendProcessor, partitioner: Partitioner | None
) -> StreamSourceNode:
    """Send a subscription for each left row; return the source of the subscriptions."""
    this, other = join.this, join.other
    send_name = join.name("-subscription-registration-processor", _REGISTRATION)
    send_node = join.attach(this.graph_node, ProcessorGraphNode(send_name, send))
    serdes = (other.key_serde, SubscriptionWrapperSerde(f"{topic}-pk", this.key_serde))
    sink_name = join.name("-subscription-registration-sink", _SINK)
    sink = join.attach(send_node, StreamSinkNode(sink_name, topic, *serdes, _one_partition(partitioner)))
    source = join.internal_topic(topic, serdes, join.name("-subscription-registration-source", _SOURCE))
    join.attach(sink, source)
    sources = other.source_nodes | {source.node_name}
    this.builder.topology.require_copartition(sources)
    return source


def _one_partition(partitioner: Partitioner | None) -> OnePartition | None:
    check_partitioner(partitioner, "The partitioner of a foreign-key join")
    return None if partitioner is None else OnePartition(partitioner)


def _answer(join: _Join, subscribed: StreamSourceNode, schema: CombinedKeySchema) -> list[GraphNode]:
    """Store subscriptions; return the nodes that answer new ones and that send changes to subscribers."""
    builder, other = join.this.builder, join.other
    store_name = join.name("-subscription-store", _FK_JOIN + "SUBSCRIPTION-STATE-STORE-")
    store = StoreBuilder(
        store_name, StoreKind.FOREIGN_KEY_SUBSCRIPTION, Serdes.bytes(), subscribed.consumed.value_serde
    )
    builder.add_graph_node(builder.root, StateStoreNode(StoreFactory(store, join.named.name is not None, dsl=True)))
    receive_name = join.name("-subscription-receive", _PROCESSOR)
    receive = SubscriptionReceiveProcessor(store_name, schema)
    received = join.attach(subscribed, ProcessorGraphNode(receive_name, receive, [store_name]))
    getter = other.value_getter_supplier()
    answer = ProcessorGraphNode(
        join.name("-subscription-join-foreign", _PROCESSOR), SubscriptionJoinProcessor(getter), getter.store_names
    )
    join.attach(received, answer)
    respond_to_changes = ProcessorGraphNode(
        join.name("-foreign-join-subscription", _PROCESSOR), ForeignTableJoinProcessor(store_name, schema), [store_name]
    )
    join.attach(other.graph_node, respond_to_changes)
    return [answer, respond_to_changes]


def _resolve(
    join: _Join, answers: list[GraphNode], partitioner: Partitioner | None, given: Materialized | None
) -> KTable:
    """Send answers back to the left side, and join them there."""
    from .ktable import kept_table

    this, builder = join.this, join.this.builder
    topic = join.name("-subscription-response", _RESPONSE) + "-topic"
    serdes = (this.key_serde, SubscriptionResponseWrapperSerde(join.other.value_serde))
    sink_name = join.name("-subscription-response-sink", _SINK)
    sink = StreamSinkNode(sink_name, topic, *serdes, _one_partition(partitioner) or PrimaryPartitioner())
    builder.add_graph_node(answers, sink)
    source = join.internal_topic(topic, serdes, join.name("-subscription-response-source", _SOURCE))
    join.attach(sink, source)
    sources = this.source_nodes | {source.node_name}
    builder.topology.require_copartition(sources)
    getter = this.value_getter_supplier()
    resolver = ResponseJoinProcessor(getter, this.value_serde, join.value_hash_topic, join.joiner, join.left_join)
    resolver_name = join.name("-subscription-response-resolver", _RESOLVER)
    resolved = join.attach(source, ProcessorGraphNode(resolver_name, resolver, getter.store_names))
    result_name = join.name("-result", _OUTPUT)
    kept = MaterializedInternal(given, builder, _OUTPUT, key_serde=this.key_serde)
    operator = KTableSource(kept.store_name, kept.queryable_store_name)
    result = ProcessorGraphNode(result_name, operator, stores=[key_value_store(kept)])
    result.output_versioned = kept.versioned
    join.attach(resolved, result)
    return kept_table(kept, builder, result, sources, operator)


def table_join(
    this: KTable,
    other: KTable,
    joiner: ValueJoiner,
    kind: str,
    name: str | None,
    given: Materialized | None,
) -> KTable:
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
    right = other_operator(other, this, joiner, is_right=True)
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
