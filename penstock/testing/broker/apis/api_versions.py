"""ApiVersions: the APIs and versions that are served (KIP-511)."""

from __future__ import annotations

import re

from penstock.clients.protocol.messages import API_VERSIONS

from ..call import Call, Response, Served
from ..errors import ErrorCode

#: Valid names and versions of client software, from version 3 on.
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_NAMED_VERSION = 3


def answer(call: Call) -> Response:
    """Return all of them."""
    names = call.body.client_software_name, call.body.client_software_version
    if call.version >= _NAMED_VERSION and not all(_NAME.fullmatch(name) for name in names):
        return {"error_code": ErrorCode.INVALID_REQUEST}
    asked = call.body.cluster_id, call.body.node_id
    if call.body.cluster_id is not None and asked != (call.cluster.id, call.connection.node.id):  # KIP-1242
        return {"error_code": ErrorCode.REBOOTSTRAP_REQUIRED}
    return call.cluster.versions()


SERVED = Served(API_VERSIONS, answer, 0, before_login=True)
