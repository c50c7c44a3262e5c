"""Real stream threads on a real broker: tasks are shared, return after a kill, and move when threads are added or
removed.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from broker_stage import KEYS, PARTITIONS, App, Counting, commit_of_all, replaced, shared_by, tasks, wait_for_line
from confluent_kafka import Producer

from penstock import KafkaStreams, Serdes, StreamsBuilder
from penstock.supervisor.application_state import ApplicationState as State
from penstock.supervisor.exit_codes import ExitCode
from penstock.supervisor.processes.uncaught_exception import StreamsUncaughtExceptionHandlerResponse
from penstock.supervisor.queries.metric import by_name
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.broker
PATIENCE = timedelta(seconds=PATIENCE_SECONDS)


def test_two_stream_threads_share_the_tasks_and_end_cleanly(counting: Counting) -> None:
    counting.produce(5)
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        eventually(lambda: streams.state is State.RUNNING, "the application runs")
        counting.wait_for_all_counts()
        counts = streams.store("counts", timeout=PATIENCE)
        assert counts.get("key-7") == 5
        assert dict(counts.all()) == counting.expected
        assert streams.store("counts", timestamped=True, timeout=PATIENCE).get("key-7").value == 5
        assert by_name(streams.metrics(), "alive-stream-threads") == [2]
        streams.close(leave_group=True)  # the second one would keep its tasks until its session ends
    assert streams.exit_code is ExitCode.OK
    counting.produce(1)
    with counting.streams(1) as again:  # it continues from the committed offsets, with the state on disk
        again.start()
        counting.wait_for_all_counts()


def test_a_killed_process_gets_its_tasks_back_and_the_others_keep_theirs(
    counting: Counting, caplog: pytest.LogCaptureFixture
) -> None:
    counting.produce(3)
    with counting.streams(2) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        counting.wait_for_all_counts()
        eventually(lambda: sum(thread.lag for thread in streams.status()) == 0, "nothing is left to read")
        before = tasks(streams.status())
        one, two = streams.status()
        commit_of_all(counting)
        with caplog.at_level(logging.INFO):
            os.kill(one.pid, signal.SIGKILL)
            counting.produce(1)  # half of it for the new process
            counting.wait_for_all_counts()
        eventually(lambda: replaced(streams.status(), one, before), "the process is replaced and has its tasks again")
        assert streams.status()[0].restarts == 1
        assert streams.status()[1].pid == two.pid
        counting.produce(2)
        counting.wait_for_all_counts()
    assert streams.exit_code is ExitCode.OK
    others = [line.message for line in caplog.records if f"{two.name}]" in line.message]
    assert not [
        line for line in others if "State transition" in line or "(Re-)joining" in line
    ]  # processing did not stop there


def test_tasks_move_when_stream_threads_are_added_and_removed(counting: Counting) -> None:
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 1), "one thread has all tasks")
        counting.produce(2)
        name = streams.add_stream_thread()
        assert name is not None
        assert name.endswith("-StreamThread-2")
        eventually(lambda: shared_by(streams, 2), "two threads share the tasks")
        counting.produce(2)
        assert streams.remove_stream_thread() == name
        eventually(lambda: shared_by(streams, 1), "one thread has all tasks again")
        counting.produce(2)
        counting.wait_for_all_counts()
    assert streams.exit_code is ExitCode.OK


def let_it_run(streams: KafkaStreams) -> None:
    """Wait for many times the duration of a record."""
    before = streams.status()[0].uptime_seconds
    eventually(lambda: streams.status()[0].uptime_seconds > before + 1.5, "time passes")


def test_a_paused_application_resumes_where_it_was(counting: Counting) -> None:
    with counting.streams(1) as streams:
        streams.start()
        eventually(lambda: shared_by(streams, 1), "one thread has all tasks")
        counting.produce(1)
        counting.wait_for_all_counts()
        streams.pause()  # returns when it has taken effect
        assert streams.is_paused
        counting.produce(1)
        let_it_run(streams)
        assert streams.status()[0].records_processed == KEYS
        streams.resume()
        counting.wait_for_all_counts()


def test_one_instance_shuts_down_the_application_on_all_hosts(counting: Counting, tmp_path: Path) -> None:
    builder = StreamsBuilder()
    stream = builder.stream(counting.source, key_serde=Serdes.string(), value_serde=Serdes.string())
    stream.filter(lambda _key, value: 1 / len(value) > 0).to(
        counting.sink, key_serde=Serdes.string(), value_serde=Serdes.string()
    )
    topology = builder.build()
    hosts = [KafkaStreams(topology, counting.config | {"state.dir": str(tmp_path / host)}) for host in ("a", "b")]
    for host in hosts:
        host.set_uncaught_exception_handler(lambda _: StreamsUncaughtExceptionHandlerResponse.SHUTDOWN_APPLICATION)
    with hosts[0], hosts[1]:
        for host in hosts:
            host.start()
        eventually(lambda: all(shared_by(host, 1, PARTITIONS // 2) for host in hosts), "both hosts have tasks")
        producer = Producer({"bootstrap.servers": counting.bootstrap_servers})
        producer.produce(counting.source, key="poison", value="")
        assert producer.flush(PATIENCE_SECONDS) == 0
        eventually(lambda: all(host.state is State.ERROR for host in hosts), "both hosts have shut down")
    assert {host.exit_code for host in hosts} == {ExitCode.FAILED}


def test_the_command_runs_a_topology_until_sigterm(counting: Counting, tmp_path: Path) -> None:
    (tmp_path / "counting_app.py").write_text(
        "from penstock import Serdes, StreamsBuilder\n"
        "builder = StreamsBuilder()\n"
        f"stream = builder.stream({counting.source!r}, key_serde=Serdes.string(), value_serde=Serdes.string())\n"
        "counts = stream.group_by_key().count(store='counts').to_stream()\n"
        f"counts.to({counting.sink!r}, key_serde=Serdes.string(), value_serde=Serdes.int64())\n"
    )
    (tmp_path / "penstock.toml").write_text("\n".join(f'"{key}" = "{value}"' for key, value in counting.config.items()))
    counting.produce(2)
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock.cli",
            "run",
            "counting_app:builder",
            "--config",
            "penstock.toml",
            "--threads",
            "2",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for_line(process, "REBALANCING to RUNNING (penstock.supervisor.supervisor)")
        counting.wait_for_all_counts()
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK, log
    # The second thread may join just when it is asked to end: then REBALANCING precedes PENDING_SHUTDOWN.
    for change in (" to PENDING_SHUTDOWN", "PENDING_SHUTDOWN to NOT_RUNNING"):
        assert f"{change} (penstock.supervisor.supervisor)" in log


def test_the_supervisor_loads_neither_a_kafka_client_nor_rocksdb(app: App, make_topic: Callable[..., str]) -> None:
    topic = make_topic("in")
    app.module(f"topology = StreamsBuilder()\ntopology.table({topic!r}, key_serde=TEXT, value_serde=TEXT, store='t')\n")
    process = app.start(threads=1, penstock_worker_spare="false")  # a spare process loads less
    wait_for_line(process, "State transition from REBALANCING to RUNNING")
    loaded = Path(f"/proc/{process.pid}/maps").read_text()
    worker = psutil.Process(process.pid).children()[-1]
    loaded_there = Path(f"/proc/{worker.pid}/maps").read_text()
    assert "rocksdict" in loaded_there  # to check that the names below are right
    assert "confluent_kafka" in Path("/proc/self/maps").read_text()
    assert "rocksdict" not in loaded
    for kafka in ("confluent_kafka", "librdkafka"):
        assert kafka not in loaded
        assert kafka not in loaded_there, "with default settings Penstock's own client reads, writes and asks"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == ExitCode.OK
