"""Topology: the result of StreamsBuilder.build(), and the entry point of the Processor API."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..context.idle_time import IdleTimeoutLike, as_idle_timeout
from ..context.partitioners import Partitioner, check_partitioner
from ..context.store_interfaces import StoreBuilder
from ..context.timestamp_extractors import TimestampExtractor
from ..errors import TopologyError
from ..operators.processor_operator import ProcessorOperator
from ..processor_api import ProcessorSupplier, stores_of
from ..serdes.serdes import SerdeLike, as_serde
from ..stores.materialized import StoreFactory
from .declarations import Consumed, Produced
from .description import TopologyDescription
from .internal_topology_builder import InternalTopologyBuilder
from .processor_topology import AutoOffsetReset, OffsetResetPolicy


class Topology:
    """Sources, processors, sinks and stores (Kafka Streams: Topology).

    add_…() methods return the topology itself; they raise TopologyError for duplicate names, unknown parents and
    stores, and similar errors. internal_builder is used by stream threads and the test driver to build tasks.
    """

    def __init__(self) -> None:
        self.internal_builder = InternalTopologyBuilder()

    def add_source(
        self,
        name: str,
        *topics: str | re.Pattern[str],
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
        offset_reset: OffsetResetPolicy | str | None = None,
        idle_timeout: IdleTimeoutLike = None,
    ) -> Topology:
        """Add a source of topics, or of all topics that match one compiled regular expression.

        The options are those of StreamsBuilder.stream.
        """
        patterns = [topic for topic in topics if isinstance(topic, re.Pattern)]
        if patterns and len(topics) > 1:
            raise TopologyError(f"Source {name} reads either topics or one pattern, got {topics}")
        serdes, reset = (as_serde(key_serde), as_serde(value_serde)), offset_reset_option(offset_reset)
        consumed = Consumed(*serdes, timestamp_extractor, reset, as_idle_timeout(idle_timeout))
        self.internal_builder.add_source(name, patterns[0] if patterns else [str(topic) for topic in topics], consumed)
        return self

    def add_processor(self, name: str, supplier: ProcessorSupplier, *parents: str) -> Topology:
        """Add a processor after its parents; supplier is its class, or a function that creates one per task."""
        self.internal_builder.add_processor(name, ProcessorOperator(supplier), parents)
        for store in stores_of(supplier):
            self.internal_builder.add_state_store(StoreFactory(store), [name])
        return self

    def add_sink(
        self,
        name: str,
        topic: str | Callable[..., str],
        *parents: str,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        partitioner: Partitioner | None = None,
    ) -> Topology:
        """Add a sink to a topic, or to the topic that topic(key, value, RecordMetadata) names for each record.

        partitioner: see KStream.to.
        """
        check_partitioner(partitioner, f"The partitioner of sink {name}")
        produced = Produced(as_serde(key_serde), as_serde(value_serde), partitioner)
        self.internal_builder.add_sink(name, topic, parents, produced)
        return self

    def add_state_store(self, store: StoreBuilder, *processors: str) -> Topology:
        """Add a store of Stores and connect processors to it."""
        self.internal_builder.add_state_store(StoreFactory(store), processors)
        return self

    def add_read_only_state_store(
        self,
        store: StoreBuilder,
        source_name: str,
        topic: str,
        processor_name: str,
        state_update_supplier: ProcessorSupplier,
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
    ) -> Topology:
        """Add a store that a processor maintains from a topic, which is its changelog (KIP-813)."""
        builder = self.internal_builder
        self.add_source(
            source_name,
            topic,
            key_serde=key_serde,
            value_serde=value_serde,
            timestamp_extractor=timestamp_extractor,
            offset_reset=AutoOffsetReset.EARLIEST,
        )
        builder.add_processor(processor_name, ProcessorOperator(state_update_supplier), [source_name])
        builder.add_state_store(StoreFactory(store.with_logging_disabled()), [processor_name])
        builder.connect_source_store_and_topic(store.name, topic)
        return self

    def add_global_store(
        self,
        store: StoreBuilder,
        source_name: str,
        topic: str,
        processor_name: str,
        state_update_supplier: ProcessorSupplier,
        *,
        key_serde: SerdeLike | None = None,
        value_serde: SerdeLike | None = None,
        timestamp_extractor: TimestampExtractor | None = None,
    ) -> Topology:
        """Add a store that every task can read, maintained from a topic by a processor."""
        self.internal_builder.add_global_store(
            StoreFactory(store),
            source_name,
            topic,
            processor_name,
            ProcessorOperator(state_update_supplier),
            Consumed(as_serde(key_serde), as_serde(value_serde), timestamp_extractor),
            reprocess_on_restore=True,
        )
        return self

    def connect_processor_and_state_stores(self, processor: str, *stores: str) -> Topology:
        """Let a processor use stores that were added before."""
        self.internal_builder.connect_processor_and_state_stores(processor, *stores)
        return self

    def describe(self) -> TopologyDescription:
        """Return the sub-topologies as values; ``str()`` of it is the text that Kafka Streams prints."""
        return self.internal_builder.describe()


def offset_reset_option(reset: OffsetResetPolicy | str | None) -> OffsetResetPolicy | None:
    """Return an offset reset policy given as itself or as "earliest", "latest" or "none"."""
    if reset is None or isinstance(reset, OffsetResetPolicy):
        return reset
    known = {policy.value: policy for policy in AutoOffsetReset}
    if not isinstance(reset, str) or reset.lower() not in known:
        raise TopologyError(f'There is no offset reset policy {reset!r}; use "earliest", "latest" or "none"')
    return known[reset.lower()]
