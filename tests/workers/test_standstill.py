"""A member whose session may have ended unnoticed: Standstill and its callers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest

from penstock.clients.clock import Clock, SystemClock
from penstock.clients.group import standstill as standstill_module
from penstock.clients.group.classic_protocol import ClassicProtocol
from penstock.clients.group.group_member import GroupMember
from penstock.clients.group.membership import Assigned, Event, Lost, MemberAssignment, MemberSubscription
from penstock.clients.group.requests import GroupMemberConfig
from penstock.clients.group.standstill import Standstill
from penstock.clients.log_context import PrefixedLogger
from penstock.clients.network_settings import network_settings
from penstock.testing.wire import Action, Exchange, Rule, WireProxy
from tests.clients.joining import joining
from tests.direct_kafka import DirectKafka
from tests.manual_clock import ManualClock
from tests.waiting import eventually
from tests.workers.counting import IN, OUT, counting, counts, feed
from tests.workers.direct_io import DirectWriter
from tests.workers.thread_stage import Application

SESSION_MS = 6_000


@pytest.fixture
def counter(cluster: DirectKafka, application: Callable[..., Application]) -> Application:
    cluster.create_topic(IN, 2)
    cluster.create_topic(OUT, 1)
    return application(counting())


@pytest.fixture
def standstill(clock: ManualClock) -> Standstill:
    return Standstill(clock, SESSION_MS, PrefixedLogger("test", ""))


def test_a_running_process_is_not_in_doubt(clock: ManualClock, standstill: Standstill) -> None:
    for _ in range(10):
        clock.advance(SESSION_MS)
        assert not standstill.in_doubt
        standstill.beat()
    assert not standstill.in_doubt


def test_the_stream_thread_is_in_doubt_before_the_io_thread_has_run(clock: ManualClock, standstill: Standstill) -> None:
    clock.advance(SESSION_MS + 1)
    assert standstill.in_doubt
    standstill.beat()
    assert standstill.in_doubt


def test_only_a_response_to_a_later_request_ends_the_doubt(clock: ManualClock, standstill: Standstill) -> None:
    early = standstill.beat()
    clock.advance(SESSION_MS + 1)
    late = standstill.beat()
    standstill.answered(early)  # was in flight while the process was suspended
    assert standstill.in_doubt
    standstill.answered(late)
    assert not standstill.in_doubt


def test_the_length_of_the_standstill_is_logged(
    clock: ManualClock, standstill: Standstill, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance(SESSION_MS + 1)
    standstill.beat()
    standstill.beat()
    (line,) = caplog.messages
    assert f"was suspended for {SESSION_MS + 1} ms" in line


def test_a_member_is_in_doubt_when_its_coordinator_is_silent_for_a_session(
    clock: ManualClock, standstill: Standstill, caplog: pytest.LogCaptureFixture
) -> None:
    sent_ms = standstill.beat()
    standstill.answered(sent_ms)
    for _ in range(3):
        clock.advance(SESSION_MS // 2)
        standstill.beat()
    assert standstill.in_doubt
    (line,) = caplog.messages
    assert f"The coordinator of the group has not responded for {3 * (SESSION_MS // 2)} ms" in line
    standstill.answered(sent_ms)  # the response was in flight for longer than the session
    assert standstill.in_doubt
    standstill.answered(standstill.beat())
    assert not standstill.in_doubt


def test_a_member_that_waits_for_the_join_of_others_is_not_in_doubt(clock: ManualClock, standstill: Standstill) -> None:
    standstill.answered(standstill.beat())
    standstill.joins()
    for _ in range(4):
        clock.advance(SESSION_MS // 2)
        standstill.beat()
    assert not standstill.in_doubt
    standstill.join_failed()  # this coordinator is gone; with another one the group may continue without this member
    standstill.join_failed()
    clock.advance(SESSION_MS)
    assert not standstill.in_doubt
    standstill.join_failed()
    clock.advance(1)
    assert standstill.in_doubt


def test_the_stream_thread_may_check_while_the_io_thread_begins_a_join(
    standstill: Standstill,
) -> None:
    """The IO thread then clears the time of the last response, between any two steps of the stream thread."""

    def join_at_every_step(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename == standstill_module.__file__:
            frame.f_trace_opcodes = True
            if event == "opcode":
                steps.append(frame.f_lineno)
                if len(steps) == at:
                    sys.settrace(None)
                    standstill.joins()
                    return None
        return join_at_every_step

    at, steps = 0, [0]
    while len(steps) >= at:
        at, steps = at + 1, []
        standstill.answered(standstill.beat())
        sys.settrace(join_at_every_step)
        try:
            assert not standstill.in_doubt
        finally:
            sys.settrace(None)
    assert at > 10


# -- the stream thread


def test_a_thread_in_doubt_processes_and_commits_nothing(cluster: DirectKafka, counter: Application) -> None:
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


def test_a_thread_in_doubt_sends_no_records(cluster: DirectKafka, application: Callable[..., Application]) -> None:
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


def test_a_thread_in_doubt_does_not_poll_its_producer(counter: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = counter.thread().until_running()
    served: list[str] = []
    for name in ("poll", "send_due"):
        monkeypatch.setattr(DirectWriter, name, lambda writer, name=name: served.append(name))
    thread.member.in_doubt = True
    thread.step(3)
    assert not served
    thread.member.in_doubt = False
    thread.step()
    assert served


def test_a_flush_in_doubt_resends_no_request(
    cluster: DirectKafka, counter: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its unacknowledged records may be older than those of a new owner of the tasks."""
    thread = counter.thread().until_running()
    feed(cluster, "a")
    thread.step()
    flushes: list[float] = []

    def unanswered(writer: DirectWriter, seconds: float) -> bool:
        flushes.append(seconds)
        thread.member.in_doubt = len(flushes) == 3
        return False

    with monkeypatch.context() as patched:
        patched.setattr(DirectWriter, "flush", unanswered)
        thread.commit()
    assert len(flushes) == 3
    assert counts(cluster) == {}
    thread.member.in_doubt = False
    thread.commit()
    assert counts(cluster) == {"a": 1}


