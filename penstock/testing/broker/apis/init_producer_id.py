"""InitProducerId: an id for a producer; with a transactional id it fences former producers (KIP-98, KIP-360)."""

from __future__ import annotations

from penstock.clients.protocol.messages import INIT_PRODUCER_ID

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode, producer_code

_FENCED_VERSION = 4


def answer(call: Call) -> Response:
    """Return id and epoch."""
    body = call.body
    if body.transactional_id is None:
        return {"producer_id": call.cluster.new_producer_id(), "producer_epoch": 0}
    if not body.transactional_id:
        return {"error_code": ErrorCode.INVALID_REQUEST}
    try:
        call.check(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
        id_, epoch = call.cluster.transactions.init(
            body.transactional_id, body.transaction_timeout_ms, body.producer_id, body.producer_epoch
        )
    except ApiError as error:
        return {"error_code": producer_code(error, call.version >= _FENCED_VERSION)}
    return {"producer_id": id_, "producer_epoch": epoch}


SERVED = Served(INIT_PRODUCER_ID, answer, 1)
