"""How long the windows of a table stay open after their end (Kafka Streams: GraphGraceSearchUtil)."""

from __future__ import annotations

from ..errors import TopologyError
from ..graph.graph_nodes import GraphNode, ProcessorGraphNode
from ..operators.session_windowed import KStreamSessionWindowAggregate
from ..operators.sliding_windowed import KStreamSlidingWindowAggregate
from ..operators.windowed import KStreamWindowAggregate


def find_window_grace(node: GraphNode, chain: str = "") -> int:
    """Return the grace period (ms) of the windowed aggregations above a node, the longest if there are several.

    Raises TopologyError if there is a path upwards without one.
    """
    grace = _grace(node)
    if grace is not None:
        return grace
    chain = f"{node.node_name}->{chain}" if chain else node.node_name
    if not node.parents:
        raise TopologyError(
            f"Window close time is only defined for windowed computations. Got [{chain}]. Use "
            "Suppressed.until_time_limit() for tables without windows"
        )
    return max(find_window_grace(parent, chain) for parent in node.parents)


def _grace(node: GraphNode) -> int | None:
    operator = node.operator if isinstance(node, ProcessorGraphNode) else None
    if isinstance(operator, KStreamSessionWindowAggregate):
        # A session may still grow until its gap has passed.
        return operator.windows.grace_ms + operator.windows.inactivity_gap_ms
    if isinstance(operator, KStreamWindowAggregate | KStreamSlidingWindowAggregate):
        return operator.windows.grace_ms
    return None