def test_a_thread_that_shuts_down_in_doubt_writes_nothing(cluster: DirectKafka, counter: Application) -> None:
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
    """The computer's clock, set forward by a test, as a suspended process sees it."""

    def __init__(self) -> None:
        self.leap_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.leap_ms


class Silence(Action):
    """The coordinator receives no request."""

    async def on_request(self, exchange: Exchange) -> None:
        pass


@pytest.fixture
def join(unique_name: Callable[[str], str]) -> Iterator[Callable[[str, Clock], GroupMember]]:
    """Make a member that has joined, with a clock of the test."""
    members: list[GroupMember] = []

    def make(servers: str, clock: Clock) -> GroupMember:
        config = GroupMemberConfig(unique_name("group"), session_timeout_ms=SESSION_MS, heartbeat_interval_ms=100)
        network = network_settings({"bootstrap.servers": servers})
        assigned = MemberAssignment((), b"part")
        member = GroupMember(
            config,
            network,
            clock,
            partial(ClassicProtocol, assign=lambda members: dict.fromkeys(members, assigned)),
        )
        members.append(member)
        member.join(joining(MemberSubscription(b"", frozenset({"t"}))))
        eventually(lambda: any(isinstance(event, Assigned) for event in member.poll()))
        assert not member.in_doubt
        return member

    yield make
    for member in members:
        member.close(leave=True)


@pytest.mark.broker
def test_the_doubt_ends_when_the_coordinator_still_knows_the_member(
    bootstrap_servers: str, join: Callable[[str, Clock], GroupMember]
) -> None:
    clock, events = LeapingClock(), list[Event]()
    member = join(bootstrap_servers, clock)
    clock.leap_ms += SESSION_MS + 1
    assert member.in_doubt

    def is_confirmed() -> bool:
        events.extend(member.poll())
        return not member.in_doubt

    eventually(is_confirmed)
    assert not any(isinstance(event, Lost) for event in events)


@pytest.mark.broker
def test_a_member_cut_off_from_its_coordinator_stays_in_doubt_until_it_learns_that_it_was_removed(
    bootstrap_servers: str, join: Callable[[str, Clock], GroupMember]
) -> None:
    with WireProxy(bootstrap_servers) as proxy:
        member = join(proxy.bootstrap_servers, SystemClock())
        proxy.set_rules([Rule(Silence(), api="Heartbeat")])
        eventually(lambda: member.in_doubt, "nothing is confirmed for a session", 3 * SESSION_MS / 1000)
        assert not any(isinstance(event, Lost) for event in member.poll())
        proxy.set_rules([])
        eventually(lambda: any(isinstance(event, Lost) for event in member.poll()), "the group has removed it")
