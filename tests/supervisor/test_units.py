"""The parts of the supervisor that need no process: states, policy, pipes, systemd, exit codes, queries."""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import socket
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.clients.log_context import PrefixedLogger
from penstock.supervisor.application_state import (
    APPLICATION_TRANSITIONS,
    ApplicationState,
    ApplicationStates,
    state_after,
)
from penstock.supervisor.channels.channel import Channel
from penstock.supervisor.exit_codes import ExitCode, WorkerExitCode
from penstock.supervisor.logs.worker_output import LineReader
from penstock.supervisor.processes.restart_policy import RestartLimits, RestartPolicy
from penstock.supervisor.queries.queries import Answers, Question
from penstock.supervisor.queries.queryable_store import QueryableStore
from penstock.supervisor.queries.state_query import answered
from penstock.supervisor.service.systemd import SystemdNotifier
from penstock.topology.errors import StreamsError
from penstock.topology.query.isolation_level import IsolationLevel
from penstock.topology.query.position import Position
from penstock.topology.query.state_queries import KeyQuery
from penstock.topology.query.state_query_request import StateQueryRequest
from penstock.topology.query.state_query_result import FailureReason, QueryResult
from penstock.topology.records import AggregationWithHeaders, ValueAndTimestamp, ValueTimestampHeaders, Windowed
from penstock.workers.control.messages import CommandResult, TaskResults
from penstock.workers.control.stream_thread_state import StreamThreadState as Thread
from tests.examples import examples

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


# -- application_state


def test_the_diagram_is_the_table() -> None:
    lines = re.findall(r"^ {8}([A-Z_]+) -*>(.*)$", ApplicationState.__doc__ or "", re.MULTILINE)
    drawn = {name: {word.strip() for word in rest.split(",") if word.strip()} for name, rest in lines}
    assert drawn == {old.name: {new.name for new in news} for old, news in APPLICATION_TRANSITIONS.items()}


def states() -> ApplicationStates:
    return ApplicationStates(PrefixedLogger("test", ""))


def test_an_illegal_transition_is_an_error_and_an_ending_state_refuses_quietly() -> None:
    machine = states()
    with pytest.raises(StreamsError, match="Unexpected state transition from CREATED to RUNNING"):
        machine.transition_to(ApplicationState.RUNNING)
    machine.transition_to(ApplicationState.PENDING_SHUTDOWN)
    assert machine.transition_to(ApplicationState.REBALANCING) is None
    assert machine.state is ApplicationState.PENDING_SHUTDOWN


def test_rebalancing_is_reported_once() -> None:
    machine, told = states(), []
    machine.listener = lambda new, old: told.append((old.name, new.name))
    machine.transition_to(ApplicationState.REBALANCING)
    assert machine.transition_to(ApplicationState.REBALANCING) is None
    assert told == [("CREATED", "REBALANCING")]


def test_wait_for_ends_at_its_timeout() -> None:
    assert not states().wait_for([ApplicationState.RUNNING], timeout=0.01)


@pytest.mark.parametrize(
    ("new", "threads", "expected"),
    [
        (Thread.PARTITIONS_ASSIGNED, [Thread.RUNNING], "REBALANCING"),
        (Thread.PARTITIONS_REVOKED, [Thread.RUNNING], "REBALANCING"),
        (Thread.RUNNING, [Thread.RUNNING, Thread.RUNNING], "RUNNING"),
        (Thread.RUNNING, [Thread.RUNNING, Thread.DEAD], "RUNNING"),
        (Thread.RUNNING, [Thread.RUNNING, Thread.PENDING_SHUTDOWN], "RUNNING"),
        (Thread.RUNNING, [Thread.RUNNING, Thread.STARTING], None),
        (Thread.RUNNING, [Thread.RUNNING, Thread.PARTITIONS_ASSIGNED], None),
        (Thread.STARTING, [Thread.STARTING], None),
        (Thread.DEAD, [Thread.DEAD], None),
    ],
)
def test_the_state_follows_the_threads(new: Thread, threads: list[Thread], expected: str | None) -> None:
    after = state_after(new, threads)
    assert (after and after.name) == expected


# -- restart_policy


def test_restart_delays_grow_and_restarts_are_limited_within_the_window() -> None:
    policy = RestartPolicy(RestartLimits(max_restarts=5, window_ms=1000, backoff_ms=10, backoff_max_ms=35))
    assert [policy.delay_ms(now) for now in range(6)] == [0, 10, 20, 35, 35, None]
    assert policy.delay_ms(999) is None
    assert policy.delay_ms(1000) == 35  # the first has left the window
    assert policy.delay_ms(3000) == 0


