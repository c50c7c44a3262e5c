"""StreamsBuilder: the entry point of the DSL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import overload

from ..common.arguments import check_function, check_topic, check_type
from ..common.naming import Named
from ..context.idle_time import IdleTimeoutLike, as_idle_timeout
from ..context.store_interfaces import StoreBuilder
from ..context.timestamp_extractors import TimestampExtractor
from ..errors import TopologyError
from ..graph.declarations import Consumed
from ..graph.graph_nodes import GlobalStoreNode, StateStoreNode, StreamSourceNode, TableSourceNode
from ..graph.internal_streams_builder import InternalStreamsBuilder
from ..graph.processor_topology import OffsetResetPolicy
from ..graph.topology import Topology, offset_reset_option
from ..operators.processor_operator import ProcessorOperator
from ..operators.table import KTableSource
from ..processor_api import ProcessorSupplier
from ..serdes.serdes import Serde, SerdeLike, as_serde
from ..stores.materialized import (
    Materialized,
    MaterializedInternal,
    StoreFactory,
    StoreOption,
    key_value_store,
    materialized_option,
)
from ..type_variables import K, V
from .global_ktable import GlobalKTable
from .kstream import KStream
from .ktable import KTable, kept_table

_SOURCE = "KSTREAM-SOURCE-"
_TABLE_SOURCE = "KTABLE-SOURCE-"


_STORE_HINT = "a StoreBuilder, as Stores creates them"


class StreamsBuilder:
    """Declares a topology with streams and tables (Kafka Streams: StreamsBuilder).

    ``build()`` returns the Topology. Options of all methods that read a topic: key_serde, value_serde (by default
    default.key.serde, default.value.serde); timestamp_extractor(message, key, value, partition time) -> ms;
    offset_reset ("earliest", "latest" or "none": where to start without committed offsets); name of the operator.
    """

    def __init__(self, config: Mapping[str, object] | None = None) -> None:
        self._topology = Topology()
        self._builder = InternalStreamsBuilder(self._topology.internal_builder)
        self._config = config

    @overload
    def stream(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        key_serde: Serde[K],
        value_serde: Serde[V],
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetResetPolicy | str | None = None,
        idle_timeout: IdleTimeoutLike = None,
        name: str | None = None,
    ) -> KStream[K, V]: ...
    @overload
    def stream(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetResetPolicy | str | None = None,
        idle_timeout: IdleTimeoutLike = None,
        name: str | None = None,
    ) -> KStream: ...
    def stream(
        self,
        topics: str | Iterable[str] | re.Pattern[str],
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetResetPolicy | str | None = None,
        idle_timeout: IdleTimeoutLike = None,
        name: str | None = None,
    ) -> KStream:
        """Read topics as a stream: one topic, several, or all that match a compiled regular expression.

        timestamp_extractor(message, key, value, partition time) -> ms. offset_reset: where to start without a committed
        offset, "earliest", "latest", "none", or AutoOffsetReset.by_duration(…). idle_timeout: a duration, or an
        IdleTimeout: stream time advances without records if all sources of a task have one.

        Raises TopologyError if the same topic is read twice with incompatible options.
        """
        consumed = _consumed(key_serde, value_serde, timestamp_extractor, offset_reset, idle_timeout)
        node_name = Named(name).or_generate(self._builder, _SOURCE)
        node = StreamSourceNode(node_name, _topics(topics), consumed)
        self._builder.add_graph_node(self._builder.root, node)
        return KStream(self._builder, node, consumed.key_serde, consumed.value_serde, frozenset([node_name]))

    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: Serde[K],
        value_serde: Serde[V],
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetResetPolicy | str | None = None,
        idle_timeout: IdleTimeoutLike = None,
        name: str | None = None,
        store: StoreOption = None,
    ) -> KTable[K, V]: ...
    @overload
    def table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetResetPolicy | str | None = None,
        idle_timeout: IdleTimeoutLike = None,
        name: str | None = None,
        store: StoreOption = None,
    ) -> KTable: ...
    def table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetResetPolicy | str | None = None,
        idle_timeout: IdleTimeoutLike = None,
        name: str | None = None,
        store: StoreOption = None,
    ) -> KTable:
        """Read a topic as updates of a table: a null value deletes the row of its key.

        store: the name of a store, or a Materialized; without it the table is stored only if its rows are read. The
        others are as for stream().
        """
        consumed = _consumed(key_serde, value_serde, timestamp_extractor, offset_reset, idle_timeout)
        consumed, kept = self._table_options(topic, consumed, store)
        source_name, table_name = self._table_names(name)
        operator = KTableSource(kept.store_name, kept.queryable_store_name)
        node = TableSourceNode(table_name, source_name, topic, consumed, operator, key_value_store(kept))
        node.output_versioned = kept.versioned
        self._builder.add_graph_node(self._builder.root, node)
        return kept_table(kept, self._builder, node, frozenset([source_name]), operator)

    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: Serde[K],
        value_serde: Serde[V],
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
        store: StoreOption = None,
    ) -> GlobalKTable[K, V]: ...
    @overload
    def global_table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
        store: StoreOption = None,
    ) -> GlobalKTable: ...
    def global_table(
        self,
        topic: str,
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
        store: StoreOption = None,
    ) -> GlobalKTable:
        """Read a topic as a table whose rows are all available in every task. It always starts at the earliest offset.

        store: a name, or a Materialized with one; by default it is named after the topic. Raises TopologyError for a
        Materialized that is versioned or has no name.
        """
        consumed = _consumed(key_serde, value_serde, timestamp_extractor)
        consumed, kept = self._table_options(topic, consumed, store)
        if kept.versioned:
            raise TopologyError(f"Global table {topic} cannot be versioned; use another store")
        if kept.given.ttl is not None or (kept.given.supplier is not None and kept.given.supplier.ttl is not None):
            raise TopologyError(f"Global table {topic} cannot have a ttl: its rows are those of its topic")
        if store is not None and kept.queryable_store_name is None:
            raise TopologyError(f"Global table {topic}: a Materialized must name its store, or omit store=")
        source_name, table_name = self._table_names(name)
        operator = KTableSource(kept.store_name, kept.store_name)
        factory = key_value_store(kept).without_logging()
        node = TableSourceNode(table_name, source_name, topic, consumed, operator, factory, is_global=True)
        self._builder.add_graph_node(self._builder.root, node)
        return GlobalKTable(kept.store_name, kept.queryable_store_name)

    def _table_options(
        self, topic: str, consumed: Consumed, store: StoreOption
    ) -> tuple[Consumed, MaterializedInternal]:
        """Return the options of a table with their serdes merged, and the store, by default named after the topic."""
        check_topic(topic, "A table")
        given = materialized_option(store) or Materialized()
        keys, values = consumed.key_serde or given.key_serde, consumed.value_serde or given.value_serde
        serdes = given.with_key_serde(keys).with_value_serde(values)
        kept = MaterializedInternal(serdes, self._builder, f"{topic}-")
        return replace(consumed, key_serde=kept.key_serde, value_serde=kept.value_serde), kept

    def _table_names(self, name: str | None) -> tuple[str, str]:
        """Return the names of a table's source and of its processor."""
        named = Named(name)
        return (
            named.suffix_or_generate("-source", self._builder, _SOURCE),
            named.or_generate(self._builder, _TABLE_SOURCE),
        )

    def add_state_store(self, store: StoreBuilder) -> StreamsBuilder:
        """Add a store of Stores, for processors that refer to it by name."""
        check_type(store, StoreBuilder, "The store of add_state_store()", _STORE_HINT)
        self._builder.add_graph_node(self._builder.root, StateStoreNode(StoreFactory(store)))
        return self

    def add_global_store(
        self,
        store: StoreBuilder,
        topic: str,
        state_update_supplier: ProcessorSupplier,
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        name: str | None = None,
    ) -> StreamsBuilder:
        """Add a store that every task can read, maintained from a topic by a custom Processor."""
        check_type(store, StoreBuilder, "The store of add_global_store()", _STORE_HINT)
        if store.is_dated:
            raise TopologyError(f"The global store {store.name} cannot have a ttl or timers: no task advances its time")
        check_topic(topic, "add_global_store()")
        consumed = _consumed(key_serde, value_serde, timestamp_extractor)
        source_name, processor_name = self._table_names(name)
        check_function(state_update_supplier, f"The state_update_supplier of {processor_name}")
        factory, operator = StoreFactory(store.with_logging_disabled()), ProcessorOperator(state_update_supplier)
        node = GlobalStoreNode(store.name, factory, source_name, topic, consumed, processor_name, operator)
        self._builder.add_graph_node(self._builder.root, node)
        return self

    def build(self, config: Mapping[str, object] | None = None) -> Topology:
        """Return the topology.

        config: by default that of the constructor; ``topology.optimization`` and
        ``ensure.explicit.internal.resource.naming`` are used. Raises TopologyError for an invalid topology.
        """
        self._builder.build_and_optimize(self._config if config is None else config)
        return self._topology


def _consumed(
    key_serde: SerdeLike | None,
    value_serde: SerdeLike | None,
    timestamp_extractor: TimestampExtractor | None,
    offset_reset: OffsetResetPolicy | str | None = None,
    idle_timeout: IdleTimeoutLike = None,
) -> Consumed:
    check_function(timestamp_extractor, "A timestamp_extractor", optional=True)
    return Consumed(
        as_serde(key_serde),
        as_serde(value_serde),
        timestamp_extractor,
        offset_reset_option(offset_reset),
        as_idle_timeout(idle_timeout),
    )


def _topics(topics: str | Iterable[str] | re.Pattern[str]) -> list[str] | re.Pattern[str]:
    if isinstance(topics, re.Pattern):
        return topics
    given = [topics] if isinstance(topics, str) or not isinstance(topics, Iterable) else topics
    names = list(dict.fromkeys(given))
    if not names or not all(isinstance(name, str) and name for name in names):
        raise TopologyError(f"stream() needs the name of at least one topic, got {topics!r}")
    return names
