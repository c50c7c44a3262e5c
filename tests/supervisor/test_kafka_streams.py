"""KafkaStreams in users' programs: started, signalled, killed, run twice."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import worker_targets
from stage import Conductor, until

from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.kafka_streams import KafkaStreams
from penstock.supervisor.processes.uncaught_exception import shut_down_client
from penstock.supervisor.queries.metric import by_name
from penstock.supervisor.service.signals import SAME_REQUEST_MS
from penstock.supervisor.source.topology_source import TopologyLoadError, TopologySource
from penstock.topology.declare.streams_builder import StreamsBuilder
from penstock.topology.errors import (
    ConfigError,
    InvalidStateStoreError,
    LockError,
    StreamsError,
    TopologyError,
    UnknownStateStoreError,
)
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.medium

#: A user's program, run by a fresh interpreter.
PROGRAM = """\
import logging, os, sys
from penstock.supervisor.kafka_streams import KafkaStreams
import worker_targets

config = {config!r}

def broken_pipe():
    reading, writing = os.pipe()
    os.close(reading)
    return writing

{guard}:
    logging.basicConfig(level="INFO", stream=sys.stderr)
    streams = KafkaStreams("my_app:topology", config, worker_target=worker_targets.puppet)
    {end}
"""

#: The same in a Celery task.
DAEMONIC = """\
import multiprocessing
from penstock import KafkaStreams

def task(answers):
    streams = KafkaStreams("my_app:topology", {config!r})
    try:
        streams.run()
    except Exception as error:
        answers.put(f"{{type(error).__name__}}: {{error}}\\n{{streams.failure_reason}}\\n{{streams.state.name}}")

if __name__ == "__main__":
    answers = multiprocessing.SimpleQueue()
    process = multiprocessing.Process(target=task, args=(answers,), daemon=True)
    process.start()
    print(answers.get())
    process.join()
