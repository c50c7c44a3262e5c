"""Repartition topics: their names and the nodes around them."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from ..common.naming import NameProvider
from ..serdes.serdes import Serde
from .graph_nodes import BaseRepartitionNode

N = TypeVar("N", bound=BaseRepartitionNode)

REPARTITION_SUFFIX = "-repartition"

#: A generated name: the nodes around its repartition topic get generated names too.
_GENERATED = re.compile(r"KSTREAM.*-[0-9]{10}")


def repartition_node(kind: type[N], names: NameProvider, prefix: str, *serdes: Serde | None, **options: Any) -> N:
    """Return the node of a repartition topic.

    prefix: the topic's name without suffix. serdes: of keys and values. options: named; and of ``repartition()`` the
    partitioner and partitions, None if derived from the source topics.
    """
    topic, sink, filter_name, source = _names(names, prefix)
    return kind(source, sink, topic, *serdes, filter_name=filter_name, **options)


def _names(names: NameProvider, prefix: str) -> tuple[str, str, str, str]:
    """Return the names of topic, sink, filter and source. Always consumes three numbers."""
    topic = prefix if prefix.endswith(REPARTITION_SUFFIX) else prefix + REPARTITION_SUFFIX
    sink = names.new_processor_name("KSTREAM-SINK-")
    filter_name = names.new_processor_name("KSTREAM-FILTER-")
    source = names.new_processor_name("KSTREAM-SOURCE-")
    if _GENERATED.fullmatch(prefix):
        return topic, sink, filter_name, source
    return topic, f"{topic}-sink", f"{topic}-filter", f"{topic}-source"
