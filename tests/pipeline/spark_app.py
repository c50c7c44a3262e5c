"""Topologies that the tests name as ``spark_app:…``."""

from typing import Any

from penstock import Serdes, StreamsBuilder

STRINGS: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}


def topology() -> StreamsBuilder:
    """Counts records by their values."""
    builder = StreamsBuilder()
    stream = builder.stream("in", **STRINGS)
    stream.select_key(lambda key, value: value).group_by_key().count(store="counts").to_stream().to("out")
    return builder


def refused() -> StreamsBuilder:
    """Joins with a global table."""
    builder = StreamsBuilder()
    table = builder.global_table("names", store="names", **STRINGS)
    builder.stream("in", **STRINGS).join(table, lambda key, value: key, lambda left, right: left).to("out")
    return builder
