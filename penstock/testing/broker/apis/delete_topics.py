"""DeleteTopics."""

from __future__ import annotations

from penstock.clients.protocol.schema import SchemaApi

from ..access_control import CLUSTER_NAME, Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode

DELETE_TOPICS = SchemaApi(
    "DeleteTopics", 20, 1, 6, 4,
    """
topics: [] 6+
  name: string?
  topic_id: uuid
topic_names: [string] 0-5
timeout_ms: int32
""",
    """
throttle_time_ms: int32 1+
responses: []
  name: string?
  topic_id: uuid 6+
  error_code: int16
  error_message: string? 5+
""",
)  # fmt: skip
_NO_ID = bytes(16)


def answer(call: Call) -> Response:
    """Delete each topic, by its name or by its id."""
    asked = [(topic.name, topic.topic_id) for topic in call.body.topics] if call.version >= 6 else []
    names = [(name, _NO_ID) for name in call.body.topic_names]
    return {"responses": [_deleted(call, name, id_) for name, id_ in (*asked, *names)]}


def _deleted(call: Call, name: str | None, id_: bytes) -> Response:
    try:
        topic = call.cluster.topic_by_id(id_) if name is None else call.cluster.topic(name)
    except ApiError as error:
        said = f"This server does not host this topic{' ID' if name is None else '-partition'}."
        return {"name": name, "topic_id": id_, "error_code": error.code, "error_message": said}
    of_all = call.may(Operation.DELETE, Resource.CLUSTER, CLUSTER_NAME)
    if not of_all and not call.may(Operation.DELETE, Resource.TOPIC, topic.name):
        refused = {"error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED, "error_message": "Topic authorization failed."}
        return {"name": topic.name if name else None, "topic_id": id_, **refused}
    call.cluster.delete_topic(topic)
    return {"name": topic.name, "topic_id": topic.id}


SERVED = Served(DELETE_TOPICS, answer, 1)
