"""KStream: an unbounded stream of records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TextIO, overload

from ..common.arguments import check_topic, check_type
from ..common.durations import Duration, non_negative_millis
from ..common.naming import Named, validate_name
from ..context.partitioners import Partitioner, check_partitioner
from ..context.sink_interfaces import Sink
from ..errors import TopologyError
from ..graph.graph_nodes import (
    GraphNode,
    OptimizableRepartitionNode,
    OutsideSinkNode,
    ProcessorGraphNode,
    StreamSinkNode,
    UnoptimizableRepartitionNode,
)
from ..graph.repartition import repartition_node
from ..operators.processor_operator import ProcessorOperator
from ..operators.sink_operator import SinkOperator
from ..operators.stateless import (
    KStreamFilter,
    KStreamFlatMap,
    KStreamFlatMapValues,
    KStreamMap,
    KStreamMapValues,
    KStreamPeek,
    KStreamPrint,
    KStreamSelectKey,
    PassThrough,
)
from ..operators.table import KTableSource
from ..processor_api import FixedKeyProcessor, Processor, stores_of
from ..serdes.serdes import Serde, SerdeLike, as_serde
from ..stores.materialized import MaterializedInternal, StoreFactory, StoreOption, key_value_store, materialized_option
from ..type_variables import KR, VR, K, V
from .abstract_stream import AbstractStream
from .branched_kstream import BranchedKStream
from .deduplicated import deduplicate
from .kstream_async import AsyncStream
from .kstream_joining import JoiningStream
from .printed import print_action

if TYPE_CHECKING:
    from .kgrouped_stream import KGroupedStream
    from .ktable import KTable


class KStream(JoiningStream[K, V], AsyncStream[K, V]):
    """An unbounded stream of records (Kafka Streams: KStream).

    Operations return new streams or tables and never change this one. Functions take (key, value) unless documented
    otherwise. All operations take ``name=`` for the operator; the default is generated as in Kafka Streams. They raise
    TopologyError for an invalid name.
    """

    def __init__(self, *args: Any, repartition_required: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.repartition_required = repartition_required
        self._join_repartition: GraphNode | None = None

    def filter(self, predicate: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Keep the records for which predicate(key, value) holds."""
        return self.same_types(self.attach(name, "KSTREAM-FILTER-", KStreamFilter(predicate, False)))

    def filter_not(self, predicate: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Drop the records for which predicate(key, value) holds."""
        return self.same_types(self.attach(name, "KSTREAM-FILTER-", KStreamFilter(predicate, True)))

    def select_key(self, mapper: Callable[[K, V], KR], *, name: str | None = None) -> KStream[KR, V]:
        """Replace the key by mapper(key, value). Later joins and aggregations repartition the stream."""
        node = self.attach(name, "KSTREAM-KEY-SELECT-", KStreamSelectKey(mapper), key_changing=True)
        return self.result(node, None, self.value_serde, repartition_required=True)

    def map(self, mapper: Callable[[K, V], tuple[KR, VR]], *, name: str | None = None) -> KStream[KR, VR]:
        """Replace key and value by the pair mapper(key, value)."""
        node = self.attach(name, "KSTREAM-MAP-", KStreamMap(mapper), key_changing=True)
        return self.result(node, None, None, repartition_required=True)

    @overload
    def map_values(
        self, mapper: Callable[[V], VR], *, with_key: Literal[False] = False, name: str | None = None
    ) -> KStream[K, VR]: ...
    @overload
    def map_values(
        self, mapper: Callable[[K, V], VR], *, with_key: Literal[True], name: str | None = None
    ) -> KStream[K, VR]: ...
    def map_values(
        self, mapper: Callable[..., object], *, with_key: bool = False, name: str | None = None
    ) -> KStream[K, Any]:
        """Replace the value by mapper(value), or with with_key by mapper(key, value)."""
        node = self.attach(name, "KSTREAM-MAPVALUES-", KStreamMapValues(mapper, with_key), value_changing=True)
        return self.result(node, self.key_serde, None)

    def flat_map(
        self, mapper: Callable[[K, V], Iterable[tuple[KR, VR]]], *, name: str | None = None
    ) -> KStream[KR, VR]:
        """Replace a record by all (key, value) pairs of mapper(key, value)."""
        node = self.attach(name, "KSTREAM-FLATMAP-", KStreamFlatMap(mapper), key_changing=True)
        return self.result(node, None, None, repartition_required=True)

    @overload
    def flat_map_values(
        self, mapper: Callable[[V], Iterable[VR]], *, with_key: Literal[False] = False, name: str | None = None
    ) -> KStream[K, VR]: ...
    @overload
    def flat_map_values(
        self, mapper: Callable[[K, V], Iterable[VR]], *, with_key: Literal[True], name: str | None = None
    ) -> KStream[K, VR]: ...
    def flat_map_values(
        self, mapper: Callable[..., Iterable[object]], *, with_key: bool = False, name: str | None = None
    ) -> KStream[K, Any]:
        """Replace a record by one for each of mapper(value), or with with_key of mapper(key, value)."""
        node = self.attach(name, "KSTREAM-FLATMAPVALUES-", KStreamFlatMapValues(mapper, with_key), value_changing=True)
        return self.result(node, self.key_serde, None)

    def peek(self, action: Callable[[K, V], object], *, name: str | None = None) -> KStream[K, V]:
        """Call action(key, value) for each record and continue with the same stream."""
        return self.same_types(self.attach(name, "KSTREAM-PEEK-", KStreamPeek(action)))

    def foreach(self, action: Callable[[K, V], object], *, name: str | None = None) -> None:
        """Call action(key, value) for each record."""
        self.attach(name, "KSTREAM-FOREACH-", KStreamPeek(action, forward=False))

    def print(
        self,
        *,
        label: str | None = None,
        file: str | TextIO | None = None,
        mapper: Callable[[K, V], str] | None = None,
        name: str | None = None,
    ) -> None:
        """Print ``[label]: key, value`` for each record, to standard output or to a file: a path or an open file.

        label is by default the name of this stream's node; mapper(key, value) returns the text after it.
        """
        action, close = print_action(label or self.name, file, mapper)
        self.attach(name, "KSTREAM-PRINTER-", KStreamPrint(action, close))

    def split(
        self,
        branches: Mapping[str, Callable[[K, V], object]] | None = None,
        *,
        default: str | bool = False,
        name: str | None = None,
    ) -> BranchedKStream[K, V]:
        """Split the stream: each record goes to the first branch whose predicate(key, value) holds.

        branches are predicates by branch name; default names the branch of all other records, which are dropped without
        it. The result is a dict of streams by branch name. Or continue as in Kafka Streams:
        ``stream.split().branch(predicate, name="late").default_branch(name="rest")``.
        """
        split: BranchedKStream[K, V] = BranchedKStream(self, name)
        for branch, predicate in (branches or {}).items():
            split.branch(predicate, branch)
        if default:
            split.default_branch(default if isinstance(default, str) else None)
        return split

    def merge(self, *others: KStream[K, V], name: str | None = None) -> KStream[K, V]:
        """Return all records of this stream and others, in the order of arrival; one operator for each other stream."""
        if not others:
            raise TopologyError("merge() needs at least one other stream")
        merged = self
        for other in others:
            check_type(other, KStream, f"{self.name}: the argument of merge()", "a KStream")
            merged = merged._merge(other, name)
        return merged

    def _merge(self, other: KStream[K, V], name: str | None) -> KStream[K, V]:
        node = ProcessorGraphNode(Named(name).or_generate(self.builder, "KSTREAM-MERGE-"), PassThrough())
        node.merge_node = True
        self.builder.add_graph_node([self.graph_node, other.graph_node], node)
        return self.result(
            node,
            None,
            None,
            repartition_required=self.repartition_required or other.repartition_required,
            source_nodes=self.source_nodes | other.source_nodes,
        )

    def repartition(
        self,
        *,
        name: str | None = None,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        number_of_partitions: int | None = None,
        partitioner: Partitioner | None = None,
    ) -> KStream[K, V]:
        """Write the stream to an internal topic ``<application.id>-<name>-repartition`` and read it again.

        number_of_partitions: by default that of the source topics. partitioner: see to().
        """
        if number_of_partitions is not None and number_of_partitions < 1:
            raise TopologyError(f"repartition() needs a positive number of partitions, got {number_of_partitions}")
        check_partitioner(partitioner, "The partitioner of repartition()")
        values = as_serde(value_serde) or self.value_serde
        prefix = validate_name(name) if name else self.builder.new_processor_name("KSTREAM-REPARTITION-")
        node = repartition_node(
            UnoptimizableRepartitionNode,
            self.builder,
            prefix,
            as_serde(key_serde) or self.key_serde,
            values,
            named=name is not None,
            partitioner=partitioner,
            partitions=number_of_partitions,
        )
        self.builder.add_graph_node(self.graph_node, node)
        return self.result(
            node,
            as_serde(key_serde) or self.key_serde,
            values,
            repartition_required=False,
            source_nodes=frozenset([node.node_name]),
        )

    def to(
        self,
        topic: str | Callable[..., str],
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        partitioner: Partitioner | None = None,
        name: str | None = None,
    ) -> None:
        """Write the stream to a topic, or to the topic that topic(key, value, RecordMetadata) names for each record.

        partitioner(topic, key, value, partition count) -> partition, several (each gets the record), none (the record
        is dropped, KIP-837), or None for Kafka's default. A StreamPartitioner sees the headers, too (KIP-1321).
        """
        if not callable(topic):
            check_topic(topic, "to()")
        check_partitioner(partitioner, "The partitioner of to()")
        node = StreamSinkNode(
            Named(name).or_generate(self.builder, "KSTREAM-SINK-"),
            topic,
            as_serde(key_serde) or self.key_serde,
            as_serde(value_serde) or self.value_serde,
            partitioner,
        )
        self.builder.add_graph_node(self.graph_node, node)

    def to_sink(
        self,
        sink: Sink,
        *,
        max_records: int = 10_000,
        max_wait: Duration = timedelta(seconds=1),
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        name: str | None = None,
    ) -> None:
        """Write the stream to a sink outside of Kafka, e.g. PostgresSink, exactly once (docs/sinks.md).

        The sink keeps the offsets of its input in the same transaction as its rows. So it has a sub-topology for
        itself: if more than stateless functions precede it, or the topic has other readers, it reads an internal
        topic, ``<application.id>-<name>-repartition``, which is written with these serdes.

        max_records: of one transaction, at most; the rows of one input record stay together. max_wait: how long the
        first record waits for others (``timedelta`` or ms); each commit writes, too. Serdes: by default the stream's;
        their types are those of the columns. Raises TopologyError for anything but a Sink.
        """
        check_type(sink, Sink, "The argument of to_sink()", 'a sink, e.g. SqliteSink("orders.db", "orders")')
        if type(max_records) is not int or max_records < 1:
            raise TopologyError(f"max_records must be 1 or more, got {max_records!r}")
        max_wait_ms = non_negative_millis(max_wait, "max_wait of to_sink()")
        serdes = as_serde(key_serde) or self.key_serde, as_serde(value_serde) or self.value_serde
        operator = SinkOperator(sink, max_records, max_wait_ms, *serdes)
        node_name = Named(name).or_generate(self.builder, "KSTREAM-SINK-")
        self.builder.add_graph_node(self.graph_node, OutsideSinkNode(node_name, operator, name is not None))

    def deduplicate_by_key(
        self,
        interval: Duration,
        *,
        name: str | None = None,
        store: str | None = None,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
    ) -> KStream[K, V]:
        """Drop the records that follow one with their key within interval (KIP-655, as proposed for Kafka Streams).

        interval: ``timedelta`` or ms, by timestamps and stream time. Records without a key are forwarded. name: of the
        operator, and of the repartition topic if one is needed. store: the name of the store, by default name. Raises
        TopologyError for a negative interval.
        """
        return deduplicate(self, interval, name, store, key_serde, value_serde)

    def deduplicate_by_key_value(
        self,
        id_selector: Callable[[K, V], object],
        interval: Duration,
        *,
        id_serde: SerdeLike,
        name: str | None = None,
        store: str | None = None,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
    ) -> KStream[K, V]:
        """Drop the records that follow one with their key and their id_selector(key, value) within interval.

        id_serde: of what id_selector returns; records for which that is None are forwarded. The rest is as in
        deduplicate_by_key().
        """
        return deduplicate(self, interval, name, store, key_serde, value_serde, (id_selector, id_serde))

    def to_table(
        self,
        *,
        name: str | None = None,
        store: StoreOption = None,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
    ) -> KTable[K, V]:
        """Read the stream as updates of a table: a null value deletes the row of its key."""
        from .ktable import kept_table

        prefix = "KSTREAM-TOTABLE-"
        node_name = Named(name).or_generate(self.builder, prefix)
        given = materialized_option(store, key_serde, value_serde)
        kept = MaterializedInternal(given, self.builder, prefix, key_serde=self.key_serde, value_serde=self.value_serde)
        parent: AbstractStream = self
        if self.repartition_required:
            serdes = kept.key_serde, kept.value_serde
            repartition = repartition_node(
                OptimizableRepartitionNode, self.builder, node_name, *serdes, named=name is not None
            )
            self.builder.add_graph_node(self.graph_node, repartition)
            parent = AbstractStream(self.builder, repartition, None, None, frozenset([repartition.node_name]))
        source = KTableSource(kept.store_name, kept.queryable_store_name)
        node = parent.attach_named(node_name, source, stores=[key_value_store(kept)], output_versioned=kept.versioned)
        return kept_table(kept, self.builder, node, parent.source_nodes, source)

    def group_by_key(
        self, *, name: str | None = None, key_serde: SerdeLike | None = None, value_serde: SerdeLike | None = None
    ) -> KGroupedStream[K, V]:
        """Group by the key. name is that of the repartition topic, if one is needed."""
        from .kgrouped_stream import KGroupedStream

        return KGroupedStream(
            self.builder,
            self.graph_node,
            as_serde(key_serde) or self.key_serde,
            as_serde(value_serde) or self.value_serde,
            self.source_nodes,
            self.name,
            repartition_required=self.repartition_required,
            repartition_name=name and validate_name(name),
        )

    def group_by(
        self,
        key_selector: Callable[[K, V], KR],
        *,
        name: str | None = None,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
    ) -> KGroupedStream[KR, V]:
        """Group by key_selector(key, value). name is that of the operator and of the repartition topic."""
        from .kgrouped_stream import KGroupedStream

        node = self.attach(name, "KSTREAM-KEY-SELECT-", KStreamSelectKey(key_selector), key_changing=True)
        return KGroupedStream(
            self.builder,
            node,
            as_serde(key_serde),
            as_serde(value_serde) or self.value_serde,
            self.source_nodes,
            repartition_required=True,
            repartition_name=name,
        )

    def process(
        self,
        supplier: Callable[[], Processor[K, V, KR, VR]],
        *state_stores: str,
        stores: Iterable[str] = (),
        name: str | None = None,
    ) -> KStream[KR, VR]:
        """Process records with a custom Processor; state_stores (or stores) names the stores it uses.

        supplier: the Processor's class, or a function without arguments that creates one per task. The result counts as
        re-keyed.
        """
        node = self._process("KSTREAM-PROCESSOR-", ProcessorOperator(supplier), (*state_stores, *stores), name)
        return self.result(node, None, None, repartition_required=True)

    def process_values(
        self,
        supplier: Callable[[], FixedKeyProcessor[K, V, VR]],
        *state_stores: str,
        stores: Iterable[str] = (),
        name: str | None = None,
    ) -> KStream[K, VR]:
        """Process records with a custom FixedKeyProcessor, which keeps keys; supplier as in process()."""
        operator = ProcessorOperator(supplier, fixed_key=True)
        node = self._process("KSTREAM-PROCESSVALUES-", operator, (*state_stores, *stores), name)
        return self.result(node, self.key_serde, None)

    def _process(
        self, prefix: str, operator: ProcessorOperator, stores: tuple[str, ...], name: str | None
    ) -> ProcessorGraphNode:
        # Unlike elsewhere, a given name consumes no number.
        node_name = validate_name(name) if name is not None else self.builder.new_processor_name(prefix)
        own = [StoreFactory(builder) for builder in stores_of(operator.supplier)]
        return self.attach_named(node_name, operator, store_names=stores, stores=own)

    def same_types(self, node: GraphNode) -> KStream[K, V]:
        """Return the stream of a node that changes neither key nor value; internal."""
        return self.result(node, self.key_serde, self.value_serde)

    def result(
        self,
        node: GraphNode,
        key_serde: Serde | None,
        value_serde: Serde | None,
        *,
        repartition_required: bool | None = None,
        source_nodes: frozenset[str] | None = None,
    ) -> KStream:
        """Return the stream that a node yields; internal."""
        required = self.repartition_required if repartition_required is None else repartition_required
        sources = self.source_nodes if source_nodes is None else source_nodes
        return KStream(self.builder, node, key_serde, value_serde, sources, repartition_required=required)

    def repartition_for_join(
        self, prefix: str, key_serde: Serde | None, value_serde: Serde | None, *, named: bool
    ) -> KStream[K, V]:
        """Return this stream after a repartition topic, which unnamed joins share."""
        keys, values = key_serde or self.key_serde, value_serde or self.value_serde
        node: GraphNode = repartition_node(OptimizableRepartitionNode, self.builder, prefix, keys, values, named=named)
        source_name = node.node_name
        if self._join_repartition is not None and prefix == self.name:
            node = self._join_repartition
        else:
            self._join_repartition = node
            self.builder.add_graph_node(self.graph_node, node)
        sources = self.builder.topology.listed_as(source_name, frozenset([node.node_name]))
        return KStream(self.builder, node, keys, values, sources, source_name)
