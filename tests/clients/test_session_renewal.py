"""A stream thread's connection is reauthenticated in place before its session ends (KIP-368)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.clients.cluster.brokers import Leader
from penstock.clients.errors import UnreachableError
from tests.clients.produce_stage import LINGER_MS, OUT_0, OUT_1, ProduceStage, sent

SESSION_MS = 10_000


@pytest.fixture
def stage() -> Iterator[ProduceStage]:
    made = ProduceStage({OUT_0: Leader(1, 5), OUT_1: Leader(1, 6)})
    made.brokers.session_ms = SESSION_MS
    yield made
    made.close()


def test_a_session_is_renewed_shortly_before_it_ends(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.run(SESSION_MS * 8 // 10)
    stage.brokers.reply(sent(stage, b"b"))
    stage.run()
    assert stage.brokers.renewed == []
    stage.run(SESSION_MS * 2 // 10)
    stage.brokers.reply(sent(stage, b"c"))
    stage.run()
    assert len(stage.brokers.renewed) == 1
    assert stage.brokers.opened == [1]
    assert stage.lost() == []
    assert stage.sender.is_idle


def test_a_renewal_waits_for_requests_in_flight_and_delays_new_ones(stage: ProduceStage) -> None:
    first = sent(stage, b"a")
    stage.run(SESSION_MS)
    stage.send(b"b", to=OUT_1)  # it could be sent beside the first one, which has no response yet
    stage.run()
    stage.run(LINGER_MS)
    assert not stage.brokers.has_request()
    assert stage.brokers.renewed == []
    stage.brokers.reply(first)
    stage.run()
    assert len(stage.brokers.renewed) == 1
    stage.brokers.reply(stage.brokers.request())
    stage.run()
    assert stage.sender.is_idle
    assert stage.brokers.opened == [1]


def test_a_session_that_is_not_renewed_is_replaced_by_a_new_connection(stage: ProduceStage) -> None:
    stage.brokers.reply(sent(stage, b"a"))
    stage.run(SESSION_MS)
    stage.brokers.renewals = [UnreachableError("the broker closed the connection")]
    stage.send(b"b")
    stage.run(LINGER_MS)
    for _ in range(3):
        stage.run(stage.settings.retry_backoff_ms)
    stage.brokers.reply(stage.brokers.request())
    stage.run()
    assert stage.brokers.opened == [1, 1]
    assert stage.sender.is_idle
    assert stage.lost() == []
