"""Queries of the stream threads: sent by the thread that asks, whatever the supervisor's loop does meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from multiprocessing import resource_tracker
from typing import Any

import pytest
from stage import Application, Conductor, MakeApplication, WorkerOnStage

from penstock.supervisor.application_state import ApplicationState as State
from penstock.workers.control.messages import CommandResult
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.medium
ASKERS = 8
REPLACEMENTS = 3


@contextmanager
def busy_loop(app: Application) -> Iterator[None]:
    """Let the supervisor's loop do nothing else during the block."""
    begun, ends = threading.Event(), threading.Event()

    def stay() -> None:
        begun.set()
        ends.wait()

    caller = threading.Thread(target=app.supervisor.call, args=(stay,), daemon=True)
    caller.start()
    assert begun.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        ends.set()
        caller.join()


def running(application: MakeApplication, conductor: Conductor) -> tuple[Application, WorkerOnStage]:
    """Return an application that runs, and its only process."""
    app = application(1)
    (one,) = conductor.running(1)
    app.wait_for(State.RUNNING)
    return app, one


def ask_all(app: Application) -> list[CommandResult]:
    return app.supervisor.query("counts", "get", ("key",), timeout=PATIENCE_SECONDS)


def test_a_query_is_sent_although_the_loop_is_busy(application: MakeApplication, conductor: Conductor) -> None:
    app, one = running(application, conductor)
    with ThreadPoolExecutor(1) as pool:
        with busy_loop(app):
            answers = pool.submit(ask_all, app)
            assert one.hear() == {"query": "counts"}
        assert [answer.value for answer in answers.result()] == [{"0_1": ["key"]}]


def test_a_query_right_after_the_start_reaches_the_first_processes(
    application: MakeApplication, conductor: Conductor, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_begin, ensure_running = threading.Event(), resource_tracker.ensure_running

    def begin_late() -> None:
        may_begin.wait()
        ensure_running()

    monkeypatch.setattr(resource_tracker, "ensure_running", begin_late)
    app = application(1)
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(ask_all, app)
        is_early = bool(wait([answers], 0.2).done)
        may_begin.set()
        assert not is_early
        (one,) = conductor.running(1)
        assert one.hear() == {"query": "counts"}
        assert len(answers.result()) == 1


def test_stream_threads_have_heard_of_commands_that_the_loop_had_not_sent_yet(
    application: MakeApplication, conductor: Conductor
) -> None:
    app, one = running(application, conductor)
    with ThreadPoolExecutor(1) as pool:
        with busy_loop(app):
            app.supervisor.pause()
            heard = pool.submit(app.supervisor.wait_until_heard, PATIENCE_SECONDS)
            assert not wait([heard], 0.2).done
        assert [one.hear(), one.hear()] == [{"command": "pause"}, {"query": ""}]
        heard.result()


def test_an_argument_that_cannot_be_sent_fails_its_query_alone(
    application: MakeApplication, conductor: Conductor
) -> None:
    app, one = running(application, conductor)
    cannot_be_sent: Any = threading.Lock()
    with pytest.raises(TypeError, match="pickle"):
        app.supervisor.query("counts", "get", (cannot_be_sent,), timeout=PATIENCE_SECONDS)
    assert len(ask_all(app)) == 1
    assert one.hear() == {"query": "counts"}
    assert app.supervisor.states.state is State.RUNNING


def test_queries_of_many_threads_get_their_own_answers_while_processes_are_replaced(
    application: MakeApplication, conductor: Conductor
) -> None:
    app = application(2, {"penstock.worker.restart.backoff.ms": 0})
    one, _ = conductor.running(2)
    app.wait_for(State.RUNNING)

    over = threading.Event()

    def ask(number: int) -> None:
        for each in count():
            key = f"{number}-{each}"
            answers = app.supervisor.query("counts", "get", (key,), timeout=PATIENCE_SECONDS)
            assert [rows for answer in answers for rows in answer.value.values()] == [[key]] * len(answers)
            if over.is_set():
                return

    with ThreadPoolExecutor(ASKERS) as pool:
        asking = [pool.submit(ask, number) for number in range(ASKERS)]
        for _ in range(REPLACEMENTS):
            assert one.hear()["query"] == "counts"
            one.process.kill()
            one = conductor.next()
            one.run_up()
        over.set()
        for each in asking:
            each.result()
