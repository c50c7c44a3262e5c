"""What a Python process of Spark keeps from one task to the next: its producers, and what need not be collected."""

from __future__ import annotations

import gc
import pickle
import sys
import time
from collections.abc import Iterator
from types import ModuleType

import pytest

from penstock import BrokerUnavailableError, ConfigError, StreamsConfig
from penstock.pipeline.tasks import kafka_sink, python_worker
from penstock.pipeline.tasks.kafka_sink import Sinks
from penstock.pipeline.tasks.python_worker import in_python_worker
from penstock.pipeline.tasks.task_processor import LazySink
from tests.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    kafka_sink.idle.take("")  # closes those of the test
    gc.unfreeze()


def sinks(address: str, **settings: object) -> Sinks:
    """Return the sinks of a task, which are sent to its process."""
    given = StreamsConfig({"application.id": "app", "bootstrap.servers": address, **settings})
    sent: Sinks = pickle.loads(pickle.dumps(Sinks(given)))
    return sent


def test_the_next_task_uses_a_sink_that_is_not_in_use(closed_port: str) -> None:
    mine = sinks(closed_port)
    first, second = mine.of_tasks(), mine.of_tasks()
    assert second is not first, "the first one is in use"
    mine.finish(first)
    following = sinks(closed_port)
    assert following.of_tasks() is first
    mine.finish(first)
    mine.finish(second)
    taken = mine.of_tasks(), following.of_tasks()
    assert {id(sink) for sink in taken} == {id(first), id(second)}
    for sink in taken:
        sink.close()


def test_a_sink_with_other_settings_is_not_used_or_kept(closed_port: str) -> None:
    mine, other = sinks(closed_port), sinks(closed_port, **{"linger.ms": 7})
    first = mine.of_tasks()
    mine.finish(first)
    found = other.of_tasks()
    assert found is not first
    other.finish(found)
    again = mine.of_tasks()
    assert again is not first
    again.close()


def test_a_sink_whose_brokers_do_not_respond_fails_once_and_is_not_used_again(closed_port: str) -> None:
    mine = sinks(closed_port, **{"linger.ms": 0, "delivery.timeout.ms": 50})
    first = mine.of_tasks()
    began = time.monotonic()
    for _ in range(10_000):  # each would wait for as long as the first one
        first.send("out", b"k", b"v", 0, None)
    assert time.monotonic() - began < PATIENCE_SECONDS
    with pytest.raises(BrokerUnavailableError, match="not be written to Kafka, the first to out: not ack"):
        mine.finish(first)
    again = mine.of_tasks()
    assert again is not first
    again.close()


def test_what_exists_is_frozen_once_and_again_after_an_import(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_worker, "_modules_when_frozen", 0)  # other tests may have run tasks in this process
    with in_python_worker():
        pass
    frozen = gc.get_freeze_count()
    assert frozen > 10_000
    with in_python_worker():
        garbage = [[number] for number in range(1_000)]
    assert gc.get_freeze_count() == frozen
    monkeypatch.setitem(sys.modules, "imported_later", ModuleType("imported_later"))
    with in_python_worker():
        pass
    assert gc.get_freeze_count() >= frozen + len(garbage)


def test_a_sink_that_cannot_be_opened_raises_when_the_task_ends_not_when_it_sends() -> None:
    refused = LazySink(sinks("broker:9092", **{"producer.no.such.setting": 1}))
    refused.send("out", b"k", b"v", 0, None)
    with pytest.raises(ConfigError, match=r"no\.such\.setting"):
        refused.finish()