@given(st.lists(st.integers(0, 500), max_size=60))
def test_no_window_has_more_restarts_than_the_limit(gaps: list[int]) -> None:
    policy = RestartPolicy(RestartLimits(max_restarts=3, window_ms=1000, backoff_ms=1, backoff_max_ms=8))
    now, allowed = 0, []
    for gap in gaps:
        now += gap
        if policy.delay_ms(now) is not None:
            allowed.append(now)
    assert all(late - early >= 1000 for early, late in zip(allowed, allowed[3:], strict=False))


# -- channel and output


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    """The supervisor's end and the process's."""
    ours, theirs = multiprocessing.Pipe()
    yield Channel(ours, blocking=False), Channel(theirs, blocking=True)
    ours.close()
    theirs.close()


def test_messages_arrive_complete_and_in_order(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    assert ours.receive() == []
    theirs.send("one")
    theirs.send(["two", b"3"])
    assert ours.receive() == ["one", ["two", b"3"]]
    assert ours.offer("back")
    assert theirs.receive() == ["back"]


def test_an_incomplete_message_is_not_waited_for(ends: tuple[Channel, Channel]) -> None:
    ours, theirs = ends
    data = bytearray()
    theirs.send("x" * 1000)
    data += os.read(ours.fileno(), 5000)
    os.write(theirs.fileno(), data[:500])
    assert ours.receive() == []
    os.write(theirs.fileno(), data[500:])
    assert ours.receive() == ["x" * 1000]


def test_a_peer_that_does_not_read_blocks_nothing(ends: tuple[Channel, Channel]) -> None:
    ours, _ = ends
    offers = [ours.offer("y" * 5000) for _ in range(1000)]
    assert offers[0]
    assert not offers[-1]


def test_the_end_of_the_pipe_comes_after_its_messages() -> None:
    ours, theirs = multiprocessing.Pipe()
    channel = Channel(ours, blocking=False)
    Channel(theirs, blocking=True).send("last words")
    theirs.close()
    assert channel.receive() == ["last words"]
    with pytest.raises(EOFError):
        channel.receive()
    assert not channel.offer("too late")
    ours.close()


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=50), st.integers(1, 9))
@settings(max_examples=examples(30))
def test_lines_are_written_complete_however_they_arrive(text: str, size: int) -> None:
    reading, writing = multiprocessing.Pipe(duplex=False)
    lines: list[str] = []
    reader = LineReader(reading, lines.append)
    data = f"{text}\nsecond\nrest without end".encode()
    for start in range(0, len(data), size):
        os.write(writing.fileno(), data[start : start + size])
        assert reader.read()
    writing.close()
    assert not reader.read()
    assert lines == [text, "second", "rest without end"]
    reader.close()


# -- systemd


def test_systemd_is_notified(systemd: socket.socket) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "2000000"})
    notifier.ready()
    notifier.status("RUNNING")
    notifier.status("RUNNING")
    notifier.watchdog(now_ms=5000)
    notifier.watchdog(now_ms=5999)  # half of WatchdogSec has not passed
    notifier.watchdog(now_ms=6000)
    notifier.stopping()
    assert [systemd.recv(100) for _ in range(5)] == [
        b"READY=1",
        b"STATUS=RUNNING",
        b"WATCHDOG=1",
        b"WATCHDOG=1",
        b"STOPPING=1",
    ]


def test_an_abstract_socket_is_supported() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        name = f"penstock-{uuid.uuid4()}"
        receiver.bind(f"\0{name}")
        SystemdNotifier({"NOTIFY_SOCKET": f"@{name}"}).ready()
        assert receiver.recv(100) == b"READY=1"


