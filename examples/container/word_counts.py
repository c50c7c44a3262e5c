"""Counts words: lines in, counts by word out."""

from __future__ import annotations

from penstock import Serdes, StreamsBuilder, Topology


def topology() -> Topology:
    """Return the topology."""
    builder = StreamsBuilder()
    lines = builder.stream("lines", key_serde=Serdes.string(), value_serde=Serdes.string())
    words = lines.flat_map_values(str.split).group_by(
        lambda _, word: word.lower(), name="by-word", key_serde=Serdes.string(), value_serde=Serdes.string()
    )
    words.count(store="counts").to_stream().to("counts", key_serde=Serdes.string(), value_serde=Serdes.int64())
    return builder.build()
