"""DescribeCluster: nodes and the cluster's id (KIP-700)."""

from __future__ import annotations

from penstock.clients.protocol.schema import SchemaApi

from ..call import Call, Response, Served
from .metadata import NOT_ASKED

DESCRIBE_CLUSTER = SchemaApi(
    "DescribeCluster", 60, 0, 1, 0,
    """
include_cluster_authorized_operations: bool
endpoint_type: int8 1+ = 1
""",
    """
throttle_time_ms: int32
error_code: int16
error_message: string?
endpoint_type: int8 1+ = 1
cluster_id: string
controller_id: int32 = -1
brokers: []
  broker_id: int32
  host: string
  port: int32
  rack: string?
cluster_authorized_operations: int32 = -2147483648
""",
)  # fmt: skip


def answer(call: Call) -> Response:
    """Return the nodes that are up."""
    up = [node for node in call.cluster.nodes.values() if node.up]
    return {
        "cluster_id": call.cluster.id,
        "controller_id": up[0].id if up else -1,
        "brokers": [{"broker_id": node.id, "host": node.host, "port": node.port} for node in up],
        "cluster_authorized_operations": NOT_ASKED,
    }


SERVED = Served(DESCRIBE_CLUSTER, answer, 0)
