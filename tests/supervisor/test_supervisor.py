"""The supervisor with real processes: they run, die, hang, are replaced, added, removed and stopped."""

from __future__ import annotations

import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest
from stage import Conductor, LogLines, MakeApplication, ManualClock, until
from worker_targets import loads_its_topology

from penstock.kernel.buffers import USABLE
from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.processes.uncaught_exception import StreamsUncaughtExceptionHandlerResponse as Response
from penstock.supervisor.processes.uncaught_exception import StreamThreadError
from penstock.supervisor.service.signals import SAME_REQUEST_MS, STOP_SIGNALS
from penstock.supervisor.service.systemd import SystemdNotifier
from penstock.supervisor.source.topology_source import TopologySource
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.medium


def test_all_stream_threads_run_and_close_cleanly(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    app = application(2)
    workers = conductor.running(2)
    assert [worker.name for worker in workers] == ["app-id-StreamThread-1", "app-id-StreamThread-2"]
    assert {worker.threads for worker in workers} == {2}
    app.wait_for(State.RUNNING)
    app.supervisor.shut_down()
    assert [worker.hear() for worker in workers] == [{"command": "shutdown", "leave_group": False}] * 2
    assert app.ends() == ExitCode.OK
    assert app.supervisor.states.state is State.NOT_RUNNING
    for old, new in (("CREATED", "REBALANCING"), ("RUNNING", "PENDING_SHUTDOWN"), ("PENDING_SHUTDOWN", "NOT_RUNNING")):
        log.wait_for(f"stream-client [app-id] State transition from {old} to {new}")


def test_the_application_runs_once_all_its_stream_threads_run(
    application: MakeApplication, conductor: Conductor
) -> None:
    app = application(2)
    first, second = conductor.next(), conductor.next()
    first.run_up()
    second.order("go", states=["PARTITIONS_ASSIGNED"])
    second.order("go", states=["RUNNING"])
    app.wait_for(State.RUNNING)
    first.order("go", states=["PARTITIONS_REVOKED", "PARTITIONS_ASSIGNED"])
    app.wait_for(State.REBALANCING)
    first.order("go", states=["RUNNING"])
    app.wait_for(State.RUNNING)
    assert app.changes.get() == ("CREATED", "REBALANCING")
    assert app.changes.get() == ("REBALANCING", "RUNNING")


@pytest.mark.parametrize(
    ("how", "cause"),
    [
        (signal.SIGKILL, "SIGKILL, possibly out of memory"),
        (signal.SIGSEGV, "SIGSEGV"),
        (0, "exit code 0, although it was not asked to stop: does a function call os._exit?"),
        (42, "exit code 42"),
    ],
)
def test_a_process_that_dies_is_replaced_in_its_slot(
    application: MakeApplication, conductor: Conductor, log: LogLines, how: int, cause: str
) -> None:
    app = application(2)
    one, two = conductor.running(2)
    app.wait_for(State.RUNNING)
    if isinstance(how, signal.Signals):
        os.kill(one.pid, how)
    else:
        one.order("exit", code=how)
    again = conductor.next()
    assert (again.slot, again.name) == (one.slot, one.name)
    assert again.pid != one.pid
    assert two.process.is_running()
    assert f"process {one.pid}, died: {cause}" in log.wait_for("died:")
    status = app.supervisor.thread_status()
    assert [(thread.slot, thread.pid, thread.restarts) for thread in status] == [(1, again.pid, 1), (2, two.pid, 0)]
    assert app.supervisor.failed_stream_threads == 1


def test_a_process_that_closes_because_of_a_stall_is_replaced_with_that_reason(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    app.wait_for(State.RUNNING)
    one.order("stall")
    one.order("exit", code=0)
    conductor.next()
    cause = f"process {one.pid}, died: exit code 0, to be replaced: partition in-0 is stalled"
    assert cause in log.wait_for("died:")


def test_a_death_is_detected_although_other_code_reaps_the_process(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    application(1)
    (one,) = conductor.running(1)
    one.process.suspend()
    one.process.kill()
    one.process.wait()  # psutil reaps our child here, as a library's os.wait() would
    assert conductor.next().slot == 1
    log.wait_for("died: ")


def test_a_death_is_detected_although_a_child_of_the_process_survives(
    application: MakeApplication, conductor: Conductor
) -> None:
    application(1)
    (one,) = conductor.running(1)
    one.order("fork")
    child = one.hear()["child"]
    try:
        one.process.kill()
        assert conductor.next().slot == 1
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_process_that_ends_by_itself_is_replaced(application: MakeApplication, conductor: Conductor) -> None:
    application(1)
    (one,) = conductor.running(1)
    one.process.send_signal(signal.SIGTERM)  # an operator may do this to have one process replaced
    assert one.hear() == {"command": "shutdown", "leave_group": False}
    assert conductor.next().slot == 1


def test_a_crash_loop_ends_in_error(application: MakeApplication, conductor: Conductor, log: LogLines) -> None:
    limits = {"penstock.worker.restart.max": 2, "penstock.worker.restart.backoff.ms": 1}
    app = application(2, limits)
    for _ in range(3):  # the fourth may be told to stop before it connects
        conductor.next().order("exit", code=1)
    assert app.ends() == ExitCode.RESTART_LIMIT
    assert app.supervisor.states.state is State.ERROR
    log.wait_for("More than 2 stream threads died within 300 s: giving up")
    assert log.text.count("Started app-id-StreamThread-") == 4, log.text  # two at the start, two replacements


def test_an_exception_shuts_the_client_down_by_default(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    app = application(2)
    one, two = conductor.running(2)
    one.order("raise", message="no such key")
    assert two.hear()["command"] == "shutdown"
    assert app.ends() == ExitCode.FAILED
    assert app.supervisor.states.state is State.ERROR
    assert "opted to SHUTDOWN_CLIENT" in log.text
    assert "ValueError: no such key" in log.text


def test_the_uncaught_exception_handler_may_replace_the_thread(
    application: MakeApplication, conductor: Conductor
) -> None:
    errors: list[StreamThreadError] = []

    def handler(error: StreamThreadError) -> Response:
        errors.append(error)
        return Response.REPLACE_THREAD

    application(1, exception_handler=handler)
    (one,) = conductor.running(1)
    one.order("raise", message="no such key")
    assert conductor.next().slot == 1
    (error,) = errors
    assert (error.kind, str(error), error.thread_name) == ("ValueError", "ValueError: no such key", one.name)
    assert "worker_targets.py" in error.traceback


def test_a_process_whose_event_loop_is_lost_is_replaced_within_the_limits(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    """No record is at fault, so the uncaught exception handler is not asked: it shuts the client down."""
    limits = {"penstock.worker.restart.max": 1, "penstock.worker.restart.backoff.ms": 1}
    app = application(1, limits)
    (one,) = conductor.running(1)
    one.order("lose the event loop", message="The lifespan prices has ended")
    two = conductor.next()
    assert two.slot == one.slot
    died = f"process {one.pid}, died: exit code 1 (FAILED): EventLoopError: The lifespan prices has ended"
    assert died in log.wait_for("died:")
    two.order("lose the event loop", message="The lifespan prices has ended")
    assert app.ends() == ExitCode.RESTART_LIMIT
    assert "uncaught exception handler" not in log.text


def test_a_failing_uncaught_exception_handler_shuts_the_client_down(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    def handler(_error: StreamThreadError) -> Response:
        raise RuntimeError("handler is broken")

    app = application(1, exception_handler=handler)
    conductor.next().order("raise", message="x")
    assert app.ends() == ExitCode.FAILED
    log.wait_for("The uncaught exception handler itself failed")


def shut_down_application(_error: StreamThreadError) -> Response:
    return Response.SHUTDOWN_APPLICATION


def test_the_remaining_stream_threads_ask_the_group_to_shut_down(
    application: MakeApplication, conductor: Conductor
) -> None:
    app = application(2, exception_handler=shut_down_application)
    one, two = conductor.running(2)
    one.order("raise", message="x")
    assert two.hear() == {"command": "shutdownapplication"}
    two.order("answer for the group")
    assert two.hear()["command"] == "shutdown"
    assert app.ends() == ExitCode.FAILED
    assert app.supervisor.states.state is State.ERROR


def test_a_new_process_asks_the_group_if_none_remains(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1, exception_handler=shut_down_application)
    conductor.next().order("raise", message="x")
    again = conductor.next()
    assert again.hear() == {"command": "shutdownapplication"}
    again.order("answer for the group")
    assert app.ends() == ExitCode.FAILED


def test_a_group_that_does_not_respond_is_not_waited_for(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    clock = ManualClock()
    app = application(2, exception_handler=shut_down_application, clock=clock)
    one, two = conductor.running(2)
    one.order("raise", message="x")
    assert two.hear() == {"command": "shutdownapplication"}
    clock.now_ms += 60_000
    assert two.hear()["command"] == "shutdown"
    assert app.ends() == ExitCode.FAILED
    log.wait_for("The group did not respond to the request")


def test_systemd_is_notified_of_start_state_and_end(
    application: MakeApplication, conductor: Conductor, systemd: socket.socket
) -> None:
    notifier = SystemdNotifier({"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "100000"})
    app = application(1, notifier=notifier)
    heard = {systemd.recv(200).decode()}
    while not {"READY=1", "WATCHDOG=1"} <= heard:
        heard.add(systemd.recv(200).decode())
    conductor.running(1)
    while "STATUS=RUNNING: 1 stream threads, 1 tasks, 7 records behind" not in heard:
        message = systemd.recv(200).decode()
        assert message != "READY=1", "said twice"
        heard.add(message)
    app.supervisor.shut_down()
    app.ends()
    while "STOPPING=1" not in heard:
        heard.add(systemd.recv(200).decode())


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("no_such_module:topology", "No module named 'no_such_module'. Is the name right, and is"),
        ("json:topology", "Is the part after the colon the name of a topology in json?"),
        ("json:JSONDecoder", "Expected a Topology, a StreamsBuilder, or a function that returns one, not JSONDecoder"),
        ("json:dumps", "TypeError: dumps() missing 1 required positional argument"),
    ],
)
def test_a_topology_that_cannot_be_loaded_ends_the_application_at_once(
    application: MakeApplication, log: LogLines, reference: str, message: str
) -> None:
    app = application(2, target=loads_its_topology, topology=TopologySource(reference=reference))
    assert app.ends() == ExitCode.TOPOLOGY
    assert app.supervisor.states.state is State.ERROR
    assert log.text.count("is replaced") == 0
    assert message in log.wait_for("cannot start, and another attempt would fail too")
    assert "Traceback" not in log.text  # no line of the traceback is in the user's code
    assert message in app.supervisor.reason


def test_a_refused_configuration_ends_the_application_at_once(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    app = application(1)
    conductor.next().order("refuse", message="bad.key is not known to the client")
    assert app.ends() == ExitCode.TOPOLOGY
    assert "ConfigError: bad.key is not known to the client" in log.text


def test_a_process_that_cannot_start_is_not_retried(
    application: MakeApplication, log: LogLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_here = ModuleType("only_here")  # like a user's module that fails when it is imported again
    exec("def target(spec, control): pass", only_here.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", only_here)
    app = application(1, target=only_here.target)
    assert app.ends() == ExitCode.TOPOLOGY
    log.wait_for("ended with exit code 1 (FAILED) before its stream thread started; its stderr has more")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_shuts_down(application: MakeApplication, conductor: Conductor, number: int) -> None:
    app = application(1)
    conductor.running(1)
    app.supervisor.signal(number)
    assert app.ends() == ExitCode.OK


def test_a_second_signal_kills(application: MakeApplication, conductor: Conductor, log: LogLines) -> None:
    clock = ManualClock()
    app = application(1, clock=clock)
    (one,) = conductor.running(1)
    one.order("be deaf")
    assert one.hear() == {"deaf": True}
    app.supervisor.signal(signal.SIGTERM)
    assert one.hear()["command"] == "shutdown"
    clock.now_ms += SAME_REQUEST_MS
    app.supervisor.signal(signal.SIGTERM)
    assert app.ends() == ExitCode.FORCED
    assert app.supervisor.states.state is State.NOT_RUNNING
    log.wait_for("Received SIGTERM: killing all stream threads")


def test_sigquit_kills_at_once(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    one.order("be deaf")
    assert one.hear() == {"deaf": True}
    app.supervisor.signal(signal.SIGQUIT)
    assert app.ends() == ExitCode.FORCED
    assert app.supervisor.states.state is State.NOT_RUNNING


@pytest.mark.parametrize("second", STOP_SIGNALS)
def test_signals_within_a_second_are_one_request(
    application: MakeApplication, conductor: Conductor, log: LogLines, second: int
) -> None:
    clock = ManualClock()
    app = application(1, clock=clock)
    (one,) = conductor.running(1)
    one.order("be deaf")
    assert one.hear() == {"deaf": True}
    app.supervisor.signal(signal.SIGTERM)
    assert one.hear()["command"] == "shutdown"
    clock.now_ms += SAME_REQUEST_MS - 1
    app.supervisor.signal(second)
    app.supervisor.call(lambda: None)  # one iteration of the loop
    one.order("return")
    assert app.ends() == ExitCode.OK
    assert not log.has("killing")


def test_a_death_during_the_shutdown_changes_the_exit_code(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    one.order("be deaf")
    assert one.hear() == {"deaf": True}
    app.supervisor.shut_down()
    assert one.hear()["command"] == "shutdown"
    one.order("raise", message="cannot commit")
    assert app.ends() == ExitCode.FAILED
    assert app.supervisor.states.state is State.NOT_RUNNING


def test_stream_threads_are_added_and_removed(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1)
    conductor.running(1)
    app.wait_for(State.RUNNING)
    assert app.supervisor.add_thread() == "app-id-StreamThread-2"
    two = conductor.next()
    assert (two.slot, two.threads) == (2, 2)
    assert app.supervisor.remove_thread() == "app-id-StreamThread-2"
    assert two.hear() == {"command": "shutdown", "leave_group": True}
    assert [thread.slot for thread in app.supervisor.thread_status()] == [1]


@pytest.mark.skipif(not USABLE, reason="this C library or Python has another allocator")
def test_the_process_of_a_stream_thread_reuses_memory_blocks(
    application: MakeApplication, conductor: Conductor
) -> None:
    """tests/kernel/test_buffers.py tests the mechanism."""
    application(1)
    (one,) = conductor.running(1)
    one.order("reuse")
    assert one.hear() == {"reused": True, "beside": 3_000}


def test_signals_add_and_remove_stream_threads(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    app = application(2)
    workers = conductor.running(2)
    app.supervisor.signal(signal.SIGTTOU)
    assert workers[1].hear()["command"] == "shutdown"
    log.wait_for(f"{workers[1].name}, process {workers[1].pid}, has closed")
    app.supervisor.signal(signal.SIGTTIN)
    assert conductor.next().slot == 2


def test_a_removed_number_is_reused_and_gaps_are_filled(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1)
    conductor.running(1)
    assert app.supervisor.remove_thread() == "app-id-StreamThread-1"
    assert app.supervisor.remove_thread() is None
    assert app.supervisor.add_thread() == "app-id-StreamThread-1"
    assert conductor.next().slot == 1


def test_nothing_is_added_or_removed_once_the_application_has_ended(
    application: MakeApplication, conductor: Conductor
) -> None:
    app = application(1)
    conductor.running(1)
    app.supervisor.shut_down()
    app.ends()
    assert app.supervisor.add_thread() is None
    assert app.supervisor.remove_thread() is None
    assert app.supervisor.thread_status() == []


def test_pause_and_resume_reach_all_threads_and_later_ones(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    app.supervisor.pause()
    assert one.hear() == {"command": "pause"}
    app.supervisor.add_thread()
    assert conductor.next().hear() == {"command": "pause"}
    app.supervisor.resume()
    assert one.hear() == {"command": "resume"}


def test_the_status_shows_the_work_of_each_thread(application: MakeApplication, conductor: Conductor) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    app.wait_for(State.RUNNING)
    one.order("process", records=50)
    one.order("go", states=["RUNNING"])

    until(lambda: app.supervisor.thread_status()[0].records_processed == 50)
    (thread,) = app.supervisor.thread_status()
    assert (thread.name, thread.pid, thread.state, thread.lag) == (one.name, one.pid, "RUNNING", 7)
    assert [task.task_id for task in thread.tasks] == ["0_1"]
    assert (thread.restore_remaining, thread.restore_total) == (1, 2)
    assert thread.rss_bytes > 1_000_000
    assert thread.uptime_seconds > 0


def test_sigusr1_dumps_a_description(application: MakeApplication, conductor: Conductor, log: LogLines) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    app.wait_for(State.RUNNING)
    app.supervisor.signal(signal.SIGUSR1)
    line = log.wait_for(f"{one.name}: process {one.pid}")
    assert "0_1(active RUNNING 1 of 2 records to restore, 0/s)" in line
    assert "RUNNING: 1 stream threads, 1 tasks, 7 records behind" in log.text


def test_a_query_is_answered_by_all_stream_threads(application: MakeApplication, conductor: Conductor) -> None:
    app = application(2)
    conductor.running(2)
    answers = app.supervisor.query("counts", "get", ("key",), timeout=PATIENCE_SECONDS)
    assert sorted(map(str, (answer.value for answer in answers))) == ["{'0_1': ['key']}", "{'0_2': ['key']}"]


def test_a_query_does_not_wait_for_a_dead_process(application: MakeApplication, conductor: Conductor) -> None:
    app = application(2)
    one, two = conductor.running(2)
    one.process.suspend()
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(app.supervisor.query, "counts", "get", ("key",), timeout=PATIENCE_SECONDS)
        assert two.hear() == {"query": "counts"}
        one.process.kill()
        assert [answer.value for answer in answers.result()] == [{f"0_{two.slot}": ["key"]}]


def test_a_query_times_out_for_a_process_that_does_not_respond(
    application: MakeApplication, conductor: Conductor
) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    one.process.suspend()
    with pytest.raises(TimeoutError):
        app.supervisor.query("counts", "get", ("key",), timeout=0.05)
    one.process.resume()
    assert one.hear() == {"query": "counts"}
    assert (
        len(app.supervisor.query("counts", "get", ("key",), timeout=PATIENCE_SECONDS)) == 1
    )  # the late response has no effect


def test_a_failing_listener_is_logged_and_ends_nothing(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    app = application(1)

    def listener(_new: State, _old: State) -> None:
        raise RuntimeError("listener is broken")

    app.supervisor.states.listener = listener
    conductor.running(1)
    app.wait_for(State.RUNNING)
    log.wait_for("The state listener failed at the transition from REBALANCING to RUNNING")
