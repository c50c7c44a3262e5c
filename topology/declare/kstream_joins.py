"""Adds joins of a stream with a stream, a table or a global table to the graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..common.durations import Duration, non_negative_millis
from ..common.naming import Named
from ..common.user_functions import KeyValueMapper
from ..context.store_interfaces import StoreBackend, StoreBuilder, StoreKind
from ..errors import TopologyError
from ..graph.graph_nodes import ProcessorGraphNode, StreamJoinSide, StreamStreamJoinNode, StreamTableJoinNode
from ..operators.stateless import PassThrough
from ..operators.stream_join import (
    KStreamJoinWindow,
    KStreamKStreamJoinLeftSide,
    KStreamKStreamJoinRightSide,
    KStreamKStreamSelfJoin,
    TimeTrackerSupplier,
)
from ..operators.stream_join_serdes import LeftOrRightValueSerde, TimestampedKeyAndJoinSideSerde
from ..operators.stream_table_join import KStreamGlobalKTableJoin, KStreamKTableJoin
from ..serdes.serdes import Serde, SerdeLike, as_serde
from ..stores.dsl_store_suppliers import DslStore
from ..stores.materialized import Materialized, StoreFactory, supplied
from ..stores.stores import Stores, StoreSupplier, SupplierKind, as_supplier
from ..stores.windows import JoinWindows
from .global_ktable import GlobalKTable

if TYPE_CHECKING:
    from .kstream import KStream
    from .ktable import KTable

#: Join stores keep duplicates, which compaction would drop.
_JOIN_STORE_LOG_CONFIG = {"cleanup.policy": "delete"}


def join(
    stream: KStream,
    other: Any,
    joiner: Callable[..., Any],
    windows: JoinWindows | Callable[..., Any] | None,
    kind: str,
    options: Mapping[str, Any],
) -> KStream:
    """Join by the type of other; kind is "inner", "left" or "outer". Options are those of KStream.join."""
    from .kstream import KStream
    from .ktable import KTable

    if isinstance(other, KStream):
        if not isinstance(windows, JoinWindows):
            raise TopologyError(
                f"{stream.name}: a join of two streams needs JoinWindows as its third argument, got {windows!r}"
            )
        return _stream_join(_options(stream, _StreamJoin, options, stream, other, joiner, windows, kind))
    if kind == "outer":
        raise TopologyError(f"{stream.name}: outer_join() joins two streams; use left_join() with a table")
    if isinstance(other, GlobalKTable):
        if callable(windows):  # Kafka Streams' order: join(table, key_selector, joiner)
            options, joiner = {**options, "key_selector": joiner}, windows
        return _global_table_join(_options(stream, _GlobalTableJoin, options, stream, other, joiner, kind == "left"))
    if windows is not None:
        raise TopologyError(f"{stream.name}: a join with a table has no windows; grace= waits for a versioned table")
    if not isinstance(other, KTable):
        raise TopologyError(f"{stream.name}: a stream joins a KStream, KTable or GlobalKTable, got {other!r}")
    return _table_join(_options(stream, _TableJoin, options, stream, other, joiner, kind == "left"))


def _options(stream: KStream, kind: type[Any], options: Mapping[str, object], *arguments: object) -> Any:
    try:
        return kind(*arguments, **options)
    except TypeError as error:
        raise TypeError(f"{stream.name}: wrong options of join(): {error}") from None


@dataclass(slots=True)
class _StreamJoin:
    """A join of two streams (Kafka Streams: StreamJoined)."""

    this: KStream
    other: KStream
    joiner: Callable[..., Any]
    windows: JoinWindows
    kind: str
    with_key: bool = field(default=False, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    store: str | Materialized | None = field(default=None, kw_only=True)
    key_serde: SerdeLike | None = field(default=None, kw_only=True)
    value_serde: SerdeLike | None = field(default=None, kw_only=True)
    other_value_serde: SerdeLike | None = field(default=None, kw_only=True)
    this_store: DslStore | None = field(default=None, kw_only=True)
    other_store: DslStore | None = field(default=None, kw_only=True)

    @property
    def materialized(self) -> Materialized:
        """Store name, type and logging."""
        return self.store if isinstance(self.store, Materialized) else Materialized(self.store)


@dataclass(slots=True)
class _TableJoin:
    """A join of a stream with a table (Kafka Streams: Joined)."""

    stream: KStream
    table: KTable
    joiner: Callable[..., Any]
    left_join: bool
    with_key: bool = field(default=False, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    key_serde: SerdeLike | None = field(default=None, kw_only=True)
    value_serde: SerdeLike | None = field(default=None, kw_only=True)
    other_value_serde: SerdeLike | None = field(default=None, kw_only=True)
    grace: Duration | None = field(default=None, kw_only=True)


@dataclass(slots=True)
class _GlobalTableJoin:
    """A join of a stream with a global table."""

    stream: KStream
    table: GlobalKTable
    joiner: Callable[..., Any]
    left_join: bool
    key_selector: KeyValueMapper[object] | None = field(default=None, kw_only=True)
    with_key: bool = field(default=False, kw_only=True)
    with_mapped_key: bool = field(default=False, kw_only=True)
    name: str | None = field(default=None, kw_only=True)


def _global_table_join(join: _GlobalTableJoin) -> KStream:
    stream = join.stream
    if join.key_selector is None:
        raise TopologyError(f"{stream.name}: a join with a global table needs key_selector(key, value) -> its key")
    if join.with_key and join.with_mapped_key:
        raise TopologyError(
            f"{stream.name}: with_mapped_key=True calls joiner(stream key, mapped key, left, right); leave out with_key"
        )
    name = Named(join.name).or_generate(stream.builder, "KSTREAM-LEFTJOIN-")
    operator = KStreamGlobalKTableJoin(
        join.table.value_getter_supplier(),
        join.joiner,
        join.key_selector,
        join.left_join,
        join.with_key,
        join.with_mapped_key,
    )
    node = StreamTableJoinNode(name, operator)
    node.accepts_null_keys = join.left_join
    stream.builder.add_graph_node(stream.graph_node, node)
    return stream.result(node, stream.key_serde, None)


def _table_join(join: _TableJoin) -> KStream:
    stream, table, key_serde = join.stream, join.table, as_serde(join.key_serde)
    if stream.repartition_required:
        stream = stream.repartition_for_join(
            join.name or stream.name, key_serde, as_serde(join.value_serde), named=join.name is not None
        )
    sources = stream.copartition_with(table)
    prefix = "KSTREAM-LEFTJOIN-" if join.left_join else "KSTREAM-JOIN-"
    name = Named(join.name).or_generate(stream.builder, prefix)
    grace_ms = None if join.grace is None else non_negative_millis(join.grace, f"The grace period of {name}")
    buffer = None
    if grace_ms is not None:
        if table.graph_node.output_versioned is False:
            raise TopologyError(f"{name}: the KTable must be versioned to use a grace period in a stream-table join")
        buffer = _join_buffer(join, stream, name, grace_ms)
    getter = table.value_getter_supplier()
    operator = KStreamKTableJoin(
        getter, join.joiner, join.left_join, grace_ms, None if buffer is None else buffer.name, join.with_key
    )
    node = StreamTableJoinNode(name, operator, getter.store_names, grace_ms, buffer)
    node.accepts_null_keys = join.left_join
    stream.builder.add_graph_node(stream.graph_node, node)
    return stream.result(node, key_serde or stream.key_serde, None, repartition_required=False, source_nodes=sources)


def _join_buffer(join: _TableJoin, stream: KStream, name: str, grace_ms: int) -> StoreFactory:
    builder = StoreBuilder(
        f"{name}-Buffer",
        StoreKind.JOIN_BUFFER,
        as_serde(join.key_serde) or stream.key_serde,
        as_serde(join.value_serde) or stream.value_serde,
        grace_ms=grace_ms,
    )
    return StoreFactory(builder, named=join.name is not None)


def _stream_join(join: _StreamJoin) -> KStream:
    named, keys = Named(join.name), as_serde(join.key_serde)
    this, other = join.this, join.other
    if this.repartition_required:
        prefix = named.suffix_or("-left", this.name)
        this = this.repartition_for_join(prefix, keys, as_serde(join.value_serde), named=join.name is not None)
    if other.repartition_required:
        prefix = named.suffix_or("-right", other.name)
        other = other.repartition_for_join(prefix, keys, as_serde(join.other_value_serde), named=join.name is not None)
    join = replace(
        join,
        this=this,
        other=other,
        key_serde=keys or this.key_serde,
        value_serde=as_serde(join.value_serde) or this.value_serde,
        other_value_serde=as_serde(join.other_value_serde) or other.value_serde,
    )
    this.copartition_with(other)
    node = _StreamJoinGraph(join, named).build()
    sources = this.source_nodes | other.source_nodes
    return this.result(node, keys or this.key_serde, None, repartition_required=False, source_nodes=sources)


class _StreamJoinGraph:
    """Adds a stream-stream join to the graph (Kafka Streams: KStreamImplJoin). The order of names matters."""

    def __init__(self, join: _StreamJoin, named: Named) -> None:
        builder = join.this.builder
        self.join = join
        self.left_outer = join.kind != "inner"
        self.right_outer = join.kind == "outer"
        this_suffix = "-outer-this-join" if self.right_outer else "-this-join"
        other_suffix = "-outer-other-join" if self.left_outer else "-other-join"
        self.this_windowed = named.suffix_or_generate("-this-windowed", builder, "KSTREAM-WINDOWED-")
        self.other_windowed = named.suffix_or_generate("-other-windowed", builder, "KSTREAM-WINDOWED-")
        this_generated = builder.new_processor_name("KSTREAM-OUTERTHIS-" if self.right_outer else "KSTREAM-JOINTHIS-")
        other_generated = builder.new_processor_name("KSTREAM-OUTEROTHER-" if self.left_outer else "KSTREAM-JOINOTHER-")
        self.number = this_generated.rpartition("-")[2]
        self.this_name = named.suffix_or(this_suffix, this_generated)
        self.other_name = named.suffix_or(other_suffix, other_generated)
        self.merge_name = named.suffix_or_generate("-merge", builder, "KSTREAM-MERGE-")
        base = join.materialized.store_name
        self.this_store = self._window_store(
            None if join.this_store is None else as_supplier(join.this_store),
            this_generated if base is None else base + this_suffix,
            join.value_serde,
        )
        self.other_store = self._window_store(
            None if join.other_store is None else as_supplier(join.other_store),
            other_generated if base is None else base + other_suffix,
            join.other_value_serde,
        )
        if (
            join.this_store is not None
            and join.other_store is not None
            and self.this_store.name == self.other_store.name
        ):
            raise TopologyError(
                f"{self.merge_name}: both stores are called {self.this_store.name}; give them two names"
            )

    def build(self) -> StreamStreamJoinNode:
        """Add the nodes to the graph, and return the one that yields the joined stream."""
        join, builder = self.join, self.join.this.builder
        sides = ((join.this, self.this_windowed, self.this_store), (join.other, self.other_windowed, self.other_store))
        for stream, windowed_name, store in sides:
            windowed = ProcessorGraphNode(windowed_name, KStreamJoinWindow(store.name))
            builder.add_graph_node(stream.graph_node, windowed)
        outer_store = self._outer_store() if self.left_outer else None
        outer_name = None if outer_store is None else outer_store.name
        tracker = TimeTrackerSupplier()
        windows, joiner, with_key = join.windows, join.joiner, join.with_key
        left = KStreamKStreamJoinLeftSide(
            self.other_store.name, windows, joiner, self.left_outer, outer_name, tracker, with_key
        )
        right = KStreamKStreamJoinRightSide(
            self.this_store.name, windows, joiner, self.right_outer, outer_name, tracker, with_key
        )
        retention_ms = windows.size_ms + windows.grace_ms
        node = StreamStreamJoinNode(
            self.merge_name,
            StreamJoinSide(self.this_windowed, self.this_name, left, self.this_store),
            StreamJoinSide(self.other_windowed, self.other_name, right, self.other_store),
            PassThrough(),
            outer_store,
            KStreamKStreamSelfJoin(self.this_store.name, windows, joiner, retention_ms, with_key),
        )
        node.accepts_null_keys = self.left_outer
        builder.add_graph_node([join.this.graph_node, join.other.graph_node], node)
        return node

    def _window_store(self, supplier: StoreSupplier | None, name: str, value_serde: SerdeLike | None) -> StoreFactory:
        join = self.join
        if supplier is not None and supplier.make is None:
            self._check_supplier(supplier)
            builder = Stores.window_store_builder(supplier, join.key_serde, value_serde)
            return StoreFactory(replace(builder, log_headers=True, logged_in_window=True))
        given = join.materialized
        builder = StoreBuilder(
            f"{name}-store" if supplier is None else supplier.name,
            StoreKind.WINDOW,
            as_serde(join.key_serde),
            as_serde(value_serde),
            logging=given.logging,
            log_config={**given.log_config, **_JOIN_STORE_LOG_CONFIG},
            retention_ms=join.windows.size_ms + join.windows.grace_ms,
            window_size_ms=join.windows.size_ms,
            retain_duplicates=True,
            log_headers=True,
            logged_in_window=True,
        )
        if supplier is not None:
            return StoreFactory(supplied(builder, supplier))
        return StoreFactory(builder, named=given.store_name is not None, dsl=True, store_type=given.store_type)

    def _check_supplier(self, supplier: StoreSupplier) -> None:
        supplier.require((SupplierKind.WINDOW,), f"{self.merge_name}")
        windows = self.join.windows
        if not supplier.retain_duplicates:
            raise TopologyError(f"{self.merge_name}: store {supplier.name} must be created with retain_duplicates=True")
        if (supplier.retention_ms, supplier.window_size_ms) != (windows.size_ms + windows.grace_ms, windows.size_ms):
            raise TopologyError(
                f"{self.merge_name}: store {supplier.name} must have the window size of the join, {windows.size_ms} "
                f"ms, and a retention of that plus its grace, {windows.size_ms + windows.grace_ms} ms; it has "
                f"{supplier.window_size_ms} and {supplier.retention_ms} ms"
            )

    def _outer_store(self) -> StoreFactory:
        """The store of records that wait for a partner."""
        join, given = self.join, self.join.materialized
        base = given.store_name if join.this_store is None else join.this_store.name
        suffix = "-outer-shared-join" if self.right_outer else "-left-shared-join"
        name = f"KSTREAM-OUTERSHARED-{self.number}" if base is None else base + suffix
        keys: Serde = TimestampedKeyAndJoinSideSerde(join.key_serde)
        builder = StoreBuilder(
            f"{name}-store",
            StoreKind.LIST_VALUE,
            keys,
            LeftOrRightValueSerde(join.value_serde, join.other_value_serde),
            logging=given.logging,
            log_config=given.log_config,
        )
        own = join.this_store
        backend = given.store_type if own is None or own.backend is StoreBackend.CUSTOM else own.backend
        return StoreFactory(builder, named=base is not None, dsl=True, store_type=backend)
