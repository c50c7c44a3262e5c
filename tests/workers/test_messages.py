"""Messages of reads are pickled in their own way, and arrive as they were sent."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from penstock.topology.errors import InvalidStateStoreError
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position
from penstock.workers.control.messages import CommandResult, ReadStore
from penstock.workers.queries.store_answers import Reply, Row, StoreRead

POSITION = Position.from_map({"in": {0: 41, 1: 7}})
ROW = Row(b"a", b'{"key":"a","value":42}', "0_0")


@pytest.mark.parametrize(
    "message",
    [
        ReadStore(1, "counts"),
        ReadStore(2, "counts", "a", isolation=IsolationLevel.READ_COMMITTED, at_least=POSITION, changelog=True),
        CommandResult(3),
        CommandResult(4, (ROW,)),
        CommandResult(5, error="not yet", kind=InvalidStateStoreError),
        StoreRead(Reply.OK, rows=(ROW,), tasks=("0_0",), position=POSITION, changelog={0: 9}),
        StoreRead(Reply.NOT_YET, "restoring", restore_remaining=9, eta_seconds=0.5),
        POSITION,
    ],
    ids=repr,
)
def test_a_message_arrives_as_it_was_sent(message: Any) -> None:
    assert pickle.loads(pickle.dumps(message, pickle.HIGHEST_PROTOCOL)) == message
