"""SaslHandshake: the client names its mechanism."""

from __future__ import annotations

from penstock.clients.protocol.messages import SASL_HANDSHAKE

from ..call import Call, Response, Served
from ..errors import ErrorCode

MECHANISMS = ["PLAIN"]


def answer(call: Call) -> Response:
    """Accept PLAIN."""
    if not call.cluster.users:
        return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
    if call.body.mechanism not in MECHANISMS:
        return {"error_code": ErrorCode.UNSUPPORTED_SASL_MECHANISM, "mechanisms": MECHANISMS}
    call.connection.mechanism = call.body.mechanism
    return {"mechanisms": MECHANISMS}


SERVED = Served(SASL_HANDSHAKE, answer, 1, before_login=True)
