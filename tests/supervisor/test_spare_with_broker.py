"""The spare process on a real broker: the partitions of a killed stream thread continue in less than a second."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
from broker_stage import ROOT, Counting, commit_of_all, produce, read_until, replaced, shared_by, tasks, wait_for_line

from penstock import KafkaStreams
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.processes import spare_process
from penstock.supervisor.processes.worker import ThreadStatus
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker

READY = re.compile(r"Process (\d+) is ready")


def ready(text: str) -> list[int]:
    return [int(pid) for pid in READY.findall(text)]


def has_spare_processes(caplog: pytest.LogCaptureFixture, count: int) -> bool:
    return len(ready(caplog.text)) >= count


def has_tasks_again(streams: KafkaStreams, victim: ThreadStatus, before: dict[int, set[str]]) -> bool:
    return replaced(streams.status(), victim, before)


@pytest.mark.slow
def test_the_partitions_of_a_killed_process_continue_soon(
    counting: Counting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_process, "QUIET_MS", 0)
    counting.config["penstock.worker.restart.backoff.ms"] = 1  # before the second one
    counting.produce(3)
    with caplog.at_level(logging.INFO), counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        counting.wait_for_all_counts()
        for kill in range(2):  # the second time, the process that was the spare one
            eventually(partial(has_spare_processes, caplog, kill + 1), "a spare process is ready")
            before, victim = tasks(streams.status()), streams.status()[0]
            commit_of_all(counting)
            os.kill(victim.pid, signal.SIGKILL)
            counting.produce(1)
            counting.wait_for_all_counts()
            eventually(partial(has_tasks_again, streams, victim, before), "it has its tasks again")
            assert streams.status()[0].pid in ready(caplog.text)
        assert streams.status()[0].restarts == 2
    assert streams.exit_code is ExitCode.OK


def test_the_spare_process_of_a_script_with_own_functions_ends_with_it(
    bootstrap_servers: str, application_id: str, make_topic: Callable[..., str], tmp_path: Path
) -> None:
    source, sink = make_topic("in"), make_topic("out")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(f"""\
            import logging
            from penstock import KafkaStreams, Serdes, StreamsBuilder
            from penstock.supervisor.processes import spare_process

            def loud(value):
                return value.upper() + "!"

            if __name__ == "__main__":
                logging.basicConfig(level=logging.INFO)
                spare_process.QUIET_MS = 0
                text = Serdes.string()
                builder = StreamsBuilder()
                stream = builder.stream({source!r}, key_serde=text, value_serde=text)
                stream.map_values(loud).to({sink!r}, key_serde=text, value_serde=text)
                config = {{
                    "application.id": {application_id!r},
                    "bootstrap.servers": {bootstrap_servers!r},
                    "state.dir": {str(tmp_path / "state")!r},
                    "commit.interval.ms": 100,
                }}
                with KafkaStreams(builder.build(), config) as streams:
                    streams.run()
            """)
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, script], env=environment, stderr=subprocess.PIPE, text=True)
    try:
        log = wait_for_line(process, "is ready to replace")
        (first,) = re.findall(r"as process (\d+)\n", log)
        os.kill(int(first), signal.SIGKILL)
        log = wait_for_line(process, "is ready to replace")
        assert f"as process {ready_pid(log, 'as process')}, which was ready" in log
        produce(bootstrap_servers, source, "hello")
        assert read_until(bootstrap_servers, sink, "HELLO!")[-1] == "HELLO!"
        children = psutil.Process(process.pid).children()
        assert ready(log)[-1] in [child.pid for child in children]
        process.kill()
        assert not psutil.wait_procs(children, PATIENCE_SECONDS)[1]
    finally:
        process.kill()
        process.communicate()


def ready_pid(log: str, before: str) -> int:
    match = re.search(rf"{before} (\d+), which was ready", log)
    assert match is not None, log
    return int(match[1])
