"""What a member does after its process was suspended for longer than its session: Standstill and its callers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.clients.clock import SystemClock
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assigned, Event, Lost, MemberAssignment, MemberSubscription
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.group.standstill import Standstill
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import network_settings
from tests.waiting import eventually
from tests.workers.counting import IN, OUT, counting, counts, feed
from tests.workers.memory_io import MemoryWriter
from tests.workers.memory_kafka import Cluster, ManualClock
from tests.workers.thread_stage import Application

SESSION_MS = 6_000


@pytest.fixture
def counter(cluster: Cluster, application: Callable[..., Application]) -> Application:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    return application(counting())


@pytest.fixture
def standstill(clock: ManualClock) -> Standstill:
    return Standstill(clock, SESSION_MS, PrefixedLogger("test", ""))


def test_a_process_that_runs_is_not_in_doubt(clock: ManualClock, standstill: Standstill) -> None:
    for _ in range(10):
        clock.advance(SESSION_MS)
        assert not standstill.in_doubt
        standstill.beat()
    assert not standstill.in_doubt


def test_the_stream_thread_doubts_before_the_io_thread_has_run(clock: ManualClock, standstill: Standstill) -> None:
    clock.advance(SESSION_MS + 1)
    assert standstill.in_doubt
    standstill.beat()
    assert standstill.in_doubt


def test_only_an_answer_to_a_later_question_ends_the_doubt(clock: ManualClock, standstill: Standstill) -> None:
    early = standstill.beat()
    clock.advance(SESSION_MS + 1)
    late = standstill.beat()
    standstill.answered(early)  # was in flight while the process was suspended
    assert standstill.in_doubt
    standstill.answered(late)
    assert not standstill.in_doubt


def test_it_is_told_how_long_it_was(
    clock: ManualClock, standstill: Standstill, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance(SESSION_MS + 1)
    standstill.beat()
    standstill.beat()
    (line,) = caplog.messages
    assert f"was suspended for {SESSION_MS + 1} ms" in line


# -- the stream thread


def test_a_thread_in_doubt_processes_and_commits_nothing(cluster: Cluster, counter: Application) -> None:
    thread = counter.thread().until_running()
    feed(cluster, "a")
    thread.step()
    thread.member.in_doubt = True
    feed(cluster, "b")
    thread.step(3).commit()
    assert counts(cluster) == {}
    thread.member.in_doubt = False
    thread.step().commit()
    assert counts(cluster) == {"a": 1, "b": 1}


def test_a_thread_in_doubt_sends_nothing_on(cluster: Cluster, application: Callable[..., Application]) -> None:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    thread = application(counting(), statestore_cache_max_bytes=0).thread().until_running()
    thread.member.in_doubt = True
    feed(cluster, "a")
    thread.step(3)
    assert counts(cluster) == {}
    thread.member.in_doubt = False
    thread.step(2)
    assert counts(cluster) == {"a": 1}


def test_a_thread_in_doubt_does_not_serve_its_producer_which_would_send(
    counter: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = counter.thread().until_running()
    served: list[str] = []
    for name in ("poll", "send_due"):
        monkeypatch.setattr(MemoryWriter, name, lambda writer, name=name: served.append(name))
    thread.member.in_doubt = True
    thread.step(3)
    assert not served
    thread.member.in_doubt = False
    thread.step()
    assert served


def test_a_thread_that_ends_in_doubt_writes_nothing(cluster: Cluster, counter: Application) -> None:
    thread = counter.thread().until_running()
    feed(cluster, "a")
    thread.step()
    thread.member.in_doubt = True
    thread.close()
    assert counts(cluster) == {}
    again = counter.thread().until_running()
    again.step().commit()
    assert counts(cluster) == {"a": 1}


# -- the member


class LeapingClock(SystemClock):
    """The computer's clock, set forward by a test: what a process sees that was stopped."""

    def __init__(self) -> None:
        self.leap_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.leap_ms


@pytest.mark.broker
def test_the_doubt_ends_when_the_coordinator_still_knows_the_member(
    bootstrap_servers: str, unique_name: Callable[[str], str]
) -> None:
    clock, events = LeapingClock(), list[Event]()
    config = GroupMemberConfig(unique_name("group"), session_timeout_ms=SESSION_MS, heartbeat_interval_ms=100)
    member = GroupMember(
        config,
        network_settings({"bootstrap.servers": bootstrap_servers}),
        lambda members: dict.fromkeys(members, MemberAssignment((), b"part")),
        clock,
    )
    try:
        member.join(MemberSubscription(b"", frozenset({"t"})))
        eventually(lambda: any(isinstance(event, Assigned) for event in member.poll()))
        assert not member.in_doubt
        clock.leap_ms += SESSION_MS + 1
        assert member.in_doubt
        eventually(lambda: events.extend(member.poll()) or not member.in_doubt)
        assert not any(isinstance(event, Lost) for event in events)
    finally:
        member.close(leave=True)
