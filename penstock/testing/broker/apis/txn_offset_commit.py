"""TxnOffsetCommit: a group's positions, as part of a transaction (KIP-447)."""

from __future__ import annotations

from penstock.clients.protocol.messages import TXN_OFFSET_COMMIT

from ..access_control import Operation, Resource
from ..call import Call, Response, Served
from ..errors import ApiError, ErrorCode, producer_code
from .offset_commit import claim, committed, partitions

#: From this version on, the request adds the group to the transaction (KIP-890).
NEW_TRANSACTIONS_VERSION = 5


def answer(call: Call) -> Response:
    """Keep the offsets until the transaction ends."""
    body, cluster = call.body, call.cluster
    try:
        call.check(Operation.WRITE, Resource.TRANSACTIONAL_ID, body.transactional_id)
        call.check(Operation.READ, Resource.GROUP, body.group_id)
        group = cluster.groups.group(body.group_id, create=True)
        found = cluster.transactions.of(body.transactional_id, body.producer_id, body.producer_epoch)
        cluster.transactions.check_ended(found)
        if call.version >= NEW_TRANSACTIONS_VERSION:
            cluster.transactions.add(found, (), body.group_id)
        elif body.group_id not in found.groups:
            raise ApiError(ErrorCode.INVALID_TXN_STATE)
        cluster.groups.check_commit(group, claim(call, transactional=True), partitions(call))
    except ApiError as error:
        return committed(call, producer_code(error, knows_fenced=False), None)
    return committed(call, None, group.pending.setdefault(body.producer_id, {}))


SERVED = Served(TXN_OFFSET_COMMIT, answer, 0)
