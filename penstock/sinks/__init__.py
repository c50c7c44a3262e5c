"""Sinks outside of Kafka, for KStream.to_sink(): tables that are written exactly once (docs/sinks.md).

The interface is small: a sink of your own is a Sink that opens a SinkWriter. penstock.testing.sink_contract tests it.
"""

from __future__ import annotations

from penstock.topology.context.sink_interfaces import (
    RefusedRowError,
    RefusedRowsError,
    Sink,
    SinkContext,
    SinkFencedError,
    SinkOffset,
    SinkRecord,
    SinkUnavailableError,
    SinkWriter,
    StoredSinkOffset,
)

from .iceberg_sink import IcebergSink
from .postgres_sink import PostgresSink
from .sqlite_sink import SqliteSink

__all__ = [
    "IcebergSink",
    "PostgresSink",
    "RefusedRowError",
    "RefusedRowsError",
    "Sink",
    "SinkContext",
    "SinkFencedError",
    "SinkOffset",
    "SinkRecord",
    "SinkUnavailableError",
    "SinkWriter",
    "SqliteSink",
    "StoredSinkOffset",
]
