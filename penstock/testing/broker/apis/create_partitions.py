"""CreatePartitions: adds partitions to topics."""

from __future__ import annotations

from types import SimpleNamespace

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import Operation
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode

CREATE_PARTITIONS = SchemaApi(
    "CreatePartitions", 37, 0, 3, 2,
    """
topics: []
  name: string
  count: int32
  assignments: []?
    broker_ids: [int32]
timeout_ms: int32
validate_only: bool
""",
    """
throttle_time_ms: int32
results: []
  name: string
  error_code: int16
  error_message: string?
""",
)  # fmt: skip


def answer(call: Call) -> Response:
    """Add partitions to each topic."""
    return {"results": [_added(call, topic) for topic in call.body.topics]}


def _added(call: Call, asked: SimpleNamespace) -> Response:
    try:
        if asked.assignments:
            raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "assignments of replicas are not supported here")
        topic = call.topic(asked.name, Operation.ALTER)
        if not call.body.validate_only:
            call.cluster.add_partitions(topic, asked.count)
    except ApiError as error:
        return {"name": asked.name, "error_code": error.code, "error_message": error.message}
    return {"name": asked.name}


SERVED = Served(CREATE_PARTITIONS, answer, 0)