"""

MakeStreams = Callable[..., KafkaStreams]


@pytest.fixture
def config(conductor: Conductor, tmp_path: Path) -> dict[str, Any]:
    return {
        "application.id": "app",
        "bootstrap.servers": "nowhere:1",
        "client.id": "me",
        "state.dir": str(tmp_path),
        "penstock.worker.beat.interval.ms": 20,
        worker_targets.CONDUCTOR: str(conductor.path),
    }


@pytest.fixture
def streams(config: dict[str, Any]) -> Iterator[MakeStreams]:
    made: list[KafkaStreams] = []

    def make(**more: Any) -> KafkaStreams:
        made.append(KafkaStreams("my_app:topology", config | more, worker_target=worker_targets.puppet))
        return made[-1]

    yield make
    for one in made:
        assert one.close(timedelta(seconds=PATIENCE_SECONDS))


@pytest.fixture
def program(config: dict[str, Any], tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a user's program in a separate process group."""
    started: list[subprocess.Popen[str]] = []

    def start(guard: str = 'if __name__ == "__main__"', end: str = "sys.exit(streams.run())") -> subprocess.Popen[str]:
        script = tmp_path / "user_program.py"
        script.write_text(PROGRAM.format(config=config, guard=guard, end=end))
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.getcwd()])}
        process = subprocess.Popen(
            [sys.executable, str(script)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


# -- in a separate process


def test_sigterm_ends_a_program_cleanly(program: Any, conductor: Conductor) -> None:
    process = program()
    (one,) = conductor.running(1)
    process.send_signal(signal.SIGTERM)
    assert one.hear() == {"command": "shutdown", "leave_group": False}
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, output
    assert "State transition from PENDING_SHUTDOWN to NOT_RUNNING" in output


def test_ctrl_c_in_a_terminal_reaches_only_the_supervisor(program: Any, conductor: Conductor) -> None:
    process = program()
    (one,) = conductor.running(1)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    assert one.hear() == {"command": "shutdown", "leave_group": False}
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, output
    assert "KeyboardInterrupt" not in output


def test_sigterm_to_the_whole_group_ends_it_cleanly_too(program: Any, conductor: Conductor) -> None:
    process = program()
    conductor.running(1)
    os.killpg(process.pid, signal.SIGTERM)  # as systemd does without KillMode=mixed
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, output


def test_a_second_sigterm_kills(program: Any, conductor: Conductor) -> None:
    process = program()
    (one,) = conductor.running(1)
    one.order("be deaf")
    assert one.hear() == {"deaf": True}
    process.send_signal(signal.SIGTERM)
    assert one.hear()["command"] == "shutdown"
    with suppress(subprocess.TimeoutExpired):  # earlier it would be the same request
        process.wait(SAME_REQUEST_MS / 1000)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == ExitCode.FORCED


def test_signals_add_and_remove_threads_and_dump_a_description(program: Any, conductor: Conductor) -> None:
    process = program()
    conductor.running(1)
    process.send_signal(signal.SIGTTIN)
    two = conductor.next()
    assert two.slot == 2
    process.send_signal(signal.SIGTTOU)
    assert two.hear() == {"command": "shutdown", "leave_group": True}
    process.send_signal(signal.SIGUSR1)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert "me-StreamThread-1: process" in output


def test_a_program_that_ends_closes_its_application(program: Any, conductor: Conductor) -> None:
    process = program(end="streams.start(); input()")
    (one,) = conductor.running(1)
    process.stdin.write("\n")
    process.stdin.flush()
    assert one.hear() == {"command": "shutdown", "leave_group": False}
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0
    assert "State transition from PENDING_SHUTDOWN to NOT_RUNNING" in output


def test_processing_continues_after_the_reader_of_stdout_is_gone(program: Any, conductor: Conductor) -> None:
    process = program(end="os.dup2(broken_pipe(), 1); sys.exit(streams.run())")
    (one,) = conductor.running(1)
    one.order("print", stdout="into the void", stderr="")
    one.order("log", level=logging.ERROR, message="still here", arguments=[])
    while "still here" not in (line := process.stdout.readline()):
        assert line, "the program has ended"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, output


def test_a_host_that_cannot_start_processes_is_reported(program: Any, config: dict[str, Any]) -> None:
    config |= {"num.stream.threads": 3, "penstock.worker.restart.max": 1}
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) + 7,) * 2)"
    process = program(end=f"{limit}; sys.exit(streams.run())")
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.RESTART_LIMIT, output
    assert "cannot be started: [Errno 24] Too many open files" in output


@pytest.mark.parametrize("how", ["idle", "hangs in C"])
def test_processes_do_not_outlive_a_killed_supervisor(program: Any, conductor: Conductor, how: str) -> None:
    process = program()
    (one,) = conductor.running(1)
    if how == "hangs in C":
        one.order("hang")
        assert one.hear() == {"hangs": True}
    process.kill()
    gone, _ = psutil.wait_procs([one.process], timeout=PATIENCE_SECONDS)
    assert gone


def test_the_error_for_a_missing_main_guard_says_what_to_do(program: Any) -> None:
    process = program(guard="if True")
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.TOPOLOGY, output
    assert 'Put `if __name__ == "__main__":` around the code that starts it.' in output


def test_the_error_for_a_daemonic_process_says_that_it_cannot_have_children(
    config: dict[str, Any], tmp_path: Path
) -> None:
    script = tmp_path / "user_program.py"
    script.write_text(DAEMONIC.format(config=config))
    ended = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    error, reason, state = ended.stdout.splitlines()
    assert error == f"StreamsError: {reason}"
    assert reason.startswith("KafkaStreams cannot run in a daemonic process of multiprocessing")
    assert state == "CREATED"
    assert ended.stderr == ""


# -- in this process


def test_it_is_a_context_manager_that_closes(streams: MakeStreams, conductor: Conductor) -> None:
    changes: list[tuple[str, str]] = []
    with streams() as app:
        app.set_state_listener(lambda new, old: changes.append((old.name, new.name)))
        app.start()
        conductor.running(1)
    assert app.state is State.NOT_RUNNING
    assert changes[0] == ("CREATED", "REBALANCING")
    assert changes[-1] == ("PENDING_SHUTDOWN", "NOT_RUNNING")


