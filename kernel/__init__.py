"""The compiled kernel: the work per record, in C. docs/kernel.md explains it.

conversions: functions that it calls in C. codecs: serializers that check what they write. avro: Avro records as dicts,
and back. cells: cells of record caches. rows: rows of stores between two commits. messages: records as they are read.
nodes, table_nodes, window_nodes, foreign_key_nodes: the nodes of a topology. aggregates: those of penstock.agg.
processors: what user-written processors call. record_batches: responses to Fetch requests. sinks: from objects to a
producer's records. record_accumulator: batches for Produce requests. buffers: memory that is reused for the next
record. sorted_tables: rows in Spark's state. columns: rows as the buffers of Arrow arrays. buffered_changes: what
suppress holds back.
"""

from __future__ import annotations

from importlib.util import find_spec

from penstock_distribution import MissingKernelError

if __name__ != "penstock.kernel":
    raise ImportError("import penstock.kernel, not kernel: run `pip install -e .` first")

MODULES = (
    "conversions",
    "codecs",
    "avro",
    "buffers",
    "cells",
    "rows",
    "messages",
    "nodes",
    "table_nodes",
    "window_nodes",
    "foreign_key_nodes",
    "aggregates",
    "processors",
    "record_batches",
    "sinks",
    "record_accumulator",
    "sorted_tables",
    "buffered_changes",
    "columns",
)

if not all(find_spec(f"{__name__}.{name}") for name in MODULES):
    raise MissingKernelError
