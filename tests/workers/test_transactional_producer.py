"""Calls of a transaction come back, also when librdkafka's do not."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaException, Producer

from penstock.workers import transactional_producer
from penstock.workers.transactional_producer import TransactionalProducer, _bounded


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set at the end, so that the thread that was left behind ends too."""
    monkeypatch.setattr(transactional_producer, "GRACE_SECONDS", 0.05)
    event = threading.Event()
    before = set(threading.enumerate())  # tests of real transactions may have left threads behind that never end
    yield event
    event.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()


def test_a_call_that_does_not_return_is_given_up_and_can_be_told(release: threading.Event) -> None:
    def commit_transaction(_seconds: float) -> None:
        release.wait()

    with pytest.raises(KafkaException, match="did not return from commit_transaction within 0 s") as given_up:
        _bounded(commit_transaction, 0.01)
    assert given_up.value.args[0].retriable()
    assert not given_up.value.args[0].txn_requires_abort()


def test_what_a_call_raises_is_raised() -> None:
    producer = TransactionalProducer({"bootstrap.servers": "127.0.0.1:1", "transactional.id": "x", "log_level": 0})
    with pytest.raises(KafkaException, match="Operation not valid"):
        producer.commit_transaction(1.0)
    with pytest.raises(KafkaException) as timed_out:
        producer.init_transactions(0.1)
    assert timed_out.value.args[0].retriable()


def test_every_call_of_a_transaction_that_waits_is_bounded() -> None:
    calls = {name for name in vars(Producer) if "transaction" in name} - {"begin_transaction"}
    assert calls == {name for name in vars(TransactionalProducer) if "transaction" in name}