def test_run_returns_when_another_thread_closes(streams: MakeStreams, conductor: Conductor) -> None:
    app = streams()
    before = signal.getsignal(signal.SIGTERM)
    closer = threading.Thread(target=lambda: (conductor.running(1), app.close()))
    closer.start()
    assert app.run() is ExitCode.OK
    closer.join()
    assert signal.getsignal(signal.SIGTERM) is before


def test_close_before_start_and_after_the_end_does_nothing(streams: MakeStreams) -> None:
    app = streams()
    assert app.close()
    assert app.state is State.NOT_RUNNING
    assert app.close()
    with pytest.raises(StreamsError, match="the application is NOT_RUNNING"):
        app.start()


def test_close_returns_at_its_timeout(streams: MakeStreams, conductor: Conductor) -> None:
    app = streams()
    app.start()
    (one,) = conductor.running(1)
    one.order("be deaf")
    assert one.hear() == {"deaf": True}
    assert not app.close(timeout=1)
    assert one.hear()["command"] == "shutdown"
    one.order("return")


def test_handlers_can_be_set_only_before_the_start(streams: MakeStreams, conductor: Conductor) -> None:
    app = streams()
    app.start()
    conductor.running(1)
    with pytest.raises(StreamsError, match="Can only set the state listener before calling start"):
        app.set_state_listener(None)
    with pytest.raises(StreamsError, match="Can only set the uncaught exception handler before calling start"):
        app.set_uncaught_exception_handler(shut_down_client)


def test_a_second_application_on_this_host_is_refused(streams: MakeStreams, conductor: Conductor) -> None:
    first, second = streams(), streams()
    first.start()
    conductor.running(1)
    with pytest.raises(LockError, match=f"another instance of this application runs.*held by process {os.getpid()}"):
        second.start()
    assert second.state is State.CREATED
    first.close()
    second.start()
    conductor.running(1)


def test_close_from_a_listener_does_not_wait_for_itself(streams: MakeStreams, conductor: Conductor) -> None:
    app = streams()
    answers: list[bool] = []
    app.set_state_listener(lambda new, _: answers.append(app.close()) if new is State.RUNNING else None)
    app.start()
    conductor.running(1)
    assert app._supervisor.join(PATIENCE_SECONDS)
    assert answers == [False]
    assert app.state is State.NOT_RUNNING


def test_status_metrics_and_queries(streams: MakeStreams, conductor: Conductor) -> None:
    app = streams(**{"num.stream.threads": 2})
    with pytest.raises(InvalidStateStoreError, match="the application is CREATED"):
        app.query("counts", "get", "key")
    assert app.status() == []
    app.start()
    conductor.running(2)
    assert [thread.name for thread in app.status()] == ["me-StreamThread-1", "me-StreamThread-2"]
    assert by_name(app.metrics(), "alive-stream-threads") == [2]
    until(lambda: by_name(app.metrics(), "measured", thread_id="me-StreamThread-1") == [2.0])
    assert app.query("counts", "get", "key") == {"0_1": ["key"], "0_2": ["key"]}
    counts = app.store("counts")
    with counts.range("a", "b") as rows:
        assert rows == ["a", "b", "a", "b"]
    with pytest.raises(UnknownStateStoreError, match="Cannot query none: no such store"):
        app.query("none", "get", "key")
    app.close(0)
    with pytest.raises(InvalidStateStoreError, match="the application is PENDING_SHUTDOWN"):
        counts.get("key")


def test_an_unusable_state_directory_is_named_by_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config = {"application.id": "app", "bootstrap.servers": "nowhere:1", "state.dir": str(tmp_path / "file")}
    with pytest.raises(ConfigError, match=r"/file.* couldn't be created: .*; check state.dir"):
        KafkaStreams("my_app:topology", config)


def test_the_state_of_tasks_that_moved_away_is_deleted(
    streams: MakeStreams, conductor: Conductor, tmp_path: Path
) -> None:
    (tmp_path / "app" / "0_5" / "stores").mkdir(parents=True)
    app = streams(**{"state.cleanup.delay.ms": 1})
    app.start()
    conductor.running(1)
    until(lambda: not (tmp_path / "app" / "0_5").exists())


