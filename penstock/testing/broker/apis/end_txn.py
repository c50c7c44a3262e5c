"""EndTxn: commit or abort."""

from __future__ import annotations

from penstock.clients.protocol.messages import END_TXN

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, producer_code

#: From this version on each transaction has its own epoch (KIP-890).
NEW_TRANSACTIONS_VERSION = 5
_FENCED_VERSION = 2


def answer(call: Call) -> Response:
    """Write the markers, and return the producer's id and epoch from now on."""
    body = call.body
    new = call.version >= NEW_TRANSACTIONS_VERSION
    try:
        call.check(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
        id_, epoch = call.cluster.transactions.end(
            body.transactional_id, body.producer_id, body.producer_epoch, body.committed, new
        )
    except ApiError as error:
        return {"error_code": producer_code(error, call.version >= _FENCED_VERSION)}
    return {"producer_id": id_, "producer_epoch": epoch}


SERVED = Served(END_TXN, answer, 0)
