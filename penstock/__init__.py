"""Penstock: Kafka Streams' runtime for Python.

Declare a topology with StreamsBuilder (or Topology, the Processor API), test it with
penstock.testing.TopologyTestDriver, run it with KafkaStreams or ``penstock run MODULE:TOPOLOGY``.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from penstock.topology.shadowing import NamingShadows
from penstock_distribution import check_distributions, version

with NamingShadows():  # first, so that all that follows from it is explained
    check_distributions(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    import penstock.kernel  # raises MissingKernelError
    import penstock.topology.declare.streams_builder  # noqa: F401


from penstock.topology.config.streams_config import StreamsConfig
from penstock.topology.context.async_calls import Retries
from penstock.topology.context.idle_time import IdleTimeout
from penstock.topology.context.partitioners import StreamPartitioner
from penstock.topology.context.processor_wrapper import ProcessorWrapper, WrappedProcessor
from penstock.topology.context.store_interfaces import StoreBuilder, Ttl
from penstock.topology.context.store_types import (
    KeyValueStore,
    ReadOnlyKeyValueStore,
    ReadOnlySessionStore,
    ReadOnlyWindowStore,
    SessionStore,
    SessionStoreWithHeaders,
    TimestampedKeyValueStore,
    TimestampedKeyValueStoreWithHeaders,
    TimestampedWindowStore,
    TimestampedWindowStoreWithHeaders,
    VersionedKeyValueStore,
    WindowStore,
)
from penstock.topology.context.timestamp_extractors import (
    fail_on_invalid_timestamp,
    log_and_skip_on_invalid_timestamp,
    use_partition_time_on_invalid_timestamp,
    wallclock_timestamp_extractor,
)
from penstock.topology.declare import agg
from penstock.topology.declare.branched_kstream import BranchedKStream
from penstock.topology.declare.global_ktable import GlobalKTable
from penstock.topology.declare.kgrouped_stream import (
    CogroupedKStream,
    KGroupedStream,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
)
from penstock.topology.declare.kgrouped_table import KGroupedTable
from penstock.topology.declare.kstream import KStream
from penstock.topology.declare.ktable import KTable
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.declare.suppressed import BufferConfig, Suppressed
from penstock.topology.errors import (
    BrokerUnavailableError,
    ConfigError,
    InvalidStateStoreError,
    LockError,
    MissingSourceTopicError,
    PenstockError,
    ProcessorStateError,
    SchemaRegistryUnavailableError,
    SerializationError,
    StateStoreTypeError,
    StreamsError,
    TaskAssignmentError,
    TaskCorruptedError,
    TaskMigratedError,
    TopologyError,
    UnknownStateStoreError,
)
from penstock.topology.graph.description import TopologyDescription
from penstock.topology.graph.processor_topology import AutoOffsetReset
from penstock.topology.graph.topology import Topology
from penstock.topology.processor_api import (
    ContextualFixedKeyProcessor,
    ContextualProcessor,
    FixedKeyProcessor,
    FixedKeyProcessorContext,
    Processor,
    ProcessorContext,
    Punctuation,
    PunctuationType,
    ValueTransformerWithKey,
)
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position, PositionBound
from penstock.topology.query.state_queries import (
    KeyQuery,
    MultiVersionedKeyQuery,
    Query,
    RangeQuery,
    ResultOrder,
    TimestampedKeyQuery,
    TimestampedKeyWithHeadersQuery,
    TimestampedRangeQuery,
    TimestampedRangeWithHeadersQuery,
    TimestampedWindowKeyWithHeadersQuery,
    TimestampedWindowRangeWithHeadersQuery,
    VersionedKeyQuery,
    WindowKeyQuery,
    WindowRangeQuery,
)
from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.query.state_query_result import FailureReason, QueryResult, StateQueryResult
from penstock.topology.records import (
    AggregationWithHeaders,
    Record,
    RecordMetadata,
    TaskId,
    TopicPartition,
    ValueAndTimestamp,
    ValueTimestampHeaders,
    VersionedRecord,
    Window,
    Windowed,
)
from penstock.topology.serdes.serdes import Serde, Serdes
from penstock.topology.stores.custom_store import StateRestoreCallback, StateStore, StateStoreContext
from penstock.topology.stores.dsl_store_suppliers import (
    DslKeyValueParams,
    DslSessionParams,
    DslStoreSuppliers,
    DslWindowParams,
    InMemoryDslStoreSuppliers,
    RocksDBDslStoreSuppliers,
)
from penstock.topology.stores.materialized import Materialized
from penstock.topology.stores.stores import Stores, StoreSupplier
from penstock.topology.stores.timer import Timer
from penstock.topology.stores.windows import (
    CalendarWindows,
    CountWindows,
    EmitStrategy,
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
    UnlimitedWindows,
    Windows,
)

if TYPE_CHECKING:
    from penstock.supervisor.application_state import ApplicationState
    from penstock.supervisor.exit_codes import ExitCode
    from penstock.supervisor.kafka_streams import KafkaStreams
    from penstock.supervisor.processes.uncaught_exception import (
        StreamsUncaughtExceptionHandlerResponse,
        StreamThreadError,
    )
    from penstock.supervisor.processes.worker import ThreadStatus
    from penstock.supervisor.queries.client_instance_ids import ClientInstanceIds
    from penstock.supervisor.sql.sql_result import SqlResult
    from penstock.workers.control.messages import LagInfo
    from penstock.workers.group.streams_metadata import HostInfo, KeyQueryMetadata, StreamsMetadata
    from penstock.workers.restore.listeners import StandbyUpdateListener, StateRestoreListener, SuspendReason

__version__: str  # by __getattr__

__all__ = [
    # where to start
    "StreamsBuilder",
    "Topology",
    "KafkaStreams",
    "StreamsConfig",
    # what runs
    "ApplicationState",
    "ExitCode",
    "StreamThreadError",
    "StreamsUncaughtExceptionHandlerResponse",
    "ThreadStatus",
    "StateRestoreListener",
    "StandbyUpdateListener",
    "SuspendReason",
    "HostInfo",
    "StreamsMetadata",
    "KeyQueryMetadata",
    "LagInfo",
    "ClientInstanceIds",
    "SqlResult",
    "IsolationLevel",
    "Position",
    "PositionBound",
    "StateQueryRequest",
    "StateQueryResult",
    "QueryResult",
    "FailureReason",
    "Query",
    "KeyQuery",
    "RangeQuery",
    "TimestampedKeyQuery",
    "TimestampedRangeQuery",
    "TimestampedKeyWithHeadersQuery",
    "TimestampedRangeWithHeadersQuery",
    "WindowKeyQuery",
    "WindowRangeQuery",
    "TimestampedWindowKeyWithHeadersQuery",
    "TimestampedWindowRangeWithHeadersQuery",
    "VersionedKeyQuery",
    "MultiVersionedKeyQuery",
    "ResultOrder",
    # streams and tables
    "KStream",
    "KTable",
    "GlobalKTable",
    "KGroupedStream",
    "KGroupedTable",
    "CogroupedKStream",
    "BranchedKStream",
    "TimeWindowedKStream",
    "SessionWindowedKStream",
    "TimeWindowedCogroupedKStream",
    "SessionWindowedCogroupedKStream",
    "TopologyDescription",
    "agg",
    # windows and suppression
    "Windows",
    "TimeWindows",
    "SlidingWindows",
    "SessionWindows",
    "UnlimitedWindows",
    "CalendarWindows",
    "CountWindows",
    "JoinWindows",
    "EmitStrategy",
    "Suppressed",
    "BufferConfig",
    # writing
    "StreamPartitioner",
    # stores and serdes
    "Materialized",
    "Stores",
    "StoreSupplier",
    "DslStoreSuppliers",
    "RocksDBDslStoreSuppliers",
    "InMemoryDslStoreSuppliers",
    "DslKeyValueParams",
    "DslWindowParams",
    "DslSessionParams",
    "Ttl",
    "Timer",
    "StoreBuilder",
    "StateStore",
    "StateStoreContext",
    "StateRestoreCallback",
    "KeyValueStore",
    "TimestampedKeyValueStore",
    "TimestampedKeyValueStoreWithHeaders",
    "VersionedKeyValueStore",
    "WindowStore",
    "TimestampedWindowStore",
    "TimestampedWindowStoreWithHeaders",
    "SessionStore",
    "SessionStoreWithHeaders",
    "ReadOnlyKeyValueStore",
    "ReadOnlyWindowStore",
    "ReadOnlySessionStore",
    "Serde",
    "Serdes",
    # records
    "Record",
    "RecordMetadata",
    "Retries",
    "ValueAndTimestamp",
    "ValueTimestampHeaders",
    "AggregationWithHeaders",
    "VersionedRecord",
    "Window",
    "Windowed",
    "TaskId",
    "TopicPartition",
    # the Processor API
    "Processor",
    "FixedKeyProcessor",
    "ContextualProcessor",
    "ContextualFixedKeyProcessor",
    "ProcessorContext",
    "FixedKeyProcessorContext",
    "ProcessorWrapper",
    "WrappedProcessor",
    "ValueTransformerWithKey",
    "Punctuation",
    "PunctuationType",
    # how topics are read
    "AutoOffsetReset",
    "IdleTimeout",
    "fail_on_invalid_timestamp",
    "log_and_skip_on_invalid_timestamp",
    "use_partition_time_on_invalid_timestamp",
    "wallclock_timestamp_extractor",
    # errors
    "PenstockError",
    "ConfigError",
    "TopologyError",
    "StreamsError",
    "ProcessorStateError",
    "TaskMigratedError",
    "TaskCorruptedError",
    "LockError",
    "TaskAssignmentError",
    "MissingSourceTopicError",
    "SchemaRegistryUnavailableError",
    "SerializationError",
    "UnknownStateStoreError",
    "StateStoreTypeError",
    "InvalidStateStoreError",
    "BrokerUnavailableError",
]


#: Names that bring processes or a Kafka client with them, and their modules.
_ON_DEMAND = {
    "KafkaStreams": "penstock.supervisor.kafka_streams",
    "ApplicationState": "penstock.supervisor.application_state",
    "ExitCode": "penstock.supervisor.exit_codes",
    "StreamThreadError": "penstock.supervisor.processes.uncaught_exception",
    "StreamsUncaughtExceptionHandlerResponse": "penstock.supervisor.processes.uncaught_exception",
    "ThreadStatus": "penstock.supervisor.processes.worker",
    "StateRestoreListener": "penstock.workers.restore.listeners",
    "StandbyUpdateListener": "penstock.workers.restore.listeners",
    "SuspendReason": "penstock.workers.restore.listeners",
    "HostInfo": "penstock.workers.group.streams_metadata",
    "StreamsMetadata": "penstock.workers.group.streams_metadata",
    "KeyQueryMetadata": "penstock.workers.group.streams_metadata",
    "LagInfo": "penstock.workers.control.messages",
    "ClientInstanceIds": "penstock.supervisor.queries.client_instance_ids",
    "SqlResult": "penstock.supervisor.sql.sql_result",
}


def __getattr__(name: str) -> Any:
    """Import on first use the modules that declaring and testing a topology does not need: the Kafka client, the
    version.
    """
    if name in _ON_DEMAND:
        with NamingShadows():
            return getattr(importlib.import_module(_ON_DEMAND[name]), name)
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
