"""Mutants of the producers: the contents of a transaction's requests, and the time that their deadlines count."""

from __future__ import annotations

from typing import Any

from penstock.clients.cluster.brokers import ProducerId
from penstock.clients.served_clock import ServedClock
from penstock.clients.writing import sender, transaction_requests
from tests.simulation.mutants.mutant import Mutant


def epoch_of_the_transaction_before(_: Any) -> Any:
    """The epoch in EndTxn's response is ignored: each transaction has the epoch of the first one (KIP-890)."""
    return lambda answer, producer: producer


def offsets_of_another_epoch(original: Any) -> Any:
    """Offsets are sent with the epoch before the transaction's."""

    def txn_offset_commit(transactional_id: str, producer: ProducerId, *more: Any) -> Any:
        return original(transactional_id, ProducerId(producer.id, producer.epoch - 1), *more)

    return txn_offset_commit


def all_time_counts(_: Any) -> Any:
    """Deadlines continue while a record is processed, or the process stalls. Penstock once did this."""
    return lambda clock: clock._clock.monotonic_ms()


def long_waits(_: Any) -> Any:
    """A wait counts fully, though the machine slept in it. Penstock once did this."""
    return 10_000


PRODUCER_MUTANTS = (
    Mutant("epoch not bumped", transaction_requests, "next_producer", epoch_of_the_transaction_before, 47, plain=False),
    Mutant(
        "offsets committed outside of the transaction's epoch",
        transaction_requests,
        "txn_offset_commit",
        offsets_of_another_epoch,
        10,
        plain=False,
    ),
    Mutant("deadline while not served", ServedClock, "monotonic_ms", all_time_counts, 26, plain=False),
    Mutant("deadline while asleep in a wait", sender, "WAIT_MAX_MS", long_waits, 9402, plain=False),
)