def test_the_watchdog_of_another_process_is_ignored() -> None:
    assert SystemdNotifier({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": "1"}).watchdog_interval_ms is None
    assert SystemdNotifier({"WATCHDOG_USEC": "2000000", "WATCHDOG_PID": str(os.getpid())}).watchdog_interval_ms == 1000
    assert SystemdNotifier({}).watchdog_interval_ms is None


def test_without_systemd_nothing_happens_and_a_dead_socket_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SystemdNotifier({}).ready()
    notifier = SystemdNotifier({"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    with caplog.at_level(logging.WARNING):
        notifier.ready()
        notifier.stopping()
    assert caplog.text.count("cannot notify systemd") == 1


def test_a_systemd_that_does_not_read_blocks_nothing(systemd: socket.socket, caplog: pytest.LogCaptureFixture) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": systemd.getsockname()})
    while "systemd does not read its notifications" not in caplog.text:
        notifier.ready()
    systemd.recv(100)
    notifier.stopping()
    while systemd.recv(100) != b"STOPPING=1":
        pass


# -- exit codes


def test_the_exit_codes_are_the_documented_ones() -> None:
    rows = re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", OPERATIONS.read_text(), re.MULTILINE)
    assert rows == [(str(int(code)), code.name) for code in (*ExitCode, *WorkerExitCode)]


def test_the_exit_codes_do_not_change() -> None:
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "TOPOLOGY": 3,
        "LOCKED": 4,
        "RESTART_LIMIT": 5,
        "SHUTDOWN_TIMEOUT": 6,
        "FORCED": 7,
        "INSTALLATION": 8,
        "INTERNAL": 70,
    }


# -- queryable_store


@pytest.mark.parametrize(
    ("method", "arguments", "by_task", "expected"),
    [
        ("get", ("k",), {"0_0": None, "0_1": [1, 2]}, [1, 2]),
        ("get", ("k",), {"0_0": None}, None),
        ("all", (), {"0_1": [("b", 2)], "0_0": [("a", 1), ("c", 3)]}, [("a", 1), ("c", 3), ("b", 2)]),
        ("fetch", ("k", 5), {"0_0": None, "0_1": 7}, 7),
        ("fetch", ("k",), {"0_0": [], "0_1": [("w", 1)]}, [("w", 1)]),
        ("approximate_num_entries", (), {"0_0": 2, "0_1": 3}, 5),
        ("get", ("k",), {"0_0": ValueAndTimestamp([1], 5)}, [1]),
        ("all", (), {"0_0": [("a", ValueAndTimestamp(1, 5))]}, [("a", 1)]),
    ],
)
def test_the_tasks_of_a_store_are_read_as_one(
    method: str, arguments: tuple[object, ...], by_task: dict[str, object], expected: object
) -> None:
    asked = []

    def ask(*question: object) -> TaskResults:
        asked.append(question)
        return results(by_task)

    store = QueryableStore(ask)
    assert getattr(store, method)(*arguments) == expected
    committed = IsolationLevel.READ_COMMITTED
    assert getattr(store.read_only(committed), method)(*arguments) == expected
    assert asked == [(method, arguments, None), (method, arguments, committed)]


def results(by_task: Mapping[str, object], position: Position | None = None) -> TaskResults:
    """Return the results of tasks that all have one position."""
    made = TaskResults()
    for task, result in by_task.items():
        made.add(task, result, position)
    return made


def test_rows_have_the_position_of_all_tasks() -> None:
    found = results({"0_0": [("a", 1)]}, Position.from_map({"in": {0: 5}}))
    found.include(results({"0_1": [("b", 1)]}, Position.from_map({"in": {1: 7}})))
    assert QueryableStore(lambda *_: found).all().position == Position.from_map({"in": {0: 5, 1: 7}})
    found.include(results({"0_2": []}))
    assert QueryableStore(lambda *_: found).all().position is None, "one task does not know"


@pytest.mark.parametrize(
    ("how", "rows", "sessions"),
    [
        ({}, 1, 3),
        ({"timestamped": True}, ValueAndTimestamp(1, 5), 3),
        ({"headers": True}, ValueTimestampHeaders(1, 5, {"h": "x"}), AggregationWithHeaders(3, {"h": "x"})),
    ],
)
def test_a_store_with_headers_is_read_in_each_form(how: Any, rows: object, sessions: object) -> None:
    found = {
        "get": ValueTimestampHeaders(1, 5, {"h": "x"}),
        "all": [("k", ValueTimestampHeaders(1, 5, {"h": "x"}))],
        "fetch_session": AggregationWithHeaders(3, {"h": "x"}),
        "fetch": [(Windowed("k", 1, 2), AggregationWithHeaders(3, {"h": "x"}))],
    }
    store = QueryableStore(lambda method, *_: results({"0_0": found[method]}), **how)
    assert (store.get("k"), store.all()) == (rows, [("k", rows)])
    assert (store.fetch_session("k", 1, 2), store.fetch("k")) == (sessions, [(Windowed("k", 1, 2), sessions)])


# -- state_query


class ThreadsThatAnswer:
    """Stream threads whose answers to a request are given, by partition."""

    def __init__(self, *answers: Mapping[int | None, QueryResult[int]]) -> None:
        self._answers = answers

    def ask(self, question: Question, answers: Answers, timeout: float | None) -> list[CommandResult]:
        return [CommandResult(1, value) for value in self._answers]


@pytest.mark.parametrize("turned", [False, True])
def test_the_answer_of_an_active_task_counts_whichever_thread_answers_first(turned: bool) -> None:
    known = QueryResult(1, position=Position())
    unknown = QueryResult(2)
    failed = QueryResult[int].for_failure(FailureReason.NOT_ACTIVE, "")
    answers: list[Mapping[int | None, QueryResult[int]]] = [
        {0: known, 1: failed, 2: known},
        {0: unknown, 1: unknown, 2: failed},
    ]
    threads = ThreadsThatAnswer(*(reversed(answers) if turned else answers))
    request = StateQueryRequest.in_store("s").with_query(KeyQuery[str, int].with_key("a")).with_partitions({0, 1, 2, 3})
    found = answered(request, threads, 1).partition_results
    assert [found[0], found[1], found[2]] == [known, unknown, known]
    assert list(found) == [0, 1, 2, 3]
    assert found[3].failure_reason is FailureReason.NOT_PRESENT
