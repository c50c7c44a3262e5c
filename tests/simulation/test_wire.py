"""The network of simulated brokers: it does only what connections of the operating system can do."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.clients.errors import DeliveryTimeoutError
from penstock.clients.writing.writer import Lost
from penstock.topology.records import RawRecord
from tests.simulation.producers import OwnTransactionalWriter, Wire, _Connection
from tests.simulation.stamps import stamped
from tests.simulation.world import World

REQUESTS = 8
DELIVERY_MS = 3_000


class Process:
    """The part of a process that a wire uses. losses: the lost part of each exchange, in turn."""

    client, transaction_timeout_ms, roughness = "p", 0, SimpleNamespace(failed_sends=0.0)

    def __init__(self, world: World, *losses: str | None) -> None:
        self.world = world
        self.served_ms = 0
        self._losses = iter(losses)

    def loses(self) -> str | None:
        return next(self._losses, None)


class Leader:
    """Records the received requests."""

    def __init__(self) -> None:
        self.handled: list[int] = []

    def produce(self, node: int, request: Any, holder: object) -> dict[Any, int]:
        self.handled.append(request.correlation_id)
        return {}


def exchanged(seed: int, *losses: str | None) -> tuple[list[int], list[int]]:
    """Send several requests; return those that the leader has handled, and the responses that have arrived."""
    world, leader = World(seed), Leader()
    wire = Wire(leader, Process(world, *losses))  # type: ignore[arg-type]
    ours, theirs = socket.socketpair()
    connection = _Connection(1, theirs)
    for number in range(REQUESTS):
        wire._put_on_its_way(connection, SimpleNamespace(correlation_id=number, record_batches={}))  # type: ignore[arg-type]
        world.advance(1)
    world.advance(60_000)
    connection.close()
    answers = ours.makefile("rb").read()
    ours.close()
    found = []
    while answers:
        length, answers = int.from_bytes(answers[:4], "big"), answers[4:]
        found.append(int.from_bytes(answers[:4], "big"))
        answers = answers[length:]
    return leader.handled, found


ALL = list(range(REQUESTS))


@pytest.mark.parametrize("seed", range(20))
def test_neither_requests_nor_responses_are_reordered(seed: int) -> None:
    assert exchanged(seed) == (ALL, ALL)


@pytest.mark.parametrize("seed", range(20))
def test_no_response_arrives_after_a_lost_one(seed: int) -> None:
    assert exchanged(seed, None, None, "answer") == (ALL, ALL[:2])


def test_after_a_lost_request_none_or_all_arrive_in_order() -> None:
    handled = {tuple(exchanged(seed, None, None, "request")[0]) for seed in range(20)}
    assert handled == {tuple(ALL[:2]), tuple(ALL)}
    assert all(exchanged(seed, None, None, "request")[1] == ALL[:2] for seed in range(20))


# Expired records


def writer(world: World, *lost: Lost) -> OwnTransactionalWriter:
    """Return a writer whose producer has let these records expire."""
    taken = list(lost)
    made: Any = OwnTransactionalWriter.__new__(OwnTransactionalWriter)
    made._producer = SimpleNamespace(take_lost=lambda: taken, begin_transaction=lambda: None)
    made._io, made._delivery_ms, made._judged = Process(world), DELIVERY_MS, []
    made._io.served_ms = DELIVERY_MS
    return made  # type: ignore[no-any-return]


def record(served_ms: int) -> RawRecord:
    """Return a record that was produced when its process had run for this long."""
    return RawRecord("out", 0, -1, 0, b"key", b"value", stamped(None, 1, served_ms))


def test_later_records_of_a_transaction_expire_with_an_expired_one() -> None:
    world, first, second = World(0), DeliveryTimeoutError("first"), DeliveryTimeoutError("second")
    lost = [Lost(first, record(0)), Lost(second, record(0)), Lost(first, record(DELIVERY_MS))]
    writer(world, *lost).take_lost()
    assert world.violations == []
    assert world.disturbed, "with at-least-once their thread begins again at its last commit"


def test_a_record_that_expires_without_time_to_send_it_is_a_violation() -> None:
    """Also with an error that was right in the previous transaction."""
    world, error = World(0), DeliveryTimeoutError("first")
    judged = writer(world, Lost(error, record(0)))
    judged.take_lost()
    assert world.violations == []
    judged.begin_transaction()
    judged._producer = SimpleNamespace(take_lost=lambda: [Lost(error, record(DELIVERY_MS))])  # type: ignore[assignment]
    judged.take_lost()
    assert world.violations == ["p has given up a record after 0 ms of its own, of 3000"]
