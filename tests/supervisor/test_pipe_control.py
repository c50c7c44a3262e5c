"""Reports and commands of a stream thread: in order, and without a wait for the end that does not read."""

from __future__ import annotations

import multiprocessing
import random
import threading
from collections.abc import Iterator

import pytest

from penstock.supervisor.channels.channel import Channel
from penstock.supervisor.processes import worker_process
from penstock.supervisor.processes.worker_process import AT_ONCE_BYTES, PipeControl
from penstock.workers.control.messages import (
    ApplicationShutdownRequested,
    Command,
    CommandResult,
    Query,
    Report,
    Resume,
)
from tests.waiting import PATIENCE_SECONDS

#: A PipeControl ends its process when the other end is closed, so no test may.
OPEN: list[Channel] = []


@pytest.fixture
def ends() -> Iterator[tuple[PipeControl, Channel]]:
    """Yield the stream thread's end of a pipe, and the supervisor's."""
    here, there = multiprocessing.Pipe()
    control, supervisor = PipeControl(Channel(here, blocking=False)), Channel(there, blocking=True)
    OPEN.append(supervisor)
    yield control, supervisor
    control.close()


def received(supervisor: Channel, count: int) -> list[Report]:
    found: list[Report] = []
    while len(found) < count:
        found += supervisor.receive()
    return found


def test_results_that_are_written_at_once_stay_behind_earlier_reports(ends: tuple[PipeControl, Channel]) -> None:
    control, supervisor = ends
    chance = random.Random(0)
    sizes = [chance.choice((0, 10, AT_ONCE_BYTES - 1_000, AT_ONCE_BYTES, 300_000)) for _ in range(2_000)]
    sent = [
        CommandResult(n, b"x" * size) if chance.random() < 0.8 else ApplicationShutdownRequested()
        for n, size in enumerate(sizes)
    ]
    reports: list[Report] = []
    reader = threading.Thread(target=lambda: reports.extend(received(supervisor, len(sent))), daemon=True)
    reader.start()
    for report in sent:
        control.report(report)
    reader.join(PATIENCE_SECONDS)
    assert reports == sent


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_supervisor_that_does_not_read_stops_no_stream_thread(ends: tuple[PipeControl, Channel], size: int) -> None:
    control, supervisor = ends
    sent = [CommandResult(number, b"x" * size) for number in range(20_000_000 // (size + 10_000))]

    def send() -> None:
        for report in sent:
            control.report(report)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(PATIENCE_SECONDS)
    assert not sender.is_alive()
    assert received(supervisor, len(sent)) == sent


def query(number: int, size: int) -> Query:
    return Query(number, "counts", "get", (b"x" * size,))


def test_a_stream_thread_receives_a_command_that_has_arrived_itself(
    ends: tuple[PipeControl, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "AWAY_SECONDS", PATIENCE_SECONDS)
    control, supervisor = ends
    control.poll_commands()
    for number in range(100):
        supervisor.send(query(number, 10))
        assert control.poll_commands() == [query(number, 10)]


def test_commands_stay_in_order_whichever_thread_receives_them(
    ends: tuple[PipeControl, Channel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_process, "AWAY_SECONDS", 0.0)
    control, supervisor = ends
    chance = random.Random(0)
    sent = [query(number, chance.choice((0, 10, 10_000, 300_000))) for number in range(1_000)]

    def send() -> None:
        for command in sent:
            supervisor.send(command)

    threading.Thread(target=send, daemon=True).start()
    found: list[Command] = []
    while len(found) < len(sent):
        found += control.poll_commands()
    assert found == sent


@pytest.mark.parametrize("has_polled", [False, True], ids=["starting", "busy"])
def test_a_stream_thread_that_takes_no_commands_stops_no_supervisor(
    ends: tuple[PipeControl, Channel], has_polled: bool
) -> None:
    control, supervisor = ends
    if has_polled:
        supervisor.send(Resume())
        assert control.poll_commands() == [Resume()]
    sent = [query(number, 100_000) for number in range(100)]

    def send() -> None:
        for command in sent:
            supervisor.send(command)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(PATIENCE_SECONDS)
    assert not sender.is_alive()
    found: list[Command] = []
    while len(found) < len(sent):
        found += control.poll_commands()
    assert found == sent
