"""Topologies of benchmarks/sinks.py: the purchases of a topic as rows of PostgreSQL."""

from __future__ import annotations

import os

from benchmarks.topologies import INPUT_VARIABLE, Purchase
from penstock import Serdes, StreamsBuilder, Topology
from penstock.sinks import PostgresSink

DSN_VARIABLE = "BENCHMARK_DSN"
TABLE = "purchases"


def append() -> Topology:
    """Return the topology that adds a row for each purchase."""
    return _rows(PostgresSink(os.environ[DSN_VARIABLE], TABLE, "append"))


def upsert() -> Topology:
    """Return the topology that keeps the last purchase of each user."""
    return _rows(PostgresSink(os.environ[DSN_VARIABLE], TABLE, "upsert", key="id"))


def _rows(sink: PostgresSink) -> Topology:
    builder = StreamsBuilder()
    purchases = builder.stream(os.environ[INPUT_VARIABLE], key_serde=Serdes.string(), value_serde=Serdes.json(Purchase))
    purchases.to_sink(sink, name="rows")
    return builder.build()
