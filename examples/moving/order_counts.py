"""Counts orders by customer; OrderCounts.java beside it is the same topology for Kafka Streams."""

from __future__ import annotations

from penstock import Serdes, StreamsBuilder, Topology

string = Serdes.string()


def topology() -> Topology:
    """Return the topology; names of stores and internal topics are those of the Java program."""
    builder = StreamsBuilder()
    (
        builder.stream("orders", key_serde=string, value_serde=string)
        .select_key(lambda order, customer: customer)
        .group_by_key(name="by-customer", key_serde=string, value_serde=string)
        .count(store="counts")
        .to_stream()
        .to("counts", key_serde=string, value_serde=Serdes.int64())
    )
    return builder.build()
