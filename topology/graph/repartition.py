"""Repartition topics: their names and the nodes around them."""

from __future__ import annotations

import re
from typing import Any

from ..common.naming import NameProvider
from ..serdes.serdes import Serde
from .declarations import Partitioner
from .graph_nodes import OptimizableRepartitionNode, UnoptimizableRepartitionNode

REPARTITION_SUFFIX = "-repartition"

#: A generated name: the nodes around its repartition topic get generated names too.
_GENERATED = re.compile(r"KSTREAM.*-[0-9]{10}")


def repartition_node(
    names: NameProvider,
    prefix: str,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None,
    *,
    named: bool,
) -> OptimizableRepartitionNode:
    """Return the node of the repartition topic that an operation needs; prefix is the topic's name without suffix."""
    topic, sink, filter_name, source = _names(names, prefix)
    return OptimizableRepartitionNode(source, sink, topic, key_serde, value_serde, filter_name=filter_name, named=named)


def explicit_repartition_node(
    names: NameProvider,
    prefix: str,
    key_serde: Serde[Any] | None,
    value_serde: Serde[Any] | None,
    *,
    named: bool,
    partitioner: Partitioner | None,
    partitions: int | None,
) -> UnoptimizableRepartitionNode:
    """Return the node of ``KStream.repartition()``; partitions is None where it follows from the source topics."""
    topic, sink, filter_name, source = _names(names, prefix)
    return UnoptimizableRepartitionNode(
        source,
        sink,
        topic,
        key_serde,
        value_serde,
        filter_name=filter_name,
        partitioner=partitioner,
        partitions=partitions,
        named=named,
    )


def _names(names: NameProvider, prefix: str) -> tuple[str, str, str, str]:
    """Return the names of topic, sink, filter and source. Three numbers are used up in any case."""
    topic = prefix if prefix.endswith(REPARTITION_SUFFIX) else prefix + REPARTITION_SUFFIX
    sink = names.new_processor_name("KSTREAM-SINK-")
    filter_name = names.new_processor_name("KSTREAM-FILTER-")
    source = names.new_processor_name("KSTREAM-SOURCE-")
    if _GENERATED.fullmatch(prefix):
        return topic, sink, filter_name, source
    return topic, f"{topic}-sink", f"{topic}-filter", f"{topic}-source"
