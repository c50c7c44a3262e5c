"""Reads cost a stream thread no iteration: it answers them while it waits for records, and between two rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from penstock import Serdes, StreamsBuilder
from penstock.clients.reading.reader import ReaderEvent, Records
from penstock.workers.control.messages import Command, CommandResult, Pause, ReadStore, Resume
from penstock.workers.queries.store_answers import Reply
from tests.direct_kafka import DirectKafka
from tests.workers.counting import CHANGELOG, IN, OUT, counting, feed
from tests.workers.thread_stage import Application, Thread

TEXT: dict[str, Any] = {"key_serde": Serdes.string(), "value_serde": Serdes.string()}
MakeApplication = Callable[..., Application]


@pytest.fixture
def counter(cluster: DirectKafka, application: MakeApplication) -> Application:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 1)
    return application(counting())


class InterruptedWaits:
    """Lets commands arrive during the waits for records, some at a time; without them a wait lasts until its end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, running: Thread, *arrivals: list[Command]) -> None:
        self.left = [*arrivals]
        self.waits: list[float] = []
        self._running = running
        self._fetch = running.consumer.fetch
        monkeypatch.setattr(running.consumer, "fetch", self)

    def __call__(self, max_records: int, timeout_seconds: float) -> tuple[Records, list[ReaderEvent]]:
        self.waits.append(timeout_seconds)
        while self.left:
            self._running.control.commands += self.left.pop(0)
            if not self._running.consumer.serve():
                return {}, []
        return self._fetch(max_records, timeout_seconds)


def counts_of(running: Thread) -> list[Any]:
    """Return the values of the answered reads, in their order."""
    answers = [report.value for report in running.control.reports if isinstance(report, CommandResult)]
    assert {answer.reply for answer in answers} <= {Reply.OK}
    return [orjson.loads(row.json)["value"] for answer in answers for row in answer.rows]


def reads(*numbers: int) -> list[Command]:
    return [ReadStore(number, "counts", "a") for number in numbers]


def iterations(running: Thread, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows with each iteration of the thread."""
    begun: list[None] = []
    poll: Callable[[], None] = running.group.poll

    def counted() -> None:
        begun.append(None)
        poll()

    monkeypatch.setattr(running.group, "poll", counted)
    return begun


def test_reads_do_not_end_the_wait_for_records(
    counter: Application, cluster: DirectKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(cluster, "aa")
    running = counter.thread().until_idle()
    begun = iterations(running, monkeypatch)
    waits = InterruptedWaits(monkeypatch, running, reads(1), reads(2, 3), reads(4))
    running.step()
    assert counts_of(running) == [2, 2, 2, 2]
    assert begun == [None]
    assert len(waits.waits) == 1


def test_another_command_ends_the_wait_and_is_executed_in_order(
    counter: Application, cluster: DirectKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed(cluster, "a")
    running = counter.thread().until_idle()
    InterruptedWaits(monkeypatch, running, [*reads(1), Pause(), *reads(2), Resume()], reads(3))
    running.step()
    assert (counts_of(running), running.paused) == ([1], False)
    running.step()
    assert (counts_of(running), running.paused) == ([1, 1, 1], False)


def test_reads_are_answered_between_rounds_of_fetched_records(
    cluster: DirectKafka, application: MakeApplication, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in (IN, OUT, CHANGELOG):
        cluster.create_topic(topic, 1)
    seen: list[str] = []

    def slow(value: str) -> str:
        seen.append(value)
        if len(seen) == 3:
            running.control.commands += reads(1)
        return value

    builder = StreamsBuilder()
    builder.stream(IN, **TEXT).map_values(slow).group_by_key().count(store="counts")
    running = application(builder.build()).thread().until_running()
    feed(cluster, "a" * 500)
    begun = iterations(running, monkeypatch)
    running.until(lambda: len(seen) == 500)
    (count,) = counts_of(running)
    assert 3 <= count < 50
    assert begun == [None]  # it takes all records, and processes them in many rounds
