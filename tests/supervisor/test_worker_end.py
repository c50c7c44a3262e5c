"""A process ends by itself after its stream thread, even if the user's code has left threads or processes running."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import worker_targets
from http_client import HttpClient
from stage import Conductor, LogLines, MakeApplication, ManualClock, until
from test_hanging import pass_time

from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.kafka_streams import KafkaStreams
from penstock.supervisor.processes.uncaught_exception import StreamsUncaughtExceptionHandlerResponse
from penstock.supervisor.source.topology_source import TopologySource
from penstock.topology.declare.streams_builder import StreamsBuilder

pytestmark = pytest.mark.medium

LEFT_RUNNING = ["executor", "pool", "thread"]


def are_gone(pids: list[int]) -> bool:
    return not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids)


@pytest.mark.parametrize("what", LEFT_RUNNING)
def test_a_failed_stream_thread_ends_its_process(application: MakeApplication, conductor: Conductor, what: str) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    one.order("leave running", what=what)
    left = one.hear()["left"]
    one.order("raise", message="poison")
    assert app.ends() == ExitCode.FAILED
    assert app.supervisor.reason == "ValueError: poison"
    until(lambda: are_gone(left))


@pytest.mark.parametrize("what", LEFT_RUNNING)
def test_a_stop_is_not_delayed_and_stays_clean(
    application: MakeApplication, conductor: Conductor, log: LogLines, what: str
) -> None:
    app = application(1)
    (one,) = conductor.running(1)
    one.order("leave running", what=what)
    left = one.hear()["left"]
    app.supervisor.shut_down()
    assert app.ends() == ExitCode.OK
    until(lambda: are_gone(left))
    if what != "pool":  # multiprocessing ends its pools itself
        line = log.wait_for(f"Process {one.pid} ends by force")
        assert all(str(pid) in line for pid in left)
        assert ("users-thread" in line) == (what == "thread")


def test_the_end_does_not_wait_for_objects(application: MakeApplication, conductor: Conductor, log: LogLines) -> None:
    """On a busy machine the supervisor would abort a process that still collects garbage."""
    app = application(1)
    (one,) = conductor.running(1)
    one.order("leave running", what="object")
    one.hear()
    app.supervisor.shut_down()
    assert app.ends() == ExitCode.OK
    assert not log.has("ends by force")
    assert not log.has("has not ended")


@pytest.mark.parametrize("what", LEFT_RUNNING)
def test_a_module_that_fails_at_import_ends_its_process(
    application: MakeApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    (tmp_path / "leaves.py").write_text(
        f"import worker_targets\nworker_targets.leave_running({what!r})\nraise KeyError('no such thing')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    app = application(1, target=worker_targets.loads_its_topology, topology=TopologySource(reference="leaves:topology"))
    assert app.ends() == ExitCode.TOPOLOGY


def test_a_failed_process_that_hangs_is_aborted_and_replaced(
    application: MakeApplication, conductor: Conductor, log: LogLines
) -> None:
    """It has reported why it fails, so the supervisor does not wait for the hang timeout."""
    clock = ManualClock()
    app = application(
        1, clock=clock, exception_handler=lambda _: StreamsUncaughtExceptionHandlerResponse.REPLACE_THREAD
    )
    (one,) = conductor.running(1)
    app.wait_for(State.RUNNING)
    one.order("fail and hang")
    until(lambda: app.supervisor.thread_status()[0].state == "DEAD")
    pass_time(app, clock, 10_000, log, f"process {one.pid}, has not ended although its stream thread is DEAD")
    assert clock.now_ms < 1_000_000 + 60_000
    assert conductor.next().slot == 1
    assert app.supervisor.failed_stream_threads == 1


def test_an_application_with_a_dead_stream_thread_is_not_ready(tmp_path: Path, conductor: Conductor) -> None:
    builder = StreamsBuilder()
    builder.stream("in").to("out")
    config = {
        "application.id": "app",
        "bootstrap.servers": "unused:9092",
        "state.dir": str(tmp_path / "state"),
        "num.stream.threads": 2,
        "penstock.http.port": 0,
        "penstock.worker.beat.interval.ms": 20,
        worker_targets.CONDUCTOR: str(conductor.path),
    }
    with KafkaStreams(builder.build(), config, worker_target=worker_targets.puppet) as streams:
        streams.start()
        one, _two = conductor.running(2)
        until(lambda: streams.state is State.RUNNING)
        http = HttpClient.of(streams)
        until(lambda: "not restored" in http.ask("/health/ready").json["reason"])  # everything else works
        one.order("fail and hang")
        until(lambda: http.ask("/health/ready").json["reason"] == f"1 stream threads do not run ({one.name})")
        one.process.kill()
        until(lambda: streams.exit_code is ExitCode.FAILED)
