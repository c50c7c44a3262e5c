"""AddOffsetsToTxn: a group whose offsets a transaction will commit."""

from __future__ import annotations

from penstock.clients.protocol.messages import ADD_OFFSETS_TO_TXN

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, producer_code

_FENCED_VERSION = 2


def answer(call: Call) -> Response:
    """Add the group."""
    body, transactions = call.body, call.cluster.transactions
    try:
        call.check(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
        call.check(Operation.READ, Resource.GROUP, body.group_id)
        found = transactions.of(body.transactional_id, body.producer_id, body.producer_epoch)
        transactions.add(found, (), body.group_id)
    except ApiError as error:
        return {"error_code": producer_code(error, call.version >= _FENCED_VERSION)}
    return {}


SERVED = Served(ADD_OFFSETS_TO_TXN, answer, 0)
