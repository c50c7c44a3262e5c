"""What a Python process of Spark keeps from one task to the next: its producers, and what need not be collected."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from confluent_kafka import KafkaError

from penstock.pipeline.tasks import python_worker
from penstock.pipeline.tasks.kafka_sink import Sinks, opened
from penstock.pipeline.tasks.python_worker import in_python_worker
from penstock.topology.errors import StreamsError


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


def sinks(address: str, linger_ms: int = 5) -> Sinks:
    return Sinks({"bootstrap.servers": address, "log_level": 0, "linger.ms": linger_ms})


def test_the_next_task_uses_a_sink_that_is_not_in_use(closed_port: str) -> None:
    mine = sinks(closed_port)
    first, second = mine.of_tasks(), mine.of_tasks()
    assert second is not first, "the first one is in use"
    mine.finish(first)
    assert mine.of_tasks() is first
    mine.finish(first)
    mine.finish(second)
    assert {id(mine.of_tasks()), id(mine.of_tasks())} == {id(first), id(second)}


def test_a_sink_with_other_settings_is_not_used_or_kept(closed_port: str) -> None:
    mine, other = sinks(closed_port), sinks(closed_port, 7)
    first = mine.of_tasks()
    mine.finish(first)
    found = other.of_tasks()
    assert found is not first
    other.finish(found)
    assert mine.of_tasks() is not first


def test_a_sink_that_failed_is_not_used_again(closed_port: str) -> None:
    mine = sinks(closed_port)
    first = mine.of_tasks()
    first._delivered(KafkaError(KafkaError._ALL_BROKERS_DOWN), Delivered())
    with pytest.raises(StreamsError, match="1 records could not be written to Kafka, the first to out: "):
        mine.finish(first)
    assert mine.of_tasks() is not first


class Delivered:
    """A record in a delivery report."""

    def topic(self) -> str:
        return "out"


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
    refused = opened(Sinks({"bootstrap.servers": "broker:9092", "no.such.setting": 1}))
    refused.send("out", b"k", b"v", 0, None)
    with pytest.raises(StreamsError, match="librdkafka refuses the producer's settings"):
        refused.finish()