def test_all_state_can_be_deleted_while_nothing_runs(
    streams: MakeStreams, conductor: Conductor, tmp_path: Path
) -> None:
    state = tmp_path / "app" / "0_1" / "stores"
    state.mkdir(parents=True)
    app = streams()
    app.start()
    conductor.running(1)
    with pytest.raises(StreamsError, match=r"close\(\) it first"):
        app.clean_up()
    assert state.exists()
    app.close()
    app.clean_up()
    assert not state.exists()


def test_outdated_state_is_deleted_before_the_start(streams: MakeStreams, conductor: Conductor, tmp_path: Path) -> None:
    for task, age in (("0_1", 5_000), ("0_2", 0)):
        (tmp_path / "app" / task / "stores").mkdir(parents=True)
        os.utime(tmp_path / "app" / task, (time.time() - age,) * 2)
    app = streams(**{"state.cleanup.dir.max.age.ms": 3_600_000})
    app.start()
    assert [(tmp_path / "app" / task).exists() for task in ("0_1", "0_2")] == [False, True]
    conductor.running(1)


def test_required_keys_are_checked_first() -> None:
    with pytest.raises(ConfigError, match=r"missing: bootstrap\.servers"):
        KafkaStreams("my_app:topology", {"application.id": "app"})


def test_the_supervisor_loads_no_kafka_client() -> None:
    check = "import sys, penstock.cli; print(*{'confluent_kafka', 'kafka'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, check=True).stdout == b"\n"


# -- how a topology reaches other processes


def test_a_topology_built_here_is_sent_with_its_functions() -> None:
    secret = "closed over"
    builder = StreamsBuilder()
    builder.stream("in").map_values(lambda value: value + secret).to("out")
    source = TopologySource.of(builder.build())
    described = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; print(pickle.load(sys.stdin.buffer).load().describe())"],
        input=pickle.dumps(source),
        capture_output=True,
        check=True,
    )
    assert b"topics: [in]" in described.stdout


def test_the_error_for_a_topology_that_cannot_be_pickled_says_what_to_do() -> None:
    lock = threading.Lock()
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda key, value: lock.locked()).to("out")
    with pytest.raises(TopologyError, match="give KafkaStreams the reference 'module:attribute'"):
        TopologySource.of(builder.build())


@pytest.mark.parametrize("text", ["my_app", "my_app:", "my-app:topology", ":topology", "my_app.py:topology!"])
def test_a_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(TopologyError, match="is not of the form module:attribute"):
        TopologySource.of(text)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("basic.py:topology", " names a file, not a module: leave .py out and write basic:topology."),
        ("apps/basic.py", ": leave .py out and write apps.basic:topology."),
        ("my-app:topology", ": a Python name has no '-'."),
        ("apps/basic:topology", ": a Python name has no '/'; folders are separated by '.'."),
        ("basic:my topology", ": a Python name has no ' '."),
    ],
)
def test_the_error_for_a_reference_in_another_tools_form_shows_the_right_one(
    tmp_path: Path, text: str, hint: str
) -> None:
    (tmp_path / "basic.py").write_text("topology = 1\n")
    command = [sys.executable, "-m", "penstock.cli", "describe", text]
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.TOPOLOGY
    assert ended.stderr.rstrip().endswith(hint)


def test_a_reference_may_name_a_builder_a_topology_or_a_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "forms_app.py").write_text(
        "from penstock.topology.declare.streams_builder import StreamsBuilder\n"
        "builder = StreamsBuilder()\nbuilder.stream('in').to('out')\n"
        "def topology():\n    other = StreamsBuilder()\n    other.stream('in').to('out')\n    return other.build()\n"
        "ready = topology()\n"
        "class Apps:\n    delays = ready\n"
        "def broken():\n    return {}['missing']\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != ""])
    for attribute in ("builder", "topology", "ready", "Apps.delays"):
        assert "topics: [in]" in str(TopologySource.of(f"forms_app:{attribute}").load().describe())
    with pytest.raises(TopologyLoadError, match=r"KeyError: 'missing' \(.*forms_app.py:12\)"):
        TopologySource.of("forms_app:broken").load()
