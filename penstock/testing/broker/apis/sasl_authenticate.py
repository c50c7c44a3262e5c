"""SaslAuthenticate: the credentials of SASL/PLAIN (RFC 4616)."""

from __future__ import annotations

import hmac

from penstock.clients.protocol.messages import SASL_AUTHENTICATE

from ..call import Call, Response, Served
from ..errors import ErrorCode


def answer(call: Call) -> Response:
    """Authenticate a client that sends a user's password."""
    if call.connection.mechanism is None:
        return {
            "error_code": ErrorCode.ILLEGAL_SASL_STATE,
            "error_message": "SaslAuthenticate request received after successful authentication"
            if call.connection.principal
            else "SaslAuthenticate request received before SaslHandshake",
        }
    parts = call.body.auth_bytes.split(b"\0")
    name, password = (parts[1].decode(), parts[2]) if len(parts) == 3 else ("", b"")
    wanted = call.cluster.users.get(name)
    if wanted is None or not hmac.compare_digest(wanted.encode(), password):
        return {
            "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
            "error_message": "Authentication failed: Invalid username or password",
        }
    call.connection.principal, call.connection.mechanism = name, None
    return {}


SERVED = Served(SASL_AUTHENTICATE, answer, 0, before_login=True)
